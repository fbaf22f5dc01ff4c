"""The vector side of a search: the query's vector, the windows nearest to it, and their exact cosines."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentformer.index.embedding.active import current_embedder, embedder_for, loaded_embedder
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors import rows as stored_rows
from agentformer.index.vectors.follower import VectorFollower
from agentformer.index.vectors.index import VectorHits
from agentformer.index.vectors.rows import IntArray
from agentformer.records.database import Database
from agentformer.records.spaces import space_of
from agentformer.types import Embedder, EmbeddingSpace, Vector

_CACHED_QUERIES = 512  # vectors of the last queries: under 2 MB at 768 dimensions
_CACHED_LENGTH = 4_000  # code points of a query that is worth caching
_FORMER_SPACE = "answered from the former embedding space while the embedder {} is being loaded"

_RESCORED = 32  # entries with exact cosines if words also decide; to read all vectors costs more than to find them

Result = TypeVar("Result")


class VectorSearch:
    """Searches the vector index with an embedder of the same space. Thread-safe."""

    def __init__(self, index: VectorFollower, database: Database, embedder: Embedder) -> None:
        self._index = index
        self._database = database
        self._embedder = embedder
        self._cache = QueryVectorCache()

    def has_query(self, space: int, text: str) -> bool:
        """Return whether the query's vector in the space with this number is cached."""
        return self._cache.has(space, text)

    def nearest(
        self, text: str, space: tuple[int, EmbeddingSpace], seq: int, limit: int, mask: ScopeMask
    ) -> tuple[VectorHits | None, tuple[str, ...]] | None:
        """Return the nearest windows in the store's active `space` at its change `seq`, and warnings.

        Return None if the store has moved to another space meanwhile. While the embedder of a new space is being
        loaded, the index of the former space answers, with a warning. Raises `EmbedderError` or `SpaceMismatch`.
        """
        number, active = space
        embedder = loaded_embedder(self._embedder, active)
        if embedder is None:
            former = self._nearest_in_former_space(text, limit, mask)
            if former is not None:
                return former, (_FORMER_SPACE.format(active.spec),)
            embedder = embedder_for(self._embedder, active)
        vector = self._cache.embed(embedder, number, text)
        self._index.follow(self._database, seq, number)
        hits = self._index.search(number, vector, limit, mask)
        return None if hits is None else (hits, ())

    def _nearest_in_former_space(self, text: str, limit: int, mask: ScopeMask) -> VectorHits | None:
        """Search the index from before a move; None if it does not fit the current embedder."""
        embedder, number = current_embedder(self._embedder), self._index.space
        with self._database.reading() as connection:
            former = space_of(connection, number)
        if former is None or former.difference(embedder.space):
            return None
        return self._index.search(number, self._cache.embed(embedder, number, text), limit, mask)


