"""The read transactions and the scopes of a search. A round trip to the server takes longer than most statements of a
search. To save round trips, the statements that each search needs are sent together with `BEGIN`, and the last steps of
a search share one transaction."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentformer.index.scope_masks import ScopeMask
from agentformer.memory.backends.postgres.connection import PostgresConnection, native
from agentformer.memory.backends.postgres.database import PostgresDatabase
from agentformer.memory.backends.postgres.scopes import where
from agentformer.records.change_feed import LAST_SEQ
from agentformer.records.codec import now_micros
from agentformer.records.scopes import NEXT_CHANGE, SEARCHED
from agentformer.records.spaces import ACTIVE_SPACE
from agentformer.records.sqlite.database import RecordsSnapshot
from agentformer.records.vectors import HAS_PENDING
from agentformer.types import Connection, RecordStore, Scope

# The last change, its random token, and a number that changes when the store moves to another embedding space.
STATE = "SELECT seq, token, (SELECT xmin::text FROM spaces WHERE active = 1) FROM points ORDER BY seq DESC LIMIT 1"
# The queries without values that each search needs, and those that its last steps need. A test counts the round trips.
_STATE = (LAST_SEQ.postgres, ACTIVE_SPACE.postgres)
_QUEUE = (LAST_SEQ.postgres, STATE, HAS_PENDING.postgres)
# Without this option, the planner may sort all vectors and not use their index, or read all windows for a small scope.
_NO_SCAN = "SET LOCAL enable_seqscan = off"
FEW = 5_000  # in a scope with at most this many entries, vectors are compared one by one
# The number of searchable entries of a scope, or `FEW` + 1 if there are more, and the time of the next change.
_COUNT = f"""
    SELECT (SELECT count(*) FROM (SELECT 1 FROM entries WHERE {{condition}} AND {SEARCHED} LIMIT {FEW + 1}) AS few),
        ({NEXT_CHANGE.postgres})
"""
_MAX_CACHED = 256
# The windows of the entries `e` with their vectors. The embedding space is a parameter.
WINDOWS_OF_ENTRIES = (
    "JOIN windows AS w ON w.entry_namespace = e.namespace AND w.entry = e.num AND w.space = %s "
    "JOIN vectors AS v ON v.entry_namespace = w.entry_namespace AND v.id = w.vector"
)


class _Joined(threading.local):
    """The connection in the read transaction that all reads of this thread share at present. None if there is none."""

    connection: PostgresConnection | None = None


class SearchReads(RecordStore):
    """The database for searches. The parts of one search read in as few transactions as possible. Thread-safe."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._joined = _Joined()
        self.read_only, self.store_id = database.read_only, database.store_id

    def reading(self) -> AbstractContextManager[PostgresConnection]:
        """Return a context manager that yields a connection in a read transaction. Inside the context `joined` or
        `whole` of this thread, this is the transaction of the context."""
        joined = self._joined.connection
        return nullcontext(joined) if joined is not None else self._database.reading(_STATE)

    def reading_in_helper(self) -> AbstractContextManager[PostgresConnection]:
        """Return a context manager that yields a connection in a read transaction for the helper thread of a search.
        The connection does not count for the limit of connections, because the search may hold the last connection
        while it waits for the thread."""
        joined = self._joined.connection  # not None if the search uses no helper thread
        return nullcontext(joined) if joined is not None else self._database.reading(beyond=True)

    def joined(self) -> AbstractContextManager[None]:
        """Return a context manager for the last steps of a search. Inside its context, all calls of `reading` in this
        thread use one transaction. Inside the context of `whole`, they keep its transaction."""
        return nullcontext() if self._joined.connection is not None else self._join(_QUEUE)

    def whole(self) -> AbstractContextManager[None]:
        """Return a context manager for a whole search. Inside its context, all calls of `reading` in this thread use
        one transaction. The caller must not embed a text inside the context, because a connection must not wait for an
        embedder."""
        return self._join([*dict.fromkeys(_STATE + _QUEUE)])

    @contextmanager
    def _join(self, ready: Sequence[str]) -> Iterator[None]:
        with self._database.reading(ready, _NO_SCAN) as connection:
            self._joined.connection = connection
            try:
                yield
            finally:
                self._joined.connection = None

    def writing(self) -> AbstractContextManager[PostgresConnection]:
        return self._database.writing()

    def snapshot(self) -> AbstractContextManager[RecordsSnapshot]:
        return self._database.snapshot()


@dataclass(frozen=True, slots=True, eq=False)
class ScopeRows(ScopeMask):
    """A scope of a search. `count` is the number of its entries, or `FEW` + 1 if there are more."""

    scope: Scope = field(default_factory=Scope)


class ServerScopes:
    """Counts the entries of scopes, because a scope with few entries is searched in another way. The counts are cached
    until the next change, or until an entry enters or leaves a scope as time passes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, tuple[int, int, float, ScopeRows]] = OrderedDict()

    def allowed(self, connection: Connection, scope: Scope, seq: int) -> ScopeRows:
        """Return the scope with the number of its entries. `seq` is the newest change that `connection` can read."""
        key, at = repr(scope), now_micros()
        with self._lock:
            cached = self._cached.get(key)
        if cached and cached[0] == seq and cached[1] <= at < cached[2] and scope.min_salience <= 0:
            return cached[3]
        condition, values = where(scope)
        query = _COUNT.format(condition=condition)
        count, until = native(connection).execute(query, [*values, *[scope.namespace, at] * 3]).fetchone()
        found = ScopeRows(np.zeros(0, np.bool_), int(count), scope)
        with self._lock:
            self._cached[key] = seq, at, until or math.inf, found
            self._cached.move_to_end(key)
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return found


def scope_condition(scope: Scope) -> tuple[str, list[Any]]:
    """Return an SQL condition for the searchable entries of a scope, and its parameters."""
    condition, values = where(scope)
    return f"{condition} AND {SEARCHED}", values
