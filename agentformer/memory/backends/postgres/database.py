"""The store of the backend `postgres` in a PostgreSQL database with pgvector, which several machines can use. This
module contains its transactions and locks, and functions that read the store without opening the backend.

Writers of one store take turns: a transaction that writes holds an advisory lock from its first statement to its end.
The numbers of the change feed therefore have the order of the commits, and a writer sees the changes of all earlier
writers, as with SQLite. Readers never wait: a read transaction sees the state of one moment.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import Timeout

from agentformer.errors import StoreDamaged, StoreError
from agentformer.memory.backends.postgres import schema
from agentformer.memory.backends.postgres.connection import PostgresConnection
from agentformer.memory.backends.postgres.pool import Connections
from agentformer.memory.backends.postgres.server import (
    TransactionLost,
    import_psycopg,
    open_connection,
    translated_errors,
)
from agentformer.records import change_feed, spaces
from agentformer.records.entries import trim_history
from agentformer.records.sqlite.database import RecordsSnapshot
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Vacuumed, new_id

if TYPE_CHECKING:
    import psycopg

# If a node is lost during a transaction, its write lock is released after this time. The server notices late that a
# client has died; the other settings make it notice earlier.
_LIMIT = (
    "SET LOCAL idle_in_transaction_session_timeout = '120s'; SET LOCAL tcp_keepalives_idle = 30; "
    "SET LOCAL tcp_keepalives_interval = 10; SET LOCAL tcp_keepalives_count = 3"
)
_NO_LIMIT = "SET LOCAL idle_in_transaction_session_timeout = 0"
_DOUBT_SECONDS = 15.0  # seconds in which the server is asked whether a transaction was committed
_IN_DOUBT = (
    "the connection to the server was lost during a commit, and it is not known whether the change is stored; "
    "repeat the call with the same ids: an entry that is already stored raises a conflict"
)
# Each transaction that writes stores a new token under the name of its connection. If the answer to a commit is lost,
# the token shows whether the transaction was committed. A transaction number could not show this: after a crash, a
# server reuses the number of a transaction that left nothing on the disk.
_STARTED = """
    INSERT INTO commits AS c VALUES (%s, %s, server_micros())
    ON CONFLICT (connection) DO UPDATE SET token = excluded.token, at = excluded.at
    RETURNING (SELECT coalesce(max(seq), 0) FROM changes), (SELECT version FROM schema_version)
"""
# This statement writes, so its commit waits for synchronous standbys. They then have the transaction in doubt, too.
_OUTCOME = "UPDATE commits SET at = server_micros() WHERE connection = %s RETURNING token"
# The number of the database cluster, and the numbers of the database and of the schema in it.
_PLACE = """
    SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
        (SELECT oid FROM pg_database WHERE datname = current_database()), (%s::regnamespace)::oid)
"""
# A standby, a database or role that is set to read-only, and a role that has no right to write.
_READ_ONLY = """
    SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean
        OR NOT coalesce(has_table_privilege(to_regclass(%s), 'INSERT'), true)
"""
_FORGET = "DELETE FROM commits WHERE at < server_micros() - 86400000000"  # of connections that ended long ago
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SIZE = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class AS c
    WHERE c.relnamespace = (current_schemas(false))[1]::regnamespace AND c.relkind = 'r'
"""
T = TypeVar("T")
_Hook = Callable[[PostgresConnection, int], object]


