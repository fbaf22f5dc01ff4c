"""The search by vectors in PostgreSQL. The windows of a scope with few entries are compared one by one: by the server,
or, from the second search of the scope on, by this process (`scope_vectors`). In larger scopes, an HNSW index of the
embedding space finds candidates. These comparisons use vectors of half precision; the caller then ranks the best
windows by their stored vectors.

The index of a space is created in the background when the space has many vectors; other spaces are searched exactly.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import suppress
from typing import Any

import numpy as np
from filelock import Timeout

from agentformer.errors import AgentFormerError
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors.index import VectorHits
from agentformer.memory.backends.postgres.connection import PostgresDatabase
from agentformer.memory.backends.postgres.schema import NO_NAMESPACE
from agentformer.memory.backends.postgres.scope_vectors import ScopeVectors, nearest
from agentformer.memory.backends.postgres.scopes import FEW, WINDOWS_OF_ENTRIES, ScopeRows, scope_condition
from agentformer.memory.backends.postgres.searching import SearchReads
from agentformer.memory.backends.postgres.server import Connection, native
from agentformer.types import RecordStore, Vector

log = logging.getLogger("agentformer")

INDEXED_FROM = 10_000  # number of vectors; a smaller space is searched exactly
_SPARE = 16  # additional windows, because rounding may have moved good ones below the limit
_EFFORT = (200, 1_000)  # minimum and maximum candidates that the index considers at a time (hnsw.ef_search)
_MAX_CANDIDATES = 20_000  # maximum candidates of the index (hnsw.max_scan_tuples); then the search is exact
_BUILD = {"m": 16, "ef_construction": 100}
_COLUMNS = "w.id, w.entry, w.vector, -(v.half <#> %b) AS cosine"


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
        return INDEXED_FROM  # large, so that words are always searched at the same time: the server computes

    def follow(self, database: RecordStore, newest: int, space: int) -> None:
        """Keep the embedding space `space` of a search, because `build` creates the index of this space. Unlike other
        vector indexes, do not apply the changes up to `newest`: the server has already applied them."""
        self.space = space

    def search(self, space: int, query: Vector, limit: int, allowed: ScopeMask) -> VectorHits | None:
        """Return the windows of the scope that are nearest to the query. Their cosines are computed in half precision,
        or exactly if the vectors are cached."""
        from pgvector import HalfVector

        assert isinstance(allowed, ScopeRows)
        with self._reads.reading() as connection:
            raw = native(connection)
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

    def status(self, connection: sqlite3.Connection, space: int) -> dict[str, Any]:
        """Return the state of the index of an embedding space as JSON values."""
        query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        row = native(connection).run(query, [index_name(space)]).fetchone()
        training = self._builder is not None and self._builder.is_alive()
        kind = "hnsw" if row and row[0] else "exact"
        return {"kind": kind, "training": training, "problem": self.problem or None}

    def build(self, *, wait: bool) -> None:
        """Create the index of the last searched space if it has many vectors and no index. If `wait` is false, a
        background thread creates it."""
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

    def _has_index(self, raw: Connection, space: int) -> bool:
        if space in self._indexed:
            return True
        query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        row = raw.run(query, [index_name(space)]).fetchone()
        if row is None:
            self.build(wait=False)
        elif row[0]:
            self._indexed.add(space)
        return bool(row and row[0])

    def _build(self) -> None:
        try:
            with suppress(Timeout), self._database.lock("hnsw", wait=False) as raw:
                create_index(raw)
            self.problem = ""
        except AgentFormerError as error:
            self.problem = str(error)
            log.warning("The index of the vectors could not be created; a later search tries again: %s", error)


def index_name(space: int) -> str:
    """Return the name of the index of an embedding space."""
    return f"vectors_of_space_{space}"


def create_index(raw: Connection) -> None:
    """Create the HNSW index of each space that has many vectors and no valid index. Writers do not wait."""
    for space, dimension in raw.run("SELECT space, max(vector_dims(half)) FROM vectors GROUP BY 1", []).fetchall():
        count = raw.run("SELECT count(*) FROM vectors WHERE space = %s", [space]).fetchone()[0]
        name = index_name(space)
        valid = raw.run("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [name]).fetchone()
        if count < INDEXED_FROM or (valid and valid[0]):
            continue
        if valid:  # an interrupted creation
            raw.run(f"DROP INDEX CONCURRENTLY IF EXISTS {name}", [])
        options = ", ".join(f"{key} = {value}" for key, value in _BUILD.items())
        raw.run(
            f"CREATE INDEX CONCURRENTLY {name} ON vectors USING hnsw ((half::halfvec({dimension})) halfvec_ip_ops) "
            f"WITH ({options}) WHERE space = {space} AND entry_namespace <> {NO_NAMESPACE}",
            [],
        )


def _exact(raw: Connection, space: int, half: Any, limit: int, allowed: ScopeRows) -> list[Any]:
    """Compare all windows of the scope with the query `half`, a vector of half precision. Return the best windows,
    which belong to at least `limit` entries if there are enough."""
    condition, values = scope_condition(allowed.scope)
    count = limit + _SPARE
    while True:
        query = (
            f"SELECT {_COLUMNS} FROM (SELECT namespace, num FROM entries WHERE {condition}) AS e "
            f"{WINDOWS_OF_ENTRIES} ORDER BY cosine DESC, w.id LIMIT %s"
        )
        rows = raw.run(query, [half, *values, space, count]).fetchall()
        if len(rows) < count or len({row[1] for row in rows}) >= limit:
            return list(rows)
        count *= 4


def _from_index(raw: Connection, space: int, half: Any, limit: int, allowed: ScopeRows) -> list[Any] | None:
    """Search the HNSW index for the vectors that are nearest to the query `half`, a vector of half precision. Return
    the windows (embedded passages) of the scope that have one of these vectors, best first. Return None if only a few
    of these vectors are in the namespace or in the scope; the caller then compares all windows of the scope (`_exact`),
    which is faster."""
    condition, values = scope_condition(allowed.scope)
    dimension = half.dimensions() if callable(getattr(half, "dimensions", None)) else len(half.to_list())
    count = (limit + _SPARE) * 2
    while count <= _MAX_CANDIDATES:
        effort = min(max(count, _EFFORT[0]), _EFFORT[1])
        raw.run(f"SET LOCAL hnsw.ef_search = {effort}", [])
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
        rows = raw.run(query, [half, allowed.scope.namespace, half, *values]).fetchall()
        if len({row[1] for row in rows}) >= limit:
            return [row[:4] for row in rows]
        if not rows or rows[0][4] < count:
            return None
        count *= 4
    return None


def _hits(query: Vector, limit: int, rows: list[Any]) -> VectorHits:
    windows, entries, vectors, cosines = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = [np.array(column, np.int64) for column in (windows, entries, vectors)]
    scores = np.array(cosines, np.float32)
    return VectorHits(query, limit, columns[0], columns[1], columns[2], scores, min(len(rows), limit + _SPARE))
