"""The SQLite file of a store: a pool of connections, transactions, snapshots, copies, upgrades, and a size limit for
the write-ahead log."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

from agentformer.errors import StoreDamaged, StoreError, StoreFull, store_failure
from agentformer.records import change_feed, entries, meta
from agentformer.records.entries import versions_of
from agentformer.records.integrity.checksums import damage_error
from agentformer.records.integrity.file_guard import (
    FULL_WORDS,
    MOVED,
    GuardedConnection,
    check_regular_file,
    file_size,
    is_passing_failure,
    open_database,
    transaction,
    translate_errors,
    wal_path,
)
from agentformer.records.integrity.files import sync_folder
from agentformer.records.integrity.write_ahead_log import check_wal, correct_log
from agentformer.records.scopes import decayed
from agentformer.records.spaces import active_space
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.schema import MIGRATIONS, REQUIRED_TABLES, check_version, migrate, stored_version
from agentformer.records.sqlite.scopes import metadata_equals
from agentformer.records.vectors import decode_vectors
from agentformer.settings.access import create_empty, file_lock, make_folder, sync_file
from agentformer.types import Connection, EntryVector, MemoryEntry, Scope, Statement, StoredVector

BUSY_SECONDS = 60.0  # time that a writer waits for another writer; no writer calls a model inside a transaction
CACHE_KB = 8_192  # of each connection
LOG_BYTES = 32 * 1024 * 1024  # above this length of the write-ahead log, a writer tries to empty the log
# Seconds to wait for readers when the log is emptied. There are several short attempts: SQLite waits for every reader
# slot that was in use at the start of an attempt, even if a new reader in this slot does not need the log.
_WAL_WAITS = (0.05, 0.1, 0.2, 0.4)
_WAL_PAUSE = 5.0  # seconds until the next attempt while a long reader, such as a backup, needs the log
# Maximum number of idle connections that stay open. By default, a server handles so many slow requests at once. If more
# threads use the database, the additional connections are closed after their use (docs/PERFORMANCE.md, open files).
_MAX_IDLE = 8
_IN_USE = "is used by another thread of this process; try again when that thread has finished"
_REPAIRING = "is being repaired; try again when the repair has finished"
_GROUP = 1_000  # vectors of a snapshot that are read at a time
_USED_VECTORS = Statement(
    sqlite="""
    SELECT id, hash, data, checksum FROM vectors WHERE space = ? AND EXISTS (
        SELECT 1 FROM windows JOIN entries ON entries.num = windows.entry
        WHERE windows.vector = vectors.id AND hex(entries.namespace) IN (SELECT value FROM json_each(?))
    ) ORDER BY hash
    """,
    postgres="""
    SELECT DISTINCT ON (hash) id, hash, data, checksum FROM vectors AS v WHERE space = %s AND EXISTS (
        SELECT 1 FROM windows AS w JOIN entries AS e ON e.namespace = w.entry_namespace AND e.num = w.entry
        WHERE w.entry_namespace = v.entry_namespace AND w.vector = v.id AND e.namespace = ANY(%s)
    ) ORDER BY hash
    """,
)
_LIVE_IN_NAMESPACE = "archived_at IS NULL AND superseded_by IS NULL AND e.namespace ="
_FIRST_WINDOWS = Statement(
    sqlite=f"""
    SELECT e.id, tier, kind, session_id, document_id, v.id, data, v.checksum FROM entries AS e
    JOIN windows AS w ON w.entry = e.num JOIN vectors AS v ON v.id = w.vector
    WHERE {_LIVE_IN_NAMESPACE} ? AND e.num % ? = 0
        AND w.id = (SELECT min(id) FROM windows AS own WHERE own.entry = e.num AND own.space = ?) ORDER BY e.id
    """,
    postgres=f"""
    SELECT e.id, tier, kind, session_id, document_id, v.id, data, v.checksum FROM entries AS e
    JOIN windows AS w ON w.entry_namespace = e.namespace AND w.entry = e.num
    JOIN vectors AS v ON v.entry_namespace = w.entry_namespace AND v.id = w.vector
    WHERE {_LIVE_IN_NAMESPACE} %s AND e.num %% %s = 0 AND w.id = (
        SELECT min(id) FROM windows AS own
        WHERE own.entry_namespace = e.namespace AND own.entry = e.num AND own.space = %s
    ) ORDER BY e.id
    """,
)
_OPENING = threading.Lock()
# needed because a file lock does not show that the same process uses the file
_INSTANCES: weakref.WeakSet[Database] = weakref.WeakSet()


def prepare(connection: SqliteConnection) -> None:
    """Enable what the statements of `records` need in a connection: foreign keys and the functions of scopes."""
    connection.execute("PRAGMA foreign_keys = ON")
    connection.create_function("decayed", 3, decayed, deterministic=True)
    connection.create_function("metadata_equals", 3, metadata_equals, deterministic=True)


class RecordsSnapshot:
    """A `MemorySnapshot` that reads through a connection with an open read transaction. Writers do not wait for the
    snapshot, but the write-ahead log cannot be emptied while the snapshot is open."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def namespaces(self) -> Sequence[str]:
        return entries.namespaces(self._connection)

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        return entries.page(self._connection, scope, after, limit)

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        return versions_of(self._connection, entry_id)

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        """Yield the vectors that the entries of these namespaces use in the active embedding space, in order of the
        hashes of the embedded texts. Raises `StoreDamaged` if a vector is damaged."""
        active = active_space(self._connection)
        if active is None or not namespaces:
            return
        number, space = active
        names = [*namespaces]
        if not self._connection.is_remote:  # the JSON functions of SQLite end a text at its first NUL
            names = [name.encode().hex().upper() for name in names]
        cursor = self._connection.run(_USED_VECTORS, [number, names])
        while group := cursor.fetchmany(_GROUP):
            numbers, hashes, blobs, checksums = map(list, zip(*group, strict=True))
            rows = decode_vectors(numbers, blobs, checksums, space.dimension)
            yield from (StoredVector(space, key, row) for key, row in zip(hashes, rows, strict=True))

    def entry_vectors(self, namespace: str, *, every: int = 1) -> Iterator[EntryVector]:
        """Yield the entries of a namespace that are neither archived nor superseded, each with the vector of its first
        window (the first embedded passage of its content). If `every` is n, yield only about every n-th entry. Raises
        `StoreDamaged` if a vector is damaged."""
        active = active_space(self._connection)
        if active is None:
            return
        number, space = active
        cursor = self._connection.run(_FIRST_WINDOWS, [namespace, every, number])
        while group := cursor.fetchmany(_GROUP):
            ids, blobs, checksums = ([row[place] for row in group] for place in (5, 6, 7))
            rows = decode_vectors(ids, blobs, checksums, space.dimension)
            for (entry_id, tier, kind, session, document, *_), row in zip(group, rows, strict=True):
                yield EntryVector(entry_id, tier, kind, session, document, row)


