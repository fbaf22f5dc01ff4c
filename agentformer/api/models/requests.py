"""Request models of memories: bodies and query strings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from agentformer.api.models import NOT_BLANK, Cursor, Limit, Name, Namespace
from agentformer.api.models.memory import Moment
from agentformer.api.request import ParameterModel, RequestModel
from agentformer.records.fields import MAX_CONTENT, MAX_NAME
from agentformer.types import UNSEARCHED_KINDS, Tier

_MOST_HITS = 1000
_MOST_ITEMS = 1000  # of a batch, which is one transaction
_MOST_NAMES = 100  # in a condition of a search
_MOST_TOKENS = 10_000_000

# No maxLength: generators of test data would fill it.
Content = Annotated[str, Field(min_length=1, pattern=NOT_BLANK, description=f"At most {MAX_CONTENT} characters.")]
Word = Annotated[str, Field(max_length=MAX_NAME)]
Kind = Annotated[Name, Field(json_schema_extra={"not": {"enum": sorted(UNSEARCHED_KINDS)}})]
Share = Annotated[float, Field(ge=0, le=1)]
Metadata = Annotated[dict[str, Any], Field(max_length=100)]
Names = Annotated[list[Name], Field(max_length=_MOST_NAMES)]
Tiers = Annotated[list[Tier], Field(max_length=_MOST_NAMES)]
_OCCURRED = "When it happened: ISO 8601 with a time zone."
_RECORD: JsonDict = {"dependentRequired": {"source_type": ["source_id"], "source_id": ["source_type"]}}
# Only documented here: `memory.context` validates messages with better error texts.
_CONVERSATION = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["system", "user", "assistant", "tool"]},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type"],
                            "properties": {"type": {"type": "string"}, "text": {"type": "string"}},
                        },
                    },
                ]
            },
        },
    },
    "description": "The conversation so far, in the format of chat servers. Default: the last messages of the session.",
}


class BlockOwner(RequestModel):
    """The owner of a core block."""

    namespace: Namespace = None
    agent_id: Name | None = None
    user_id: Name | None = None


class MemoryPlace(BlockOwner):
    """The owner of a memory. A field that is left out does not restrict a search."""

    session_id: Name | None = None
    project: Name | None = None


class _NewEntry(MemoryPlace):
    model_config = ConfigDict(json_schema_extra=_RECORD)

    occurred_at: Moment | None = Field(default=None, description=_OCCURRED)
    metadata: Metadata | None = Field(
        default=None, description="JSON of the caller. A list under `aliases` holds other names to find the entry by."
    )
    speaker: Word = ""
    source_type: Name | None = Field(
        default=None,
        description="The type of a record of the host application. Former entries of the record are replaced.",
    )
    source_id: Name | None = Field(default=None, description="The id of that record.")
    pair_id: Name | None = None
    parent_id: Name | None = Field(default=None, description="The entry with which this entry is deleted.")


class NewMemory(_NewEntry):
    """A memory to store."""

    content: Content = Field(examples=["Aino prefers tea."])
    tier: Tier = "semantic"
    kind: Kind = Field(default="fact", description="fact, preference, decision, error, or any other word.")
    title: str = ""
    category: Word = Field(default="", description="Decides how salience decays: decisions, summaries, context.")
    salience: Share = Field(default=1.0, description="Importance, 0 to 1.")


class NewMemories(RequestModel):
    """Memories to store in one transaction."""

    items: Annotated[list[NewMemory], Field(min_length=1, max_length=_MOST_ITEMS)]


class NewMessage(_NewEntry):
    """A message of a session."""

    session_id: Name
    role: Literal["user", "assistant", "system", "tool"]
    content: Content


class MemoryChange(RequestModel):
    """New values of fields. A field that is left out stays."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    # Factories keep defaults out of the schema: a client that fills defaults in would overwrite stored values.
    content: Content = Field(default_factory=str)
    title: str = Field(default_factory=str)
    kind: Kind = Field(default_factory=str)
    category: Word = Field(default_factory=str)
    salience: Share = Field(default_factory=float)
    speaker: Word = Field(default_factory=str)
    metadata: Metadata | None = Field(default_factory=dict, description="Replaces all metadata of the entry.")
    occurred_at: Moment | None = Field(default_factory=str, description=_OCCURRED)
    project: Name | None = Field(default_factory=str)


