"""The search by vectors in PostgreSQL. The windows (embedded passages) of a scope with few entries are compared one by
one: by the server, or, from the second search of the scope on, by this process. In larger scopes, an HNSW index of the
embedding space finds candidates. The server compares vectors of half precision; the caller then ranks the best windows
by their stored vectors. The index of a space is created in the background when the space has many vectors; other spaces
are searched exactly.

This process keeps the windows of small scopes in memory (`ScopeVectors`), because comparing a thousand vectors takes
several milliseconds in the server, and less than one in this process. A search uses cached vectors only if they belong
to the last change and the active embedding space that its own read transaction sees. Otherwise, only the entries that
have changed are read again. A search therefore sees the acknowledged writes of all nodes.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from filelock import Timeout
from numpy.typing import NDArray

from agentformer.errors import AgentFormerError
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors.flat import IntArray
from agentformer.index.vectors.index import VectorHits
from agentformer.index.vectors.stored_vectors import VECTORS
from agentformer.memory.backends.postgres.connection import PostgresConnection
from agentformer.memory.backends.postgres.database import PostgresDatabase
from agentformer.memory.backends.postgres.schema import NO_NAMESPACE
from agentformer.memory.backends.postgres.searching import (
    FEW,
    STATE,
    WINDOWS_OF_ENTRIES,
    ScopeRows,
    SearchReads,
    scope_condition,
)
from agentformer.memory.backends.postgres.server import row_type
from agentformer.records.vectors import WINDOWS
from agentformer.types import Matrix, RecordStore, Scope, Statement, Vector

log = logging.getLogger("agentformer")

INDEXED_FROM = 10_000  # number of vectors; a smaller space is searched exactly
_SPARE = 16  # additional windows, because rounding may have moved good windows below the limit
_SEARCH_OPTIONS = (
    "SELECT set_config('hnsw.ef_search', %s, true), set_config('hnsw.iterative_scan', 'relaxed_order', true), "
    "set_config('hnsw.max_scan_tuples', '20000', true)"
)
_EFFORT = (200, 1_000)  # minimum and maximum candidates that the index considers at a time (hnsw.ef_search)
_MAX_CANDIDATES = 20_000  # maximum candidates of the index (hnsw.max_scan_tuples); then the search is exact
_BUILD = {"m": 16, "ef_construction": 100}
_COLUMNS = "w.id, w.entry, w.vector, -(v.half <#> %b) AS cosine"
_MAX_BYTES = 128 << 20  # size of the vectors of all scopes; the least recently used scopes are dropped
_MAX_SCOPES = 256
_MAX_CHANGES = 1_000  # after more changes, the scope is read again
_ROW_BYTES = 500  # estimated size of the other fields of a window
_WINDOW_COLUMNS = ("id", "space", "entry", "span_start", "span_end", "vector", "checksum")
_CHANGES = """
    SELECT (SELECT token FROM points WHERE seq = %s),
        ARRAY(SELECT entry FROM changes WHERE seq > %s ORDER BY seq LIMIT %s)