class Database:
    """An open SQLite file of a store, which several threads and processes may use at the same time. The file has a
    write-ahead log with `synchronous=FULL`, so changes are on disk when the context `writing` ends without an error.
    Methods raise `StoreFull` if the disk cannot be written, `StoreDamaged` for a damaged file, and `StoreError` for
    other problems of the file."""

    def __init__(self, path: Path, *, keeps_copy: bool = True) -> None:
        """If `keeps_copy` is False, a store of an older schema is migrated without a copy (see `upgrade`)."""
        self._keeps_copy = keeps_copy
        self.path = Path(os.path.realpath(path))  # absolute, because the process may change its folder
        self._idle: list[GuardedConnection] = []
        self._borrowed_count = 0
        self._lock = threading.Lock()
        self._closed = False
        self._replacing = False
        self._next_wal_check = 0.0  # monotonic clock
        with _OPENING:
            if any(other.path == self.path and other._replacing for other in _INSTANCES):
                raise StoreError(f"{self.path} {_REPAIRING}")
            if not any(other.path == self.path and other.is_open for other in _INSTANCES):
                correct_log(self.path)
            _INSTANCES.add(self)
        try:
            self._open(path)
        except BaseException:
            self._closed = True
            raise

    def _open(self, path: Path) -> None:
        try:
            make_folder(path.parent)
        except OSError as error:
            problem = f"the folder {path.parent} cannot be created"
            raise store_failure(problem, error, "choose another folder") from error
        check_regular_file(path)
        self._connect_first()

    def _connect_first(self) -> None:
        with self._translate_errors():
            self._first = connection = self._connect(check=True)
            self.read_only = connection.read_only
            try:
                upgrade(connection, self.path, copy=self._keeps_copy and not self.read_only)
                self.store_id = meta.get_value(connection, "store_id")
                if not self.store_id:
                    raise damage_error("the store's metadata", "its id is missing")
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)

    @contextmanager
    def reading(self) -> Iterator[SqliteConnection]:
        """Yield a connection in a read transaction, which sees the data as of its first statement."""
        with self._translate_errors(), self._borrow() as connection:
            try:
                connection.execute("BEGIN")
                connection.check_file()
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[SqliteConnection]:
        """Yield a connection in a transaction that has the write lock. The transaction is committed at the end of the
        context, or rolled back after an error."""
        try:
            with self._translate_errors(), self._borrow() as connection:
                with transaction(connection):
                    check_version(connection)
                    yield connection
                connection.execute(f"PRAGMA cache_size = {-CACHE_KB}")  # a large write may have raised it
        except StoreFull:
            with suppress(StoreError):  # copying the log into the database may free space on the disk
                self.clear_log()
            raise
        self._limit_wal()

    @contextmanager
    def snapshot(self) -> Iterator[RecordsSnapshot]:
        """Yield a view of the store as of this moment. The view is valid until the context ends."""
        with self.reading() as connection:
            change_feed.last_seq(connection)  # the first statement decides which state the transaction sees
            yield RecordsSnapshot(connection)

    def write_copy(self, path: Path) -> None:
        """Write a copy of the store, as of this moment, to the new file `path`, and sync the copy. Writers do not wait,
        because `VACUUM INTO` reads in one transaction. The copy has no write-ahead log and contains no deleted content.
        Raises `StoreFull` if the copy cannot be written, and `StoreDamaged` if the store cannot be read. After an
        error, `path` does not exist."""
        with self._translate_errors(), self._borrow() as connection:
            connection.check_file()
            write_copy(connection, path, "free some disk space or choose another folder")
        sync_folder(path.parent)

    def vacuum(self) -> None:
        """Write the file anew without its free pages. Readers go on; writers wait, as for another writer. Needs room on
        the disk for two more copies of the file. The new file is in the write-ahead log until no reader needs the
        former one, for which this method waits a moment. Raises `StoreFull` if there is no room; then the file is
        unchanged."""
        with self._translate_errors(), self._borrow() as connection:
            connection.check_file()
            connection.execute("VACUUM")
        self._empty_wal_patiently()

    def clear_log(self) -> None:
        """Empty the write-ahead log, which may contain deleted content. If a reader still needs the log, the log is
        emptied by a later call of this method, or when the last connection is closed."""
        self._empty_wal(0)

    def _limit_wal(self) -> None:
        """Empty the write-ahead log if it is long. SQLite reuses the log only when no reader needs it, and a busy store
        may never reach this state. For this reason, the writer waits for the readers that use the log now. New readers
        do not need the log while the writer waits."""
        if time.monotonic() < self._next_wal_check or file_size(wal_path(self.path)) < LOG_BYTES:
            return
        self._next_wal_check = time.monotonic() + _WAL_PAUSE
        with suppress(StoreError):  # the write is committed, and a long log is valid
            if self._empty_wal_patiently():
                self._next_wal_check = 0.0

    def _empty_wal_patiently(self) -> bool:
        return any(self._empty_wal(seconds) for seconds in _WAL_WAITS)

    def _empty_wal(self, seconds: float) -> bool:
        """Wait at most `seconds` for readers of the write-ahead log, and empty the log. Return False if a reader still
        needs the log."""
        with self._translate_errors(), self._borrow() as connection:
            connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
            try:
                busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                return not busy
            finally:
                connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Close all connections of this process, so that the caller can replace the file. At the end of the context,
        open the file again. Raises `StoreError` if another thread is using the file. A thread that starts to use the
        file during the context gets a `StoreError` too."""
        with _OPENING, self._lock:
            others = any(db is not self and db.path == self.path and db.is_open for db in _INSTANCES)
            if others or self._borrowed_count or self._replacing or self._closed:
                raise StoreError(f"{self.path} {_IN_USE}")
            self._replacing = True
            idle, self._idle = self._idle, []
        try:
            for connection in idle:
                connection.close()
            yield
        finally:
            try:
                self._connect_first()
            finally:
                self._replacing = False

    @property
    def is_open(self) -> bool:
        return not self._closed or self._borrowed_count > 0

    def close(self) -> None:
        """Close the unused connections. A connection in use is closed when its thread returns it."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _borrow(self) -> Iterator[GuardedConnection]:
        with self._lock:
            if self._closed:
                raise StoreError("this memory is closed; open it again with agentformer.connect()")
            if self._replacing:
                raise StoreError(f"{self.path} {_REPAIRING}")
            self._borrowed_count += 1
            connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or self._connect_another()
            yield connection
        finally:
            self._give_back(connection)

    def _give_back(self, connection: GuardedConnection | None) -> None:
        with self._lock:
            if connection and not self._closed and len(self._idle) < _MAX_IDLE and not connection.in_transaction:
                self._idle.append(connection)
                connection = None
        try:
            if connection:
                connection.close()
        finally:
            with self._lock:
                self._borrowed_count -= 1

    def _connect_another(self) -> GuardedConnection:
        connection = self._connect()
        if connection.identity != self._first.identity:
            connection.close()
            raise StoreError(f"{self.path} {MOVED}")
        return connection

    def _connect(self, *, check: bool = False) -> GuardedConnection:
        connection = open_database(self.path, BUSY_SECONDS, REQUIRED_TABLES, *([check_wal] if check else []))
        connection.execute(f"PRAGMA cache_size = {-CACHE_KB}")  # per connection; the system caches the file too
        connection.execute("PRAGMA cell_size_check = ON")  # detects a damaged page when it is read
        prepare(connection)
        return connection

    def _translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(
            self.path, "run `agentformer doctor`, which reports the damage that can be repaired, or restore a backup"
        )


