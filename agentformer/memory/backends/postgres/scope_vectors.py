"""The windows of small scopes with their vectors in the memory of a process. The server needs several milliseconds to
compare a thousand vectors one by one; this process needs less than one.

A search uses cached vectors only if they belong to the last change and the active embedding space that its own read
transaction sees. Otherwise, only the entries that have changed are read again. A search therefore sees the acknowledged
writes of all nodes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.flat import IntArray
from agentformer.index.vectors.index import VectorHits
from agentformer.memory.backends.postgres.scopes import WINDOWS_OF_ENTRIES, scope_condition
from agentformer.memory.backends.postgres.server import Connection, KnownRows, ReadyKey, row_type
from agentformer.types import Matrix, Scope, Vector

_MAX_BYTES = 128 << 20  # size of the vectors of all scopes; the least recently used scopes are dropped
_MAX_SCOPES = 256
_MAX_CHANGES = 1_000  # after more changes, the scope is read again
_ROW_BYTES = 500  # estimated size of the other fields of a window
_COLUMNS = ("id", "space", "entry", "span_start", "span_end", "vector", "checksum")
# The last change, its random token, and a number that changes when the store moves to another embedding space.
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


class Windows(NamedTuple):
    """The windows of a scope, as parallel arrays. `windows`, `entries` and `vectors` are the ids of each window, its
    entry and its vector. `rows` are the vectors, shape (windows, dim). `stored` has pairs: the row of the window in the
    database, and the checksum of its vector."""

    windows: IntArray
    entries: IntArray
    vectors: IntArray
    rows: Matrix
    stored: NDArray[Any]

    def at(self, places: NDArray[Any]) -> Windows:
        """Return the windows at these indexes."""
        columns = self.windows[places], self.entries[places], self.vectors[places]
        return Windows(*columns, self.rows[places], self.stored[places])

    @property
    def size(self) -> int:
        """The estimated size in bytes."""
        return self.rows.nbytes + len(self.rows) * _ROW_BYTES

    def known(self) -> KnownRows:
        """Return the stored rows of the vectors and windows, so that a connection need not read them again."""
        ids, blobs = self.vectors.tolist(), (row.tobytes() for row in self.rows.astype("<f4", copy=False))
        vectors = zip(ids, blobs, (checksum for _, checksum in self.stored), strict=True)
        windows = zip(self.windows.tolist(), (row for row, _ in self.stored), strict=True)
        return KnownRows({row[0]: row for row in vectors}, dict(windows))


class ScopeVectors:
    """A cache of the windows of small scopes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, str], tuple[_State, Windows] | None] = OrderedDict()
        self._bytes = 0

    def windows(self, connection: Connection, space: int, scope: Scope, dimension: int) -> Windows | None:
        """Return the windows of a scope as the transaction of `connection` sees them. Return None if the caller must
        search without this cache: in the first search of a scope (it may never be searched again), if the entries of
        the scope depend on the time, or if a vector has another dimension."""
        if scope.min_salience > 0:
            return None
        key = space, repr(scope)
        with self._lock:
            seen, known = key in self._known, self._known.get(key)
            self._put(key, known)
        if not seen:
            return None
        row = connection.execute(*STATE).fetchone()
        if row is None or row[2] is None:
            return None
        state = _State(row[0], bytes(row[1]), row[2])
        if known is not None and known[0] == state:
            return known[1]
        windows = _followed(connection, space, scope, known, state, dimension) if known else None
        if windows is None:
            windows = _read(connection, space, scope, dimension)
        with self._lock:
            self._put(key, (state, windows) if windows is not None and windows.size <= _MAX_BYTES else None)
        return windows

    def _put(self, key: tuple[int, str], value: tuple[_State, Windows] | None) -> None:
        former = self._known.pop(key, None)
        self._known[key] = value
        self._bytes += _size(value) - _size(former)
        while self._bytes > _MAX_BYTES or len(self._known) > _MAX_SCOPES:
            self._bytes -= _size(self._known.popitem(last=False)[1])


def nearest(windows: Windows, query: Vector, limit: int, spare: int) -> tuple[VectorHits, Windows]:
    """Return at least `limit` + `spare` windows, nearest first, and the stored data of these windows. More windows are
    returned until they belong to at least `limit` entries. If there are not enough windows, all are returned."""
    scores = windows.rows @ query
    order = np.lexsort((windows.windows, -scores))
    count = limit + spare
    while count < len(order) and len(np.unique(windows.entries[order[:count]])) < limit:
        count *= 4
    best, scores = windows.at(order[:count]), scores[order[:count]]
    sure = min(len(scores), limit + spare)
    return VectorHits(query, limit, best.windows, best.entries, best.vectors, scores, sure), best


def _size(value: tuple[_State, Windows] | None) -> int:
    return value[1].size if value else 0


def _followed(
    connection: Connection,
    space: int,
    scope: Scope,
    known: tuple[_State, Windows],
    state: _State,
    dimension: int,
) -> Windows | None:
    """Apply the changes between the states of `known` and `state` to the windows in `known`, and return the result.
    Return None if the scope must be read again: there are many changes, a backup of the database was restored, or the
    store has moved to another embedding space."""
    former, windows = known
    token, changed = connection.run(_CHANGES, [former.seq, former.seq, _MAX_CHANGES + 1]).fetchone()
    if former.space != state.space or bytes(token or b"") != former.token or len(changed) > _MAX_CHANGES:
        return None
    new = _read(connection, space, scope, dimension, changed)
    if new is None:
        return None
    kept = ~np.isin(windows.entries, np.array(changed, np.int64))
    if kept.all() and not len(new.rows):
        return windows
    old = windows.at(kept)
    columns = [np.concatenate([one, more]) for one, more in zip(old[:3], new[:3], strict=True)]
    rows, stored = np.concatenate([old.rows, new.rows]), np.concatenate([old.stored, new.stored])
    return Windows(columns[0], columns[1], columns[2], rows, stored)


def _read(
    connection: Connection, space: int, scope: Scope, dimension: int, among: list[int] | None = None
) -> Windows | None:
    """Read the windows of a scope. If `among` is given, read only the windows of the entries with these numbers. Return
    None if a vector has another dimension."""
    condition, values = scope_condition(scope)
    if among is not None:
        condition, values = f"num = ANY(%s::bigint[]) AND {condition}", [among, *values]
    query = (
        f"SELECT {', '.join(f'w.{column}' for column in _COLUMNS)}, v.checksum, v.data "
        f"FROM (SELECT namespace, num FROM entries WHERE {condition}) AS e {WINDOWS_OF_ENTRIES}"
    )
    rows: list[Any] = connection.run(query, [*values, space]).fetchall()
    if any(len(row[-1]) != 4 * dimension for row in rows):
        return None
    columns = [np.array([row[_COLUMNS.index(name)] for row in rows], np.int64) for name in ("id", "entry", "vector")]
    matrix = np.frombuffer(b"".join(row[-1] for row in rows), "<f4").astype(np.float32).reshape(len(rows), dimension)
    window, stored = row_type(_COLUMNS), np.empty(len(rows), object)
    for place, row in enumerate(rows):
        stored[place] = window(row[: len(_COLUMNS)]), row[-2]
    return Windows(columns[0], columns[1], columns[2], matrix, stored)