class PostgresDatabase:
    """A store in one schema of a database. Any number of threads, processes and machines may open it. The methods
    `reading`, `writing` and `snapshot` do the same as those of `records.sqlite.database.Database`.
    `before_commit(connection, since)` is called at the end of each transaction that writes; `since` is the number of
    the last change before this transaction."""

    def __init__(
        self, url: str, schema_name: str = "agentformer", connections: int = 16, *, migrates: bool = False
    ) -> None:
        """If `migrates` is True, a store of an older schema is migrated; otherwise it is refused."""
        self._schema = schema_name
        self._lock_number = _lock_number(schema_name)
        import_psycopg()
        self._connections = Connections(url, schema_name, connections, self._lock_number)
        self.before_commit: _Hook | None = None
        connection = self._connections.first()
        with translated_errors():
            row = connection.execute(_READ_ONLY, [f'"{schema_name}".entries']).fetchone()
            self.read_only = bool(row and row[0])
            if not self.read_only:
                schema.migrate(connection, schema_name, self._lock_number, asked=migrates)
            with connection.transaction():
                connection.execute(f'SET LOCAL search_path = "{schema_name}", public'.encode())
                if not self.read_only:
                    connection.execute(_FORGET)
                found = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
        self.store_id = str(found[0]) if found else ""
        if not self.store_id:
            raise StoreDamaged("the id of the store is missing in the table meta; restore a backup")
        connection.close()

    @contextmanager
    def reading(
        self, ready: Sequence[str] = (), setting: str = "", *, beyond: bool = False
    ) -> Iterator[PostgresConnection]:
        """Yield a connection in a read transaction. All statements see the data as of the first statement. `setting` is
        a statement that sets an option of the transaction, and `ready` are queries without values whose results the
        connection will need. The statement and the queries are sent together with the beginning of the transaction,
        which saves round trips. If `beyond` is true, the connection does not count for the limit of connections."""
        with self._connections.borrow(setting, *ready, begin=_READ, beyond=beyond) as raw:
            try:
                with _lost_transactions(raw):
                    yield PostgresConnection(raw, self._connections.results(raw, ready))
            finally:
                self._connections.end_reading(raw)

    @contextmanager
    def writing(self) -> Iterator[PostgresConnection]:
        """Yield a connection in a transaction that has the write lock of the store. It is committed at the end of the
        context, or rolled back after an error. If the connection is lost during the commit, the server is asked whether
        the transaction was committed. Raises `TransactionLost` if the connection was lost and nothing was changed."""
        token = new_id()
        with self._transaction(_LIMIT, f"SELECT pg_advisory_xact_lock({self._lock_number})") as raw:
            name = self._connections.name(raw)
            connection = PostgresConnection(raw)
            with _lost_transactions(raw):
                since, version = connection.execute(_STARTED, [name, token]).fetchone()
                schema.check_version(version)
                yield connection
                if self.before_commit is not None:
                    self.before_commit(connection, since)
            self._commit(raw, name, token)

    @contextmanager
    def snapshot(self) -> Iterator[RecordsSnapshot]:
        """Yield a view of the store as of this moment."""
        with self.reading() as connection:
            change_feed.last_seq(connection)  # the first statement decides which state the transaction sees
            yield RecordsSnapshot(connection)

    @contextmanager
    def lock(self, name: str, *, wait: bool) -> Iterator[None]:
        """Hold a lock that only one process of all nodes can hold at a time. A transaction holds the lock, which is
        released if the process dies. Raises `filelock.Timeout` if another process has the lock and `wait` is False."""
        number = _lock_number(f"{self._schema}/{name}")
        take = f"SELECT {'true FROM pg_advisory_xact_lock' if wait else 'pg_try_advisory_xact_lock'}({number})"
        with self._transaction(_NO_LIMIT, take) as raw:
            if not self._connections.value(raw):
                raise Timeout(name)
            yield

    @contextmanager
    def statements(self) -> Iterator[PostgresConnection]:
        """Yield a connection in a transaction without the write lock of the store. Used for the tables of the nodes,
        because their statements must not wait for writers."""
        with self._transaction("SELECT version FROM schema_version") as raw:
            schema.check_version(self._connections.value(raw))
            yield PostgresConnection(raw)
            self._end(raw)

    def create_index(self, build: Callable[[PostgresConnection, str], object]) -> None:
        """Call `build(connection, schema)` with a connection without a transaction, in which an index can be created
        while others write. Its statements must name their schema."""
        with self._connections.borrow(begin="") as raw:
            build(PostgresConnection(raw), self._schema)

    def owner(self) -> str:
        """Return a text that differs between this store and each copy of it, on this or another server."""
        with self.statements() as connection:
            return self.store_id + "/" + str(connection.execute(_PLACE, [f'"{self._schema}"']).fetchone()[0])

    def close(self) -> None:
        """Close the unused connections. A connection in use is closed when it is returned."""
        self._connections.close()

    @contextmanager
    def _transaction(self, *statements: str) -> Iterator[psycopg.Connection[Any]]:
        with self._connections.borrow(*statements) as raw:
            try:
                yield raw
            finally:
                if not raw.closed and raw.info.transaction_status != 0:
                    with suppress(Exception):
                        raw.execute("ROLLBACK")

    def _commit(self, raw: psycopg.Connection[Any], name: str, token: str) -> None:
        try:
            self._end(raw)
        except StoreError as error:
            if not raw.closed:
                raise
            self._connections.note_lost(raw)
            if not self._was_committed(name, token):
                raise TransactionLost(str(error)) from error.__cause__

    def _end(self, raw: psycopg.Connection[Any]) -> None:
        with translated_errors():
            outcome = raw.execute("COMMIT").statusmessage
        if outcome != "COMMIT":  # the server rolls a transaction with a failed statement back without an error
            raise StoreError("the PostgreSQL server has undone a transaction, because one of its statements failed")

    def _was_committed(self, name: str, token: str) -> bool:
        """Ask the server whether a transaction was committed, after its connection was lost during the commit. `name`
        is the name of the connection, and `token` the random mark of the transaction. This process first takes the
        write lock, which the transaction held until its end, so the transaction has ended when the server is asked. If
        a standby has replaced the server, the answer is True only if the standby had received the transaction. Raises
        `StoreError` if no server answers."""
        wait = f"SET LOCAL lock_timeout = '{_DOUBT_SECONDS:.0f}s'"
        lock = f"SELECT pg_advisory_xact_lock({self._lock_number})"
        end = time.monotonic() + _DOUBT_SECONDS
        while True:
            with suppress(StoreError), self._transaction(wait, lock) as raw, translated_errors():
                row = raw.execute(_OUTCOME, [name]).fetchone()
                raw.execute("COMMIT")
                return row is not None and row[0] == token
            if time.monotonic() > end:
                raise StoreError(_IN_DOUBT)
            time.sleep(0.1)


