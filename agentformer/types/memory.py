"""Memory entries, the scope of a call, queries and hits."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

Tier = Literal["core", "semantic", "episodic", "working"]
TIERS: tuple[Tier, ...] = ("core", "semantic", "episodic", "working")

# A host application may add kinds of its own to "fact", "message" and so on. Documents and pages are containers: a
# search returns their chunks, and never the document or the page.
UNSEARCHED_KINDS = frozenset({"document", "page"})
DOCUMENT_KINDS = UNSEARCHED_KINDS | {"chunk"}  # only uploads store these kinds, so that every citation has a document

DEFAULT_NAMESPACE = "default"

_id_lock = threading.Lock()
_last_stamp = 0  # 48 bits of milliseconds and 12 bits of counter, as one number that only grows


def new_id() -> str:
    """Return a UUID version 7 (RFC 9562). It is greater than every id that this process has made before."""
    global _last_stamp
    with _id_lock:
        _last_stamp = max(_last_stamp + 1, (time.time_ns() // 1_000_000) << 12)
        stamp = _last_stamp
    random = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    value = (stamp >> 12 << 80) | (7 << 76) | ((stamp & 0xFFF) << 64) | (2 << 62) | random
    return str(uuid.UUID(int=value))


class Span(NamedTuple):
    """A half-open range `[start, end)` of code points."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """The position of an entry's text in a document: `content` is equal to `page.text[start:end]`."""

    document_id: str
    name: str
    page: int | None = None
    label: str = ""
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A typed link to another entry, for example from a summary to an original."""

    id: str
    type: str = "derived_from"


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """A stored entry: a chunk, a message, a fact, a summary or a document.

    `context` is text that helps a search to find the entry, such as document title and heading path, or speaker and
    date. `context` is indexed together with the content, but it is never shown as content.
    """

    id: str
    content: str
    tier: Tier = "semantic"
    kind: str = "fact"
    namespace: str = DEFAULT_NAMESPACE
    session_id: str | None = None
    agent_id: str | None = None
    user_id: str | None = None
    project: str | None = None
    title: str = ""
    context: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    source_type: str | None = None  # type of a record of the host application
    source_id: str | None = None  # id of that record; an entry has a type and an id, or neither
    parent_id: str | None = None
    pair_id: str | None = None
    derived_from: tuple[Link, ...] = ()
    role: str = ""  # role of a message: user, assistant, system, tool
    speaker: str = ""  # speaker of a message
    raw: str | None = None  # the original text of a message, if `content` differs from it
    category: str = ""  # decides how salience decays; without a category it does not decay
    occurred_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    last_accessed: datetime | None = None
    access_count: int = 0  # number of all uses: matched, read, requested by id, stored again
    match_count: int = 0  # number of searches that returned the entry
    read_count: int = 0  # number of times the entry was given to a model, or marked as read
    repeat_count: int = 0  # number of times a duplicate was stored
    salience: float = 1.0  # the stored value; `Decay` gives the effective value
    archived_at: datetime | None = None
    archived_by: str | None = None  # the summary that replaced this entry
    superseded_by: str | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class Decay:
    """The decay of salience: `stored * rate ** days`, with the days since the last use.

    Decay is computed when an entry is read and never written back. The salience of a category without a rate does not
    decay. `at` is the moment for which the decay is computed; None means now.
    """

    rates: Mapping[str, float] = field(default_factory=dict)  # category -> share that remains after one day, 0..1
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """The entries that a call may see. The scope is applied inside every search, before the best hits are chosen.

    Empty tuples and None mean "any". `metadata` compares top-level keys for equality. Archived and superseded entries
    are excluded unless `include_archived` is set. `min_salience` is compared with the salience after `decay`.
    """

    namespace: str = DEFAULT_NAMESPACE
    tiers: tuple[Tier, ...] = ()
    kinds: tuple[str, ...] = ()
    session_id: str | None = None
    parent_id: str | None = None
    document_id: str | None = None
    occurred_from: datetime | None = None  # inclusive
    occurred_to: datetime | None = None  # exclusive
    metadata: Mapping[str, Any] = field(default_factory=dict)
    min_salience: float = 0.0
    include_archived: bool = False
    or_nobody: bool = False  # if a user or project is given: also entries without a user or project
    agent_id: str | None = None
    user_id: str | None = None
    project: str | None = None
    categories: tuple[str, ...] = ()
    source_type: str | None = None
    source_id: str | None = None
    decay: Decay = field(default_factory=Decay)


@dataclass(frozen=True, slots=True)
class Use:
    """The uses of an entry since the uses were last counted."""

    id: str
    at: datetime  # time of the last use
    matches: int = 0
    reads: int = 0
    others: int = 0  # requests by id


@dataclass(frozen=True, slots=True)
class Query:
    """A search for `text` within `scope`. It returns at most `limit` hits with a score of at least `min_score`.

    Dates in the text such as "yesterday" are relative to `at`, which has a time zone. If `at` is None, they are
    relative to now.
    """

    text: str
    scope: Scope = field(default_factory=Scope)
    limit: int = 10
    min_score: float = 0.0
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    at: datetime | None = None


class Vote(NamedTuple):
    """The contribution of one ranked list to the rank of a hit."""

    name: str  # name of the list: "vectors", "words", "document", "mentions", "period", "reranker"
    rank: int  # rank of the hit in the list; starts at 1
    weight: float  # weight of the list in this search, at least 0


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result. `score` is in 0..1, and a higher score is better. Scores of different searches cannot be
    compared."""

    entry: MemoryEntry
    score: float
    dense_score: float | None = None  # cosine of the best window, -1..1
    lexical_score: float | None = None  # BM25, unbounded
    dense_rank: int | None = None
    lexical_rank: int | None = None
    span: Span | None = None  # best-matching part of `entry.content`
    votes: tuple[Vote, ...] = ()


class Hits(list[Hit]):
    """Search results, best first. `warnings` say in plain words what the search could not do."""

    def __init__(self, hits: Iterable[Hit] = (), warnings: tuple[str, ...] = ()) -> None:
        super().__init__(hits)
        self.warnings = warnings


@dataclass(frozen=True, slots=True)
class Reference:
    """A search result that names a record of the host application. It does not contain the text."""

    source_type: str
    source_id: str
    entry_id: str
    score: float
    pair_id: str | None = None
    parent_id: str | None = None
