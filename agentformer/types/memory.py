"""Types for memory entries, for filters, for scopes that limit which entries a caller sees, and for queries and their
hits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from agentformer.types.shown import Shown

Tier = Literal["core", "semantic", "episodic", "working"]
TIERS: tuple[Tier, ...] = ("core", "semantic", "episodic", "working")

# A host application may add kinds of its own to "fact", "message" and so on. Documents and pages are containers: a
# search returns their chunks, and never the document or the page.
CONTAINER_KINDS = frozenset({"document", "page"})
UNSEARCHED_KIND = "unsearched"  # entries of this kind are stored and listed, but no search returns them
UNSEARCHED_KINDS = CONTAINER_KINDS | {UNSEARCHED_KIND}
DOCUMENT_KINDS = CONTAINER_KINDS | {"chunk"}  # only uploads store these kinds, so that every citation has a document
RESERVED_KINDS = DOCUMENT_KINDS | {
    "message",
    "summary",
    UNSEARCHED_KIND,
}  # callers cannot choose these kinds for an entry

DEFAULT_NAMESPACE = "default"

_id_lock = threading.Lock()
_last_stamp = 0  # 48 bits of milliseconds and 12 bits of counter, as one number that only grows


def new_id() -> str:
    """Return a new id: a UUID of version 7 (RFC 9562), which begins with the time. The new id is greater than every id
    that this process has created before."""
    global _last_stamp
    with _id_lock:
        _last_stamp = max(_last_stamp + 1, (time.time_ns() // 1_000_000) << 12)
        stamp = _last_stamp
    random = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    value = (stamp >> 12 << 80) | (7 << 76) | ((stamp & 0xFFF) << 64) | (2 << 62) | random
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Span(NamedTuple):
    """A half-open range `[start, end)` of code points."""

    start: int
    end: int


def spans_of(pairs: Iterable[tuple[int, int]]) -> list[Span]:
    """Return the spans for pairs of a start and an end. This is several times faster than a call of `Span` for each."""
    return list(map(partial(tuple.__new__, Span), pairs))


@dataclass(frozen=True, slots=True)
class Source:
    """The position of an entry's text in a document. `page.text[start:end]` is equal to the content of the entry."""

    document_id: str
    name: str
    page: int | None = None
    label: str = ""
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another entry. `id` is the id of the linked entry, and `type` is the kind of relation. For example, a
    summary has a link to each of its originals."""

    id: str
    type: str = "derived_from"


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """A stored entry, for example a chunk of a document, a message, a fact, a summary or a document.

    `context` is additional text that helps a search to find the entry, such as the document title and headings, or the
    speaker and date of a message. `context` is indexed together with `content`, but it is not shown as content.
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
    source_id: str | None = None  # id of this record; both fields are set, or neither
    parent_id: str | None = None
    pair_id: str | None = None
    derived_from: tuple[Link, ...] = ()
    role: str = ""  # role of a message: user, assistant, system, tool
    speaker: str = ""  # speaker of a message
    raw: str | None = None  # the original text of a message, if `content` differs from it
    category: str = ""  # decides how salience decays; without a category it does not decay
    occurred_at: datetime | None = None
    valid_from: datetime | None = None  # inclusive: from this time on, the statement holds
    valid_to: datetime | None = None  # exclusive: at this time, the statement no longer holds
    expires_at: datetime | None = None  # exclusive: from this time on, no search returns the entry
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