log = logging.getLogger("agentformer")

_WITHOUT = "free some disk space, or migrate without a copy: agentformer upgrade --without-copy"


def upgrade(connection: sqlite3.Connection, path: Path, *, copy: bool = True) -> Path | None:
    """Migrate the database `path`, which is open as `connection`, to the schema of this version. Return the path of the
    copy that was made of a database with an older schema, or None. The copy is verified before the migration, and kept
    beside the database as `memory.sqlite3.schema-12`, for the former schema 12: with the version that wrote the store,
    it is the way back. The copy of an earlier upgrade is then deleted. If several processes open the database at the
    same time, one makes the copy, and the others wait for it. Raises `StoreFull` if the copy cannot be written, and
    `StoreDamaged` if the copy is damaged. Then the database is unchanged."""
    former = stored_version(connection)
    if not copy or not 0 < former < len(MIGRATIONS):
        migrate(connection)
        return None
    with file_lock(f"{path}.upgrade.lock"):
        if stored_version(connection) != former:  # another process has upgraded it meanwhile
            migrate(connection)
            return None
        kept = path.with_name(f"{path.name}.schema-{former}")
        _keep(connection, kept)
        migrate(connection)
    for earlier in path.parent.glob(f"{path.name}.schema-*"):
        if earlier != kept:
            earlier.unlink(missing_ok=True)
    log.warning(
        "the store %s had schema %d of an older version, and has schema %d now; its former state is kept in %s until "
        "you delete it or upgrade again",
        *(path, former, len(MIGRATIONS), kept),
    )
    return kept


