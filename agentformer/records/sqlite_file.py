"""What every SQLite file here needs: a durable connection, transactions that end, and honest errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentformer.errors import StoreDamaged, StoreError, StoreFull

_DAMAGED = ("malformed", "not a database", "disk image", "corrupt")
_FULL = ("full", "readonly", "read-only", "unable to open", "disk i/o error")


def opened(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """A connection with a write-ahead log and `synchronous=FULL`: what is committed has reached the disk. A writer
    waits `busy_seconds` for another one."""
    connection = sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        connection.row_factory = sqlite3.Row
        _keep_a_log(connection, busy_seconds)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")  # what is forgotten does not stay readable in free pages
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
    """Committed at the end, or rolled back by an error, wherever it comes: Ctrl-C comes anywhere."""
    try:
        connection.execute(begin)
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def translated(path: Path, damaged: str) -> Iterator[None]:
    """Errors of SQLite as `StoreDamaged`, with what to do, `StoreFull` or `StoreError`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error).lower()
        if any(word in text for word in _DAMAGED):
            raise StoreDamaged(f"{path} is damaged ({error}); {damaged}") from error
        if any(word in text for word in _FULL):
            raise StoreFull(f"{path} cannot be written ({error}); free space or check permissions") from error
        raise StoreError(f"{path}: {error}") from error


def _keep_a_log(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Write-ahead logging, for good. Only the first opener of a new file changes the mode, and while it does, SQLite
    refuses the others at once instead of letting them wait `busy_timeout`; so they wait here."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