"""


class ServerVectors:
    """The vectors of a store. A search sees every committed change. Thread-safe."""

    def __init__(self, database: PostgresDatabase, reads: SearchReads) -> None:
        self._database = database
        self._reads = reads
        self._scopes = ScopeVectors()
        self._indexed: set[int] = set()  # spaces that have an index
        self._builder: threading.Thread | None = None
        self._lock = threading.Lock()
        self.space = 0  # the space of the last search
        self.problem = ""

    def __len__(self) -> int:
        return INDEXED_FROM  # large, so that words are always searched at the same time, because the server computes

    def follow(self, database: RecordStore, newest: int, space: int) -> None:
        """Record the embedding space of a search as `space`. Unlike other vector indexes, do not apply the changes up
        to `newest`: the server has already applied them."""
        self.space = space

    def search(self, space: int, query: Vector, limit: int, allowed: ScopeMask) -> VectorHits | None:
        """Return the windows (embedded passages) of the scope that are nearest to the query. Their cosines are computed
        in half precision, or exactly if the vectors are cached."""
        from pgvector import HalfVector

        assert isinstance(allowed, ScopeRows)
        with self._reads.reading() as raw:
            windows = self._scopes.windows(raw, space, allowed.scope, len(query)) if allowed.count <= FEW else None
            if windows is not None:
                hits, best = nearest(windows, query, limit, _SPARE)
                raw.known = best.known()  # so that the last steps of the search do not read them again
                return hits
            half, rows = HalfVector(np.asarray(query, np.float16)), None
            if allowed.count > FEW and self._has_index(raw, space):
                rows = _from_index(raw, space, half, limit, allowed)
            if rows is None:
                rows = _exact(raw, space, half, limit, allowed)
        return _hits(query, limit, rows)

    def status(self, connection: PostgresConnection, space: int) -> dict[str, Any]:
        """Return the state of the index of an embedding space as JSON values."""
        training = self._builder is not None and self._builder.is_alive()
        kind = "hnsw" if _is_valid(connection, space) else "exact"
        return {"kind": kind, "training": training, "problem": self.problem or None}

    def build(self, *, wait: bool) -> None:
        """Create the missing indexes of large embedding spaces in a thread. If `wait` is True, wait until the thread
        ends."""
        with self._lock:
            if self._builder is None or not self._builder.is_alive():
                self._builder = threading.Thread(target=self._build, name="agentformer-hnsw", daemon=True)
                self._builder.start()
            builder = self._builder
        if wait:
            builder.join()

    def close(self) -> None:
        """Wait for the creation of an index."""
        if self._builder is not None:
            self._builder.join()

    def _has_index(self, raw: PostgresConnection, space: int) -> bool:
        if space in self._indexed:
            return True
        valid = _is_valid(raw, space)
        if valid is None:
            self.build(wait=False)
        elif valid:
            self._indexed.add(space)
        return bool(valid)

    def _build(self) -> None:
        try:
            with suppress(Timeout), self._database.lock("hnsw", wait=False):
                self._database.create_index(create_index)
            self.problem = ""
        except AgentFormerError as error:
            self.problem = str(error)
            log.warning("The index of the vectors could not be created; a later search tries again: %s", error)


def index_name(space: int) -> str:
    """Return the name of the index of an embedding space."""
    return f"vectors_of_space_{space}"


def _is_valid(raw: PostgresConnection, space: int, schema: str = "") -> bool | None:
    """Return whether the index of an embedding space is valid, or None if it does not exist."""
    query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
    row = raw.execute(query, [f'"{schema}".{index_name(space)}' if schema else index_name(space)]).fetchone()
    return bool(row[0]) if row else None


def create_index(raw: PostgresConnection, schema: str) -> None:
    """Create the HNSW index of each space that has many vectors and no valid index. Writers do not wait. The statements
    name their schemas, because they cannot be in a transaction."""
    query = "SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace AS n ON n.oid = extnamespace"
    types = raw.execute(f"{query} WHERE extname = 'vector'", []).fetchone()[0]
    table = f'"{schema}".vectors'
    spaces = f"SELECT space, max({types}.vector_dims(half)), count(*) FROM {table} GROUP BY 1"
    for space, dimension, count in raw.execute(spaces, []).fetchall():
        name, valid = index_name(space), _is_valid(raw, space, schema)
        if count < INDEXED_FROM or valid:
            continue
        if valid is False:  # an interrupted creation
            raw.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{schema}".{name}', [])
        options = ", ".join(f"{key} = {value}" for key, value in _BUILD.items())
        raw.execute(
            f"CREATE INDEX CONCURRENTLY {name} ON {table} "
            f"USING hnsw ((half::{types}.halfvec({dimension})) {types}.halfvec_ip_ops) WITH ({options}) "
            f"WHERE space = {space} AND entry_namespace <> {NO_NAMESPACE}",
            [],
        )


def _exact(raw: PostgresConnection, space: int, half: Any, limit: int, allowed: ScopeRows) -> list[Any]:
    """Compare all windows of the scope with the query `half`, a vector of half precision. Return the best windows,
    which belong to at least `limit` entries if there are enough."""
    condition, values = scope_condition(allowed.scope)
    count = limit + _SPARE
    while True:
        query = (
            f"SELECT {_COLUMNS} FROM (SELECT namespace, num FROM entries WHERE {condition}) AS e "
            f"{WINDOWS_OF_ENTRIES} ORDER BY cosine DESC, w.id LIMIT %s"
        )
        rows = raw.execute(query, [half, *values, space, count]).fetchall()
        if len(rows) < count or len({row[1] for row in rows}) >= limit:
            return list(rows)
        count *= 4


def _from_index(raw: PostgresConnection, space: int, half: Any, limit: int, allowed: ScopeRows) -> list[Any] | None:
    """Search the HNSW index for the vectors that are nearest to the query `half`, a vector of half precision. Return
    the windows (embedded passages) of the scope that have one of these vectors, best first. Return None if few of these
    vectors are in the namespace or scope; `_exact` is then faster."""
    condition, values = scope_condition(allowed.scope)
    dimension = half.dimensions() if callable(getattr(half, "dimensions", None)) else len(half.to_list())
    count = (limit + _SPARE) * 2
    while count <= _MAX_CANDIDATES:
        effort = min(max(count, _EFFORT[0]), _EFFORT[1])
        raw.execute(_SEARCH_OPTIONS, [str(effort)])
        # without OFFSET 0, the planner may find the vectors of the namespace by another index, and sort them
        nearest = (
            f"SELECT * FROM (SELECT entry_namespace, id, half FROM vectors WHERE space = {space} "
            f"AND entry_namespace <> {NO_NAMESPACE} "
            f"ORDER BY half::halfvec({dimension}) <#> %b::halfvec({dimension}) OFFSET 0) AS ordered "
            f"WHERE entry_namespace = %s LIMIT {count}"
        )
        query = (
            f"WITH v AS MATERIALIZED ({nearest}) SELECT {_COLUMNS}, (SELECT count(*) FROM v) FROM v "
            f"JOIN windows AS w ON w.entry_namespace = v.entry_namespace AND w.vector = v.id AND w.space = {space} "
            f"JOIN LATERAL (SELECT num FROM entries WHERE num = w.entry AND {condition}) AS e ON true "
            "ORDER BY cosine DESC, w.id"
        )
        rows = raw.execute(query, [half, allowed.scope.namespace, half, *values]).fetchall()
        found_entries = {row[1] for row in rows}
        if len(found_entries) >= limit:
            return [row[:4] for row in rows]
        in_namespace = rows[0][4] if rows else 0  # of the `count` nearest vectors
        if in_namespace < count:
            return None
        count *= 4
    return None


def _hits(query: Vector, limit: int, rows: list[Any]) -> VectorHits:
    windows, entries, vectors, cosines = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = [np.array(column, np.int64) for column in (windows, entries, vectors)]
    scores = np.array(cosines, np.float32)
    return VectorHits(query, limit, columns[0], columns[1], columns[2], scores, min(len(rows), limit + _SPARE))


class _State(NamedTuple):
    seq: int
    token: bytes
    space: str


class Windows(NamedTuple):
    """The windows (embedded passages) of a scope, as parallel arrays. Item i of each array belongs to the same window:
    `windows` has the id of the window, `entries` the id of its entry, `vectors` the id of its vector, and `rows` the
    vector itself, shape (windows, dim). `stored` has pairs: the row of the window in the database, and the checksum of
    its vector."""

    windows: IntArray
    entries: IntArray
    vectors: IntArray
    rows: Matrix
    stored: NDArray[Any]

    def at(self, indexes: NDArray[Any]) -> Windows:
        """Return the windows at these indexes."""
        columns = self.windows[indexes], self.entries[indexes], self.vectors[indexes]
        return Windows(*columns, self.rows[indexes], self.stored[indexes])

    @property
    def size(self) -> int:
        """The estimated size in bytes."""
        return self.rows.nbytes + len(self.rows) * _ROW_BYTES

    def known(self) -> dict[Statement, dict[int, Any]]:
        """Return the stored rows of the vectors and windows, each by its id, so that a connection need not read them
        again; see `PostgresConnection`."""
        ids, blobs = self.vectors.tolist(), (row.tobytes() for row in self.rows.astype("<f4", copy=False))
        vectors = zip(ids, blobs, (checksum for _, checksum in self.stored), strict=True)
        windows = zip(self.windows.tolist(), (row for row, _ in self.stored), strict=True)
        return {VECTORS: {row[0]: row for row in vectors}, WINDOWS: dict(windows)}


class ScopeVectors:
    """A cache of the windows (embedded passages) of small scopes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, str], tuple[_State, Windows] | None] = OrderedDict()
        self._bytes = 0

    def windows(self, connection: PostgresConnection, space: int, scope: Scope, dimension: int) -> Windows | None:
        """Return the windows of a scope as the transaction of `connection` sees them. Return None if the caller must
        search without this cache. This is the case in the first search of a scope, because the scope may never be
        searched again. It is also the case if the entries of the scope depend on the time, or if a vector has another
        dimension."""
        if scope.min_salience > 0:
            return None
        key = space, repr(scope)
        with self._lock:
            seen, known = key in self._known, self._known.get(key)
            self._put(key, known)
        if not seen:
            return None
        row = connection.execute(STATE).fetchone()
        if row is None or row[2] is None:
            return None
        state = _State(row[0], bytes(row[1]), row[2])
        if known is not None and known[0] == state:
            return known[1]
        windows = _followed(connection, space, scope, known, state, dimension) if known else None
        if windows is None:
            windows = _read_windows(connection, space, scope, dimension)
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
    connection: PostgresConnection,
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
    token, changed = connection.execute(_CHANGES, [former.seq, former.seq, _MAX_CHANGES + 1]).fetchone()
    if former.space != state.space or bytes(token or b"") != former.token or len(changed) > _MAX_CHANGES:
        return None
    new = _read_windows(connection, space, scope, dimension, changed)
    if new is None:
        return None
    unchanged = ~np.isin(windows.entries, np.array(changed, np.int64))
    if unchanged.all() and not len(new.rows):
        return windows
    old = windows.at(unchanged)
    columns = [np.concatenate([one, more]) for one, more in zip(old[:3], new[:3], strict=True)]
    rows, stored = np.concatenate([old.rows, new.rows]), np.concatenate([old.stored, new.stored])
    return Windows(columns[0], columns[1], columns[2], rows, stored)


