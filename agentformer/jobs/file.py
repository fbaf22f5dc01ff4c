"""The SQLite file of the jobs: made when the first one comes, one transaction at a time, and honest errors."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentformer.errors import StoreError
from agentformer.records.integrity.file_guard import Placed
from agentformer.records.sqlite_file import opened, transaction, translated

_BUSY_SECONDS = 30.0  # a transaction here is a few rows; who waits longer waits for a process that hangs
_VERSION = 1
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS jobs (
        id TEXT PRIMARY KEY,
        namespace TEXT NOT NULL,
        names TEXT NOT NULL,            -- JSON list
        metadata TEXT NOT NULL,         -- JSON object
        state TEXT NOT NULL,
        created_at INTEGER NOT NULL,    -- microseconds, UTC
        updated_at INTEGER NOT NULL,
        documents TEXT NOT NULL,        -- JSON list
        windows_done INTEGER NOT NULL,
        windows INTEGER NOT NULL,
        cancelling INTEGER NOT NULL,
        attempts INTEGER NOT NULL,      -- at the first file that has no outcome
        reason TEXT NOT NULL
    ) WITHOUT ROWID
"""


class JobFile:
    """Thread-safe; several processes may have the same file open. When `writing` is left without an error, its
    changes have reached the disk. Both raise `StoreFull`, `StoreDamaged` or `StoreError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._opened: Placed | None = None

    @property
    def there(self) -> bool:
        return self._opened is not None or self._path.exists()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def close(self) -> None:
        """Release the file; the next transaction opens it again."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, translated(self._path, "stop the servers and delete it"):
            connection = self._opened = self._opened or self._open()
            try:
                connection.check()
            except StoreError:
                connection.close()
                self._opened = None  # the next one opens what is there then
                raise
            with transaction(connection, begin):
                yield connection

    def _open(self) -> Placed:
        connection = opened(self._path, _BUSY_SECONDS, ["jobs"])
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > _VERSION:
                raise StoreError(f"the jobs are of a newer version ({version}, known {_VERSION}); upgrade agentformer")
            if version < _VERSION:
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection
