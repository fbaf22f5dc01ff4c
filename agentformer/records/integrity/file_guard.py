"""Opening a SQLite file safely: which files may be opened, durable connections, transactions, and errors.

SQLite goes on writing to a file that was removed, replaced or moved while it was open, without an error, and what it
acknowledged would be lost with the process. A `GuardedConnection` notices that before each transaction.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from agentformer.errors import StoreDamaged, StoreError, StoreFull

_MOVED = "was removed, replaced or moved while it was open; put it back, or open the memory again"
_WAL_MOVED = (
    "was removed or replaced while it was open; its content is in the records now, nothing else was written; "
    "open the memory again"
)
_CHANGED = "is open for reading only and was changed meanwhile; open the memory again"
_UNFINISHED = (
    "holds changes that are not in the records' file yet, and this folder cannot be written; "
    "copy the whole folder to a place that can be written, and open it there"
)
_DAMAGE_WORDS = (
    *("malformed", "not a database", "disk image", "corrupt", "unsupported file format", "could not decode"),
    *("no such table", "no such column", "no such index", "already exists", "duplicate column"),  # of our own schema
    *("unique constraint", "foreign key constraint"),  # checked before each write, so the stored rows are not ours
)
_FULL_WORDS = ("full", "readonly", "read-only", "unable to open", "disk i/o error")


class FileIdentity(NamedTuple):
    """Device and inode: a replacement at the same path has another identity."""

    device: int
    inode: int


class GuardedConnection(sqlite3.Connection):
    """A connection that knows which files it was opened on."""

    path: Path
    read_only = False
    has_wal = False
    _file: FileIdentity | None = None
    _wal: FileIdentity | None = None  # known from the first writing transaction on
    _state: tuple[int, int] | None = None  # size and time of a file that SQLite treats as immutable

    def bind(self, path: Path, *, immutable: bool = False) -> None:
        """Record that the file at `path` is the open one."""
        status = path.stat()
        self.path, self._file = path, FileIdentity(status.st_dev, status.st_ino)
        self._state = (status.st_size, status.st_mtime_ns) if immutable else None

    def is_bound_to(self, identity: FileIdentity | None) -> bool:
        """Return whether the open file has the identity that `file_identity` returned."""
        return self._file == identity

    def check_same_file(self, other: GuardedConnection) -> None:
        """Raise `StoreError` if `other` has another file open, which was replaced in between."""
        if self._file != other._file:
            raise StoreError(f"{self.path} {_MOVED}")

    def check_file(self) -> None:
        """Raise `StoreError` if the path is missing or leads to another file than the open one."""
        if self._file is None or self._file != file_identity(self.path):
            raise StoreError(f"{self.path} {_MOVED}")
        if self._state is not None:
            status = _stat(self.path)
            if status is None or self._state != (status.st_size, status.st_mtime_ns) or _size(wal_path(self.path)):
                raise StoreError(f"{self.path} {_CHANGED}")

    def check_wal(self) -> None:
        """Check the file and its write-ahead log at the start of a write transaction, which would be acknowledged in
        the log. If the log was removed, its content is copied into the database file first. Raises `StoreError`."""
        self.check_file()
        if not self.has_wal:
            return
        wal = wal_path(self.path)
        identity = file_identity(wal)
        if self._wal is None:
            self._wal = identity
        if identity is None or self._wal != identity:
            self.execute("ROLLBACK")
            self.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            raise StoreError(f"{wal} {_WAL_MOVED}")


def wal_path(path: Path) -> Path:
    """Return the path of a database's write-ahead log."""
    return path.with_name(path.name + "-wal")


def file_identity(path: Path) -> FileIdentity | None:
    """Return the identity of the file at `path`; None if there is none."""
    status = _stat(path)
    return FileIdentity(status.st_dev, status.st_ino) if status else None


