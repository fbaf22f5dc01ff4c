"""Vectors that another store made: kept where they are comparable, and found by hash when their text is stored."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from agentformer.errors import EmbedderError, EmbedderUnavailable
from agentformer.index.embedding.active import pinned
from agentformer.records import vectors as store
from agentformer.records.database import Database
from agentformer.records.spaces import active_space, claim_space
from agentformer.types import Embedder, EmbeddingSpace, StoredVector

_GROUP = 1_000  # vectors of one transaction, so that no other writer waits long


class Keeping:
    """Takes vectors into a store, and remembers which, until those that nothing has used are dropped."""

    def __init__(self, database: Database, embedder: Embedder) -> None:
        self._database = database
        self._embedder = embedder
        self._brought = array("q")  # numbers of vectors

    def keep(self, vectors: Iterable[StoredVector]) -> int:
        """Keep those that are of the store's space, or of the embedder's in a store without vectors. Returns how many
        they were. Raises `EmbedderError` for a row that is not finite, of unit length and of its space's dimension."""
        space = self._space()
        kept = 0
        for group in _groups(vectors):
            _check(group)
            fitting = [each for each in group if space is not None and not space.difference(each.space)]
            if fitting and space is not None:
                with self._database.writing() as connection:
                    kept += self._put(connection, space, fitting)
        return kept

    def drop_unused(self) -> None:
        """Delete what was brought in and is of no entry: such texts were not stored after all."""
        while self._brought:
            some, self._brought = self._brought[:_GROUP], self._brought[_GROUP:]
            with self._database.writing() as connection:
                store.drop_unused(connection, some)

    def _space(self) -> EmbeddingSpace | None:
        """The space that vectors must be of; None where it is not known yet."""
        with self._database.reading() as connection:
            stored = active_space(connection)
        if stored:
            return stored[1]
        try:
            return pinned(self._embedder, None).space
        except EmbedderUnavailable:
            return None

    def _put(self, connection: sqlite3.Connection, space: EmbeddingSpace, fitting: Sequence[StoredVector]) -> int:
        now = active_space(connection)
        if now and now[1].difference(space):
            return 0  # the store has moved meanwhile
        number = claim_space(connection, space)
        hashes = [each.hash for each in fitting]
        before = store.vector_ids(connection, number, hashes)
        store.put_vectors(connection, number, hashes, np.stack([each.vector for each in fitting]))
        after = store.vector_ids(connection, number, hashes)
        self._brought.extend(after[key] for key in after.keys() - before.keys())
        return len(fitting)


def _check(group: Sequence[StoredVector]) -> None:
    """Raises `EmbedderError`."""
    for dimension in {each.space.dimension for each in group}:
        rows = [each for each in group if each.space.dimension == dimension]
        if any(each.vector.shape != (dimension,) or len(each.hash) != store.HASH_BYTES for each in rows):
            raise EmbedderError(f"a vector is not of the {dimension} dimensions of its space, or its hash is none")
        store.check_rows(np.stack([each.vector for each in rows]), len(rows))


def _groups(vectors: Iterable[StoredVector]) -> Iterator[list[StoredVector]]:
    given = iter(vectors)
    while group := list(islice(given, _GROUP)):
        yield group