@contextmanager
def _lost_transactions(raw: psycopg.Connection[Any]) -> Iterator[None]:
    """Raise `TransactionLost` if an error ends the connection before a commit."""
    try:
        yield
    except StoreError as error:
        if raw.closed:
            raise TransactionLost(str(error)) from error.__cause__
        raise


def schema_of(settings: Settings) -> str:
    """Return the name of the schema: `Settings.postgres_schema`, in which a hash of the index folder replaces
    `{folder}`."""
    folder = hashlib.sha256(str(settings.index_dir.absolute()).encode()).hexdigest()[:16]
    return settings.postgres_schema.replace("{folder}", folder)


def present(settings: Settings) -> bool:
    """Return whether the database of the settings holds a store."""
    with open_connection(settings.postgres_url) as raw, translated_errors():
        row = raw.execute("SELECT to_regclass(%s)", [f'"{schema_of(settings)}".schema_version']).fetchone()
        return bool(row and row[0])


def wanted_embedder(settings: Settings) -> str:
    """Return the name of the embedder that was requested for the store, or ""; see `faiss.wanted_embedder`."""
    return _read(settings, spaces.wanted_embedder) or ""


def stored_space(settings: Settings) -> EmbeddingSpace | None:
    """Return the embedding space of the vectors in the store, or None if there is no store or no vector."""
    active = _read(settings, spaces.active_space)
    return active[1] if active else None


def upgrade(settings: Settings, *, copy: bool) -> None:
    """Migrate the store to the schema of this version. Raises `StoreError` if it has an older schema and `copy` is
    True, because no copy of a database is made."""
    url, name = settings.postgres_url, schema_of(settings)
    PostgresDatabase(url, name, settings.postgres_connections, migrates=not copy).close()


def vacuum(settings: Settings, history_before: datetime | None, *, full: bool = False) -> Vacuumed:
    """Delete the former versions that were replaced before a time (None: none), and let the server use the room of
    deleted rows again. With `full`, write each table anew, so that its file is smaller and has no bytes of deleted
    rows; readers and writers of this table wait."""
    database = PostgresDatabase(settings.postgres_url, schema_of(settings))
    with closing(database):
        before = _size(database)
        versions = trim_history(database, history_before) if history_before else 0
        database.create_index(partial(_vacuum_tables, full=full))
        return Vacuumed(before, _size(database), versions)


def _vacuum_tables(connection: PostgresConnection, name: str, *, full: bool) -> None:
    options = "FULL, ANALYZE" if full else "ANALYZE"
    for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [name]).fetchall():
        connection.execute(f'VACUUM ({options}) "{name}"."{table}"')


def _size(database: PostgresDatabase) -> int:
    with database.reading() as connection:
        return int(connection.execute(_SIZE).fetchone()[0])


def remove_store(settings: Settings) -> None:
    """Delete the schema of the settings with all its tables. For temporary stores, such as those of measurements."""
    drop_schema(settings.postgres_url, schema_of(settings))


def drop_schema(url: str, schema_name: str) -> None:
    """Delete a schema with all its tables."""
    with open_connection(url) as raw, translated_errors():
        raw.execute(f'DROP SCHEMA IF EXISTS "{schema_name}" CASCADE'.encode())


def _read(settings: Settings, read: Callable[[PostgresConnection], T]) -> T | None:
    if not present(settings):
        return None
    database = PostgresDatabase(settings.postgres_url, schema_of(settings))
    with closing(database), database.reading() as connection:
        return read(connection)


def _lock_number(name: str) -> int:
    digest = hashlib.blake2b(f"agentformer/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
