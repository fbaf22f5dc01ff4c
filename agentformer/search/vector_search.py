"""The vector side of a search: the query's vector, and the windows nearest to it."""

from __future__ import annotations

import threading
from collections import OrderedDict

from agentformer.index.embedding.active import current_embedder, embedder_for, loaded_embedder
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors.follower import VectorFollower
from agentformer.index.vectors.index import VectorHits
from agentformer.records.database import Database
from agentformer.records.spaces import space_of
from agentformer.types import Embedder, EmbeddingSpace, Vector

_CACHED_QUERIES = 512  # vectors of the last queries: under 2 MB at 768 dimensions
_CACHED_LENGTH = 4_000  # code points of a query that is worth caching
_FORMER_SPACE = "answered from the former embedding space while the embedder {} is being loaded"


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
