"""Shared parts of the conformance suites: the base class of the tests, functions that make and compare entries, and
fakes of embedders and rerankers. The class `Reference` is a slow, exact search in Python and NumPy. The tests compare
the results of a backend with those of `Reference`."""

from __future__ import annotations

import re
import threading
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable, RerankerUnavailable
from agentformer.records.entry_json import entry_to_json
from agentformer.records.filters import parse, to_json
from agentformer.records.scopes import effective_salience
from agentformer.text.splitting import windows
from agentformer.types import (
    DOCUMENT_KINDS,
    UNSEARCHED_KINDS,
    CompleteStore,
    Embedder,
    EmbeddingSpace,
    Hit,
    Hits,
    Matrix,
    MemoryBackend,
    MemoryEntry,
    Query,
    Scope,
    Span,
    Vector,
    new_id,
)

T = TypeVar("T")
Mode = Literal["hybrid", "dense", "lexical"]
EVERYTHING = Scope(include_archived=True)
COSINE_TOLERANCE = 1e-5  # rounding errors of float32 sums that are added in another order


class BackendCase:
    """Base class of the tests of a backend. A test opens its own stores, and these stores are closed at the end of the
    test.

    If the backend stores no vectors, the subclass sets `vectors = False`. With this setting, tests of vectors are
    skipped, and the other tests search by words.
    """

    vectors = True
    _opened: list[MemoryBackend]

    def open(self, folder: Path, embedder: Embedder) -> MemoryBackend:
        """Return the backend under test for `folder`. A second call with the same folder opens the same store."""
        raise NotImplementedError

    def setup_method(self) -> None:
        self._opened = []

    def teardown_method(self) -> None:
        for backend in self._opened:
            backend.close()

    def start(self, folder: Path, embedder: Embedder | None = None, *, dense: bool = False) -> CompleteStore:
        """Open a backend, which is closed at the end of the test. If `dense` is true and the backend stores no vectors,
        skip the test. The type has the methods of all protocols, but each suite uses only those that it tests."""
        if dense and not self.vectors:
            raise unittest.SkipTest("this backend stores no vectors")
        backend = cast(CompleteStore, self.open(folder, embedder or HashingEmbedder()))
        self._opened.append(backend)
        return backend

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The search modes that find entries with this backend. A backend that stores no vectors has no mode
        `dense`."""
        return ("hybrid", "dense", "lexical") if self.vectors else ("hybrid", "lexical")

    def stored(
        self, folder: Path, *entries: MemoryEntry | str, embedder: Embedder | None = None, dense: bool = False
    ) -> tuple[CompleteStore, list[MemoryEntry]]:
        """Open a backend, as `start` does, and store `entries`. If an item of `entries` is a text, an entry with this
        content is stored. Return the backend and the stored entries."""
        backend = self.start(folder, embedder, dense=dense)
        made = [make_entry(entry) if isinstance(entry, str) else entry for entry in entries]
        return backend, list(backend.store(made))

    def by_vectors(self, backend: MemoryBackend, text: str, scope: Scope | None = None) -> list[str]:
        """Return the sorted ids of the entries that dense search finds for `text`. If the backend stores no vectors,
        lexical search is used."""
        if not self.vectors:
            return by_words(backend, text, scope)
        hits = backend.search(Query(text, scope or Scope(), limit=1000, mode="dense"))
        return sorted(hit.entry.id for hit in hits)


def contents(hits: Hits) -> list[str]:
    """Return the contents of the hits in the order of the hits."""
    return [hit.entry.content for hit in hits]


def by_words(backend: MemoryBackend, text: str, scope: Scope | None = None) -> list[str]:
    """Return the sorted ids of the entries that lexical search finds for `text`."""
    hits = backend.search(Query(text, scope or Scope(), limit=1000, mode="lexical"))
    return sorted(hit.entry.id for hit in hits)


def state(backend: MemoryBackend, ids: Sequence[str]) -> list[object]:
    """Return the data that a failed call must leave unchanged: the entries of the default namespace, the entries with
    these ids, and the histories of these ids."""
    return [list(backend.list(EVERYTHING, limit=1000)), list(backend.get(ids)), *(backend.history(i) for i in ids)]


@contextmanager
def unchanged(backend: MemoryBackend, *ids: str) -> Iterator[None]:
    """Fail if the `with` block changes an entry of the default namespace, an entry with one of these ids, or the
    history of such an entry."""
    before = state(backend, ids)
    yield
    assert state(backend, ids) == before


@contextmanager
def raises(*kinds: type[Exception]) -> Iterator[list[Exception]]:
    """Fail unless the `with` block raises one of `kinds`. Afterwards, the yielded list holds the error."""
    errors: list[Exception] = []
    try:
        yield errors
    except kinds as error:
        errors.append(error)
        return
    raise AssertionError(f"nothing was raised, expected {' or '.join(kind.__name__ for kind in kinds)}")


def run_in_threads(count: int, call: Callable[[int], T]) -> list[T]:
    """Call `call(0)`, `call(1)`, ... `call(count - 1)` at the same time, each in its own thread. Return the results in
    the order of the numbers, or raise the first error."""
    barrier = threading.Barrier(count)

    def run(number: int) -> T:
        barrier.wait()
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def make_entry(content: str, **fields: Any) -> MemoryEntry:
    """Return an entry with this content and these fields. If `fields` has no id, the entry gets a new id."""
    return MemoryEntry(**{"id": new_id(), "content": content, **fields})


def json_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal. 2 equals 2.0, and a boolean never equals a number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)


def admitted_by(tree: Mapping[str, Any], entry: MemoryEntry) -> bool:
    """Return whether `entry` matches `tree`, a filter in its JSON form."""
    return is_true(tree, filtered_values(entry))


def filtered_values(entry: MemoryEntry) -> dict[str, Any]:
    """Return the values of an entry that a filter can compare: key of the filter -> value."""
    values = {f"$metadata.{key}": value for key, value in entry.metadata.items()}
    values |= {f"${key}": value for key, value in entry_to_json(entry).items() if value is not None}
    source = values.get("$source") or {}
    return values | {f"${name}": source[name] for name in ("document_id", "page") if source.get(name) is not None}


def is_true(tree: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether the filter `tree` is true for the values of an entry."""
    kind = tree["type"]
    if kind in ("and", "or", "not"):
        results = [is_true(part, values) for part in tree["filters"]]
        return all(results) if kind == "and" else any(results) if kind == "or" else not any(results)
    key = tree["key"] if tree["key"].startswith("$") else f"$metadata.{tree['key']}"
    wanted = tree["value"] if kind in ("in", "nin") else [tree["value"]]
    if kind == "exists":
        return (key in values) is tree["value"]
    equal: bool = key in values and any(json_equal(values[key], value) for value in wanted)
    if kind in ("eq", "in"):
        return equal
    if kind in ("ne", "nin"):
        return not equal
    return key in values and _compare(kind, values[key], wanted[0])


