"""The vector part of a search: embed the query, find the nearest windows, and compute their exact cosines.

The module also contains the helper thread, in which the lexical query runs during the vector search.
"""

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

from agentformer.index.embedding.active import ActiveEmbedder, current_embedder, embedder_for
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors.flat import IntArray
from agentformer.index.vectors.follower import VectorFollower, read_stored_vectors
from agentformer.index.vectors.index import VectorHits
from agentformer.records.database import Database
from agentformer.records.spaces import space_of
from agentformer.types import Embedder, EmbeddingSpace, Vector

_CACHED_QUERIES = 512  # number of cached query vectors: less than 2 MB at 768 dimensions
_CACHED_LENGTH = 4_000  # a query with more code points is not cached
_FORMER_SPACE = "answered from the former embedding space while the embedder {} is being loaded"

_RESCORED = 32  # number of entries that get exact cosines if words also decide; reading vectors is slow

Result = TypeVar("Result")


class VectorSearch:
    """Searches the vector index. The query is embedded in the space of the index. Thread-safe."""

    def __init__(self, index: VectorFollower, database: Database, embedder: Embedder) -> None:
        self._index = index
        self._database = database
        self._embedder = embedder
        self.cache = QueryVectorCache()

    def nearest(
        self, text: str, space: tuple[int, EmbeddingSpace], seq: int, limit: int, mask: ScopeMask
    ) -> tuple[VectorHits | None, tuple[str, ...]] | None:
        """Return the nearest windows in the store's active `space` at its change `seq`, and warnings. Return None if
        the store has moved to another space in the meantime. While the embedder of a new space is being loaded, the
        index of the former space is searched, and a warning is returned. Raises `EmbedderError` or `SpaceMismatch`."""
        number, active = space
        own = self._embedder
        embedder: Embedder | None = None
        if isinstance(own, ActiveEmbedder):
            embedder = own.loaded_for_space(active)
            former = self._nearest_in_former_space(text, limit, mask) if embedder is None else None
            if former is not None:
                return former, (_FORMER_SPACE.format(active.spec),)
        embedder = embedder or embedder_for(own, active)
        vector = self.cache.embed(embedder, number, text)
        self._index.follow(self._database, seq, number)
        hits = self._index.search(number, vector, limit, mask)
        return None if hits is None else (hits, ())

    def _nearest_in_former_space(self, text: str, limit: int, mask: ScopeMask) -> VectorHits | None:
        """Search the index of the space before a move. Return None if that index does not fit the current embedder."""
        embedder, number = current_embedder(self._embedder), self._index.space
        with self._database.reading() as connection:
            former = space_of(connection, number)
        if former is None or former.difference(embedder.space):
            return None
        return self._index.search(number, self.cache.embed(embedder, number, text), limit, mask)


class QueryVectorCache:
    """The vectors of the latest queries. The key is the number of the embedding space and the text. Thread-safe. A
    store never uses the number of a space again, so the cache never returns a vector of another model."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vectors: OrderedDict[tuple[int, str], Vector] = OrderedDict()

    def has(self, space: int, text: str) -> bool:
        """Return whether the vector is cached."""
        with self._lock:
            return (space, text) in self._vectors

    def embed(self, embedder: Embedder, space: int, text: str) -> Vector:
        """Return the vector of `text` in the space with the number `space`. This must be the space of the embedder."""
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
    """Entries by cosine, best first. For each entry there is its best window, and the vector and the cosine of that
    window. All lists have the same length."""

    entries: list[int]
    windows: list[int]
    vectors: list[int]
    scores: list[float]
    exact: int  # number of exact scores at the beginning; the index computed the other scores


def rescore(connection: sqlite3.Connection, hits: VectorHits, *, alone: bool) -> RankedEntries:
    """Order entries by the exact cosine of their best window. If the vectors decide `alone`, all entries get exact
    cosines, otherwise only the first entries."""
    exact = len(hits.windows) if alone else max(_windows_of(hits.entries, _RESCORED), hits.sure)
    scores = hits.scores.astype(np.float32)
    scores[:exact] = _cosines(connection, hits.query, hits.vectors[:exact], scores[:exact])
    rounded = np.arange(len(scores)) >= exact
    order = np.lexsort((hits.entries, -scores, rounded))  # keeps the order of windows with equal scores
    entries = hits.entries[order].tolist()
    first = {entry: place for place, entry in zip(range(len(entries) - 1, -1, -1), reversed(entries), strict=True)}
    places = sorted(first.values())[: hits.limit]
    columns = [column[order[places]].tolist() for column in (hits.entries, hits.windows, hits.vectors, scores)]
    return RankedEntries(columns[0], columns[1], columns[2], columns[3], int(np.searchsorted(places, exact)))


def exact_scores(
    connection: sqlite3.Connection, query: Vector, ranked: RankedEntries, places: Iterable[int]
) -> dict[int, float]:
    """Return the exact cosines of the entries at these places of `ranked`."""
    scores = {place: ranked.scores[place] for place in places}
    rounded = [place for place in scores if place >= ranked.exact]
    if rounded:
        vectors = np.array([ranked.vectors[place] for place in rounded], np.int64)
        former = np.array([ranked.scores[place] for place in rounded], np.float32)
        scores.update(zip(rounded, _cosines(connection, query, vectors, former).tolist(), strict=True))
    return scores


def _windows_of(entries: IntArray, count: int) -> int:
    """Return how many windows, counted from the first, belong to the first `count` entries."""
    _, firsts = np.unique(entries, return_index=True)
    return len(entries) if len(firsts) < count else int(np.sort(firsts)[count - 1]) + 1


def _cosines(
    connection: sqlite3.Connection, query: Vector, vectors: IntArray, rounded: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the cosines of these vectors with the query. If a vector was deleted in the meantime, its rounded score is
    returned."""
    numbers, rows = read_stored_vectors(connection, np.sort(vectors), len(query))
    if not len(numbers):
        return rounded
    places = np.minimum(np.searchsorted(numbers, vectors), len(numbers) - 1)
    return np.where(numbers[places] == vectors, (rows @ query)[places], rounded)


class HelperThread:
    """One thread. It is started with its first task, and started again in a forked process. Thread-safe."""

    def __init__(self) -> None:
        self._idle = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0  # the process that the executor belongs to
        self._enabled = (os.cpu_count() or 1) > 1

    def start(self, task: Callable[[], Result]) -> Callable[[], Result]:
        """Start `task`. Return a function that waits for the result of the task, or raises its error. If the thread is
        busy or there is only one CPU, `task` itself is returned, and the caller runs it."""
        if not self._enabled or not self._idle.acquire(blocking=False):
            return task

        def run() -> Result:
            try:
                return task()
            finally:
                self._idle.release()

        try:
            return self._started().submit(run).result
        except RuntimeError:  # the interpreter exits or cannot start a thread; the task stays in the queue
            self._executor = None
            self._idle.release()
            return task

    def close(self) -> None:
        """End the thread. Later tasks run in the threads of their callers. Calling this twice does no harm."""
        self._enabled = False
        if self._executor is not None and self._process == os.getpid():
            self._executor.shutdown()

    def _started(self) -> ThreadPoolExecutor:
        if self._executor is None or self._process != os.getpid():
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="agentformer-search")
            self._process = os.getpid()
        return self._executor