def _keep(connection: sqlite3.Connection, kept: Path) -> None:
    """Write a copy of the database to the file `kept`, and verify the copy."""
    part = kept.with_name(f"{kept.name}.part")
    part.unlink(missing_ok=True)  # of a killed process
    try:
        write_copy(connection, part, _WITHOUT)
        with closing(sqlite3.connect(f"{part.as_uri()}?mode=ro", uri=True)) as copy:
            if (found := copy.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise StoreDamaged(f"the store is damaged ({found}); run `agentformer doctor` before you upgrade it")
        part.replace(kept)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(kept.parent)


def write_copy(connection: sqlite3.Connection, path: Path, advice: str) -> None:
    """Write a copy of a database, as of this moment, to the new file `path`, and sync the copy. Writers do not wait,
    because `VACUUM INTO` reads in one transaction. The copy has no write-ahead log and contains no deleted content.
    Raises `StoreFull` with `advice` if the copy cannot be written. After an error, `path` does not exist."""
    try:
        create_empty(path)
        try:
            connection.execute("VACUUM INTO ?", [str(path)])
        except sqlite3.OperationalError as error:
            if not is_passing_failure(error) and any(word in str(error).lower() for word in FULL_WORDS):
                raise OSError(str(error)) from error
            raise
        with path.open("rb") as file:
            sync_file(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise store_failure(f"{path} cannot be written", error, advice) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