class MemorySearch(MemoryPlace):
    """A search: a text and a scope."""

    text: Annotated[str, Field(min_length=1, pattern=NOT_BLANK)] = Field(
        description="A question or words. The setting `max_question_chars` limits its length.",
        examples=["What does Aino drink?"],
    )
    limit: Annotated[int, Field(ge=1, le=_MOST_HITS)] = 10
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    min_score: float = 0.0
    relevant_only: bool = Field(default=False, description="Leave out hits that are only similar to the text.")
    tiers: Tiers = Field(default=[])
    kinds: Names = Field(default=[])
    categories: Names = Field(default=[])
    metadata: Metadata | None = Field(default=None, description="Metadata that entries must have, by equality.")
    occurred_from: Moment | None = Field(default=None, description="Inclusive.")
    occurred_to: Moment | None = Field(default=None, description="Exclusive.")
    source_type: Name | None = None
    source_id: Name | None = None
    parent_id: Name | None = None
    min_salience: Share = Field(default=0.0, description="After decay.")
    include_archived: bool = Field(default=False, description="Include archived entries, such as summarized ones.")


class ContextRequest(MemoryPlace):
    """A context to build."""

    task: str = Field(default="", description="The task of the model.")
    conversation: Annotated[list[Any], WithJsonSchema(_CONVERSATION)] = Field(default_factory=list)
    max_tokens: Annotated[int, Field(ge=1, le=_MOST_TOKENS)] | None = Field(
        default=None, description="Default: the setting `context_tokens` of the server."
    )


class CleaningRequest(RequestModel):
    """Entries to summarize."""

    namespace: Namespace = None
    session_id: Name | None = Field(default=None, description="Only this session.")


class RestoreRequest(RequestModel):
    """A summary to undo, or a superseded entry to restore."""

    summary_id: Name = Field(description="The id of a summary, or of an entry that was superseded.")


class NamespaceBody(RequestModel):
    """A namespace in a body."""

    namespace: Namespace = None


class BlockAddition(BlockOwner):
    """A line to append to a core block, which is a named text in every context."""

    text: Content


class BlockReplacement(BlockOwner):
    """A correction of a core block."""

    old: Annotated[str, Field(min_length=1)] = Field(description="Text of the block, exact and unique.")
    new: str = Field(description="The new text; empty deletes the old text.")


class BlocksQuery(ParameterModel):
    """The owner of core blocks, as a query string."""

    namespace: Namespace = None
    agent_id: Name | None = None
    user_id: Name | None = None


class NamespaceQuery(ParameterModel):
    """A namespace in a query string."""

    namespace: Namespace = None


class TranscriptQuery(NamespaceQuery):
    """The session of a transcript."""

    session_id: Name


class EntriesQuery(BlocksQuery):
    """A scope of entries to list. `tier`, `kind` and `category` may be given several times."""

    tier: Tiers = Field(default=[])
    kind: Names = Field(default=[])
    category: Names = Field(default=[])
    session_id: Name | None = None
    project: Name | None = None
    source_type: Name | None = None
    source_id: Name | None = None
    parent_id: Name | None = None
    occurred_from: Moment | None = Field(default=None, description="Inclusive.")
    occurred_to: Moment | None = Field(default=None, description="Exclusive.")
    min_salience: Share = Field(default=0.0, description="After decay.")
    include_archived: bool = Field(default=False, description="Include archived entries, such as summarized ones.")
    limit: Limit = 100
    after: Cursor = ""
