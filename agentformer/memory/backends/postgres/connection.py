"""The connections to a PostgreSQL server: a small pool, transactions, locks, and errors that name no credentials.

Writers of one store take turns: a transaction that writes holds an advisory lock from its first statement to its end.
So the numbers of the change feed have the order of the commits, and a writer sees the changes of all former writers, as
with SQLite. Readers never wait: a read transaction sees the state of one moment.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from filelock import Timeout

from agentformer.errors import InvalidInput, MissingExtra, StoreDamaged, StoreError, StoreFull
from agentformer.memory.backends.postgres import dialect, schema
from agentformer.records import change_feed
from agentformer.records.database import RecordsSnapshot
from agentformer.settings import Settings

if TYPE_CHECKING:
    import psycopg

_MAX_IDLE = 8  # idle connections that stay open
_CONNECT_SECONDS = 10
_IN_DOUBT = (
    "the server was lost during a commit, and whether the change is stored is not known; "
    "repeat the call with the same ids: an entry that is stored already raises a conflict"
)
_ADDRESS = "must be the address of a PostgreSQL database, such as postgresql://user:password@host:5432/name"
_VECTORS = "INSERT OR IGNORE INTO vectors "
_Hook = Callable[[sqlite3.Connection, int], object]


class Row(tuple[Any, ...]):
    """A row whose values are found by position and by column name, like those of `sqlite3.Row`."""

    names: tuple[str, ...]

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.names.index(key) if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        return [*self.names]


def _row_factory(cursor: Any) -> Callable[[Sequence[Any]], Row]:
    names = tuple(column.name for column in cursor.description or ())
    return _row_type(names)


@lru_cache(maxsize=256)
def _row_type(names: tuple[str, ...]) -> type[Row]:
    return type("Row", (Row,), {"names": names})


class Connection:
    """A connection that executes the statements of `records/`, which are written for SQLite. It has those methods of
    `sqlite3.Connection` that they call. Errors are `StoreError`s."""

    row_factory: Any = None
    text_factory: Any = str

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    def execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """Execute a statement of SQLite, and return a cursor."""
        statement = dialect.translate(sql)
        with translated_errors():
            return self.raw.execute(statement.text.encode(), statement.bind(values), binary=False)

    def run(self, query: str, values: Sequence[Any]) -> Any:
        """Execute a statement of PostgreSQL, and return a cursor."""
        with translated_errors():
            return self.raw.execute(query.encode(), values)

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Execute a statement of SQLite once for each item of `rows`."""
        if sql.startswith(_VECTORS):
            self._insert_vectors(rows)
            return
        statement = dialect.translate(sql)
        bound = [statement.bind(row) for row in rows]
        if bound:
            with translated_errors(), self.raw.cursor() as cursor:
                cursor.executemany(statement.text.encode(), bound)

    def cursor(self) -> Connection:
        return self

    def _insert_vectors(self, rows: Iterable[Any]) -> None:
        """Insert vectors, and beside each the same vector in half precision."""
        import numpy as np
        from pgvector import HalfVector

        query = (
            "INSERT INTO vectors (space, hash, data, checksum, half) VALUES (%s, %s, %s, %s, %b) ON CONFLICT DO NOTHING"
        )
        bound = [
            (space, key, bytes(data), checksum, HalfVector(np.frombuffer(data, "<f4").astype(np.float16)))
            for space, key, data, checksum in rows
        ]
        with translated_errors(), self.raw.cursor() as cursor:
            cursor.executemany(query, bound)


