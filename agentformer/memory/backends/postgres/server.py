"""One connection to a PostgreSQL server: it executes the statements of `records/`, and its errors contain no
credentials."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from agentformer.errors import InvalidInput, MissingExtra, StoreBusy, StoreDamaged, StoreError, StoreFull
from agentformer.memory.backends.postgres import dialect
from agentformer.memory.backends.postgres.schema import NO_NAMESPACE

if TYPE_CHECKING:
    import psycopg

# Defaults for parameters that the address does not contain. If the network is dead, a connection ends after 30 seconds.
_PARAMETERS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
_ADDRESS = "must be the address of a PostgreSQL database, such as postgresql://user:password@host:5432/name"
_VECTORS, _WINDOWS = "INSERT OR IGNORE INTO vectors ", "INSERT INTO windows "
_OVERWRITE = re.compile(r"UPDATE entries SET .*\bnamespace = :namespace")
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
_DROP_CLAIMED = f"DELETE FROM vectors WHERE entry_namespace = {NO_NAMESPACE} AND id = ANY(%s)"


class ServerUnreachable(StoreBusy):
    """Raised if the server cannot be reached, or has no free connection. Nothing was changed."""


class TransactionLost(StoreError):
    """Raised if the connection was lost and the server has undone the transaction, which can be repeated."""


# A statement of `records/` and its parameters -> the same statement for PostgreSQL, without parameters.
ReadyKey = tuple[str, tuple[Any, ...]]
Ready = Mapping[ReadyKey, str]


class Row(tuple[Any, ...]):
    """A row whose values can be read by position and by column name, like `sqlite3.Row`."""

    names: tuple[str, ...]

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.names.index(key) if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        return [*self.names]


def _row_factory(cursor: Any) -> Callable[[Sequence[Any]], Row]:
    return row_type(tuple(column.name for column in cursor.description or ()))


@lru_cache(maxsize=256)
def row_type(names: tuple[str, ...]) -> type[Row]:
    """Return the type of rows with these columns."""
    return type("Row", (Row,), {"names": names})


class KnownRows(NamedTuple):
    """Rows that a connection need not read, because they are known to be current in its transaction. They are rows of
    vectors (id, data, checksum) and rows of windows, each by id."""

    vectors: Mapping[int, tuple[Any, ...]]
    windows: Mapping[int, Row]

    def answer(self, sql: str, ids: Sequence[Any]) -> list[Any] | None:
        """Return the rows for a statement of `records/` that reads vectors or windows by id. Return None for another
        statement, or if one of the rows is missing here."""
        known: Mapping[int, Any]
        if sql.startswith("SELECT id, data, checksum FROM vectors WHERE id IN ("):
            known = self.vectors
        elif sql.startswith("SELECT * FROM windows WHERE id IN ("):
            known = self.windows
        else:
            return None
        return [known[number] for number in ids] if all(number in known for number in ids) else None


class Connection:
    """A connection that executes the statements of `records/`, which are written for SQLite. It has the methods of
    `sqlite3.Connection` that these statements need. Methods raise `StoreError` if a statement fails."""

    row_factory: Any = None
    text_factory: Any = str

    def __init__(self, raw: psycopg.Connection[Any], ready: dict[ReadyKey, list[Any]] | None = None) -> None:
        self.raw = raw
        self.known = KnownRows({}, {})
        self.namespace: str | None = None  # namespace of the entries whose vectors are inserted, or None
        self._ready = ready or {}  # results of statements that were executed in advance

    def execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """Execute a statement that is written for SQLite, and return a cursor."""
        if self._ready and (rows := self._ready.pop((sql, tuple(values)), None)) is not None:
            return _Result(rows)
        if self.known.vectors and (rows := self.known.answer(sql, [*values])) is not None:
            return _Result(rows)
        statement = dialect.translate(sql)
        with translated_errors():
            cursor = self.raw.execute(statement.text.encode(), statement.bind(values), binary=True)
            if not cursor.rowcount and _OVERWRITE.match(sql) and isinstance(values, Mapping):
                self.run("SELECT move_entry(%s, %s)", [values["id"], values["namespace"]])
                cursor = self.raw.execute(statement.text.encode(), statement.bind(values), binary=True)
        return cursor

    def run(self, query: str, values: Sequence[Any]) -> Any:
        """Execute a statement that is written for PostgreSQL, and return a cursor."""
        with translated_errors():
            return self.raw.execute(query.encode(), values, binary=True)

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Execute a statement that is written for SQLite once for each item of `rows`."""
        if sql.startswith(_VECTORS):
            self._insert_vectors(rows)
            return
        if sql.startswith(_WINDOWS):
            self._insert_windows(rows)
            return
        statement = dialect.translate(sql)
        bound = [statement.bind(row) for row in rows]
        if bound:
            with translated_errors(), self.raw.cursor() as cursor:
                cursor.executemany(statement.text.encode(), bound)

    def cursor(self) -> Connection:
        return self

    def _insert_vectors(self, rows: Iterable[Any]) -> None:
        """Insert the vectors that are not stored yet. Each vector is also stored in half precision, for the search for
        candidates."""
        import numpy as np
        from pgvector import HalfVector

        bound = [
            (
                self.namespace,
                space,
                key,
                bytes(data),
                checksum,
                HalfVector(np.frombuffer(data, "<f4").astype(np.float16)),
            )
            for space, key, data, checksum in rows
        ]
        with translated_errors(), self.raw.cursor() as cursor:
            cursor.executemany(_ADD_VECTOR.encode(), bound)

    def _insert_windows(self, rows: Iterable[Any]) -> None:
        """Insert windows (embedded passages). If the namespace of a window lacks its vector, copy the vector from
        another namespace."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        if columns:
            claimed = [row[0] for row in self.run(_CLAIM_VECTORS, columns)]
            if claimed:
                self.run(_DROP_CLAIMED, [claimed])
            self.run(_ADD_WINDOWS, columns)


class _Result:
    """A cursor over rows that are already in memory, so that a statement whose result is known needs no round trip."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)


