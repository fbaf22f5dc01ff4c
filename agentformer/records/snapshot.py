"""All that the records hold at one moment: one read transaction, held open."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agentformer.records import entries as records
from agentformer.records.database import Database
from agentformer.records.spaces import active_space
from agentformer.records.vectors import matrix
from agentformer.types import MemoryEntry, Scope, StoredVector

_GROUP = 1_000  # vectors read at a time
_USED = (
    "SELECT id, hash, data, checksum FROM vectors WHERE space = ?1 AND EXISTS (SELECT 1 FROM windows JOIN entries "
    "ON entries.num = windows.entry WHERE windows.vector = vectors.id "
    "AND hex(entries.namespace) IN (SELECT value FROM json_each(?2))) ORDER BY hash"
)


class RecordsSnapshot:
    """A `MemorySnapshot` over a connection whose transaction has begun. SQLite keeps the former pages that it still
    needs in the write-ahead log, so a long one costs room on disk, and no writer waits."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def namespaces(self) -> Sequence[str]:
        return records.namespaces(self._connection)

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        return records.page(self._connection, scope, after, limit)

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        return records.history(self._connection, entry_id)

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        active = active_space(self._connection)
        if active is None or not namespaces:
            return
        number, space = active
        names = [name.encode().hex().upper() for name in namespaces]  # JSON functions end a text at its first NUL
        cursor = self._connection.execute(_USED, [number, json.dumps(names)])
        while group := cursor.fetchmany(_GROUP):
            numbers, hashes, blobs, checksums = map(list, zip(*group, strict=True))
            rows = matrix(numbers, blobs, checksums, space.dimension)
            yield from (StoredVector(space, key, row) for key, row in zip(hashes, rows, strict=True))


@contextmanager
def snapshot_of(database: Database) -> Iterator[RecordsSnapshot]:
    """The records as they are now, until the context ends."""
    with database.reading() as connection:
        records.last_change(connection)  # the moment is that of a transaction's first statement
        yield RecordsSnapshot(connection)
