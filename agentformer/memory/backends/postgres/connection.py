"""The connection to PostgreSQL: it executes statements in their text for PostgreSQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from agentformer.memory.backends.postgres.schema import NO_NAMESPACE
from agentformer.memory.backends.postgres.scopes import where
from agentformer.memory.backends.postgres.server import translated_errors
from agentformer.records.codec import COLUMNS, to_row
from agentformer.records.events import COLUMNS as EVENTS
from agentformer.records.events import OLD, WITH_EVENTS
from agentformer.records.sqlite.connection import already_exists
from agentformer.records.trail import COLUMNS as TRAIL
from agentformer.types import Connection, MemoryEntry, Result, Scope, Statement

if TYPE_CHECKING:
    import psycopg

_INSERT = f"""
    WITH place AS (
        INSERT INTO entry_places (id, namespace) VALUES (%(id)s, %(namespace)s)
        ON CONFLICT (id) DO NOTHING RETURNING num
    )
    INSERT INTO entries (num, {", ".join(COLUMNS)})
    SELECT num, {", ".join(f"%({name})s" for name in COLUMNS)} FROM place
"""
_OVERWRITE = f"""
    UPDATE entries SET {", ".join(f"{name} = %({name})s" for name in COLUMNS if name not in ("id", "namespace"))}
    WHERE namespace = %(namespace)s AND id = %(id)s
"""
_ADD_VECTOR = f"""
    INSERT INTO vectors (entry_namespace, space, hash, data, checksum, half)
    SELECT coalesce(%s, {NO_NAMESPACE}), v.* FROM (VALUES (%s::bigint, %s::bytea, %s::bytea, %s::bigint, %b::halfvec))
        AS v (space, hash, data, checksum, half)
    WHERE NOT EXISTS (SELECT 1 FROM vectors AS o WHERE o.space = v.space AND o.hash = v.hash) ON CONFLICT DO NOTHING
"""
# The new windows with the namespaces of their entries. If one of these namespaces lacks a vector, the vector is copied
# from another namespace.
_NEW_WINDOWS = """
    WITH new AS MATERIALIZED (
        SELECT p.namespace, w.* FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
            %s::bigint[]) WITH ORDINALITY AS w (space, entry, span_start, span_end, vector, checksum, place)
        JOIN entry_places AS p ON p.num = w.entry
    )
"""
_CLAIM_VECTORS = f"""
    {_NEW_WINDOWS}
    INSERT INTO vectors (entry_namespace, id, space, hash, data, checksum, half)
    SELECT n.namespace, v.id, v.space, v.hash, v.data, v.checksum, v.half
    FROM (SELECT DISTINCT namespace, vector FROM new) AS n
    CROSS JOIN LATERAL (SELECT * FROM vectors WHERE vectors.id = n.vector LIMIT 1) AS v
    WHERE NOT EXISTS (SELECT 1 FROM vectors AS o WHERE o.entry_namespace = n.namespace AND o.id = n.vector)
    ON CONFLICT DO NOTHING RETURNING id
"""
_ADD_WINDOWS = f"""
    {_NEW_WINDOWS}
    INSERT INTO windows (entry_namespace, space, entry, span_start, span_end, vector, checksum)
    SELECT namespace, space, entry, span_start, span_end, vector, checksum FROM new ORDER BY place
"""
# An event and the row of the trail about the same change. One statement, because each one waits for the server.
_EVENT = f"""
    WITH old AS ({OLD}), act AS (INSERT INTO trail ({TRAIL}) VALUES ({", ".join(["%s"] * 11)}))
    INSERT INTO events ({EVENTS}) VALUES ({", ".join(["%s"] * 8)})
"""
_OF = f"FROM entries WHERE num = ANY(%s) AND {WITH_EVENTS} ORDER BY num"
_EVENTS_OF = f"""
    WITH old AS ({OLD}), act AS (
        INSERT INTO trail ({TRAIL}) SELECT %s, %s, id, namespace, kind, version, %s, %s, %s, %s, %s {_OF}
    )
    INSERT INTO events ({EVENTS}) SELECT %s, %s, id, namespace, kind, tier, version, %s {_OF}
