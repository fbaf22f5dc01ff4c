"""Memories as they go out: every field of an entry, and what the calls that look after memories tell."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from agentformer.api.models.common import ResponseModel
from agentformer.api.models.documents import Scores
from agentformer.types import Tier

Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-11-20T09:30:00+00:00"])]
_NEXT = Field(description="What `after` takes to go on; null at the end.")


class Source(ResponseModel):
    """Where the text of a passage stands: `content` is the text of its page from `start` to `end`, in code points."""

    document_id: str
    name: str
    page: int | None
    label: str
    start: int
    end: int


class Link(ResponseModel):
    """A typed link to another entry, such as from a summary to an original."""

    id: str
    type: str


class Entry(ResponseModel):
    """Everything remembered: a fact, a message, a summary, a passage of a document."""

    id: str
    content: str
    tier: Tier
    kind: str
    namespace: str
    session_id: str | None
    agent_id: str | None
    user_id: str | None
    project: str | None
    title: str
    context: str = Field(description="What helps to find it, beside its content.")
    metadata: dict[str, Any]
    source: Source | None = Field(description="Of a part of a document.")
    source_type: str | None = Field(description="A record of the host application: what it is,")
    source_id: str | None = Field(description="and its id there.")
    parent_id: str | None
    pair_id: str | None
    derived_from: list[Link]
    role: str = Field(description="Of a message: user, assistant, system, tool.")
    speaker: str = Field(description="Of a message: who said it.")
    raw: str | None = Field(description="A message as it came, where `content` is not the same.")
    category: str = Field(description="Decides how salience decays.")
    occurred_at: Moment | None
    created_at: Moment | None
    updated_at: Moment | None
    last_accessed: Moment | None
    access_count: int = Field(description="Every use.")
    match_count: int = Field(description="Times among the results of a search.")
    read_count: int = Field(description="Times given to a model, or marked as read.")
    repeat_count: int = Field(description="Times that the same was stored again.")
    salience: float = Field(description="As stored, 0 to 1.")
    archived_at: Moment | None
    archived_by: str | None = Field(description="The summary that stands for this entry.")
    superseded_by: str | None
    version: int = Field(ge=1)


class MemoryHit(Entry, Scores):
    """An entry that was found, and how well it fits."""


class Found(ResponseModel):
    """What was found, best first."""

    hits: list[MemoryHit]
    warnings: list[str] = Field(description="What the search could not do, in plain words.")


class Entries(ResponseModel):
    """All entries that were stored or brought back, in their order."""

    entries: list[Entry]


class PageOfEntries(ResponseModel):
    """Some of the entries, in the order of storing."""

    entries: list[Entry]
    next: str | None = _NEXT


class Versions(ResponseModel):
    """Former states of an entry, oldest first."""

    versions: list[Entry]


class Transcript(ResponseModel):
    """A session's messages as they were said, in order, summarised or not."""

    messages: list[Entry]


class Blocks(ResponseModel):
    """Core blocks, in order of their names, which are their titles."""

    blocks: list[Entry]


class ContextMessage(ResponseModel):
    """As chat servers take it."""

    role: Literal["system", "user", "assistant"]
    content: str


class LeftOut(ResponseModel):
    """What is not in a context: an entry's id, `task`, or `conversation[n]`."""

    id: str
    reason: str


class ContextReport(ResponseModel):
    """What a context holds, in tokens and by ids."""

    budget: int
    total: int = Field(description="Of all messages, as sent.")
    tokens: dict[str, int] = Field(description="By share.")
    included: dict[str, list[str]] = Field(description="Ids of entries, by share.")
    left_out: list[LeftOut]
    warnings: list[str]


class Context(ResponseModel):
    """What a model should be given."""

    messages: list[ContextMessage]
    report: ContextReport


class CleaningReport(ResponseModel):
    """What a cleaning did."""

    sessions: int = Field(description="That had something to clean.")
    summaries: list[str] = Field(description="Ids of the new ones.")
    archived: int
    busy: list[str] = Field(description="Sessions that somebody else is cleaning.")
    conflicts: int = Field(description="Groups that were changed meanwhile, or whose summary failed.")
    outcomes: dict[str, int] = Field(description="How many summaries came about in which way.")


class Waiting(ResponseModel):
    """An entry that has no vectors yet, and why."""

    entry_id: str
    attempts: int
    last_error: str


class Reindexed(ResponseModel):
    """What still waits for its vectors."""

    pending: int
    waiting: list[Waiting] = Field(description="The first of them.")


class Duplicates(ResponseModel):
    """Entries that say the same, oldest first."""

    ids: list[str]
    versions: list[int]
    similarity: float = Field(description="0 to 1.")
    excerpt: str


class Unread(ResponseModel):
    """Entries that no search has found and nobody has read for `days` days."""

    days: int
    count: int
    kinds: dict[str, int]
    ids: list[str] = Field(description="The oldest few.")


class Contradiction(ResponseModel):
    """Two sentences of core blocks that cannot both hold."""

    about: str
    ids: list[str]
    titles: list[str]
    sentences: list[str]


class Oversized(ResponseModel):
    """A core block that is over its limit, or nearly."""

    id: str
    title: str
    tokens: int
    limit: int


class AuditReport(ResponseModel):
    """What a person should look at in a namespace."""

    namespace: str
    entries: int
    duplicates: list[Duplicates] = Field(description="Equal in every detail.")
    near_duplicates: list[Duplicates] = Field(description="Alike; a person has to decide.")
    unread: Unread
    contradictions: list[Contradiction]
    oversized: list[Oversized]
    notes: list[str] = Field(description="What was not looked at, and why.")
