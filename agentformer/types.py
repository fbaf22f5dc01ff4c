"""The floor: frozen records and protocols. Imports nothing of this package but the error tree's names.

Offsets are in Unicode code points, half-open `[start, end)`. Pages count from 1. Times are aware
`datetime`s in UTC. Scores lie in 0..1, higher is better. Vectors are rows of unit length, float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]  # (dimension,)
Matrix = NDArray[np.float32]  # (rows, dimension)

Tier = Literal["core", "semantic", "episodic", "working"]
TIERS: tuple[Tier, ...] = ("core", "semantic", "episodic", "working")

# Kinds are open ("fact", "message", "chunk", a host application's own), but for these two: containers, kept and
# cited, and never search results themselves; their chunks are.
UNSEARCHED_KINDS = frozenset({"document", "page"})

DEFAULT_NAMESPACE = "default"

DocumentStatus = Literal["pending", "ready", "no_text", "garbled", "encrypted", "failed"]
PageStatus = Literal["text", "no_text", "garbled", "failed"]


class Span(NamedTuple):
    """A half-open range `[start, end)` of code points."""

    start: int
    end: int


# --------------------------------------------------------------------------- what readers give


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading that governs the text from `start` of its page on, until the next of its level or above."""

    text: str
    level: int  # 1 is the outermost
    start: int  # offset in the page's text


