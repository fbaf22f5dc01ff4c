"""Models of the requests about memories: bodies and query strings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from agentformer.api.models import AsOf, Cursor, Day, Limit, Moment, Name, Namespace, Text
from agentformer.api.request import ParameterModel, RequestModel
from agentformer.records.entry_json import EXPIRES, VALID_FROM, VALID_TO
from agentformer.records.fields import MAX_CONTENT, MAX_NAME, MAX_SOURCE_ID
from agentformer.types import RESERVED_KINDS, Tier

_MAX_HITS = 1000
_MAX_ITEMS = 1000  # of a batch, which is one transaction
_MAX_NAMES = 100  # in a condition of a search
_MAX_FILTER = 10_000  # characters of a filter in a query string
_MAX_TOKENS = 10_000_000

# No maxLength: generators of test data would make texts of this length.
Content = Annotated[Text, Field(description=f"The text, with at most {MAX_CONTENT} characters.")]
Word = Annotated[str, Field(max_length=MAX_NAME)]
Kind = Annotated[Name, Field(json_schema_extra={"not": {"enum": sorted(RESERVED_KINDS)}})]
Share = Annotated[float, Field(ge=0, le=1)]
Metadata = Annotated[dict[str, Any], Field(max_length=100)]
Names = Annotated[list[Name], Field(max_length=_MAX_NAMES)]
SourceId = Annotated[Text, Field(max_length=MAX_SOURCE_ID)]
Tiers = Annotated[list[Tier], Field(max_length=_MAX_NAMES)]
OccurredFrom = Annotated[Moment | None, Field(description="Only entries that happened at this time or later.")]
OccurredTo = Annotated[Moment | None, Field(description="Only entries that happened before this time.")]
_TIME = "The time of an entry is when its event happened, or when the entry was stored if no event is known."
Since = Annotated[Day | None, Field(description=f"Only entries from this day (UTC) or this time on. {_TIME}")]
Until = Annotated[
    Day | None, Field(description="Only entries before this time. A date without a time includes that day (UTC).")
]
MinSalience = Annotated[
    Share,
    Field(description="Only entries whose salience (0 to 1), which decreases with time, is now at least this value."),
]
IncludeArchived = Annotated[
    bool, Field(description="Also return archived entries, such as summarized messages, and entries that do not hold.")
]
_OCCURRED = "The time of the event, in ISO 8601 with a time zone."
_RECORD: JsonDict = {"dependentRequired": {"source_type": ["source_id"], "source_id": ["source_type"]}}
# This schema only documents the messages: `memory.context` validates them, with better error texts.
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
    "description": "The conversation so far, in the format of chat APIs. By default, the last messages of the session.",
}


_FILTER = (
    'A filter: `{"type": "gte", "key": "year", "value": 2026}`, or `{"type": "and", "filters": [...]}`. The types of '
    "conditions are `eq`, `ne`, `gt`, `gte`, `lt`, `lte`, `in`, `nin` and `exists`. The types of groups are `and`, "
    "`or` and `not`. A key is a metadata key, or `$` and a field, such as `$kind` (docs/MEMORY.md)."
)
Where = Annotated[dict[str, Any] | None, Field(description=_FILTER)]


class NamespaceBody(RequestModel):
    """A body with a namespace."""

    namespace: Namespace = None


class BlockOwner(NamespaceBody):
    """The owner of a core block: an agent, a user, an agent and a user, or nobody."""

    agent_id: Name | None = None
    user_id: Name | None = None


class MemoryPlace(BlockOwner):
    """The owner, the session and the project of a memory. In a search, a field that is left out matches every value."""

    session_id: Name | None = None
    project: Name | None = None


class _NewEntry(MemoryPlace):
    model_config = ConfigDict(json_schema_extra=_RECORD)

    occurred_at: Moment | None = Field(default=None, description=_OCCURRED)
    valid_from: Moment | None = Field(default=None, description=VALID_FROM)
    valid_to: Moment | None = Field(default=None, description=VALID_TO)
    expires_at: Moment | None = Field(default=None, description=EXPIRES)
    metadata: Metadata | None = Field(
        default=None,
        description="A JSON object. If it contains a list `aliases`, searches also find the entry by these names.",
    )
    speaker: Word = ""
    source_type: Name | None = Field(
        default=None,
        description="The type of a record of the host application. The entry replaces earlier entries of this record. "
        "The type `openai_vector_store` is reserved.",
    )
    source_id: SourceId | None = Field(default=None, description="The id of the record of the host application.")
    pair_id: Name | None = None
    parent_id: Name | None = Field(
        default=None,
        description="The id of the parent entry. If the parent has the same user and project and is deleted, this "
        "entry is deleted too.",
    )


class NewMemory(_NewEntry):
    """A memory to store."""

    content: Content = Field(examples=["Aino prefers tea."])
    tier: Tier = "semantic"
    kind: Kind = Field(default="fact", description="`fact`, `preference`, `decision`, `error`, or any other word.")
    title: str = ""
    category: Word = Field(
        default="",
        description="The category decides how fast the salience decreases: `decisions`, `summaries` or `context`.",
    )
    salience: Share = Field(default=1.0, description="The importance, from 0 to 1.")
    verbatim: bool = Field(
        default=False,
        description="If true, store the text unchanged. A text that repeats a prompt may contain stored memories, in "
        "the marks with which a context encloses them. By default, these memories are removed from the text.",
    )
    searchable: bool = Field(default=True, description="If false, the entry is stored, but no search returns it.")


class NewMemories(RequestModel):
    """Memories to store in one transaction."""

    items: Annotated[
        list[NewMemory],
        Field(min_length=1, max_length=_MAX_ITEMS, examples=[[{"content": "Aino prefers tea."}]]),
    ]


class NewMessage(_NewEntry):
    """A message of a session."""

    session_id: Name
    role: Literal["user", "assistant", "system", "tool"]
    content: Content


class MemoryChange(RequestModel):
    """New values for the fields of a memory. A field that is left out keeps its value."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    # Factories keep defaults out of the schema: a client that fills defaults in would overwrite stored values.
    content: Content = Field(default_factory=str)
    title: str = Field(default_factory=str)
    kind: Kind = Field(default_factory=str)
    category: Word = Field(default_factory=str)
    salience: Share = Field(default_factory=float)
    speaker: Word = Field(default_factory=str)
    metadata: Metadata | None = Field(
        default_factory=dict, description="The new metadata, which replace all metadata of the entry."
    )
    occurred_at: Moment | None = Field(default_factory=str, description=_OCCURRED)
    valid_from: Moment | None = Field(default_factory=str, description=VALID_FROM)
    valid_to: Moment | None = Field(default_factory=str, description=VALID_TO)
    expires_at: Moment | None = Field(default_factory=str, description=EXPIRES)
    project: Name | None = Field(default_factory=str)


