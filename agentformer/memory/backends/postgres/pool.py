"""The connections of a process to a PostgreSQL server. Their number is limited. If the server is unreachable, calls
wait some seconds for it.

A pooler in transaction mode, such as PgBouncer, gives a connection to other clients after each transaction. So no
setting, lock or prepared statement may belong to a session: each transaction names its schema, locks are held by
transactions, and psycopg prepares no statement.

`psycopg_pool` is not used, because it connects in a thread. If the server refused the login, the caller would only get
the error that the pool has no connection.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from agentformer.errors import StoreBusy, StoreError
from agentformer.memory.backends.postgres.server import (
    NoFreeConnection,
    ServerUnreachable,
    import_psycopg,
    open_connection,
    register_text,
    translated_errors,
)
from agentformer.types import new_id

if TYPE_CHECKING:
    import psycopg

_MAX_IDLE = 8  # idle connections that stay open
_WAIT = 30.0  # seconds for a free connection
_PATIENCE = 15.0  # seconds in which an unreachable server is tried again: a restart needs a few, a failover more
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0  # seconds between two attempts
_END = """
    SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid = ANY(%s)
    AND (classid::bigint << 32) + objid::bigint = %s AND objsubid = 1
"""


class Connections:
    """The connections to one schema of a database, at most `limit`. A thread that already has a connection may get more
    connections beyond the limit, so that threads cannot wait for each other in a deadlock. `lock` is the number of the
    advisory lock that writers hold. Thread-safe."""

    def __init__(self, url: str, schema: str, limit: int, lock: int) -> None:
        self._url = url
        self._in_schema = f'SET LOCAL search_path = "{schema}", public'
        self._limit = limit
        self._lock = lock  # number of the advisory lock of writers
        # By connection: the process of the server, a name that no other has, and the rows of its first statements.
        self._processes: WeakKeyDictionary[psycopg.Connection[Any], int] = WeakKeyDictionary()
        self._names: WeakKeyDictionary[psycopg.Connection[Any], str] = WeakKeyDictionary()
        self._results: WeakKeyDictionary[psycopg.Connection[Any], list[list[Any]]] = WeakKeyDictionary()
        self._ending: WeakSet[psycopg.Connection[Any]] = WeakSet()  # connections whose last answer was not read
        self._lost: list[int] = []  # ids of server processes whose connections were lost
        self._idle: list[psycopg.Connection[Any]] = []
        self._mutex = threading.Lock()
        self._returned = threading.Condition(self._mutex)
        self._free = threading.BoundedSemaphore(limit)
        self._held = threading.local()  # `depth`: connections that this thread uses; only the first counts
        self._lost_at: float | None = None  # when the server was first found unreachable, until it answers again
        self._closed = False

    @contextmanager
    def borrow(self, *statements: str, begin: str = "BEGIN", beyond: bool = False) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection in a new transaction, in which `statements` were executed. `begin` begins the transaction;
        if it is empty, there is no transaction, and statements must name their schema. Raises `StoreBusy` if no
        connection becomes free in time. If `beyond` is true, the connection does not count for the limit."""
        sql = "; ".join([begin, self._in_schema, *filter(None, statements)] if begin else statements)
        depth = getattr(self._held, "depth", 0)
        counted = not depth and not beyond
        if counted and not self._free.acquire(timeout=_WAIT):
            raise StoreBusy(
                f"all {self._limit} connections to the PostgreSQL server are in use; try again, or raise "
                "AGENTFORMER_POSTGRES_CONNECTIONS"
            )
        self._held.depth = depth + 1
        try:
            raw = self._begun(sql)
            try:
                yield raw
            finally:
                self._give_back(raw)
        finally:
            self._held.depth = depth
            if counted:
                self._free.release()

    def first(self) -> psycopg.Connection[Any]:
        """Return a new connection that is not prepared for pgvector, which may not be installed yet. If the server
        accepts no further connection, wait for it at most `_WAIT` seconds."""
        ends = time.monotonic() + _WAIT
        while True:
            try:
                raw = open_connection(self._url)
            except NoFreeConnection:
                if time.monotonic() > ends:
                    raise
                time.sleep(_LONGEST_PAUSE)
            else:
                register_text(raw)
                return raw

    def _connect(self) -> psycopg.Connection[Any]:
        """Return a new connection that is prepared for pgvector."""
        from pgvector.psycopg import register_vector

        raw = open_connection(self._url)
        register_text(raw)
        with translated_errors(), raw.transaction():
            raw.execute(self._in_schema.encode())
            register_vector(raw)
        return raw

    def results(self, raw: psycopg.Connection[Any], ready: Sequence[str]) -> dict[str, list[Any]]:
        """Return the results of the statements `ready`, which `borrow` has executed."""
        return dict(zip(ready, self._results.pop(raw), strict=True)) if ready else {}

    def value(self, raw: psycopg.Connection[Any]) -> Any:
        """Return the first value of the last statement that `borrow` has executed."""
        return self._results.pop(raw)[-1][0][0]

    def end_reading(self, raw: psycopg.Connection[Any]) -> None:
        """End a read transaction without waiting for the answer, which the next use of the connection reads."""
        if raw.closed:
            return
        try:
            raw.pgconn.send_query(b"ROLLBACK")
            if raw.pgconn.flush():  # not all data could be sent
                raw.close()
            self._ending.add(raw)
        except import_psycopg().Error:  # the connection was lost, or it was interrupted in the middle of a statement
            raw.close()

    def name(self, raw: psycopg.Connection[Any]) -> str:
        """Return a name of this connection that no other connection of any process has."""
        with self._mutex:
            return self._names.setdefault(raw, new_id())

    def note_lost(self, raw: psycopg.Connection[Any]) -> None:
        """Record a lost connection. If its transaction still holds the write lock, the next use of a connection ends
        this transaction on the server."""
        with self._mutex:
            if process := self._processes.pop(raw, 0):
                self._lost.append(process)

    def close(self) -> None:
        """Close the unused connections. A connection in use is closed when it is returned."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _begun(self, begin: str) -> psycopg.Connection[Any]:
        """Return a connection in which `begin` was executed. If a restart of the server has closed an idle connection,
        another connection is used, because nothing was changed yet. If the server accepts no further connection, wait
        for one that another thread gives back, or for the server, at most `_WAIT` seconds."""
        ends = time.monotonic() + _WAIT
        while True:
            with self._mutex:
                if self._closed:
                    raise StoreError("this memory is closed; open it again with agentformer.connect()")
                raw = self._idle.pop() if self._idle else None
            if raw is None:
                try:
                    return self._patiently(lambda: self._executed(self._connect(), begin))
                except NoFreeConnection:
                    with self._returned:
                        if not self._idle:
                            self._returned.wait(_LONGEST_PAUSE)
                    if time.monotonic() > ends:
                        raise
                    continue
            try:
                return self._executed(raw, begin)
            except StoreError:
                if not raw.closed:
                    raw.close()
                    raise

    def _patiently(self, connect: Callable[[], psycopg.Connection[Any]]) -> psycopg.Connection[Any]:
        """Return a new connection. If the server is unreachable, try again until `_PATIENCE` seconds after the first
        failure in any thread. After this time, every call makes only one attempt, until an attempt succeeds."""
        pause = _FIRST_PAUSE
        while True:
            try:
                raw = connect()
            except NoFreeConnection:  # the server answers; `_begun` waits
                self._lost_at = None
                raise
            except ServerUnreachable:
                now = time.monotonic()
                lost_at = self._lost_at = self._lost_at or now
                if self._closed or now + pause > lost_at + _PATIENCE:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._lost_at = None
                return raw

    def _executed(self, raw: psycopg.Connection[Any], begin: str) -> psycopg.Connection[Any]:
        """Execute `begin` in a connection, and return the connection. Before that, end those transactions on the server
        whose connections were lost, because they may still hold the write lock."""
        with self._mutex:
            self._processes[raw] = raw.info.backend_pid
            lost, self._lost = self._lost, []
        try:
            with translated_errors():
                if raw in self._ending:
                    self._ending.discard(raw)
                    _read_answer(raw)
                if lost:
                    raw.execute(_END, [lost, self._lock])
                cursor = raw.execute((begin or "SELECT 1").encode())
                self._results[raw] = _all_results(cursor)
        except StoreError:
            if raw.closed:
                self.note_lost(raw)
            with self._mutex:
                self._lost += lost
            raise
        return raw

    def _give_back(self, raw: psycopg.Connection[Any]) -> None:
        if raw.closed:
            self.note_lost(raw)
        with self._mutex:
            usable = not raw.closed and not self._closed
            usable = usable and (raw in self._ending or raw.info.transaction_status == 0)  # 0: in no transaction
            if usable and len(self._idle) < _MAX_IDLE:
                self._idle.append(raw)
                self._returned.notify()
                return
        raw.close()


def _read_answer(raw: psycopg.Connection[Any]) -> None:
    """Read the answer to a statement that was sent without waiting. `get_result` alone would hold the lock of the
    interpreter while it waits, and stop all threads."""
    pgconn = raw.pgconn
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        while True:
            while pgconn.is_busy():
                selector.select()
                pgconn.consume_input()
            if pgconn.get_result() is None:
                return


def _all_results(cursor: psycopg.Cursor[Any]) -> list[list[Any]]:
    """Return a list with the rows of each statement that returned rows."""
    results = []
    while True:
        if cursor.description is not None:
            results.append(cursor.fetchall())
        if not cursor.nextset():
            return results