class QueryVectorCache:
    """The vectors of the last queries, by the number of the embedding space and the text. Thread-safe.

    A store never reuses the number of a space, so a vector of another model is never returned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vectors: OrderedDict[tuple[int, str], Vector] = OrderedDict()

    def has(self, space: int, text: str) -> bool:
        """Return whether the vector is cached."""
        with self._lock:
            return (space, text) in self._vectors

    def embed(self, embedder: Embedder, space: int, text: str) -> Vector:
        """Return the vector of `text` in the store's space with the number `space`, which is the embedder's."""
        key = (space, text)
        with self._lock:
            if (cached := self._vectors.get(key)) is not None:
                self._vectors.move_to_end(key)
                return cached
        vector = embedder.embed_query(text)
        if len(text) <= _CACHED_LENGTH:
            with self._lock:
                self._vectors[key] = vector
                if len(self._vectors) > _CACHED_QUERIES:
                    self._vectors.popitem(last=False)
        return vector


class RankedEntries(NamedTuple):
    """Entries by cosine, best first, each with its best window and that window's vector and cosine. Lists of one
    length."""

    entries: list[int]
    windows: list[int]
    vectors: list[int]
    scores: list[float]
    exact: int  # number of exact scores at the beginning; the others are the index's


NO_ENTRIES = RankedEntries([], [], [], [], 0)


def rescore(connection: sqlite3.Connection, hits: VectorHits, *, alone: bool) -> RankedEntries:
    """Order the best window of each entry by exact cosine: all if the vectors decide `alone`, else the first ones."""
    if not len(hits.windows):
        return NO_ENTRIES
    exact = len(hits.windows) if alone else max(_windows_of(hits.entries, _RESCORED), hits.sure)
    scores = hits.scores.astype(np.float32)
    scores[:exact] = _cosines(connection, hits.query, hits.vectors[:exact], scores[:exact])
    rounded = np.arange(len(scores)) >= exact
    order = np.lexsort((hits.entries, -scores, rounded))  # the first of equal windows stays the first
    entries = hits.entries[order].tolist()
    first = {entry: place for place, entry in zip(range(len(entries) - 1, -1, -1), reversed(entries), strict=True)}
    places = sorted(first.values())[: hits.limit]
    best = order[places]
    return RankedEntries(
        hits.entries[best].tolist(),
        hits.windows[best].tolist(),
        hits.vectors[best].tolist(),
        scores[best].tolist(),
        int(np.searchsorted(places, exact)),
    )


def exact_scores(
    connection: sqlite3.Connection, query: Vector, ranked: RankedEntries, places: Iterable[int]
) -> dict[int, float]:
    """Return the exact cosines at these places of `ranked`."""
    scores = {place: ranked.scores[place] for place in places}
    rounded = [place for place in scores if place >= ranked.exact]
    if rounded:
        vectors = np.array([ranked.vectors[place] for place in rounded], np.int64)
        former = np.array([ranked.scores[place] for place in rounded], np.float32)
        scores.update(zip(rounded, _cosines(connection, query, vectors, former).tolist(), strict=True))
    return scores


def _windows_of(entries: IntArray, count: int) -> int:
    """Return the number of windows from the first on that belong to the first `count` entries."""
    _, firsts = np.unique(entries, return_index=True)
    return len(entries) if len(firsts) < count else int(np.sort(firsts)[count - 1]) + 1


def _cosines(
    connection: sqlite3.Connection, query: Vector, vectors: IntArray, rounded: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the cosines of these vectors with the query. A vector that was deleted meanwhile keeps its rounded
    score."""
    numbers, rows = stored_rows.read_vectors(connection, np.sort(vectors), len(query))
    if not len(numbers):
        return rounded
    places = np.minimum(np.searchsorted(numbers, vectors), len(numbers) - 1)
    return np.where(numbers[places] == vectors, (rows @ query)[places], rounded)


class HelperThread:
    """One thread, started at its first task and again in a forked process. Thread-safe."""

    def __init__(self) -> None:
        self._idle = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0  # that the executor belongs to
        self._enabled = (os.cpu_count() or 1) > 1

    def start(self, task: Callable[[], Result]) -> Callable[[], Result]:
        """Start `task` and return a function that waits for its result or raises its error.

        If the thread is busy or there is one CPU only, the task itself is returned.
        """
        if not self._enabled or not self._idle.acquire(blocking=False):
            return task

        def run() -> Result:
            try:
                return task()
            finally:
                self._idle.release()

        try:
            return self._started().submit(run).result
        except RuntimeError:  # the interpreter is ending or has no thread to give; the task stays in the queue
            self._executor = None
            self._idle.release()
            return task

    def close(self) -> None:
        """End the thread. Idempotent; later tasks run in their callers' threads."""
        self._enabled = False
        if self._executor is not None and self._process == os.getpid():
            self._executor.shutdown()

    def _started(self) -> ThreadPoolExecutor:
        if self._executor is None or self._process != os.getpid():
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="agentformer-search")
            self._process = os.getpid()
        return self._executor