class MemorySearch(MemoryPlace):
    """The text of a search, and filters for the results."""

    text: Text = Field(
        description="A question, or words to search for. The setting `max_question_chars` limits the length.",
        examples=["What does Aino drink?"],
    )
    limit: Annotated[int, Field(ge=1, le=_MAX_HITS)] = 10
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    min_score: float = 0.0
    relevant_only: bool = Field(
        default=False,
        description="If true, leave out hits that are similar to `text` but probably not relevant.",
    )
    tiers: Tiers = Field(default=[])
    kinds: Names = Field(default=[])
    categories: Names = Field(default=[])
    metadata: Metadata | None = Field(default=None, description="Only entries with these values in their metadata.")
    where: Where = None
    noise_floor: float | None = Field(
        default=None,
        description="Leave out hits that contain no word of `text` and have a lower cosine similarity than this value, "
        "on a scale that is the same for all embedding models. Default: the setting `noise_floor`.",
    )
    occurred_from: OccurredFrom = None
    occurred_to: OccurredTo = None
    since: Since = None
    until: Until = None
    source_type: Name | None = None
    source_id: SourceId | None = None
    parent_id: Name | None = None
    min_salience: MinSalience = 0.0
    include_archived: IncludeArchived = False
    as_of: AsOf = None


class EntrySelection(NamespaceBody):
    """A selection of entries. Give exactly one of four: their `ids`, the `source_ids` under which an application stored
    them (with their `source_type`), a filter, or the user to whom they belong."""

    ids: Annotated[list[Name], Field(max_length=_MAX_ITEMS)] = Field(default=[])
    source_type: Name | None = None
    source_ids: Annotated[list[SourceId], Field(max_length=_MAX_ITEMS)] = Field(default=[])
    where: Where = None
    user_id: Name | None = Field(
        default=None,
        description="Delete everything that belongs to this user: memories, documents with their files, upload jobs.",
    )


