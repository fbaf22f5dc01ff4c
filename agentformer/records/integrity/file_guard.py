"""Safe access to a SQLite file: checks of the file before it is opened, durable connections, transactions, and errors.

If an open file is removed, replaced or moved, SQLite continues to write to the old file without an error. The written
changes would then be lost. For this reason, a `GuardedConnection` checks the file before each transaction.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from agentformer.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly, is_passing
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.settings.access import create_empty

if sys.platform != "win32":
    import fcntl

MOVED = "was removed, replaced or moved while it was open; move it back, or open the memory again"
_WAL_MOVED = (
    "was removed or replaced while it was open; the changes in this file were saved, but the last change was not; "
    "open the memory again, and repeat the last change"
)
_CHANGED = "is open for reading only and was changed in the meantime; open the memory again"
_UNFINISHED = (
    "contains changes that are not in the database file yet, and this process cannot write to the folder; "
    "copy the whole folder to a place where this process can write, and open the copy"
)
_DAMAGE_WORDS = (
    *("malformed", "not a database", "disk image", "corrupt", "unsupported file format", "could not decode"),
    # messages about names in the schema of this package
    *("no such table", "no such column", "no such index", "already exists", "duplicate column"),
    # this package checks references before each write, so a row with a wrong reference was stored by other software
    *("unique constraint", "foreign key constraint"),
)
# SQLite's results (https://www.sqlite.org/rescode.html) for a read that failed, and for too little memory
_PASSING_CODES = frozenset({7, 266, 522, 1802, 2314, 3082, 3338, 3850, 5386})
FULL_WORDS = ("full", "readonly", "read-only", "unable to open", "disk i/o error")

# The position of SQLite's locks in a file (https://www.sqlite.org/c3ref/io_methods.html). Each process that has a
# database with a write-ahead log open holds a lock there.
_LOCKS_AT, _LOCKS = 0x40000000, 512

FileIdentity = tuple[int, int]  # device and inode; another file at the same path has another identity


class GuardedConnection(SqliteConnection):
    """A connection that can detect whether its open file was removed, replaced or moved."""

    path: Path
    read_only = False
    has_wal = False
    identity: FileIdentity | None = None  # of the open file
    _wal: FileIdentity | None = None  # known after the first writing transaction
    _state: tuple[int, int] | None = None  # size and time of a file that SQLite treats as immutable

    def bind(self, path: Path, *, immutable: bool = False) -> None:
        """Record that this connection has opened the file at `path`. `immutable` means that SQLite expects no changes
        of the file; in this case, the size and the time of the file are recorded too."""
        if (status := _stat(path)) is None:
            raise StoreError(f"{path} {MOVED}")
        self.path = path
        self.identity = status.st_dev, status.st_ino
        self._state = (status.st_size, status.st_mtime_ns) if immutable else None

    def check_file(self) -> None:
        """Raise `StoreError` if the file at the recorded path is not the file that this connection has opened."""
        if self.identity is None or self.identity != file_identity(self.path):
            raise StoreError(f"{self.path} {MOVED}")
        if self._state is not None:
            status = _stat(self.path)
            if status is None or self._state != (status.st_size, status.st_mtime_ns) or file_size(wal_path(self.path)):
                raise StoreError(f"{self.path} {_CHANGED}")

    def check_wal(self) -> None:
        """Check the database file and its write-ahead log at the start of a write transaction. If the log was removed
        or replaced, new changes would be lost. In this case, copy the content of the removed log into the database
        file, and raise `StoreError`."""
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
    """Return the path of the write-ahead log of a database. The log may not exist."""
    return path.with_name(path.name + "-wal")


def file_identity(path: Path) -> FileIdentity | None:
    """Return device and inode of the file at `path`, which identify the file, or None if there is no file."""
    status = _stat(path)
    return (status.st_dev, status.st_ino) if status else None


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 if there is no file."""
    status = _stat(path)
    return status.st_size if status else 0