def _compare(kind: str, value: Any, limit: Any) -> bool:
    """Return whether the comparison `kind`, such as `gt`, of `value` with `limit` is true. Values of different types
    never match."""
    numbers = [type(each) in (int, float) for each in (value, limit)]
    if not all(numbers) and not (isinstance(value, str) and isinstance(limit, str)):
        return False
    if value == limit:
        return kind in ("gte", "lte")
    return bool(value > limit) == (kind in ("gt", "gte"))


def admits(scope: Scope, entry: MemoryEntry) -> bool:
    """Return whether `entry` fulfils all conditions of `scope`, so that a call with this scope may return the entry."""
    at = entry.occurred_at
    known = at or entry.created_at
    return (
        entry.namespace == scope.namespace
        and (not scope.tiers or entry.tier in scope.tiers)
        and (not scope.kinds or entry.kind in scope.kinds)
        and entry.kind not in scope.except_kinds
        and (not scope.categories or entry.category in scope.categories)
        and scope.session_id in (None, entry.session_id)
        and scope.agent_id in (None, entry.agent_id)
        and (scope.user_id in (None, entry.user_id) or (scope.or_nobody and entry.user_id is None))
        and (scope.project in (None, entry.project) or (scope.or_nobody and entry.project is None))
        and scope.parent_id in (None, entry.parent_id)
        and scope.source_type in (None, entry.source_type)
        and scope.source_id in (None, entry.source_id)
        and scope.document_id in (None, entry.source.document_id if entry.source else None)
        and (not scope.pages or (entry.source is not None and entry.source.page in scope.pages))
        and (scope.occurred_from is None or (at is not None and at >= scope.occurred_from))
        and (scope.occurred_to is None or (at is not None and at < scope.occurred_to))
        and (scope.since is None or (known is not None and known >= scope.since))
        and (scope.until is None or (known is not None and known < scope.until))
        and all(key in entry.metadata and json_equal(entry.metadata[key], v) for key, v in scope.metadata.items())
        and (scope.where is None or admitted_by(to_json(parse(scope.where)), entry))  # type: ignore[arg-type]
        and effective_salience(entry, scope.decay) >= scope.min_salience
        and (scope.include_archived or _is_live(scope, entry))
        and _holds(scope, entry)
    )