class EntryCount(MemoryPlace):
    """The filters that select the entries to count."""

    tiers: Tiers = Field(default=[])
    kinds: Names = Field(default=[])
    categories: Names = Field(default=[])
    metadata: Metadata | None = Field(default=None, description="Only entries with these values in their metadata.")
    where: Where = None
    include_archived: IncludeArchived = False
    as_of: AsOf = None


class ContextRequest(MemoryPlace):
    """The task and the conversation for which a context is built."""

    task: str = Field(default="", description="The task for the language model.")
    conversation: Annotated[list[Any], WithJsonSchema(_CONVERSATION)] = Field(default_factory=list)
    max_tokens: Annotated[int, Field(ge=1, le=_MAX_TOKENS)] | None = Field(
        default=None,
        description="The maximum number of tokens. The default is the server's setting `context_tokens`.",
    )
    as_of: AsOf = None


class CleaningRequest(NamespaceBody):
    """The sessions whose older messages are summarized: one session, or all sessions of the namespace."""

    session_id: Name | None = Field(
        default=None, description="The session to summarize. By default, all sessions of the namespace are summarized."
    )


class LearningRequest(NamespaceBody):
    """The messages from which facts are learnt: of one session, or of all sessions of the namespace."""

    session_id: Name | None = Field(
        default=None, description="The session to read. By default, all sessions of the namespace are read."
    )
    messages: list[Name] = Field(
        default=[], max_length=1_000, description="The ids of messages to read, also if they were read before."
    )
    user_id: Name | None = Field(default=None, description="Read only messages of this user.")
    project: Name | None = Field(default=None, description="Read only messages of this project.")
    dry_run: bool = Field(default=False, description="Report the facts, and store nothing.")


class UndoLearningRequest(RequestModel):
    """The run of learning to undo."""

    run: Name = Field(description="The id of the run, which the report of the run has as `run`.")


class RestoreRequest(RequestModel):
    """The entry to restore. For a summary, its original messages are restored."""

    summary_id: Name = Field(
        description="The id of a summary, or of an entry that was superseded or archived, or has expired."
    )


class BlockAddition(BlockOwner):
    """A line to append to a core block. Core blocks are named texts that are part of every context."""

    text: Content


class BlockReplacement(BlockOwner):
    """A text in a core block, and the new text that replaces it."""

    old: Annotated[str, Field(min_length=1)] = Field(
        description="The exact text to replace. It must occur exactly once in the block."
    )
    new: str = Field(description="The new text. An empty text deletes the old text.")


class NamespaceQuery(ParameterModel):
    """A query string with a namespace."""

    namespace: Namespace = None


class ExportQuery(NamespaceQuery):
    """A query string with the user whose memories and documents are exported."""

    user_id: Name


class BlocksQuery(NamespaceQuery):
    """A query string with the owner of core blocks."""

    agent_id: Name | None = None
    user_id: Name | None = None


class ProfileQuery(NamespaceQuery):
    """A query string with the user whose profile is built."""

    user_id: Name
    agent_id: Name | None = None
    project: Name | None = None
    max_tokens: int = Field(default=1_000, ge=1, le=1_000_000, description="The largest number of tokens of the texts.")


class TranscriptQuery(NamespaceQuery):
    """A query string with the session whose messages are listed."""

    session_id: Name


class EntriesQuery(BlocksQuery):
    """A query string that selects entries. `tier`, `kind` and `category` may be given several times."""

    tier: Tiers = Field(default=[])
    kind: Names = Field(default=[])
    category: Names = Field(default=[])
    session_id: Name | None = None
    project: Name | None = None
    source_type: Name | None = None
    source_id: SourceId | None = None
    parent_id: Name | None = None
    occurred_from: OccurredFrom = None
    occurred_to: OccurredTo = None
    since: Since = None
    until: Until = None
    min_salience: MinSalience = 0.0
    include_archived: IncludeArchived = False
    as_of: AsOf = None
    where: str | None = Field(default=None, max_length=_MAX_FILTER, description=f"{_FILTER} As JSON.")
    limit: Limit = 100
    after: Cursor = ""
