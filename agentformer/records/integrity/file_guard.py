"""The file behind a connection: may it be opened here, can it be written, and is it still in its place?

SQLite goes on writing into a file that was removed, replaced or moved while it was open, and says nothing. What it
acknowledged would be gone with the process.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agentformer.errors import StoreError

_MOVED = "was removed, replaced or moved while it was open; put it back, or open the memory again"
_LOG_MOVED = (
    "was removed or replaced while it was open; what it held is in the records now, nothing else was written; "
    "open the memory again"
)
_CHANGED = "is opened for reading only, and was changed meanwhile; open the memory again"
_UNFINISHED = (
    "holds changes that are not in the records' file yet, and this folder cannot be written; "
    "copy the whole folder to where it can be, and open it there"
)


class _Identity(NamedTuple):
    device: int
    inode: int


class Placed(sqlite3.Connection):
    """A connection that knows which files it was opened on."""

    path: Path
    read_only = False
    has_log = False
    _file: _Identity | None = None
    _log: _Identity | None = None  # the write-ahead log's, known from the first writing transaction on
    _state: tuple[int, int] | None = None  # size and time of a file that SQLite was told will not change

    def remember(self, path: Path, *, unchanging: bool = False) -> None:
        """The file at `path` is the one that was just opened."""
        found = path.stat()
        self.path, self._file = path, _Identity(found.st_dev, found.st_ino)
        self._state = (found.st_size, found.st_mtime_ns) if unchanging else None

    def is_at(self, place: tuple[int, int] | None) -> bool:
        """Was it opened on the file that `place_of` told of?"""
        return self._file == place

    def check_same(self, other: Placed) -> None:
        """Raises `StoreError` where `other` was opened on another file, as in the moment of a replacement."""
        if self._file != other._file:
            raise StoreError(f"{self.path} {_MOVED}")

    def check(self) -> None:
        """Raises `StoreError` where another file, or none, stands in the place of the opened one."""
        found = _stat(self.path)
        if found is None or self._file != (found.st_dev, found.st_ino):
            raise StoreError(f"{self.path} {_MOVED}")
        if self._state is not None and (self._state != (found.st_size, found.st_mtime_ns) or _size(log_of(self.path))):
            raise StoreError(f"{self.path} {_CHANGED}")

    def check_log(self) -> None:
        """`check` for a writing transaction that has just begun: of the write-ahead log too, in which it would be
        acknowledged. What is in a removed log already goes into the database file, while there is a handle of it."""
        self.check()
        if not self.has_log:
            return
        log = log_of(self.path)
        found = _stat(log)
        identity = _Identity(found.st_dev, found.st_ino) if found else None
        if self._log is None:
            self._log = identity
        if identity is None or self._log != identity:
            self.execute("ROLLBACK")
            self.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            raise StoreError(f"{log} {_LOG_MOVED}")


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def place_of(path: Path) -> tuple[int, int] | None:
    """What tells the file that is at `path` now from any other; None where there is none."""
    found = _stat(path)
    return _Identity(found.st_dev, found.st_ino) if found else None


def check_kind(path: Path) -> None:
    """Raises `StoreError` for what is no file: a folder, a pipe, a device, a loop of links."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror or error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is no file, so nothing can be kept in it; move it away, or choose another folder")


def check_ours(connection: sqlite3.Connection, path: Path, tables: Collection[str]) -> None:
    """Raises `StoreError` for a database that has tables, and not these: it is of another application."""
    found = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if found and not found.issuperset(tables):
        raise StoreError(
            f"{path} is a database of another application, and was not touched; move it away, or choose another folder"
        )


def is_read_only(path: Path) -> bool:
    """Is there a file that this process cannot write, or not with a log beside it?"""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def opened_read_only(path: Path, busy_seconds: float) -> Placed:
    """A connection to a file that cannot be written. Where a log is beside it, of a writer that has it open elsewhere,
    SQLite follows that; without one, nothing changes, and no lock is needed. Raises `StoreError` where the log cannot
    be followed."""
    log = log_of(path)
    if log.exists():
        with suppress(sqlite3.OperationalError):
            return _read_only(path, busy_seconds, unchanging=False)
    if _size(log):
        raise StoreError(f"{log} {_UNFINISHED}")
    return _read_only(path, busy_seconds, unchanging=True)


def _read_only(path: Path, busy_seconds: float, *, unchanging: bool) -> Placed:
    address = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if unchanging else "")
    connection = sqlite3.connect(
        address, timeout=busy_seconds, isolation_level=None, check_same_thread=False, uri=True, factory=Placed
    )
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # opens the log, or fails
        connection.remember(path, unchanging=unchanging)
    except BaseException:
        connection.close()
        raise
    connection.read_only = True
    return connection


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _size(path: Path) -> int:
    found = _stat(path)
    return found.st_size if found else 0
