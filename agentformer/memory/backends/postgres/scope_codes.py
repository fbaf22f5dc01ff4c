"""The vectors of small scopes in the memory of a process, in half precision. The server needs several milliseconds for
each thousand vectors that it compares one by one; this process compares them in a fraction of one.

A search uses cached vectors only if they are those of its own read transaction: the last change and the active space
of this transaction decide. After changes, only the changed entries are read again, so that the acknowledged writes of
all nodes are seen.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.flat import IntArray
from agentformer.index.vectors.index import VectorHits
from agentformer.memory.backends.postgres.connection import Connection, ReadyKey
from agentformer.memory.backends.postgres.scopes import WINDOWS_OF_ENTRIES, scope_condition
from agentformer.types import Matrix, Scope, Vector

_MAX_BYTES = 128 << 20  # of the vectors of all scopes; the least recently used scopes are dropped
_MAX_SCOPES = 256
_MAX_CHANGES = 1_000  # after more changes, the scope is read again
_HEADER = 4  # bytes before the numbers of a `halfvec`
# The last change with its random token, and a number that changes when the store moves to another space.
STATE: ReadyKey = (
    "SELECT seq, token, (SELECT xmin::text FROM spaces WHERE active = 1) FROM points ORDER BY seq DESC LIMIT 1",
    (),
)
_CHANGES = """
    SELECT (SELECT token FROM points WHERE seq = %s),
        ARRAY(SELECT entry FROM changes WHERE seq > %s ORDER BY seq LIMIT %s)
"""


class _State(NamedTuple):
    seq: int
    token: bytes
    space: str


class Codes(NamedTuple):
    """The windows of a scope: their numbers, entries, vectors, and the numbers of these vectors as a matrix with one
    row for each window."""

    windows: IntArray
    entries: IntArray
    vectors: IntArray
    rows: Matrix

    def at(self, places: NDArray[Any]) -> Codes:
        """Return the windows at these places."""
        return Codes(self.windows[places], self.entries[places], self.vectors[places], self.rows[places])


class ScopeCodes:
    """A cache of the vectors of small scopes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, str], tuple[_State, Codes] | None] = OrderedDict()
        self._bytes = 0

    def codes(self, connection: Connection, space: int, scope: Scope) -> Codes | None:
        """Return the vectors of a scope as the transaction of `connection` sees them. Return None if the scope is
        searched for the first time, so that a scope of one search is not read, or if its entries depend on the
        time."""
        if scope.min_salience > 0:
            return None
        key = space, repr(scope)
        with self._lock:
            seen, known = key in self._known, self._known.get(key)
            if not seen:
                self._put(key, None)
                return None
        row = connection.execute(*STATE).fetchone()
        if row is None or row[2] is None:
            return None
        state = _State(row[0], bytes(row[1]), row[2])
        if known is not None and known[0] == state:
            with self._lock:
                if key in self._known:
                    self._known.move_to_end(key)
            return known[1]
        codes = _followed(connection, space, scope, *known, state) if known is not None else None
        codes = codes or _read(connection, space, scope, None)
        with self._lock:
            self._put(key, (state, codes) if codes.rows.nbytes <= _MAX_BYTES else None)
        return codes

    def _put(self, key: tuple[int, str], value: tuple[_State, Codes] | None) -> None:
        former = self._known.pop(key, None)
        self._known[key] = value
        self._bytes += _size(value) - _size(former)
        while self._bytes > _MAX_BYTES or len(self._known) > _MAX_SCOPES:
            self._bytes -= _size(self._known.popitem(last=False)[1])


def nearest(codes: Codes, query: Vector, limit: int, spare: int) -> VectorHits:
    """Return the nearest windows of at least `limit` entries with their cosines, best first, and at least `spare` more
    windows, if there are as many."""
    if not len(codes.rows):
        none = np.zeros(0, np.int64)
        return VectorHits(query, limit, none, none, none, np.zeros(0, np.float32), 0)
    scores = codes.rows @ np.asarray(query, np.float16).astype(np.float32)
    order = np.lexsort((codes.windows, -scores))
    count = limit + spare
    while count < len(order) and len(np.unique(codes.entries[order[:count]])) < limit:
        count *= 4
    best = order[:count]
    columns = codes.windows[best], codes.entries[best], codes.vectors[best]
    return VectorHits(query, limit, *columns, scores[best], min(len(best), limit + spare))


def _size(value: tuple[_State, Codes] | None) -> int:
    return value[1].rows.nbytes if value else 0


def _followed(
    connection: Connection, space: int, scope: Scope, former: _State, codes: Codes, state: _State
) -> Codes | None:
    """Return the vectors after the changes since `former`. Return None if they cannot be followed: there are many
    changes, the database was put back from a backup, or the store has moved."""
    token, changed = connection.run(_CHANGES, [former.seq, former.seq, _MAX_CHANGES + 1]).fetchone()
    if former.space != state.space or bytes(token or b"") != former.token or len(changed) > _MAX_CHANGES:
        return None
    kept = ~np.isin(codes.entries, np.array(changed, np.int64))
    new = _read(connection, space, scope, changed)
    if not len(new.rows):
        return codes if kept.all() else codes.at(kept)
    if not len(codes.rows):
        return new
    joined = [np.concatenate([old[kept], more]) for old, more in zip(codes[:3], new[:3], strict=True)]
    return Codes(joined[0], joined[1], joined[2], np.concatenate([codes.rows[kept], new.rows]))


def _read(connection: Connection, space: int, scope: Scope, among: list[int] | None) -> Codes:
    """Read the vectors of a scope, or of those of its entries that have one of the numbers `among`."""
    condition, values = scope_condition(scope)
    if among is not None:
        condition, values = f"num = ANY(%s::bigint[]) AND {condition}", [among, *values]
    query = (
        "SELECT w.id, w.entry, w.vector, halfvec_send(v.half) "
        f"FROM (SELECT namespace, num FROM entries WHERE {condition}) AS e {WINDOWS_OF_ENTRIES}"
    )
    rows: list[Any] = connection.run(query, [*values, space]).fetchall()
    columns = [np.array([row[n] for row in rows], np.int64) for n in range(3)]
    data = b"".join(row[3][_HEADER:] for row in rows)
    matrix = np.frombuffer(data, ">f2").astype(np.float32).reshape(len(rows), -1 if rows else 0)
    return Codes(columns[0], columns[1], columns[2], matrix)
