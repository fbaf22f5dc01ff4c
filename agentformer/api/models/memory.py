"""Models of the responses about memories: entries, contexts, and reports of the cleaner and the audit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, get_type_hints

from pydantic import Field, create_model

from agentformer import types as records
from agentformer.api.models import Moment, Next, ResponseModel, fields_of
from agentformer.api.models.documents import Scores
from agentformer.memory import audit, contradictions, learning, memory_cleaner
from agentformer.memory.context import blocks as context
from agentformer.memory.learning import profile
from agentformer.records.entry_json import ENTRY_FIELDS
from agentformer.search import steps
from agentformer.types import MemoryEntry


class Source(fields_of(records.Source)):  # type: ignore[misc]
    """The place of a passage in a document. The `content` of the passage is the part of the page's text from `start` to
    `end`. These positions count Unicode code points."""


class Link(fields_of(records.Link)):  # type: ignore[misc]
    """A link to another entry. `type` is the relation, such as the relation of a summary to an original message."""


# Field types of `MemoryEntry` that JSON does not have, and the JSON types that replace them.
_JSON_TYPES: dict[Any, Any] = {
    datetime | None: Moment | None,
    records.Source | None: Source | None,
    tuple[records.Link, ...]: list[Link],
    Mapping[str, Any]: dict[str, Any],
}


def _entry_fields() -> dict[str, Any]:
    """Return the fields of the model `Entry` by name. A value is a type and a `Field` with the description."""
    types = get_type_hints(MemoryEntry)
    limits: dict[str, Any] = {"version": {"ge": 1}}
    return {
        field.name: (
            _JSON_TYPES.get(types[field.name], types[field.name]),
            Field(description=field.description or None, **limits.get(field.name, {})),
        )
        for field in ENTRY_FIELDS
    }


_EntryFields: Any = create_model("_EntryFields", __base__=ResponseModel, **_entry_fields())


class Entry(_EntryFields):  # type: ignore[misc] # its base is made at run time
    """Anything that is remembered: a fact, a message, a summary, or a passage of a document."""


class Original(fields_of(records.Original)):  # type: ignore[misc]
    """An archived message that a summary replaces, with its session, speaker and time."""


class MemoryHit(Entry, Scores):
    """An entry that a search returned, with its scores."""

    originals: list[Original] = Field(
        description="The originals of a summary that answer the query best; empty for other entries."
    )
    newer: str | None = Field(description=records.NEWER)


class Factor(fields_of(records.Factor)):  # type: ignore[misc]
    """One reason why a search by words and vectors gave the vectors more or less weight. The weight of the vectors is
    the product of all factors."""


class Move(fields_of(steps.Move)):  # type: ignore[misc]
    """A hit that a step moved among the hits that stayed. Ranks start at 1; `before` is 0 for a hit that an earlier
    step had left out."""


class StepChange(fields_of(steps.Change, moved=list[Move])):  # type: ignore[misc]
    """What a step of the search has changed after the ranked lists were combined."""


class MemoryHits(ResponseModel):
    """The results of a search. The best result comes first."""

    hits: list[MemoryHit]
    warnings: list[str] = Field(description="The parts of the search that failed, such as the search by vectors.")
    factors: list[Factor] = Field(description="The factors whose product is the weight of the vectors.")
    steps: list[StepChange] = Field(description="The steps of the search that changed the result, in their order.")


class Entries(ResponseModel):
    """A list of entries that were stored or restored."""

    entries: list[Entry]


class EntryNumber(ResponseModel):
    """The number of entries that a request counted or deleted."""

    count: int


class EntryPage(ResponseModel):
    """A page of the list of entries, in the order in which the entries were stored."""

    entries: list[Entry]
    next: Next


class Versions(ResponseModel):
    """The former versions of an entry. The oldest version comes first."""

    versions: list[Entry]


class Salience(ResponseModel):
    """The salience (importance) of an entry, and how it decreases while the entry is not used."""

    now: float = Field(ge=0, le=1)
    stored: float = Field(ge=0, le=1, description="The salience at the time `since`.")
    rate: float = Field(ge=0, le=1, description="The share that remains after each day; 1 means no decrease.")
    since: Moment | None = Field(description="The time of the last use, or of storing if the entry was never used.")
    used: bool = Field(description="False if the entry was never used.")


class Transcript(ResponseModel):
    """All messages of a session, in their original words and order. Messages that were summarized are included."""

    messages: list[Entry]


class Block(Entry):
    """A core block with its size."""

    tokens: int = Field(description="The number of tokens of the block.")
    limit: int = Field(description="The number of tokens that a block may have.")


class Blocks(ResponseModel):
    """Core blocks in the order of their names. The name of a block is its `title`."""

    blocks: list[Block]


class ContextMessage(ResponseModel):
    """A message in the format of chat APIs."""

    role: Literal["system", "user", "assistant"]
    content: str


class LeftOut(fields_of(context.LeftOut)):  # type: ignore[misc]
    """An item that is not in the context, with the reason. `id` is the id of an entry, or `task`, or `conversation[n]`
    for message n of the conversation (the first is 0)."""


_Ids = dict[str, list[str]]


class ContextReport(fields_of(context.ContextReport, included=_Ids, left_out=list[LeftOut])):  # type: ignore[misc]
    """The number of tokens of a context, and the entries that are included or left out. `budget` is the limit of
    tokens. `tokens` and `included` describe each share, which is a part of the context such as the conversation."""


class Context(ResponseModel):
    """Messages to send to a language model, and a report about these messages."""

    messages: list[ContextMessage]
    report: ContextReport


class CleaningReport(fields_of(memory_cleaner.CleaningReport)):  # type: ignore[misc]
    """The result of archiving expired entries and of summarizing older messages. `archived` is the number of original
    messages that were archived."""


class LearntFact(fields_of(learning.LearntFact, at=Moment | None)):  # type: ignore[misc]
    """A fact that was learnt from a message."""


class LearningReport(fields_of(learning.LearningReport, facts=list[LearntFact])):  # type: ignore[misc]
    """The result of learning facts from messages."""


class LearningRun(fields_of(learning.LearningRun, at=Moment | None)):  # type: ignore[misc]
    """A run of learning that has stored facts."""


class LearningRuns(ResponseModel):
    """The runs of learning in a namespace, newest first."""

    runs: list[LearningRun]


class UndoneLearning(fields_of(learning.UndoneLearning)):  # type: ignore[misc]
    """The result of undoing a run of learning."""


class ProfileItem(fields_of(profile.ProfileItem, at=Moment | None)):  # type: ignore[misc]
    """A statement of a profile."""


class ProfileGroup(fields_of(profile.ProfileGroup, items=list[ProfileItem])):  # type: ignore[misc]
    """The statements of a profile about one topic, newest first."""


class Profile(fields_of(profile.Profile, groups=list[ProfileGroup])):  # type: ignore[misc]
    """What holds now about a user."""


class Waiting(fields_of(records.Waiting)):  # type: ignore[misc]
    """An entry that has no vectors yet, with the number of attempts to compute the vectors and the last error."""


class Reindexed(ResponseModel):
    """The entries that still have no vectors. `pending` is the number of these entries."""

    pending: int
    waiting: list[Waiting] = Field(description="The first of these entries, at most 100.")


class Duplicates(fields_of(audit.Duplicates)):  # type: ignore[misc]
    """A group of equal or similar entries. The oldest entry comes first, and `excerpt` is the beginning of its
    content."""


class Unread(fields_of(audit.Unread)):  # type: ignore[misc]
    """Entries that no search returned and no caller read for `days` days. `count` is the number of these entries."""


class Contradiction(fields_of(contradictions.Contradiction)):  # type: ignore[misc]
    """Two sentences of core blocks or of facts that contradict each other. `about` is `number`, `date`, `negation` or
    `value`."""


class Oversized(fields_of(audit.Oversized)):  # type: ignore[misc]
    """A core block that has more tokens than the limit allows, or almost as many."""


_AuditFields: Any = fields_of(
    audit.AuditReport,
    duplicates=list[Duplicates],
    near_duplicates=list[Duplicates],
    unread=Unread,
    contradictions=list[Contradiction],
    oversized=list[Oversized],
)


class AuditReport(_AuditFields):  # type: ignore[misc]
    """The findings of an audit of a namespace. The audit changes nothing: a person decides what to do."""