def _read_windows(
    connection: PostgresConnection, space: int, scope: Scope, dimension: int, among: list[int] | None = None
) -> Windows | None:
    """Read the windows of a scope. If `among` is given, read only the windows of the entries with these numbers. Return
    None if a vector has another dimension."""
    condition, values = scope_condition(scope)
    if among is not None:
        condition, values = f"num = ANY(%s::bigint[]) AND {condition}", [among, *values]
    query = (
        f"SELECT {', '.join(f'w.{column}' for column in _WINDOW_COLUMNS)}, v.checksum, v.data "
        f"FROM (SELECT namespace, num FROM entries WHERE {condition}) AS e {WINDOWS_OF_ENTRIES}"
    )
    rows: list[Any] = connection.execute(query, [*values, space]).fetchall()
    if any(len(row[-1]) != 4 * dimension for row in rows):
        return None
    columns = [
        np.array([row[_WINDOW_COLUMNS.index(name)] for row in rows], np.int64) for name in ("id", "entry", "vector")
    ]
    matrix = np.frombuffer(b"".join(row[-1] for row in rows), "<f4").astype(np.float32).reshape(len(rows), dimension)
    window, stored = row_type(_WINDOW_COLUMNS), np.empty(len(rows), object)
    for n, row in enumerate(rows):
        stored[n] = window(row[: len(_WINDOW_COLUMNS)]), row[-2]
    return Windows(columns[0], columns[1], columns[2], matrix, stored)
