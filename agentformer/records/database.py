"""One SQLite file: opening, a small pool of connections, transactions, and honest errors."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from agentformer.errors import StoreError, StoreFull
from agentformer.records import crc, meta
from agentformer.records.foreign_log import check_log_is_ours
from agentformer.records.placed import Placed
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


class Database:
    """Opened records. Thread-safe; several processes may have the same file open.

    Write-ahead log with `synchronous=FULL`: when `writing` is left without an error, its changes have
    reached the disk. Raises `StoreFull` or `StoreDamaged` where SQLite says so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: list[Placed] = []
        self._lock = threading.Lock()
        self._closed = False
        self._log_due = 0.0  # by the monotonic clock
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFull(f"the folder {path.parent} cannot be made: {error.strerror or error}") from error
        check_log_is_ours(path)
        with self._translated():
            self._first = connection = self._connect()
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
        opened one. For who knows that nobody else uses it."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        try:
            yield
        finally:
            with self._translated(), self._lock:
                self._first = self._connect()
                self.store_id = _identity(self._first)
                self._idle.append(self._first)

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
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._another()
        try:
            yield connection
        finally:
            with self._lock:
                keep = not self._closed and len(self._idle) < _IDLE and not connection.in_transaction
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def _another(self) -> Placed:
        connection = self._connect()
        try:
            self._first.check_same(connection)
        except StoreError:
            connection.close()
            raise
        return connection

    def _connect(self) -> Placed:
        connection = opened(self.path, BUSY_SECONDS, OURS)
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