def check_regular_file(path: Path) -> None:
    """Raise `StoreError` if `path` is a folder, a pipe, a device or a loop of links. A missing file is accepted."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is not a regular file; move it to another place, or choose another folder")


def open_read_only(path: Path, busy_seconds: float) -> GuardedConnection:
    """Connect to a database file that this process cannot write. If the file has a write-ahead log, SQLite also reads
    the changes in the log. If there is no log, SQLite treats the file as a file that never changes. A reader waits at
    most `busy_seconds` for a lock. Raises `StoreError` if the log cannot be read."""
    wal = wal_path(path)
    if wal.exists():
        with suppress(sqlite3.OperationalError):
            return _connect_read_only(path, busy_seconds, immutable=False)
    if file_size(wal):
        raise StoreError(f"{wal} {_UNFINISHED}")
    return _connect_read_only(path, busy_seconds, immutable=True)


def _connect_read_only(path: Path, busy_seconds: float, *, immutable: bool) -> GuardedConnection:
    address = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")
    connection = _connect(address, busy_seconds)
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
    """Connect to a database with a write-ahead log and `synchronous=FULL`, so that committed changes are on disk.

    A writer waits `busy_seconds` for another writer. A file that cannot be written is opened for reading only. `check`
    is called with the path before each attempt to open the file. If the file is replaced meanwhile, the new file is
    opened. `tables` are the tables of this application. Raises `StoreError`, and does not change the file, if the file
    is not a database, or if it belongs to another application: it has tables, but not all of `tables`."""
    while True:
        before = file_identity(path)
        check(path)
        try:
            connection = _open(path, busy_seconds, tables)
        except (sqlite3.Error, StoreError, UnicodeDecodeError):
            # SQLite may have opened two different files, such as the old database with the new log.
            if before is None or file_identity(path) in (None, before):
                raise
            continue
        if before in (None, connection.identity):
            return connection
        connection.close()


def _open(path: Path, busy_seconds: float, tables: Collection[str]) -> GuardedConnection:
    check_regular_file(path)
    # a writer creates its log in the folder
    read_only = path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    if not path.exists():
        with suppress(OSError):  # SQLite reports the reason
            create_empty(path)  # SQLite gives the permissions of this file to its log, too
    connection = open_read_only(path, busy_seconds) if read_only else _connect(path, busy_seconds)
    try:
        connection.row_factory = sqlite3.Row
        names = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names and not names.issuperset(tables):
            raise StoreError(
                f"{path} is a database of another application, and was not changed; move this file away, or choose "
                "another folder"
            )
        if connection.read_only:
            return connection
        connection.has_wal = _enable_wal(connection, busy_seconds)
        connection.bind(path)
        connection.execute("PRAGMA synchronous = FULL")
        if sys.platform == "darwin":  # see `settings.access.sync_file`
            connection.execute("PRAGMA fullfsync = ON")
            connection.execute("PRAGMA checkpoint_fullfsync = ON")
        connection.execute("PRAGMA secure_delete = ON")  # otherwise deleted content would stay readable in free pages
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(address: Path | str, busy_seconds: float) -> GuardedConnection:
    """Connect to a database. `address` is a path, or a URI if it is a string."""
    return sqlite3.connect(
        address,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=isinstance(address, str),
        factory=GuardedConnection,
    )


def _enable_wal(connection: sqlite3.Connection, busy_seconds: float) -> bool:
    """Enable the write-ahead log. Return False if the file system does not support it. If another process enables the
    log of a new file at the same time, SQLite raises an error without waiting, so this function repeats the attempt for
    `busy_seconds`."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            return bool(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def exclusive(path: Path) -> Iterator[BinaryIO]:
    """Open and lock a database file, and yield the file. Raises `StoreError` if another process has the file open. The
    function checks the locks of SQLite directly, because SQLite may not be able to read the damaged file. This process
    must not have the file open, because closing the file releases all its locks."""
    with path.open("r+b") as file:
        if sys.platform != "win32":
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKS, _LOCKS_AT)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise StoreError(
                    f"{path} is open in another process: stop the servers and other programs that use this memory, and "
                    "run `agentformer doctor --repair` again"
                ) from error
        yield file


@contextmanager
def transaction(connection: GuardedConnection, begin: str = "BEGIN IMMEDIATE") -> Iterator[GuardedConnection]:
    """Run a transaction that begins with the SQL statement `begin`. The default statement acquires the write lock. The
    transaction is committed at the end of the block, or rolled back after any error, including Ctrl-C. Raises
    `StoreError` if the database file or its write-ahead log was removed or replaced."""
    try:
        connection.execute(begin)
        connection.check_wal()
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_passing_failure(error: BaseException) -> bool:
    """Return whether this error from SQLite may pass: a failed read, too little memory, or too many open files. SQLite
    does not say why it cannot open a file, so the function opens a file too."""
    code = getattr(error, "sqlite_errorcode", None)
    if is_passing(error) or code in _PASSING_CODES:
        return True
    if code is None or code & 0xFF not in (10, 14):  # an error of input or output, and a file that cannot be opened
        return False
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as other:
        return is_passing(other)
    return False


def is_damage(error: Exception) -> bool:
    """Return whether this error from SQLite means that the file is damaged."""
    text = str(error).lower()
    return any(word in text for word in _DAMAGE_WORDS)


@contextmanager
def translate_errors(path: Path, advice: str) -> Iterator[None]:
    """Run a block of code, and convert SQLite's errors to `StoreDamaged`, `StoreFull`, `StoreBusy` or `StoreError`. The
    message of `StoreDamaged` ends with `advice`."""
    try:
        yield
    except MemoryError as error:
        raise StoreBusy(f"{path} cannot be used now, because too little memory is free; try again") from error
    except UnicodeDecodeError as error:  # from SQLite's message about a damaged schema
        raise StoreDamaged(f"{path} is damaged (the name of a table or column is not UTF-8); {advice}") from error
    except sqlite3.DatabaseError as error:
        text = str(error).lower()
        if is_damage(error):
            reason = str(error).partition(" with text ")[0]  # the text may contain private data
            raise StoreDamaged(f"{path} is damaged ({reason}); {advice}") from error
        if is_passing_failure(error) or ("unable to open" in text and _may_be_opened(path)):
            raise StoreBusy(
                f"{path} cannot be used now ({error}): a file cannot be read, or too many files are open; nothing was "
                "changed; try again, and check the disk if this repeats"
            ) from error
        if any(word in text for word in FULL_WORDS):
            kind = StoreReadOnly if "readonly" in text or "read-only" in text else StoreFull
            raise kind(f"{path} cannot be written ({error}); free some disk space or check the permissions") from error
        if "locked" in text or "busy" in text:
            raise StoreBusy(f"another writer has locked {path} for too long; try again, or stop that writer") from error
        raise StoreError(f"{path}: {error}") from error


def _may_be_opened(path: Path) -> bool:
    """Return whether a file exists and its permissions let this process change it. If SQLite cannot open such a file,
    too many files were open at that moment."""
    return os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
