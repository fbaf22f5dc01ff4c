"""The read transactions of a search. A round trip to the server takes longer than most statements of a search. To save
round trips, the statements that each search needs are sent together with `BEGIN`, and the last steps of a search share
one transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from agentformer.index.scope_masks import ScopeMask
from agentformer.memory.backends.postgres.connection import PostgresDatabase
from agentformer.memory.backends.postgres.scope_vectors import STATE
from agentformer.memory.backends.postgres.server import Ready
from agentformer.records.database import RecordsSnapshot
from agentformer.types import RecordStore

# Statements of `records/` without parameters, or with constant ones: the statement as in `records/` -> the same for
# PostgreSQL. If `records/` changes a statement, it needs another round trip; a test counts these.
_LAST_SEQ: Ready = {
    ("SELECT max(seq), (SELECT max(seq) FROM changes) FROM points", ()): (
        "SELECT max(seq), (SELECT max(seq) FROM changes) FROM points"
    ),
}
_STATE: Ready = {
    **_LAST_SEQ,
    ("SELECT id, description, checksum FROM spaces WHERE active = 1", ()): (
        "SELECT id, description, checksum FROM spaces WHERE active = 1"
    ),
}
_QUEUE: Ready = {
    **_LAST_SEQ,
    STATE: STATE[0],
    ("SELECT EXISTS (SELECT 1 FROM pending WHERE refused <= ?)", (1,)): (
        "SELECT EXISTS (SELECT 1 FROM pending WHERE refused <= 1)"
    ),
}
# Otherwise, the planner may sort all vectors and not use their index, or read all windows for a scope with few entries.
_NO_SCAN = "SET LOCAL enable_seqscan = off"


class SearchReads(RecordStore):
    """The database for searches. The parts of one search read in as few transactions as possible. Thread-safe."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._local = threading.local()

        self.read_only, self.store_id = database.read_only, database.store_id

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a read transaction. Inside the context `joined` or `whole` of this thread, this is the
        transaction of the context."""
        joined: sqlite3.Connection | None = getattr(self._local, "joined", None)
        if joined is not None:
            yield joined
            return
        with self._database.reading(_STATE) as connection:
            yield connection

    @contextmanager
    def reading_in_helper(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a read transaction for the helper thread of a search. The connection does not count for
        the limit of connections, because the search may hold the last one while it waits for its helper thread."""
        joined: sqlite3.Connection | None = getattr(self._local, "joined", None)
        if joined is not None:  # the helper thread was not used
            yield joined
            return
        with self._database.reading(beyond=True) as connection:
            yield connection

    @contextmanager
    def joined(self, mask: ScopeMask) -> Iterator[None]:
        """Let all calls of `reading` in this thread use one transaction until the end of the context. `mask` is the
        scope of the search; this implementation does not use it."""
        if getattr(self._local, "joined", None) is not None:
            yield
            return
        with self._join(_QUEUE):
            yield

    def whole(self) -> AbstractContextManager[None]:
        """Let all calls of `reading` in this thread use one transaction until the end of the context. The search must
        not compute a vector, because a connection must not wait for an embedder."""
        return self._join({**_STATE, **_QUEUE})

    @contextmanager
    def _join(self, ready: Ready) -> Iterator[None]:
        with self._database.reading(ready, _NO_SCAN) as connection:
            self._local.joined = connection
            try:
                yield
            finally:
                self._local.joined = None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self._database.writing() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[RecordsSnapshot]:
        with self._database.snapshot() as view:
            yield view