@dataclass(frozen=True, slots=True)
class Page:
    """One page (or section) of a document, as stored: every citation's span refers to `text`."""

    number: int  # from 1
    text: str
    label: str = ""  # as printed on the page ("iv", "12"), or the section's name
    status: PageStatus = "text"
    reason: str = ""  # why there is no usable text, for a person
    method: str = ""  # which extractor's text this is
    body: Span | None = None  # `text` without running header and footer; None: all of it
    headings: tuple[Heading, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A document as text. `status` is `ready` when at least one page has usable text."""

    media_type: str
    pages: tuple[Page, ...]
    title: str = ""
    status: DocumentStatus = "ready"
    reason: str = ""


# --------------------------------------------------------------------------- what memory keeps


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
    title: str = ""
    context: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    parent_id: str | None = None
    pair_id: str | None = None
    derived_from: tuple[Link, ...] = ()
    occurred_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    last_accessed: datetime | None = None
    access_count: int = 0
    match_count: int = 0
    read_count: int = 0
    salience: float = 1.0
    archived_at: datetime | None = None
    superseded_by: str | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class Scope:
    """Which entries a call may see. Applied inside every search, never after a top-k.

    Empty tuples and None mean "any". `metadata` is equality of top-level keys. Archived and superseded
    entries are out unless `include_archived`.
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


@dataclass(frozen=True, slots=True)
class Query:
    """A search: `text` within `scope`, the best `limit` hits with a score of at least `min_score`."""

    text: str
    scope: Scope = field(default_factory=Scope)
    limit: int = 10
    min_score: float = 0.0
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"


@dataclass(frozen=True, slots=True)
class Hit:
    """One result. `score` is in 0..1 and comparable within its own list only; ranks count from 1."""

    entry: MemoryEntry
    score: float
    dense_score: float | None = None  # cosine of the best window, -1..1
    lexical_score: float | None = None  # BM25, unbounded
    dense_rank: int | None = None
    lexical_rank: int | None = None
    span: Span | None = None  # best-matching part of `entry.content`


class Hits(list[Hit]):
    """Search results, best first. `warnings` says in plain words what could not be done, if anything."""

    def __init__(self, hits: Iterable[Hit] = (), warnings: tuple[str, ...] = ()) -> None:
        super().__init__(hits)
        self.warnings = warnings


# --------------------------------------------------------------------------- what answers carry


@dataclass(frozen=True, slots=True)
class Citation:
    """Evidence: `quote == stored page text[start:end]`."""

    number: int  # the [n] in the answer
    document: str
    document_id: str
    page: int | None
    label: str
    start: int
    end: int
    quote: str
    score: float
    entry_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and what it stands on. `mode` is `llm`, `extractive` or `none` (nothing good enough found)."""

    text: str
    mode: Literal["llm", "extractive", "none"]
    citations: tuple[Citation, ...] = ()
    hits: tuple[Hit, ...] = ()
    warnings: tuple[str, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)  # milliseconds


# --------------------------------------------------------------------------- protocols


@dataclass(frozen=True, slots=True)
class EmbeddingSpace:
    """What makes two vectors comparable. Vectors of different spaces never meet in one index."""

    provider: str
    model: str
    dimension: int
    max_tokens: int  # tokens of text that the model reads, special tokens and prefix already taken off
    revision: str = ""
    query_prefix: str = ""
    document_prefix: str = ""
    normalised: bool = True
    languages: str = ""  # "*" for a multilingual model; "": not declared, so its tokenizer is asked
    fingerprint: str = ""  # of a fixed probe text's embedding: catches a model swapped under its name


@runtime_checkable
class Embedder(Protocol):
    """Turns text into unit vectors. Raises `EmbedderUnavailable` when it cannot work now."""

    @property
    def space(self) -> EmbeddingSpace: ...

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """(len(texts), dimension) unit rows. Raises `TextTooLong` instead of cutting a text."""
        ...

    def embed_query(self, text: str) -> Vector:
        """(dimension,) unit vector; a query longer than the model is embedded in parts and averaged."""
        ...

    def token_spans(self, text: str) -> list[Span]:
        """The text's tokens in order as offsets, without special tokens; never overlapping."""
        ...


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0


@runtime_checkable
class LanguageModel(Protocol):
    """Completes a conversation. Raises `LanguageModelUnavailable` when no server answers."""

    def complete(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Reply: ...

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Iterator[str]: ...


class MemoryBackend(Protocol):
    """Keeps records and finds them.

    Atomicity: each writing call is one transaction; it happens wholly or not at all, and has reached the
    disk when the call returns. Visibility: an acknowledged write is seen by every later call of every
    thread and process that has the same store open. Order: `list` goes by id, which is time-sorted.
    A missing id is left out of `get`, is not counted by `remove`, and raises `NotFound` in `update`.
    A store that cannot embed now still stores: such entries are found by words at once, and by vectors
    once `embed_pending` has caught up.
    """

    def store(
        self,
        entries: Sequence[MemoryEntry],
        *,
        replacing: Sequence[Scope] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Sequence[MemoryEntry]:
        """Store all entries, and in the same transaction remove everything else that lies in a scope of
        `replacing`, with its parts. An id that exists already raises `Conflict`. `progress` is told the
        windows embedded and the windows in all."""
        ...

    def get(self, ids: Sequence[str]) -> Sequence[MemoryEntry]:
        """The entries of these ids, in the order asked for; archived ones too."""
        ...

    def search(self, query: Query) -> Hits:
        """Best first; equal scores in order of id. Only entries inside `query.scope`. With no embedder at
        hand the words alone decide, and a warning says so."""
        ...

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change fields; the former state goes to `history`. A stale `expected_version` raises `Conflict`."""
        ...

    def remove(self, what: Scope | Sequence[str]) -> int:
        """Delete entries with their parts (entries whose `parent_id` they are), vectors, terms and history.
        Returns how many entries went, parts included."""
        ...

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        """Entries of the scope with an id above `after`, in order of id."""
        ...

    def count(self, scope: Scope) -> int: ...

    def namespaces(self) -> Sequence[str]:
        """Every namespace that holds an entry, sorted."""
        ...

    def pending(self, scope: Scope) -> int:
        """How many entries of the scope still wait for their vectors."""
        ...

    def consolidate(self, summary: MemoryEntry, archive_ids: Sequence[str]) -> MemoryEntry:
        """Store `summary` and archive the originals, or raise `Conflict` and do neither, when one of them
        is missing, archived or superseded already."""
        ...

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        """Former versions, oldest first; empty for an entry never changed or not there."""
        ...

    def embed_pending(self) -> int:
        """Embed what has no vector yet. Returns how many entries are still pending."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Counts and state of the parts, as JSON values, for a person or a monitor."""
        ...

    def close(self) -> None:
        """Write snapshots and release files. Idempotent."""
        ...