def open_connection(url: str) -> psycopg.Connection[Any]:
    """Return a new connection in autocommit mode. Raises `InvalidInput` if the address is invalid, `MissingExtra`
    if the driver is not installed, and `StoreError` if the server cannot be used. No message contains the
    address."""
    module = import_psycopg()
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidInput("postgres_url", _ADDRESS)
    try:
        given = module.conninfo.conninfo_to_dict(url)
        if any("@" in host[1:] for host in str(given.get("host") or "").split(",")):  # a part of the password
            raise InvalidInput("postgres_url", f"{_ADDRESS}; write an @ in the password as %40")
        options = {"autocommit": True, "row_factory": _row_factory, "prepare_threshold": None}
        raw = module.connect(**{**_PARAMETERS, **given}, **options)
    except module.ProgrammingError:
        raise InvalidInput("postgres_url", _ADDRESS) from None
    except module.Error as error:
        raise store_error(error) from None
    return cast("psycopg.Connection[Any]", raw)


def as_connection(raw: psycopg.Connection[Any]) -> sqlite3.Connection:
    """Return the connection as a `sqlite3.Connection`. It has those methods of this type that `records/` calls."""
    return cast(sqlite3.Connection, Connection(raw))


def native(connection: sqlite3.Connection) -> Connection:
    """Return the connection as a `Connection`, which can also execute statements written for PostgreSQL."""
    return cast(Connection, connection)


def import_psycopg() -> Any:
    """Return the module psycopg. Raises `MissingExtra` if it is not installed."""
    try:
        import pgvector  # noqa: F401
        import psycopg
    except ImportError as error:
        raise MissingExtra("postgres", "the backend postgres", error) from error
    return psycopg


@contextmanager
def translated_errors() -> Iterator[None]:
    """Convert an error of psycopg to a `StoreError`."""
    psycopg = import_psycopg()
    try:
        yield
    except psycopg.Error as error:
        raise store_error(error) from error


def store_error(error: Any) -> StoreError:
    """Return a `StoreError` with advice for an error of psycopg. The server never returns a password."""
    state = error.sqlstate or ""
    text = " ".join(str(error).split())[:300]
    if state in ("25006", "42501") or "read-only" in text:
        return StoreFull(
            f"the PostgreSQL store cannot be written: {text}; connect to the primary server or grant rights"
        )
    if state.startswith("53") and state != "53300":
        return StoreFull(f"the PostgreSQL server has no room: {text}; free disk space or memory on the server")
    if state == "53300" or "too many" in text or "remaining connection slots" in text:
        return ServerUnreachable(
            f"the PostgreSQL server has no free connection: {text}; raise max_connections or use a pooler"
        )
    if state.startswith("28") or "authentication failed" in text or "no password supplied" in text:
        return StoreError(f"the PostgreSQL server refused the login: {text}; check AGENTFORMER_POSTGRES_URL")
    if state.startswith("3D") or ("database " in text and "does not exist" in text):
        return StoreError(f"the PostgreSQL server has no such database: {text}; check AGENTFORMER_POSTGRES_URL")
    if state.startswith("XX"):
        return StoreDamaged(f"the PostgreSQL server reports damage: {text}; restore a backup of the database")
    if not state or state.startswith(("08", "57")):
        return ServerUnreachable(f"the PostgreSQL server cannot be reached: {text}; check that it runs, and try again")
    return StoreError(f"the PostgreSQL server refused a statement: {text}")


def register_text(raw: Any) -> None:
    """Make the connection store and return texts with NUL; see `dialect`."""
    from psycopg.adapt import Loader
    from psycopg.pq import Format
    from psycopg.types.string import StrDumperUnknown

    class TextDumper(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(dialect.escape(obj))

    class TextLoader(Loader):
        def load(self, data: Any) -> str:
            return dialect.unescape(str(data, "utf-8"))

    raw.adapters.register_dumper(str, TextDumper)

    class BinaryTextLoader(TextLoader):
        format = Format.BINARY

    raw.adapters.register_loader("text", TextLoader)
    raw.adapters.register_loader("text", BinaryTextLoader)
