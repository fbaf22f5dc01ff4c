"""The nodes of a `DistributedMemory`: processes on any machine that share one PostgreSQL database. They divide the work
by claims and leases: a claim reserves entries of the embedding queue, and a lease reserves a named task. `Node` is this
process as a node: its row in the table `nodes`, and its claims and leases.

A thread extends the claims and leases periodically. If the process dies or cannot reach the server, they end after the
duration of a lease. Only the clock of the server is used.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agentformer.errors import StoreError
from agentformer.memory.backends.postgres.database import PostgresDatabase
from agentformer.memory.background import PeriodicThread
from agentformer.types import new_id

log = logging.getLogger("agentformer")

_BEATS = 3  # extensions during one lease, so that one lost extension does not end it
_FORGOTTEN = 10  # the row of a dead node is deleted after this many durations of a lease
_REGISTER = """
    INSERT INTO nodes (id, name, role, started_at, seen_at, ends_at, embedded)
    VALUES (%s, %s, %s, server_micros(), server_micros(), server_micros() + %s, 0)
    ON CONFLICT (id) DO UPDATE SET role = excluded.role, seen_at = excluded.seen_at, ends_at = excluded.ends_at
"""
# Rows that a writer has locked are skipped, because waiting for them could cause a deadlock.
_EXTEND = """
    WITH extended AS (
        UPDATE leases SET ends_at = server_micros() + micros WHERE holder = ANY(%s)
    )
    UPDATE pending SET claim_ends = server_micros() + %s
    WHERE entry IN (SELECT entry FROM pending WHERE claim = ANY(%s) FOR UPDATE SKIP LOCKED)
"""
_TAKE = """
    INSERT INTO leases VALUES (%s, %s, server_micros() + %s, %s)
    ON CONFLICT (name) DO UPDATE
        SET holder = excluded.holder, ends_at = excluded.ends_at, micros = excluded.micros
        WHERE leases.holder = excluded.holder OR leases.ends_at <= server_micros()
    RETURNING name
"""


class Node(PeriodicThread):
    """This process as a node. It is registered by `join`, or when it takes its first claim or lease. `seconds` is the
    duration of a lease. Thread-safe."""

    name = "agentformer-node"

    def __init__(self, database: PostgresDatabase, seconds: float) -> None:
        super().__init__(seconds / _BEATS)
        self.id = new_id()
        self.micros = int(seconds * 1_000_000)
        self._database = database
        self._role = "process"
        self._numbers = itertools.count(1)  # of holders
        self._held: set[str] = set()  # holders whose claims and leases are extended
        self._joined = False
        self._lock = threading.Lock()

    def join(self, role: str = "") -> None:
        """Register this process, and begin to extend its claims and leases. `agentformer nodes` shows `role`."""
        with self._lock:
            if self._joined and role in ("", self._role):
                return
            self._role = role or self._role
            self._register()
            self._joined = True
            self.start()

    @contextmanager
    def holding(self) -> Iterator[str]:
        """Yield a new holder: a name under which the caller takes claims or leases. They are extended until the end of
        the context. The caller must release them before the end, or they continue for the duration of a lease."""
        holder = self.begin()
        try:
            yield holder
        finally:
            self.end(holder)

    def begin(self) -> str:
        """Return a new holder: a name under which the caller takes claims or leases, which are extended until `end`."""
        self.join()
        holder = f"{self.id}/{next(self._numbers)}"
        with self._lock:
            self._held.add(holder)
        return holder

    def end(self, holder: str) -> None:
        """Stop extending the claims and leases under this name."""
        with self._lock:
            self._held.discard(holder)

    @contextmanager
    def lease(self, name: str) -> Iterator[bool]:
        """Take the lease `name` until the end of the context. Yield True if the lease was taken, and False if another
        holder has it."""
        with self.holding() as holder:
            taken = take_lease(self._database, name, holder, self.micros)
            try:
                yield taken
            finally:
                if taken:
                    with suppress(StoreError):  # the lease then ends after its duration
                        release_lease(self._database, name, holder)

    def tick(self) -> bool:
        """Call `beat`. Errors are logged, and the next call tries again."""
        try:
            self.beat()
        except StoreError as error:
            if not self._stopped.is_set():
                log.warning("this node could not extend its leases, so other nodes may take over its work: %s", error)
        return False

    def beat(self) -> None:
        """Renew the row of this node, and extend its claims and leases. Raises `StoreError` if this fails."""
        with self._lock:
            held = list(self._held)
        self._register()
        if held:
            with self._database.statements() as connection:
                connection.execute(_EXTEND, [held, self.micros, held])
        with self._database.statements() as connection:
            query = "DELETE FROM nodes WHERE ends_at < server_micros() - %s"
            connection.execute(query, [self.micros * _FORGOTTEN])

    def close(self, seconds: float = 5.0) -> None:
        """Stop the thread, and remove the row of this node. Idempotent."""
        super().close(seconds)
        with self._lock:
            joined, self._joined = self._joined, False
        if joined:
            with suppress(StoreError), self._database.statements() as connection:
                connection.execute("DELETE FROM nodes WHERE id = %s", [self.id])

    def _register(self) -> None:
        host = f"{socket.gethostname()}:{os.getpid()}"
        with self._database.statements() as connection:
            connection.execute(_REGISTER, [self.id, host, self._role, self.micros])


def take_lease(database: PostgresDatabase, name: str, holder: str, micros: int) -> bool:
    """Take or extend a lease for `micros` microseconds by the server's clock. Return False if another holder has it."""
    with database.statements() as connection:
        rows = connection.execute(_TAKE, [name, holder, micros, micros])
        return rows.fetchone() is not None


def release_lease(database: PostgresDatabase, name: str, holder: str) -> None:
    """End the lease `name` if `holder` has it."""
    with database.statements() as connection:
        connection.execute("DELETE FROM leases WHERE name = %s AND holder = %s", [name, holder])
