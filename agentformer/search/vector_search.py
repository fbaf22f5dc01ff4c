"""The search by vectors: embed the query, find the nearest windows (embedded parts of entries), and compute their exact
cosines."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from agentformer.index.embedding.active import ActiveEmbedder, current_embedder, embedder_for
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors.flat import IntArray
from agentformer.index.vectors.index import VectorHits
from agentformer.records.spaces import space_of
from agentformer.types import Embedder, EmbeddingSpace, Matrix, RecordStore, Vector

_CACHED_QUERIES = 512  # number of cached query vectors: less than 2 MB at 768 dimensions
_CACHED_LENGTH = 4_000  # a query with more code points is not cached
_FORMER_SPACE = "the search used the vectors of the former embedding model, because the new embedder {} is being loaded"

_RESCORED = 32  # number of entries that get exact cosines if words also affect the ranking; reading vectors is slow

# A function that reads vectors. The arguments are vector numbers in ascending order, and the dimension. The result is
# the numbers of the vectors that are stored, and a matrix of these vectors.
ReadVectors = Callable[[IntArray, int], tuple[IntArray, Matrix]]


class VectorSide(Protocol):
    """The interface of a vector index, which a store can implement in its own way. The methods are described in
    `index.vectors.follower.VectorFollower`."""

    @property
    def space(self) -> int: ...

    def __len__(self) -> int: ...

    def follow(self, database: RecordStore, newest: int, space: int) -> None: ...

    def search(self, space: int, query: Vector, limit: int, allowed: ScopeMask) -> VectorHits | None: ...


class VectorSearch:
    """Searches the vector index of a store, with queries embedded by the model of its vectors. Thread-safe."""

    def __init__(self, index: VectorSide, database: RecordStore, embedder: Embedder) -> None:
        self._index = index
        self._database = database
        self._embedder = embedder
        self.cache = QueryVectorCache()

    def nearest(
        self,
        text: str,
        space: tuple[int, EmbeddingSpace],
        seq: int,
        limit: int,
        mask: ScopeMask,
        embedded: Callable[[], object] = lambda: None,
    ) -> tuple[VectorHits | None, tuple[str, ...]] | None:
        """Return the windows nearest to the query, and warnings. `space` is the number and the description of the
        active embedding space. `seq` is the number of the newest change that the search must see. `mask` contains the
        entries in the scope. The function `embedded` is called after the query is embedded, before the index is
        searched.

        While the embedder of a new active space is being loaded, the vectors of the former space are searched, and a
        warning is returned. If the index already has vectors of another space than `space`, return None; the caller
        must then read the active space again. Raises `EmbedderError` if the query cannot be embedded, and
        `SpaceMismatch` if the embedder has another space.
        """
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
        embedded()
        self._index.follow(self._database, seq, number)
        hits = self._index.search(number, vector, limit, mask)
        return None if hits is None else (hits, ())

    def _nearest_in_former_space(self, text: str, limit: int, mask: ScopeMask) -> VectorHits | None:
        """Search the vectors of the former embedding space of the store, with the embedder of that space. Call only
        while the embedder of the new space is being loaded. Return None if the index in memory no longer contains the
        vectors of the former space."""
        embedder, number = current_embedder(self._embedder), self._index.space
        with self._database.reading() as connection:
            former = space_of(connection, number)
        if former is None or former.difference(embedder.space):
            return None
        return self._index.search(number, self.cache.embed(embedder, number, text), limit, mask)


class QueryVectorCache:
    """A cache of the vectors of recent queries. The key is the text of the query and the number of the embedding space.
    A store never uses the number of a space again, so the cache never returns a vector of another model.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vectors: OrderedDict[tuple[int, str], Vector] = OrderedDict()

    def has(self, space: int, text: str) -> bool:
        """Return whether the vector of this query text is cached for this embedding space."""
        with self._lock:
            return (space, text) in self._vectors

    def embed(self, embedder: Embedder, space: int, text: str) -> Vector:
        """Return the vector of the query `text`, from the cache or from the embedder. `space` is the number of the
        embedding space of the embedder."""
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
    """Entries sorted by cosine, best first. The cosine of an entry is the cosine of its best window (embedded part).
    The fields are parallel lists, with one element for each entry: its number (`entries`), the number of its best
    window (`windows`), the number of the vector of this window (`vectors`), and the cosine (`scores`)."""

    entries: list[int]
    windows: list[int]
    vectors: list[int]
    scores: list[float]
    exact: int  # number of exact scores, which are the first; the index computed the other scores approximately
    read: tuple[IntArray, Matrix]  # the vectors from which exact scores were computed, as `ReadVectors` returns them


