"""What every SQLite file here needs: a durable connection, transactions that end, and honest errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentformer.errors import StoreDamaged, StoreError, StoreFull
from agentformer.records.integrity.file_guard import (
    Placed,
    check_kind,
    check_ours,
    is_read_only,
    opened_read_only,
    place_of,
)

_DAMAGED = (
    *("malformed", "not a database", "disk image", "corrupt", "unsupported file format", "could not decode"),
    *("no such table", "no such column", "no such index", "already exists", "duplicate column"),  # of our own schema
    *("unique constraint", "foreign key constraint"),  # we look before we write, so what is there is not what it was
)
_FULL = ("full", "readonly", "read-only", "unable to open", "disk i/o error")


def opened(
    path: Path, busy_seconds: float, tables: Collection[str], check: Callable[[Path], None] = lambda path: None
) -> Placed:
    """A connection with a write-ahead log and `synchronous=FULL`: what is committed has reached the disk. A writer
    waits `busy_seconds` for another one. A file that cannot be written is opened for reading.

    SQLite may have waited for whoever put another file in the place of the one that it had opened; then that one is
    opened. `check` is called before each opening.

    Raises `StoreError`, before anything is changed, for what is no file of ours: not a database with these tables."""
    while True:
        before = place_of(path)
        check(path)
        try:
            connection = _opened(path, busy_seconds, tables)
        except (sqlite3.Error, StoreError, UnicodeDecodeError):  # of two files in one, such as the log of the new one
            if before is None or place_of(path) in (None, before):
                raise
            continue
        if before is None or connection.is_at(before):
            return connection
        connection.close()


def _opened(path: Path, busy_seconds: float, tables: Collection[str]) -> Placed:
    check_kind(path)
    connection = opened_read_only(path, busy_seconds) if is_read_only(path) else _connected(path, busy_seconds)
    try:
        connection.row_factory = sqlite3.Row
        check_ours(connection, path, tables)
        if connection.read_only:
            return connection
        connection.has_log = _keep_a_log(connection, busy_seconds)
        connection.remember(path)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")  # what is forgotten does not stay readable in free pages
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(path: Path, busy_seconds: float) -> Placed:
    return sqlite3.connect(
        path,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        factory=Placed,
    )


@contextmanager
def transaction(connection: Placed, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
    """Committed at the end, or rolled back by an error, wherever it comes: Ctrl-C comes anywhere. Raises `StoreError`
    where the file was taken away."""
    try:
        connection.execute(begin)
        connection.check_log()
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_damage(error: Exception) -> bool:
    """Does SQLite say by this error that what it has read is not what was written?"""
    text = str(error).lower()
    return any(word in text for word in _DAMAGED)


@contextmanager
def translated(path: Path, damaged: str) -> Iterator[None]:
    """Errors of SQLite as `StoreDamaged`, with what to do, `StoreFull` or `StoreError`."""
    try:
        yield
    except UnicodeDecodeError as error:  # of what SQLite says of a schema that is broken
        raise StoreDamaged(f"{path} is damaged (a name in it is not UTF-8); {damaged}") from error
    except sqlite3.DatabaseError as error:
        text = str(error).lower()
        if is_damage(error):
            told = str(error).partition(" with text ")[0]  # the text may be anything, and is nobody's business here
            raise StoreDamaged(f"{path} is damaged ({told}); {damaged}") from error
        if any(word in text for word in _FULL):
            raise StoreFull(f"{path} cannot be written ({error}); free space or check permissions") from error
        raise StoreError(f"{path}: {error}") from error


def _keep_a_log(connection: sqlite3.Connection, busy_seconds: float) -> bool:
    """Write-ahead logging, for good; False on a file system that cannot have it. Only the first opener of a new file
    changes the mode, and while it does, SQLite refuses the others at once instead of letting them wait `busy_timeout`;
    so they wait here."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            return bool(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
