"""The records at one moment while other connections write: as a read transaction, or as a copy in another file."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentformer.errors import StoreFull
from agentformer.records import change_feed, entries
from agentformer.records.database import Database
from agentformer.records.files import sync_folder
from agentformer.records.history import versions_of
from agentformer.records.integrity.file_guard import FULL_WORDS
from agentformer.records.spaces import active_space
from agentformer.records.vectors import decode_vectors
from agentformer.types import MemoryEntry, Scope, StoredVector

_GROUP = 1_000  # number of vectors read at a time
_USED_VECTORS = (
    "SELECT id, hash, data, checksum FROM vectors WHERE space = ?1 AND EXISTS (SELECT 1 FROM windows JOIN entries "
    "ON entries.num = windows.entry WHERE windows.vector = vectors.id "
    "AND hex(entries.namespace) IN (SELECT value FROM json_each(?2))) ORDER BY hash"
)


class RecordsSnapshot:
    """A `MemorySnapshot` over a connection with an open read transaction. Writers do not wait for it, but SQLite keeps
    the former pages in the write-ahead log."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def namespaces(self) -> Sequence[str]:
        return entries.namespaces(self._connection)

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        return entries.page(self._connection, scope, after, limit)

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        return versions_of(self._connection, entry_id)

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        """Yield the vectors of the active space that these namespaces use, in order of hash. Raises `StoreDamaged`."""
        active = active_space(self._connection)
        if active is None or not namespaces:
            return
        number, space = active
        names = [name.encode().hex().upper() for name in namespaces]  # JSON functions end a text at its first NUL
        cursor = self._connection.execute(_USED_VECTORS, [number, json.dumps(names)])
        while group := cursor.fetchmany(_GROUP):
            numbers, hashes, blobs, checksums = map(list, zip(*group, strict=True))
            rows = decode_vectors(numbers, blobs, checksums, space.dimension)
            yield from (StoredVector(space, key, row) for key, row in zip(hashes, rows, strict=True))


@contextmanager
def open_snapshot(database: Database) -> Iterator[RecordsSnapshot]:
    """Yield a view of the records at this moment. The view is valid until the context ends."""
    with database.reading() as connection:
        change_feed.last_seq(connection)  # the first statement decides which state the transaction sees
        yield RecordsSnapshot(connection)


def write_copy(database: Database, path: Path) -> None:
    """Write the records at this moment to the new file `path`, and sync the file. After an error `path` does not exist.

    `VACUUM INTO` reads in one transaction, so writers do not wait. The copy needs no log and contains no deleted
    content. Raises `StoreFull`, and `StoreDamaged` if the records cannot be read.
    """
    try:
        with database.outside() as connection:
            try:
                connection.execute("VACUUM INTO ?", [str(path)])
            except sqlite3.OperationalError as error:
                if any(word in str(error).lower() for word in FULL_WORDS):
                    raise OSError(str(error)) from error
                raise
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        reason = error.strerror or error
        raise StoreFull(f"{path} cannot be written ({reason}); free space or choose another folder") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