"""
_DROP_CLAIMED = f"DELETE FROM vectors WHERE entry_namespace = {NO_NAMESPACE} AND id = ANY(%s)"


class PostgresConnection:
    """A `Connection` to PostgreSQL. `execute` takes SQL as text, for statements that only PostgreSQL needs. Methods
    raise `StoreError` if a statement fails.

    `known` contains rows that the connection need not read, because they are known to be current in its transaction:
    for a statement of `run_among`, its rows by their ids. `ready` contains the rows of queries without values that were
    executed in advance."""

    is_remote = True

    def __init__(self, raw: psycopg.Connection[Any], ready: dict[str, list[Any]] | None = None) -> None:
        self.raw = raw
        self.known: Mapping[Statement, Mapping[int, Any]] = {}
        self._ready = ready or {}

    def execute(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """Execute a statement that is written for PostgreSQL, and return a cursor."""
        if self._ready and (rows := self._ready.pop(query, None)) is not None:
            return _Known(rows)
        with translated_errors():
            return self.raw.execute(query.encode(), values, binary=True)

    def run(
        self, statement: Statement, values: Sequence[Any] = (), *, scope: Scope | None = None, plain: bool = False
    ) -> Result:
        """Execute a statement; see `Connection`."""
        query = statement.postgres
        if scope is not None:
            condition, own = where(scope)
            query, values = query.replace("{scope}", condition), [*own, *values]
        return cast(Result, self.execute(query, values))

    def run_among(
        self, statement: Statement, among: Sequence[Any], values: Sequence[Any] = (), *, plain: bool = False
    ) -> list[Any]:
        """Return rows about several items; see `Connection`."""
        if not among:
            return []
        known = self.known.get(statement)
        if known is not None and all(item in known for item in among):
            return [known[item] for item in among]
        rows: list[Any] = self.execute(statement.postgres, [*values, [*among]]).fetchall()
        return rows

    def run_many(self, statement: Statement, rows: Iterable[Sequence[Any]]) -> None:
        self._execute_many(statement.postgres, [*rows])

    def insert_entries(self, entries: Sequence[MemoryEntry]) -> list[int]:
        """Insert entries, and return their row numbers; see `Connection`."""
        rows, ids = [to_row(entry) for entry in entries], [entry.id for entry in entries]
        if len(rows) == 1:
            inserted = self.execute(f"{_INSERT} RETURNING num", rows[0]).fetchone()
            if inserted is None:
                raise already_exists(ids[0])
            return [int(inserted[0])]
        if not rows:
            return []
        taken = {row[0] for row in self.execute("SELECT id FROM entry_places WHERE id = ANY(%s)", [ids])}
        taken.update(name for name, times in Counter(ids).items() if times > 1)
        if taken:
            raise already_exists(next(name for name in ids if name in taken))
        self._execute_many(_INSERT, rows)
        nums = dict(self.execute("SELECT id, num FROM entry_places WHERE id = ANY(%s)", [ids]).fetchall())
        return [nums[name] for name in ids]

    def overwrite_entry(self, entry: MemoryEntry) -> None:
        """Overwrite an entry; see `Connection`."""
        row = to_row(entry)
        if not self.execute(_OVERWRITE, row).rowcount:
            self.execute("SELECT move_entry(%s, %s)", [entry.id, entry.namespace])
            self.execute(_OVERWRITE, row)

    def insert_vectors(self, rows: Iterable[tuple[int, bytes, Any, int]], namespace: str | None) -> None:
        """Insert vectors; see `Connection`. Each vector is also stored in half precision, for the search for
        candidates. If the entries have several namespaces, each namespace gets its copies later, when the windows are
        inserted."""
        import numpy as np
        from pgvector import HalfVector

        bound = [
            (namespace, space, key, bytes(data), checksum, HalfVector(np.frombuffer(data, "<f4").astype(np.float16)))
            for space, key, data, checksum in rows
        ]
        self._execute_many(_ADD_VECTOR, bound)

    def insert_windows(self, rows: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        """Insert windows; see `Connection`. If the namespace of a window lacks its vector, copy the vector from another
        namespace."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        if columns:
            claimed = [row[0] for row in self.execute(_CLAIM_VECTORS, columns)]
            if claimed:
                self.execute(_DROP_CLAIMED, [claimed])
            self.execute(_ADD_WINDOWS, columns)

    def insert_events(self, events: Sequence[Sequence[object]], acts: Sequence[Sequence[object]]) -> None:
        """Insert events and their rows of the trail; see `Connection`."""
        rows = [[*act, *event] for act, event in zip(acts, events, strict=True)]
        if len(rows) == 1:
            self.execute(_EVENT, rows[0])
        else:
            self._execute_many(_EVENT, rows)

    def insert_events_of(self, nums: Sequence[int], event: Sequence[object], act: Sequence[object]) -> None:
        self.execute(_EVENTS_OF, [*act, [*nums], *event, [*nums]])

    def lenient_text(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _execute_many(self, query: str, rows: Sequence[Any]) -> None:
        if rows:
            with translated_errors(), self.raw.cursor() as cursor:
                cursor.executemany(query.encode(), rows)


class _Known:
    """The result of a statement whose rows are already in memory, so that it needs no round trip."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return [*self._rows]


def native(connection: Connection) -> PostgresConnection:
    """Return the connection as a connection to PostgreSQL. For parts that only a store in PostgreSQL has."""
    return cast(PostgresConnection, connection)
