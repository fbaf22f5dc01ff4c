"""What memory keeps, and what a call may ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from agentformer.types.documents import Span

Tier = Literal["core", "semantic", "episodic", "working"]
TIERS: tuple[Tier, ...] = ("core", "semantic", "episodic", "working")

# Kinds are open ("fact", "message", "chunk", a host application's own), but for these two: containers, kept and
# cited, and never search results themselves; their chunks are.
UNSEARCHED_KINDS = frozenset({"document", "page"})
DOCUMENT_KINDS = UNSEARCHED_KINDS | {"chunk"}  # made by uploads alone, so that what is cited stands in a document

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Source:
    """Where an entry's text stands: `content == page.text[start:end]`."""

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
    """Everything remembered: a chunk, a message, a fact, a summary, a document.

    `context` is text that helps to find the entry and is never shown as its content: document title and
    heading path, speaker and date. It is indexed beside the content.
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
    source_type: str | None = None  # a record of the host application: what it is,
    source_id: str | None = None  # and its id there; an entry has both or neither
    parent_id: str | None = None
    pair_id: str | None = None
    derived_from: tuple[Link, ...] = ()
    role: str = ""  # of a message: user, assistant, system, tool
    speaker: str = ""  # of a message: who said it
    raw: str | None = None  # a message as it came, where `content` is not the same
    category: str = ""  # decides how salience decays; "" does not decay
    occurred_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    last_accessed: datetime | None = None
    access_count: int = 0  # every use: matched, read, asked for by id, stored again
    match_count: int = 0  # times among the results of a search
    read_count: int = 0  # times given to a model, or marked as read
    repeat_count: int = 0  # times that the same was stored again
    salience: float = 1.0  # as stored; what it is worth today is derived, see `Decay`
    archived_at: datetime | None = None
    archived_by: str | None = None  # the summary that stands for this entry
    superseded_by: str | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class Decay:
    """How salience fades: `stored * rate ** days`, with the category's daily rate and the days since last use.

    Derived whenever it is asked for and never written back, so that asking often changes nothing. A category
    without a rate keeps its salience. `at` is the moment to judge from; None is now.
    """

    rates: Mapping[str, float] = field(default_factory=dict)  # category -> what is left after a day, 0..1
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which entries a call may see. Applied inside every search, never after a top-k.

    Empty tuples and None mean "any". `metadata` is equality of top-level keys. Archived and superseded
    entries are out unless `include_archived`. `min_salience` is compared with what `decay` leaves of the
    stored salience.
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
    or_nobody: bool = False  # with a user or a project: also what belongs to no user, or no project
    agent_id: str | None = None
    user_id: str | None = None
    project: str | None = None
    categories: tuple[str, ...] = ()
    source_type: str | None = None
    source_id: str | None = None
    decay: Decay = field(default_factory=Decay)


@dataclass(frozen=True, slots=True)
class Use:
    """What was done with an entry since it was last counted."""

    id: str
    at: datetime  # the last time
    matches: int = 0
    reads: int = 0
    others: int = 0  # asked for by id


@dataclass(frozen=True, slots=True)
class Query:
    """A search: `text` within `scope`, the best `limit` hits with a score of at least `min_score`. "Yesterday" in the
    text is reckoned from `at`, which is aware; None is now."""

    text: str
    scope: Scope = field(default_factory=Scope)
    limit: int = 10
    min_score: float = 0.0
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    at: datetime | None = None


class Vote(NamedTuple):
    """One ranked list's part in a hit's place: which list, the hit's rank in it from 1, and what the list weighed."""

    name: str  # "vectors", "words", "document", "mentions", "period", "reranker"
    rank: int
    weight: float  # of the list in this search, at least 0; higher decides more


@dataclass(frozen=True, slots=True)
class Hit:
    """One result. `score` is in 0..1 and comparable within its own list only; ranks count from 1. `votes` tell why it
    stands where it stands."""

    entry: MemoryEntry
    score: float
    dense_score: float | None = None  # cosine of the best window, -1..1
    lexical_score: float | None = None  # BM25, unbounded
    dense_rank: int | None = None
    lexical_rank: int | None = None
    span: Span | None = None  # best-matching part of `entry.content`
    votes: tuple[Vote, ...] = ()


class Hits(list[Hit]):
    """Search results, best first. `warnings` says in plain words what could not be done, if anything."""

    def __init__(self, hits: Iterable[Hit] = (), warnings: tuple[str, ...] = ()) -> None:
        super().__init__(hits)
        self.warnings = warnings


@dataclass(frozen=True, slots=True)
class Reference:
    """A result as the host application knows it: its own record, without our text."""

    source_type: str
    source_id: str
    entry_id: str
    score: float
    pair_id: str | None = None
    parent_id: str | None = None
