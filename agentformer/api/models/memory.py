"""Response models of memories: entries, contexts, and reports of the cleaner and the audit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, create_model

from agentformer import types as records
from agentformer.api.models import Next, ResponseModel
from agentformer.api.models.documents import Scores
from agentformer.records.entry_json import ENTRY_FIELDS
from agentformer.types import MemoryEntry

Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-11-20T09:30:00+00:00"])]


class Source(ResponseModel):
    """The place of a passage: `content` is the text of its page from `start` to `end`, in code points."""

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


# The JSON types of the fields of `MemoryEntry` that are not JSON themselves.
_JSON_TYPES: dict[Any, Any] = {
    datetime | None: Moment | None,
    records.Source | None: Source | None,
    tuple[records.Link, ...]: list[Link],
    Mapping[str, Any]: dict[str, Any],
}


def _entry_fields() -> dict[str, Any]:
    """Return the type and the description of each field of an entry."""
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
    """Everything remembered: a fact, a message, a summary, a passage of a document."""


class MemoryHit(Entry, Scores):
    """An entry that a search returned, with its scores."""


class MemoryHits(ResponseModel):
    """Search results, best first."""

    hits: list[MemoryHit]
    warnings: list[str] = Field(description="Descriptions of the parts of the search that failed.")


class Entries(ResponseModel):
    """Entries that were stored or restored, in order."""

    entries: list[Entry]


class EntryPage(ResponseModel):
    """One page of entries, in the order in which they were stored."""

    entries: list[Entry]
    next: Next


class Versions(ResponseModel):
    """Former states of an entry, oldest first."""

    versions: list[Entry]


class Transcript(ResponseModel):
    """All messages of a session in their original words and order, including the summarized messages."""

    messages: list[Entry]


class Blocks(ResponseModel):
    """Core blocks in order of their names. The name of a block is its title."""

    blocks: list[Entry]


class ContextMessage(ResponseModel):
    """One message in the format of chat servers."""

    role: Literal["system", "user", "assistant"]
    content: str


class LeftOut(ResponseModel):
    """An item that did not fit into the context. `id` is the id of an entry, `task`, or `conversation[n]`."""

    id: str
    reason: str


class ContextReport(ResponseModel):
    """The tokens and the entries of a context. A share is a part of the context, such as the conversation."""

    budget: int
    total: int = Field(description="The number of tokens of all messages.")
    tokens: dict[str, int] = Field(description="The number of tokens of each share of the context.")
    included: dict[str, list[str]] = Field(description="The ids of the entries in each share of the context.")
    left_out: list[LeftOut]
    warnings: list[str]


class Context(ResponseModel):
    """Messages to send to a model, and a report."""

    messages: list[ContextMessage]
    report: ContextReport


class CleaningReport(ResponseModel):
    """The result of a cleaning."""

    sessions: int = Field(description="The number of sessions that were cleaned.")
    summaries: list[str] = Field(description="The ids of the new summaries.")
    archived: int
    busy: list[str] = Field(description="The sessions that another process is cleaning now.")
    conflicts: int = Field(description="The number of groups that changed in the meantime or got no usable summary.")
    outcomes: dict[str, int] = Field(description="The number of summaries for each way of summarizing.")


class Waiting(ResponseModel):
    """An entry that has no vectors, and the last error."""

    entry_id: str
    attempts: int
    last_error: str


class Reindexed(ResponseModel):
    """The entries that still have no vectors."""

    pending: int
    waiting: list[Waiting] = Field(description="The first entries that have no vectors.")


class Duplicates(ResponseModel):
    """Entries with the same content, oldest first."""

    ids: list[str]
    versions: list[int]
    similarity: float = Field(description="The similarity of the entries, from 0 to 1.")
    excerpt: str


class Unread(ResponseModel):
    """Entries that no search returned and no caller read for `days` days."""

    days: int
    count: int
    kinds: dict[str, int]
    ids: list[str] = Field(description="The ids of the oldest entries.")


class Contradiction(ResponseModel):
    """Two sentences of core blocks that contradict each other."""

    about: str
    ids: list[str]
    titles: list[str]
    sentences: list[str]


class Oversized(ResponseModel):
    """A core block that is over its limit, or close to it."""

    id: str
    title: str
    tokens: int
    limit: int


class AuditReport(ResponseModel):
    """The findings of an audit of a namespace. A person decides what to do about them."""

    namespace: str
    entries: int
    duplicates: list[Duplicates] = Field(description="Groups of entries that are equal in every detail.")
    near_duplicates: list[Duplicates] = Field(description="Groups of similar entries, for a person to compare.")
    unread: Unread
    contradictions: list[Contradiction]
    oversized: list[Oversized]
    notes: list[str] = Field(description="Descriptions of the parts that were not checked, with the reasons.")