def _is_live(scope: Scope, entry: MemoryEntry) -> bool:
    archived = entry.archived_at is not None and (entry.archived_by is None or not scope.include_summarized)
    in_advance = entry.valid_to is not None and entry.updated_at is not None and entry.valid_to > entry.updated_at
    superseded = entry.superseded_by is not None and not in_advance
    if scope.as_of is not None:  # the validity decides
        superseded = entry.superseded_by is not None and entry.valid_to is None
    moment = datetime.now(UTC)
    expired = entry.expires_at is not None and entry.expires_at <= max(moment, scope.as_of or moment)
    return not (archived or superseded or expired)


def _holds(scope: Scope, entry: MemoryEntry) -> bool:
    if scope.as_of is None and scope.include_archived:
        return True
    at, start = scope.as_of or datetime.now(UTC), entry.valid_from
    if scope.as_of is not None and start is None and entry.kind not in DOCUMENT_KINDS:
        start = min(time for time in (entry.occurred_at, entry.created_at) if time)
    return (start is None or start <= at) and (entry.valid_to is None or entry.valid_to > at)


class Reference:
    """Computes which entries and cosines a backend must return. The results are exact."""

    def __init__(self, entries: Iterable[MemoryEntry] = (), embedder: Embedder | None = None) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self._embedder: Embedder = embedder or HashingEmbedder()
        self._rows: dict[str, Matrix] = {}  # text -> the vectors of its windows
        self._values: dict[str, tuple[MemoryEntry, dict[str, Any]]] = {}  # id -> the entry and its `filtered_values`

    def list(self, scope: Scope) -> list[MemoryEntry]:
        """Return the entries of a scope, sorted by id."""
        if (where := parse(scope.where)) is not None:  # parsed once, not for each entry
            tree, rest = to_json(where), replace(scope, where=None)
            return [entry for entry in self.list(rest) if is_true(tree, self._values_of(entry))]
        return sorted((e for e in self.entries.values() if admits(scope, e)), key=lambda entry: entry.id)

    def cosines(self, query: Query) -> dict[str, float]:
        """Return entry id -> cosine for every entry that the search may return. A long text is split into windows that
        the embedder can read. The cosine of an entry is the highest cosine of its windows."""
        vector = self._embedder.embed_query(query.text)
        cosines: dict[str, float] = {}
        for entry in self.list(query.scope):
            if entry.kind not in UNSEARCHED_KINDS and len(rows := self._windows(entry.content)):
                cosines[entry.id] = float(np.max(rows @ vector))
        return cosines

    def _windows(self, text: str) -> Matrix:
        """Return the vectors of the windows of a text, one per row. Each text is embedded once."""
        if text not in self._rows:
            spans = windows(text, self._embedder.token_spans, self._embedder.space.max_tokens)
            self._rows[text] = self._embedder.embed_documents([text[start:end] for start, end in spans])
        return self._rows[text]

    def _values_of(self, entry: MemoryEntry) -> dict[str, Any]:
        """Return `filtered_values` of an entry. They are computed again only after a change of the entry."""
        known = self._values.get(entry.id)
        if known is None or known[0] is not entry:
            known = self._values[entry.id] = entry, filtered_values(entry)
        return known[1]

    def check_dense(self, query: Query, hits: Sequence[Hit]) -> None:
        """Check that `hits` are the entries with the highest cosines, in descending order of cosine. Entries with equal
        cosines may be in any order."""
        expected = self.cosines(query)
        best = sorted(expected.values(), reverse=True)[: query.limit]
        assert len(hits) == len(best), (query, len(hits), len(best))
        assert len({hit.entry.id for hit in hits}) == len(hits)
        for hit, cosine in zip(hits, best, strict=True):
            assert hit.entry.id in expected, f"{hit.entry} is outside {query.scope}"
            assert hit.dense_score is not None
            assert abs(hit.dense_score - expected[hit.entry.id]) < COSINE_TOLERANCE, (hit, expected[hit.entry.id])
            assert abs(hit.dense_score - cosine) < COSINE_TOLERANCE, (hit, cosine)