class PostgresDatabase:
    """A store in one schema of a database. Any number of threads, processes and machines may open it. The methods
    `reading`, `writing` and `snapshot` are those of `records.database.Database`. `before_commit(connection, since)`
    is called at the end of each transaction that writes; `since` is the number of the last change before it."""

    def __init__(self, url: str, schema_name: str = "agentformer") -> None:
        self._url = url
        self._schema = schema_name
        self._lock_number = _lock_number(schema_name)
        self._idle: list[psycopg.Connection[Any]] = []
        self._mutex = threading.Lock()
        self._closed = False
        self.before_commit: _Hook | None = None
        import_psycopg()
        connection = self._connect(extended=False)
        with translated_errors():
            row = connection.execute(
                "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"
            ).fetchone()
            self.read_only = bool(row and row[0])
            if not self.read_only:
                schema.migrate(connection, schema_name, self._lock_number)
            found = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
        self.store_id = str(found[0]) if found else ""
        if not self.store_id:
            raise StoreDamaged("the id of the store is missing in the table meta; restore a backup")
        connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a read transaction. All statements see the data as of the first statement."""
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as raw:
            yield as_connection(raw)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction that has the write lock of the store. The transaction is committed at the
        end of the context, or rolled back after an error. If the server is lost during the commit, the new server is
        asked whether the transaction was committed."""
        begin = f"BEGIN; SELECT pg_advisory_xact_lock({self._lock_number})"
        with self._transaction(begin) as raw:
            connection = as_connection(raw)
            query = "SELECT pg_current_xact_id()::text, (SELECT coalesce(max(seq), 0) FROM changes)"
            number, since = connection.execute(query).fetchone()
            yield connection
            if self.before_commit is not None:
                self.before_commit(connection, since)
            self._commit(raw, number)

    @contextmanager
    def snapshot(self) -> Iterator[RecordsSnapshot]:
        """Yield a view of the store as of this moment."""
        with self.reading() as connection:
            change_feed.last_seq(connection)  # the first statement decides which state the transaction sees
            yield RecordsSnapshot(connection)

    @contextmanager
    def lock(self, name: str, *, wait: bool) -> Iterator[Connection]:
        """Hold a lock that one process of all nodes can have, and yield a connection without a transaction. The server
        frees the lock when the process dies. Raises `filelock.Timeout` if another process has the lock and `wait` is
        False."""
        number = _lock_number(f"{self._schema}/{name}")
        with self._borrow() as raw, translated_errors():
            if wait:
                raw.execute("SELECT pg_advisory_lock(%s)", [number])
            else:
                row = raw.execute("SELECT pg_try_advisory_lock(%s)", [number]).fetchone()
                if not (row and row[0]):
                    raise Timeout(name)
            try:
                yield Connection(raw)
            finally:
                with suppress(Exception):
                    raw.execute("SELECT pg_advisory_unlock(%s)", [number])

    @contextmanager
    def statements(self) -> Iterator[Connection]:
        """Yield a connection in which each statement is a transaction without the write lock of the store. For the
        tables of the nodes, whose statements must not wait for writers."""
        with self._borrow() as raw:
            yield Connection(raw)

    def close(self) -> None:
        """Close the unused connections. A connection in use is closed when it is returned."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[psycopg.Connection[Any]]:
        with self._borrow(begin) as raw:
            try:
                yield raw
            finally:
                if not raw.closed and raw.info.transaction_status != 0:
                    with suppress(Exception):
                        raw.execute("ROLLBACK")

    def _commit(self, raw: psycopg.Connection[Any], number: str) -> None:
        psycopg = import_psycopg()
        try:
            with translated_errors():
                raw.execute("COMMIT")
        except StoreError as error:
            if not isinstance(error.__cause__, psycopg.OperationalError) or not raw.closed:
                raise
            if not self._was_committed(number):
                raise

    def _was_committed(self, number: str) -> bool:
        """Ask the server whether a transaction was committed whose connection was lost. Raises `StoreError` if the
        server does not know it."""
        status = None
        with suppress(StoreError), self._borrow() as raw, translated_errors():
            row = raw.execute("SELECT pg_xact_status(%s::text::xid8)", [number]).fetchone()
            status = row[0] if row else None
        if status in ("committed", "aborted"):
            return bool(status == "committed")
        raise StoreError(_IN_DOUBT)

    @contextmanager
    def _borrow(self, begin: str = "") -> Iterator[psycopg.Connection[Any]]:
        raw = self._begun(begin)
        try:
            yield raw
        finally:
            self._give_back(raw)

    def _begun(self, begin: str) -> psycopg.Connection[Any]:
        """Return a connection in which `begin` was executed. An idle connection may have been cut by a restart of the
        server; nothing was changed yet, so a new connection is tried."""
        while True:
            with self._mutex:
                if self._closed:
                    raise StoreError("this memory is closed; open it again with agentformer.connect()")
                raw = self._idle.pop() if self._idle else None
            is_new = raw is None
            raw = raw or self._connect()
            try:
                with translated_errors():
                    raw.execute((begin or "SELECT 1").encode())
                return raw
            except StoreError:
                alive = not raw.closed
                raw.close()
                if is_new or alive:
                    raise

    def _give_back(self, raw: psycopg.Connection[Any]) -> None:
        with self._mutex:
            usable = not raw.closed and not self._closed and raw.info.transaction_status == 0
            if usable and len(self._idle) < _MAX_IDLE:
                self._idle.append(raw)
                return
        raw.close()

    def _connect(self, *, extended: bool = True) -> psycopg.Connection[Any]:
        from pgvector.psycopg import register_vector

        raw = open_connection(self._url)
        _register_text(raw)
        with translated_errors():
            raw.execute(f'SET search_path = "{self._schema}", public'.encode())
            if extended:
                register_vector(raw)
        return raw


def schema_of(settings: Settings) -> str:
    """Return the name of the schema that holds the store of the settings: `{folder}` in it stands for the index
    folder."""
    folder = hashlib.sha256(str(settings.index_dir.absolute()).encode()).hexdigest()[:16]
    return settings.postgres_schema.replace("{folder}", folder)


def has_store(url: str, schema_name: str) -> bool:
    """Return whether a schema of a database holds a store."""
    with open_connection(url) as raw, translated_errors():
        row = raw.execute("SELECT to_regclass(%s)", [f'"{schema_name}".schema_version']).fetchone()
        return bool(row and row[0])


def drop_schema(url: str, schema_name: str) -> None:
    """Delete a schema with all its tables."""
    with open_connection(url) as raw, translated_errors():
        raw.execute(f'DROP SCHEMA IF EXISTS "{schema_name}" CASCADE'.encode())


def open_connection(url: str) -> psycopg.Connection[Any]:
    """Return a new connection without a transaction. Raises `InvalidInput` for an invalid address, `MissingExtra`, and
    `StoreError` if the server cannot be used. No message contains the address."""
    module = import_psycopg()
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidInput("postgres_url", _ADDRESS)
    try:
        raw = module.connect(url, autocommit=True, row_factory=_row_factory, connect_timeout=_CONNECT_SECONDS)
    except module.ProgrammingError:
        raise InvalidInput("postgres_url", _ADDRESS) from None
    except module.Error as error:
        raise store_error(error) from None
    return cast("psycopg.Connection[Any]", raw)


def as_connection(raw: psycopg.Connection[Any]) -> sqlite3.Connection:
    """Return the connection as `records/` uses it: it has the methods of `sqlite3.Connection` that `records/` calls."""
    return cast(sqlite3.Connection, Connection(raw))


def native(connection: sqlite3.Connection) -> Connection:
    """Return the connection with its method for statements of PostgreSQL."""
    return cast(Connection, connection)


def import_psycopg() -> Any:
    """Return the module psycopg. Raises `MissingExtra`."""
    try:
        import pgvector  # noqa: F401
        import psycopg
    except ImportError as error:
        raise MissingExtra("postgres", "the backend postgres", error) from error
    return psycopg


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise an error of psycopg as a `StoreError`."""
    psycopg = import_psycopg()
    try:
        yield
    except psycopg.Error as error:
        raise store_error(error) from error