def check_regular_file(path: Path) -> None:
    """Raise `StoreError` for a folder, a pipe, a device or a loop of links. A missing file is fine."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is not a regular file; move it away, or choose another folder")


def check_tables(connection: sqlite3.Connection, path: Path, tables: Collection[str]) -> None:
    """Raise `StoreError` for a database of another application: one with tables, but without these."""
    names = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if names and not names.issuperset(tables):
        raise StoreError(
            f"{path} is a database of another application, and was not touched; move it away, or choose another folder"
        )


def is_read_only(path: Path) -> bool:
    """Return whether the file exists and this process cannot write it, or not create a log beside it."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def open_read_only(path: Path, busy_seconds: float) -> GuardedConnection:
    """Connect to a file that cannot be written. SQLite follows the log of a writer elsewhere; without a log it treats
    the file as immutable and needs no lock. Raises `StoreError` if the log cannot be followed."""
    wal = wal_path(path)
    if wal.exists():
        with suppress(sqlite3.OperationalError):
            return _connect_read_only(path, busy_seconds, immutable=False)
    if _size(wal):
        raise StoreError(f"{wal} {_UNFINISHED}")
    return _connect_read_only(path, busy_seconds, immutable=True)


def _connect_read_only(path: Path, busy_seconds: float, *, immutable: bool) -> GuardedConnection:
    address = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")
    connection = sqlite3.connect(
        address,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
        factory=GuardedConnection,
    )
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # opens the log, or fails
        connection.bind(path, immutable=immutable)
    except BaseException:
        connection.close()
        raise
    connection.read_only = True
    return connection


def open_database(
    path: Path, busy_seconds: float, tables: Collection[str], check: Callable[[Path], None] = lambda path: None
) -> GuardedConnection:
    """Connect with a write-ahead log and `synchronous=FULL`: committed changes have reached the disk. A writer waits
    `busy_seconds` for another one. A file that cannot be written is opened for reading. `check` is called before each
    attempt. If another file takes the place of the opened one meanwhile, that one is opened.

    Raises `StoreError`, before anything is changed, for anything but a database with these tables."""
    while True:
        before = file_identity(path)
        check(path)
        try:
            connection = _open(path, busy_seconds, tables)
        except (sqlite3.Error, StoreError, UnicodeDecodeError):  # may be a mix of two files, such as the new one's log
            if before is None or file_identity(path) in (None, before):
                raise
            continue
        if before is None or connection.is_bound_to(before):
            return connection
        connection.close()


def _open(path: Path, busy_seconds: float, tables: Collection[str]) -> GuardedConnection:
    check_regular_file(path)
    connection = open_read_only(path, busy_seconds) if is_read_only(path) else _connect(path, busy_seconds)
    try:
        connection.row_factory = sqlite3.Row
        check_tables(connection, path, tables)
        if connection.read_only:
            return connection
        connection.has_wal = _enable_wal(connection, busy_seconds)
        connection.bind(path)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")  # deleted content does not stay readable in free pages
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, busy_seconds: float) -> GuardedConnection:
    return sqlite3.connect(
        path,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        factory=GuardedConnection,
    )


def _enable_wal(connection: sqlite3.Connection, busy_seconds: float) -> bool:
    """Turn write-ahead logging on; return False on a file system that does not support it. The first opener of a new
    file changes the mode, and meanwhile SQLite refuses the others at once instead of waiting `busy_timeout`; so this
    function waits."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            return bool(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def transaction(connection: GuardedConnection, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
    """Commit at the end, or roll back on any error, including Ctrl-C. Raises `StoreError` if the file was replaced."""
    try:
        connection.execute(begin)
        connection.check_wal()
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_damage(error: Exception) -> bool:
    """Return whether SQLite reports by this error that the file is damaged."""
    text = str(error).lower()
    return any(word in text for word in _DAMAGE_WORDS)


@contextmanager
def translate_errors(path: Path, advice: str) -> Iterator[None]:
    """Raise errors of SQLite as `StoreDamaged` with `advice`, `StoreFull` or `StoreError`."""
    try:
        yield
    except UnicodeDecodeError as error:  # of an error message about a damaged schema
        raise StoreDamaged(f"{path} is damaged (a name in it is not UTF-8); {advice}") from error
    except sqlite3.DatabaseError as error:
        text = str(error).lower()
        if is_damage(error):
            reason = str(error).partition(" with text ")[0]  # the text may be private content
            raise StoreDamaged(f"{path} is damaged ({reason}); {advice}") from error
        if any(word in text for word in _FULL_WORDS):
            raise StoreFull(f"{path} cannot be written ({error}); free space or check permissions") from error
        raise StoreError(f"{path}: {error}") from error


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _size(path: Path) -> int:
    status = _stat(path)
    return status.st_size if status else 0
