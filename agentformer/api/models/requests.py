"""What may be asked of memories: the bodies and query strings of their endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from agentformer.api.models.common import NOT_BLANK, Cursor, Limit, Name, Namespace
from agentformer.api.models.memory import Moment
from agentformer.api.request import ParameterModel, RequestModel
from agentformer.records.fields import MAX_CONTENT, MAX_NAME
from agentformer.types import UNSEARCHED_KINDS, Tier

_MOST_HITS = 1000
_MOST_ITEMS = 1000  # of a batch, which is one transaction
_MOST_NAMES = 100  # in a condition of a search
_MOST_TOKENS = 10_000_000

# How long it may be is only told: generators of test data try to fill a maxLength.
Content = Annotated[str, Field(min_length=1, pattern=NOT_BLANK, description=f"At most {MAX_CONTENT} characters.")]
Word = Annotated[str, Field(max_length=MAX_NAME)]
Kind = Annotated[Name, Field(json_schema_extra={"not": {"enum": sorted(UNSEARCHED_KINDS)}})]
Share = Annotated[float, Field(ge=0, le=1)]
Metadata = Annotated[dict[str, Any], Field(max_length=100)]
Names = Annotated[list[Name], Field(max_length=_MOST_NAMES)]
Tiers = Annotated[list[Tier], Field(max_length=_MOST_NAMES)]
_HAPPENED = "When it happened: ISO 8601 with a time zone."
_RECORD: JsonDict = {"dependentRequired": {"source_type": ["source_id"], "source_id": ["source_type"]}}
# Only told: what is wrong with a message of it is said by who reads it, in better words.
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
    "description": "What was said so far, as chat servers take it. Left out: the session's last messages.",
}


class Owned(RequestModel):
    """Whose a core block is."""

    namespace: Namespace = None
    agent_id: Name | None = None
    user_id: Name | None = None


class Placed(Owned):
    """Whose a memory is. What is not given is not asked for."""

    session_id: Name | None = None
    project: Name | None = None


class _Stored(Placed):
    model_config = ConfigDict(json_schema_extra=_RECORD)

    occurred_at: Moment | None = Field(default=None, description=_HAPPENED)
    metadata: Metadata | None = Field(
        default=None, description="JSON of your own; a list under `aliases` holds other names to find it by."
    )
    speaker: Word = ""
    source_type: Name | None = Field(
        default=None, description="A record of the host application: what it is. Its former entries are replaced."
    )
    source_id: Name | None = Field(default=None, description="Its id there.")
    pair_id: Name | None = None
    parent_id: Name | None = Field(default=None, description="What goes when the entry of this id goes.")


class NewMemory(_Stored):
    """Something to remember."""

    content: Content = Field(examples=["Aino prefers tea."])
    tier: Tier = "semantic"
    kind: Kind = Field(default="fact", description="fact, preference, decision, error, or a word of your own.")
    title: str = ""
    category: Word = Field(default="", description="How fast it fades: decisions, summaries, context.")
    salience: Share = Field(default=1.0, description="How much it matters.")


class NewMemories(RequestModel):
    """Much to remember: all of it, or nothing."""

    items: Annotated[list[NewMemory], Field(min_length=1, max_length=_MOST_ITEMS)]


class NewMessage(_Stored):
    """What was said in a session."""

    session_id: Name
    role: Literal["user", "assistant", "system", "tool"]
    content: Content


class Change(RequestModel):
    """What an entry says from now on. What is left out stays."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    # Made by factories, so that no default is told: a client that fills defaults in would overwrite what is there.
    content: Content = Field(default_factory=str)
    title: str = Field(default_factory=str)
    kind: Kind = Field(default_factory=str)
    category: Word = Field(default_factory=str)
    salience: Share = Field(default_factory=float)
    speaker: Word = Field(default_factory=str)
    metadata: Metadata | None = Field(default_factory=dict, description="In the place of all that is there.")
    occurred_at: Moment | None = Field(default_factory=str, description=_HAPPENED)
    project: Name | None = Field(default_factory=str)


class Wanted(Placed):
    """What is searched for, and where."""

    text: Annotated[str, Field(min_length=1, pattern=NOT_BLANK)] = Field(
        description="In plain words. How long it may be is a setting, `max_question_chars`.",
        examples=["What does Aino drink?"],
    )
    limit: Annotated[int, Field(ge=1, le=_MOST_HITS)] = 10
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    min_score: float = 0.0
    relevant_only: bool = Field(default=False, description="Leave out what only lies near the text.")
    tiers: Tiers = Field(default=[])
    kinds: Names = Field(default=[])
    categories: Names = Field(default=[])
    metadata: Metadata | None = Field(default=None, description="What entries must have, by equality.")
    occurred_from: Moment | None = Field(default=None, description="Inclusive.")
    occurred_to: Moment | None = Field(default=None, description="Exclusive.")
    source_type: Name | None = None
    source_id: Name | None = None
    parent_id: Name | None = None
    min_salience: Share = Field(default=0.0, description="After decay.")
    include_archived: bool = Field(default=False, description="Also what summaries stand for.")


class Task(Placed):
    """What a context is for."""

    task: str = Field(default="", description="What the model is to do now.")
    conversation: Annotated[list[Any], WithJsonSchema(_CONVERSATION)] = Field(default_factory=list)
    max_tokens: Annotated[int, Field(ge=1, le=_MOST_TOKENS)] | None = Field(
        default=None, description="Left out: as the server is set, `context_tokens`."
    )


class Cleaning(RequestModel):
    """What is summarised."""

    namespace: Namespace = None
    session_id: Name | None = Field(default=None, description="This conversation only.")


class Restoring(RequestModel):
    """What is brought back."""

    summary_id: Name = Field(description="The id of a summary, or of an entry that was superseded.")


class WithinNamespace(RequestModel):
    """Where."""

    namespace: Namespace = None


class Addition(Owned):
    """A line for a core block."""

    text: Content


class Replacement(Owned):
    """A correction of a core block."""

    old: Annotated[str, Field(min_length=1)] = Field(description="What the block says now, exactly, and once.")
    new: str = Field(description="What to put there; empty takes it out.")


class BlocksAsked(ParameterModel):
    """Whose core blocks."""

    namespace: Namespace = None
    agent_id: Name | None = None
    user_id: Name | None = None


class NamespaceAsked(ParameterModel):
    """Where."""

    namespace: Namespace = None


class TranscriptAsked(NamespaceAsked):
    """Of which session."""

    session_id: Name


class EntriesAsked(BlocksAsked):
    """Which entries are listed. `tier`, `kind` and `category` may be given several times."""

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
    include_archived: bool = Field(default=False, description="Also what summaries stand for.")
    limit: Limit = 100
    after: Cursor = ""