def store_error(error: Any) -> StoreError:
    """Return the error with advice. The message contains no password, because the server never returns one."""
    state = error.sqlstate or ""
    text = " ".join(str(error).split())[:300]
    if state in ("25006", "42501") or "read-only" in text:
        return StoreFull(
            f"the PostgreSQL store cannot be written: {text}; connect to the primary server or grant rights"
        )
    if state.startswith("53") and state != "53300":
        return StoreFull(f"the PostgreSQL server has no room: {text}; free disk space or memory on the server")
    if state == "53300" or "too many" in text or "remaining connection slots" in text:
        return StoreError(
            f"the PostgreSQL server has no free connection: {text}; raise max_connections or use a pooler"
        )
    if state.startswith("28") or "authentication failed" in text or "no password supplied" in text:
        return StoreError(f"the PostgreSQL server refused the login: {text}; check AGENTFORMER_POSTGRES_URL")
    if state.startswith("XX"):
        return StoreDamaged(f"the PostgreSQL server reports damage: {text}; restore a backup of the database")
    if not state or state.startswith(("08", "57")):
        return StoreError(f"the PostgreSQL server cannot be reached: {text}; check that it runs, and try again")
    return StoreError(f"the PostgreSQL server refused a statement: {text}")


def _register_text(raw: Any) -> None:
    """Let the connection store texts that contain NUL, see `dialect`."""
    from psycopg.adapt import Loader
    from psycopg.types.string import StrDumperUnknown

    class TextDumper(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(dialect.escape(obj))

    class TextLoader(Loader):
        def load(self, data: Any) -> str:
            return dialect.unescape(str(data, "utf-8"))

    raw.adapters.register_dumper(str, TextDumper)
    raw.adapters.register_loader("text", TextLoader)


def _lock_number(name: str) -> int:
    digest = hashlib.blake2b(f"agentformer/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
