"""One SQLite file: opening, a small pool of connections, transactions, and honest errors."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from agentformer.errors import StoreError, StoreFull
from agentformer.records import meta
from agentformer.records.integrity import checksums as crc
from agentformer.records.integrity.file_guard import Placed, check_kind
from agentformer.records.integrity.stale_wal import check_log_is_ours
from agentformer.records.salience import decayed
from agentformer.records.schema import OURS, migrate
from agentformer.records.sqlite_file import opened, transaction, translated

BUSY_SECONDS = 60.0  # a writer waits this long for another one; no writer embeds or calls a model meanwhile
LOG_BYTES = 32 * 1024 * 1024  # of the write-ahead log, from which on a writer sees to it that it begins anew
# Seconds that it waits for readers. Again and again, since SQLite goes on waiting for a place among them that it found
# taken by a former one, also where the latest ones have that place now, whom it need not wait for.
_LOG_WAITS = (0.05, 0.1, 0.2, 0.4)
_LOG_PAUSE = 5.0  # seconds until it is tried again where somebody reads for longer, as a backup does
_IDLE = 8  # connections kept open; more than the default server threads would only hold file handles
_IN_USE = "is in use elsewhere in this process; end that, and repeat what you did"
_REPAIRED = "is being repaired; repeat what you did when that is done"
_OPENING = threading.Lock()
_OPENED: weakref.WeakSet[Database] = weakref.WeakSet()  # of this process, whose own use no lock of a file tells it


class Database:
    """Opened records. Thread-safe; several processes may have the same file open.

    Write-ahead log with `synchronous=FULL`: when `writing` is left without an error, its changes have
    reached the disk. Raises `StoreFull` or `StoreDamaged` where SQLite says so.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # beside which SQLite keeps its log, wherever this process goes
        self._idle: list[Placed] = []
        self._borrowed_now = 0
        self._lock = threading.Lock()
        self._closed = False
        self._replacing = False
        self._log_due = 0.0  # by the monotonic clock
        with _OPENING:
            if any(each.path == self.path and each._replacing for each in _OPENED):
                raise StoreError(f"{self.path} {_REPAIRED}")
            _OPENED.add(self)
        try:
            self._open(path)
        except BaseException:
            self._closed = True
            raise

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFull(f"the folder {path.parent} cannot be made: {error.strerror or error}") from error
        check_kind(path)
        with self._translated():
            self._first = connection = self._connect(check=True)
            self.read_only = connection.read_only
            try:
                migrate(connection)
                self.store_id = _identity(connection)
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one consistent state from its first statement on."""
        with self._translated(), self._borrowed() as connection:
            try:
                connection.execute("BEGIN")
                connection.check()
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
        self._bound_log()

    @contextmanager
    def outside(self) -> Iterator[sqlite3.Connection]:
        """A connection without a transaction, for what SQLite does in none."""
        with self._translated(), self._borrowed() as connection:
            connection.check()
            yield connection

    def clear_log(self) -> None:
        """Empty the write-ahead log, in which what was deleted would stay readable. Waits for nobody: where a
        reader still needs it, a later call or the last one to close the store clears it."""
        self._emptied_log(0)

    def _bound_log(self) -> None:
        """SQLite begins the log anew in a moment without readers, which never comes where many read all the time. So
        whoever finds it long waits for those that read now; who begins to read meanwhile needs no log."""
        if time.monotonic() < self._log_due or self._log_bytes() < LOG_BYTES:
            return
        self._log_due = time.monotonic() + _LOG_PAUSE
        with suppress(StoreError):  # what was written is committed, and a log may be long
            if any(self._emptied_log(seconds) for seconds in _LOG_WAITS):
                self._log_due = 0.0

    def _log_bytes(self) -> int:
        try:
            return self.path.with_name(f"{self.path.name}-wal").stat().st_size
        except OSError:
            return 0

    def _emptied_log(self, seconds: float) -> bool:
        """Whether the log is empty now, after waiting so long for its readers."""
        with self._translated(), self._borrowed() as connection:
            connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
            try:
                busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                return not busy
            finally:
                connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Without a connection of this process, so that another file may take the place of this one, which is then the
        opened one. Raises `StoreError` where another thread uses it; who would begin to meanwhile gets one too."""
        with _OPENING, self._lock:
            others = any(each is not self and each.path == self.path and each.is_open for each in _OPENED)
            if others or self._borrowed_now or self._replacing or self._closed:
                raise StoreError(f"{self.path} {_IN_USE}")
            self._replacing = True
            idle, self._idle = self._idle, []
        try:
            for connection in idle:
                connection.close()
            yield
        finally:
            try:
                with self._translated():
                    connection = self._connect(check=True)
                    self.store_id = _identity(connection)
                    self._first = connection
                    self._idle.append(connection)
            finally:
                self._replacing = False

    @property
    def is_open(self) -> bool:
        return not self._closed or self._borrowed_now > 0

    def close(self) -> None:
        """Close idle connections; one that is in use is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _borrowed(self) -> Iterator[Placed]:
        with self._lock:
            if self._closed:
                raise StoreError("this memory is closed; open it again with agentformer.connect()")
            if self._replacing:
                raise StoreError(f"{self.path} {_REPAIRED}")
            self._borrowed_now += 1
            connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or self._another()
            yield connection
        finally:
            self._give_back(connection)

    def _give_back(self, connection: Placed | None) -> None:
        with self._lock:
            if connection and not self._closed and len(self._idle) < _IDLE and not connection.in_transaction:
                self._idle.append(connection)
                connection = None
        try:
            if connection:
                connection.close()
        finally:
            with self._lock:
                self._borrowed_now -= 1

    def _another(self) -> Placed:
        connection = self._connect()
        try:
            self._first.check_same(connection)
        except StoreError:
            connection.close()
            raise
        return connection

    def _connect(self, *, check: bool = False) -> Placed:
        connection = (
            opened(self.path, BUSY_SECONDS, OURS, check_log_is_ours) if check else opened(self.path, BUSY_SECONDS, OURS)
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -32768")
        connection.execute("PRAGMA cell_size_check = ON")  # a damaged page is found when it is read
        connection.create_function("decayed", 3, decayed, deterministic=True)
        return connection

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self.path, "`agentformer doctor` tells what can be mended; else restore it from a backup")


def _identity(connection: sqlite3.Connection) -> str:
    """The store's id. Raises `StoreDamaged`."""
    found = meta.told(connection, "store_id")
    if not found:
        raise crc.damaged("what the store knows of itself", "its id is missing")
    return found