Comparison = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "exists"]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one value of an entry. `key` is a key of the metadata, or `$` and the name of a field, such as
    `$kind`; `$metadata.KEY` is the metadata key KEY, whatever its first character is. `value` is a JSON value: a list
    (here a tuple) for `in` and `nin`, a bool for `exists`, and otherwise the value to compare with."""

    type: Comparison
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Group:
    """A filter that combines other filters. With `and`, all `filters` must match; with `or`, at least one must match;
    with `not`, the only filter must not match."""

    type: Literal["and", "or", "not"]
    filters: tuple[Filter, ...]


Filter: TypeAlias = Condition | Group
Where: TypeAlias = Filter | Mapping[str, Any]  # a filter, or its JSON form; see `records.filters.parse`


@dataclass(frozen=True, slots=True)
class Decay:
    """The decay of salience (importance) with time: `stored * rate ** days`, where `days` is the time since the last
    use of the entry. `rates` maps categories to their rates; a category that is not in `rates` does not decay. The
    decay is computed when an entry is read; the stored salience does not change. `at` is the moment of this
    computation; None means now."""

    rates: Mapping[str, float] = field(default_factory=dict)  # category -> share that remains after one day, 0..1
    at: datetime | None = None


NOBODY = ""  # a user that no entry has: `Scope(user_id=NOBODY, or_nobody=True)` has the entries without a user


def owned_by(user_id: str | None) -> dict[str, Any]:
    """Return the fields of a `Scope` that select the entries of this user, or those of no user if `user_id` is None."""
    return {"user_id": user_id or NOBODY, "or_nobody": user_id is None}


@dataclass(frozen=True, slots=True)
class Scope:
    """The entries that a caller may see. Every search applies the scope before it chooses the best hits.

    A field that is None or an empty tuple sets no condition. `since` and `until` are compared with `occurred_at`, or
    with `created_at` if the entry has no `occurred_at`. Each key in `metadata` must have an equal value in the metadata
    of the entry. `where` is a tree of conditions on metadata and fields, or its JSON form.
    `min_salience` is compared with the salience that `decay` computes.

    By default, the scope has the entries that hold now: `valid_from` <= now < `valid_to`. `as_of` is another moment. An
    entry without `valid_from` then holds from the earlier of `occurred_at` and `created_at`, and a document always
    does. A superseded entry is included only while its `valid_to` is after this moment. Archived entries are excluded,
    and entries that have expired, now or at a later `as_of`. `include_summarized` includes the archived originals of
    summaries. `include_archived` includes archived, superseded and expired entries, and without `as_of` also entries
    that do not hold now.
    """

    namespace: str = DEFAULT_NAMESPACE
    tiers: tuple[Tier, ...] = ()
    kinds: tuple[str, ...] = ()
    session_id: str | None = None
    parent_id: str | None = None
    document_id: str | None = None
    pages: tuple[int, ...] = ()  # numbers of pages; an entry without a page is excluded
    except_kinds: tuple[str, ...] = ()  # entries of these kinds are excluded
    occurred_from: datetime | None = None  # inclusive
    occurred_to: datetime | None = None  # exclusive
    since: datetime | None = None  # inclusive
    until: datetime | None = None  # exclusive
    metadata: Mapping[str, Any] = field(default_factory=dict)
    min_salience: float = 0.0
    include_archived: bool = False
    include_summarized: bool = False
    as_of: datetime | None = None  # None: now
    or_nobody: bool = False  # if a user or project is given: also entries without a user or project
    agent_id: str | None = None
    user_id: str | None = None
    project: str | None = None
    categories: tuple[str, ...] = ()
    source_type: str | None = None
    source_id: str | None = None
    decay: Decay = field(default_factory=Decay)
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """The uses of one entry that the store has not counted yet: how many searches found it (`matches`), how often a
    person or a model read it (`reads`), and how often it was requested by its id (`others`)."""

    id: str
    at: datetime  # time of the last use
    matches: int = 0
    reads: int = 0
    others: int = 0  # requests by id


@dataclass(frozen=True, slots=True)
class Query:
    """A search for `text` in the entries of `scope`. The result has at most `limit` hits, each with a score of at least
    `min_score`.

    `at` is the moment to which words such as "yesterday" in the text refer. `at` must have a time zone; None means now.
    """

    text: str
    scope: Scope = field(default_factory=Scope)
    limit: int = 10
    min_score: float = 0.0
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    at: datetime | None = None


NEWER = (
    "The id of a newer memory among the results that states another value of the same fact. This fact is then former, "
    "and `at`, `occurred_at` or `created_at` is its time. Null for other results."
)


class Vote(NamedTuple):
    """The contribution of one ranked list to a hit: the rank of the hit in the list, and the weight of the list."""

    name: Annotated[
        str,
        Shown(
            "The list: `words`, `vectors`, `document`, `mentions`, `identifiers`, `period`, `statements` or "
            "`reranker`. docs/RETRIEVAL.md explains them."
        ),
    ]
    rank: Annotated[int, Shown("The rank of the hit in this list.", least=1)]
    weight: Annotated[
        float,
        Shown(
            "The weight of this list in the score. If there is a list `reranker`, it alone decides the score.",
            digits=4,
            least=0,
        ),
    ]


class Original(NamedTuple):
    """An archived entry that a summary has replaced, with its session, speaker and time."""

    id: str
    session_id: str | None
    speaker: str  # or the role, if the speaker has no name
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result. `score` (0..1, higher is better) cannot be compared with scores of other searches."""

    entry: MemoryEntry
    score: Annotated[float, Shown(digits=6)]
    dense_score: Annotated[
        float | None,
        Shown(
            "The cosine similarity of the search text and the most similar part of the content, as the embedding model "
            "computes it.",
            digits=6,
        ),
    ] = None
    lexical_score: Annotated[float | None, Shown("The BM25 score. It has no upper limit.", digits=6)] = None
    dense_rank: int | None = None
    lexical_rank: int | None = None
    span: Annotated[
        Span | None,
        Shown("The start and the end of the part of the content that matches best, in code points."),
    ] = None
    votes: Annotated[tuple[Vote, ...], Shown("The lists of results that decided the rank of the hit.")] = ()
    originals: Annotated[
        tuple[Original, ...],
        Shown("The originals of a summary that answer the query best; empty for other entries."),
    ] = ()
    newer: Annotated[str | None, Shown(NEWER)] = None