class CountingEmbedder:
    """An embedder that passes texts to another embedder and records these texts in `documents` and `queries`."""

    def __init__(self, inner: Embedder | None = None) -> None:
        self._inner: Embedder = inner or HashingEmbedder()
        self.documents: list[str] = []
        self.queries: list[str] = []

    @property
    def inner(self) -> Embedder:
        return self._inner

    @property
    def space(self) -> EmbeddingSpace:
        return self.inner.space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector for each text, and record the texts."""
        rows = self.inner.embed_documents(texts)
        self.documents += texts
        return rows

    def embed_query(self, text: str) -> Vector:
        """Return a unit vector, and record the query."""
        vector = self.inner.embed_query(text)
        self.queries.append(text)
        return vector

    def token_spans(self, text: str) -> list[Span]:
        return self.inner.token_spans(text)


class FlakyEmbedder(CountingEmbedder):
    """An embedder that a test can switch off. While `down` is true, every call raises `EmbedderUnavailable`."""

    def __init__(self, inner: Embedder | None = None, *, down: bool = False) -> None:
        super().__init__(inner)
        self.down = down

    @property
    def inner(self) -> Embedder:
        """Return the embedder that computes the vectors. Raise `EmbedderUnavailable` while `down` is true."""
        if self.down:
            raise EmbedderUnavailable("the embedder was switched off by a test")
        return self._inner


class OverlapReranker:
    """A reranker that scores a text by the share of the query's words that the text contains.

    Of two texts with the same share, the longer text gets a slightly lower score. The reranker records its calls in
    `asked`. While `down` is true, every call raises `RerankerUnavailable`.
    """

    name = "overlap"

    def __init__(self, *, down: bool = False) -> None:
        self.down = down
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        """Return one score for each text, and record the call. A higher score is better."""
        self.asked.append((query, tuple(texts)))
        if self.down:
            raise RerankerUnavailable("the reranker was switched off by a test")
        query_words = _words(query)
        shares = [
            len(query_words & (words := _words(text))) / (len(query_words) + 0.01 * len(words) + 1) for text in texts
        ]
        return np.array(shares, dtype=np.float32)


def _words(text: str) -> set[str]:
    return {*re.findall(r"\w+", text.casefold())}