def rescore(read: ReadVectors, hits: VectorHits, *, alone: bool) -> RankedEntries:
    """Replace approximate cosines by exact cosines, computed from the vectors that the function `read` returns, and
    sort the entries by the cosine of their best window. If `alone` is True, only the vectors decide the ranking, and
    exact cosines are computed for all windows. Otherwise, they are computed only for the windows of the best entries.
    """
    exact = len(hits.windows) if alone else max(_windows_of(hits.entries, _RESCORED), hits.candidates)
    scores = hits.scores.astype(np.float32)
    stored = read(np.sort(hits.vectors[:exact]), len(hits.query))
    scores[:exact] = _cosines(stored, hits.query, hits.vectors[:exact], scores[:exact])
    rounded = np.arange(len(scores)) >= exact
    order = np.lexsort((hits.entries, -scores, rounded))  # keeps the order of windows with equal scores
    firsts: dict[int, int] = {}  # the best window of each entry, as an index in `order`
    for place, entry in enumerate(hits.entries[order].tolist()):
        firsts.setdefault(entry, place)
    places = [*firsts.values()][: hits.limit]
    columns = [column[order[places]].tolist() for column in (hits.entries, hits.windows, hits.vectors, scores)]
    return RankedEntries(columns[0], columns[1], columns[2], columns[3], bisect_left(places, exact), stored)


def exact_vectors(
    read: ReadVectors, query: Vector, ranked: RankedEntries, places: Sequence[int]
) -> tuple[dict[int, float], dict[int, Vector]]:
    """Return the exact cosines of some entries of `ranked`, and their vectors, without those that were deleted in the
    meantime. `places` contains the indices of these entries in the lists of `ranked`. The keys of the results are the
    same indices. Only vectors that `rescore` has not read are read."""
    scores = {place: ranked.scores[place] for place in places}
    vectors = _rows_of(ranked.read, ranked, places)
    if rounded := [place for place in places if place >= ranked.exact]:
        numbers = np.array([ranked.vectors[place] for place in rounded], np.int64)
        former = np.array([ranked.scores[place] for place in rounded], np.float32)
        stored = read(np.sort(numbers), len(query))
        scores.update(zip(rounded, _cosines(stored, query, numbers, former).tolist(), strict=True))
        vectors |= _rows_of(stored, ranked, rounded)
    return scores, vectors


def _rows_of(stored: tuple[IntArray, Matrix], ranked: RankedEntries, places: Sequence[int]) -> dict[int, Vector]:
    """Return the vectors of entries of `ranked` that are in `stored`, by the place of the entry."""
    rows = {number: row for row, number in enumerate(stored[0].tolist())}
    return {place: stored[1][row] for place in places if (row := rows.get(ranked.vectors[place])) is not None}


def _windows_of(entries: IntArray, count: int) -> int:
    """Return how many of the best windows are needed to have windows of `count` different entries. If there are fewer
    entries, return the number of all windows. `entries` contains the entry number of each window, best window first."""
    different = set[int]()
    for place, entry in enumerate(entries.tolist(), 1):
        different.add(entry)
        if len(different) == count:
            return place
    return len(entries)


def _cosines(
    stored: tuple[IntArray, Matrix], query: Vector, vectors: IntArray, rounded: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the exact cosine of each vector with the query. `stored` is what `ReadVectors` returned for `vectors`, the
    numbers of the vectors, and `rounded` contains their approximate cosines. The cosine of a vector that was deleted in
    the meantime stays approximate."""
    numbers, rows = stored
    if not len(numbers):
        return rounded
    places = np.minimum(np.searchsorted(numbers, vectors), len(numbers) - 1)
    return np.where(numbers[places] == vectors, (rows @ query)[places], rounded)