class Factor(NamedTuple):
    """A reason (`name`) for a higher or lower weight of the vectors in a hybrid search, with a factor (`value`). The
    weight is the product of all factors."""

    name: Annotated[
        str,
        Shown(
            "The reason of the factor: `usual`, `missed`, `most`, `language`, `code`, `setting` or `alone`. "
            "docs/RETRIEVAL.md explains them."
        ),
    ]
    value: Annotated[
        float,
        Shown("A value above 1 raises the weight of the vectors, and a value below 1 lowers it.", digits=4, least=0),
    ]


class Analyzed(NamedTuple):
    """The analysis of the text of an entry, which is stored, so that a search need not repeat it. `language` is ISO
    639-1, or "" if unknown. `facts` are the keys of what the entry states (see `text.facts.statement_words.keys`)."""

    language: str
    facts: tuple[str, ...] = ()


class StepResult(NamedTuple):
    """The ids of the hits that remained after a step of the search pipeline, in their order."""

    name: str
    ids: tuple[str, ...]


# The beginning of a warning in `Hits`: the word index does not contain the newest changes yet.
NOT_INDEXED = "the word index is being updated"

# Warnings in `Hits` of a search while the vectors are unavailable: in the mode `hybrid`, and in the mode `dense`.
WORDS_ALONE = "only words were searched, because vectors are unavailable: {}"
NOTHING_SEARCHED = "nothing was searched, because vectors are unavailable: {}; search in the mode lexical or hybrid"


class HitVectors(NamedTuple):
    """The vectors of hits, by entry id: the vector of the best window of each, float32[dimension], of unit length.
    `encoder` are the provider and the model of the embedding space."""

    encoder: tuple[str, str]
    rows: Mapping[str, Any]


class Hits(list[Hit]):
    """The results of a search, best first. `warnings` contains sentences for users, for example that the embedder was
    unavailable. `one_sided` is True if a hybrid search could use only the words or only the vectors. `factors` explains
    the weight of the vectors; it is empty if the search was not hybrid. `analyzed` contains the stored results of text
    analysis for the hits, by entry id. `vectors` contains the vectors of the hits that the search by vectors found, or
    None. `steps` explains the order (see `search.steps.changes`)."""

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        warnings: tuple[str, ...] = (),
        *,
        one_sided: bool = False,
        factors: tuple[Factor, ...] = (),
        analyzed: Mapping[str, Analyzed] = MappingProxyType({}),
        vectors: HitVectors | None = None,
    ) -> None:
        super().__init__(hits)
        self.warnings = warnings
        self.one_sided = one_sided
        self.factors = factors
        self.analyzed = analyzed
        self.vectors = vectors
        self.steps: tuple[StepResult, ...] = ()

    def with_hits(self, hits: Iterable[Hit], *warnings: str) -> Hits:
        """Return a copy that contains `hits` instead of the present hits, and `warnings` after the present warnings."""
        warnings = (*self.warnings, *warnings)
        copy = Hits(hits, warnings, one_sided=self.one_sided, factors=self.factors, analyzed=self.analyzed)
        copy.vectors, copy.steps = self.vectors, self.steps
        return copy


@dataclass(frozen=True, slots=True)
class Reference:
    """A search result without text, which refers to a record of the host application by its type and id."""

    source_type: str
    source_id: str
    entry_id: str
    score: Annotated[float, Shown(digits=6)]
    pair_id: str | None = None
    parent_id: str | None = None
