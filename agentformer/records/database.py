"""One SQLite file: opening, a small pool of connections, transactions, and honest errors."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from agentformer.errors import StoreError, StoreFull
from agentformer.records.salience import decayed
from agentformer.records.schema import migrate
from agentformer.records.sqlite_file import opened, transaction, translated

BUSY_SECONDS = 60.0  # a writer waits this long for another one; no writer embeds or calls a model meanwhile
_IDLE = 8  # connections kept open; more than the default server threads would only hold file handles


class Database:
    """Opened records. Thread-safe; several processes may have the same file open.

    Write-ahead log with `synchronous=FULL`: when `writing` is left without an error, its changes have
    reached the disk. Raises `StoreFull` or `StoreDamaged` where SQLite says so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFull(f"the folder {path.parent} cannot be made: {error.strerror or error}") from error
        with self._translated():
            connection = self._connect()
            migrate(connection)
            self.store_id = str(connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()[0])
            self._idle.append(connection)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one consistent state from its first statement on."""
        with self._translated(), self._borrowed() as connection:
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction with the write lock from its start: committed at the end, or rolled back by an error."""
        try:
            with self._translated(), self._borrowed() as connection, transaction(connection):
                yield connection
        except StoreFull:
            with suppress(StoreError):  # what fills the log may have room in the database, and then smaller writes have
                self.clear_log()
            raise

    def clear_log(self) -> None:
        """Empty the write-ahead log, in which what was deleted would stay readable. Waits for nobody: where a
        reader still needs it, a later call or the last one to close the store clears it."""
        with self._translated(), self._borrowed() as connection:
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")

    def close(self) -> None:
        """Close idle connections; one that is in use is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise StoreError("this memory is closed; open it again with agentformer.connect()")
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connect()
        try:
            yield connection
        finally:
            with self._lock:
                keep = not self._closed and len(self._idle) < _IDLE and not connection.in_transaction
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = opened(self.path, BUSY_SECONDS)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -32768")
        connection.create_function("decayed", 3, decayed, deterministic=True)
        return connection

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self.path, "restore it from a backup")
