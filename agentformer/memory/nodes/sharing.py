"""The files, locks and API keys that all nodes of a memory share, because they are in its PostgreSQL database (see
`types.backend`). The server also notifies each node of changes that other nodes make."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from agentformer.access.key_storage import FILE, KeyFile
from agentformer.errors import StoreError
from agentformer.memory.backends.postgres.database import PostgresDatabase
from agentformer.memory.backends.postgres.server import open_connection, translated_errors
from agentformer.memory.nodes.node import Node, take_lease

if TYPE_CHECKING:
    import psycopg


_CHANNEL = "agentformer"  # of the notifications
_PART = 4 * 1024 * 1024  # maximum bytes of a row; longer files have several rows
_PREFIX = "lock/"  # the names of leases that are locks begin with this
_ACCESS = "access"  # folder of the files with the API keys and what belongs to them
_LOCK_PAUSE = 0.05  # seconds between two attempts to lock the keys
_PUT = """
    WITH longer AS (DELETE FROM files WHERE name = %s AND part > %s)
    INSERT INTO files SELECT %s, number, data FROM unnest(%b::bytea[]) WITH ORDINALITY AS given (data, number)
    ON CONFLICT (name, part) DO UPDATE SET data = excluded.data
"""


class DatabaseFiles:
    """Files in the table `files`. Each file is stored by one statement, so no process can read an incomplete file."""

    place = "the PostgreSQL database"

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def put(self, name: str, data: bytes) -> None:
        """Store a file, and replace a file with the same name."""
        parts = [data[start : start + _PART] for start in range(0, max(len(data), 1), _PART)]
        with self._database.statements() as connection:
            connection.execute(_PUT, [name, len(parts), name, parts])

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a file, or None if there is no such file."""
        with self._database.statements() as connection:
            rows = connection.execute("SELECT data FROM files WHERE name = %s ORDER BY part", [name]).fetchall()
        return b"".join(bytes(row[0]) for row in rows) if rows else None

    def version(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return a value that is another one after each change of a file, or () if there is no such file."""
        query = "SELECT xmin::text, ctid::text FROM files WHERE name = %s ORDER BY part"
        with self._database.statements() as connection:
            return tuple((row[0], row[1]) for row in connection.execute(query, [name]))

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a file, or "" if there is no such file. The server computes it."""
        query = "SELECT encode(sha256(string_agg(data, ''::bytea ORDER BY part)), 'hex') FROM files WHERE name = %s"
        with self._database.statements() as connection:
            return str(connection.execute(query, [name]).fetchone()[0] or "")

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of each file whose name begins with `prefix`, by name."""
        query = (
            "SELECT name, sum(octet_length(data)) FROM files WHERE starts_with(name, %s) GROUP BY name ORDER BY name"
        )
        with self._database.statements() as connection:
            return {row[0]: int(row[1]) for row in connection.execute(query, [prefix])}

    def delete(self, *names: str) -> None:
        """Delete files. Missing files are ignored."""
        with self._database.statements() as connection:
            connection.execute("DELETE FROM files WHERE name = ANY(%s)", [list(names)])


class DatabaseKeys:
    """The API keys of all nodes, as a file in the database; see `key_storage.KeyPlace`. If the database has no such
    file, the file in `folder` on this machine is copied into the database, so that a memory with keys stays
    protected."""

    def __init__(self, database: PostgresDatabase, folder: Path, name: str = FILE) -> None:
        self._database = database
        self._files = DatabaseFiles(database)
        self._folder = folder
        self._former = KeyFile(folder, name)
        self._known: tuple[object, bytes] | None = None  # the version of the file at the last read, and its bytes
        self._name, self._lock_name = f"{_ACCESS}/{name}", name.removesuffix(".json")

    def __str__(self) -> str:
        return f"the file {self._name} in {self._files.place}"

    def beside(self, name: str) -> DatabaseKeys:
        """Return another file in the same database."""
        return DatabaseKeys(self._database, self._folder, name)

    def read(self) -> bytes | None:
        """Return the stored bytes, or None if this memory has never had keys on any node. A file that has not changed
        is not fetched again. Keys that are still in the former place, a file of this node, are moved into the database,
        unless it is read-only."""
        version, known = self._files.version(self._name), self._known
        if known is not None and known[0] == version:
            return known[1]
        stored = self._files.get(self._name)
        if stored is not None:
            self._known = (version, stored) if version else None
            return stored
        former = self._former.read()
        if former is None or self._database.read_only:
            return former
        with self._database.lock(self._lock_name, wait=True):
            stored = self._files.get(self._name)
            if stored is None:
                self.write(former)
        return former if stored is None else stored

    def write(self, data: bytes) -> None:
        """Store new bytes, which then apply to all nodes."""
        self._files.put(self._name, data)

    @contextmanager
    def locked(self, seconds: float) -> Iterator[None]:
        """Hold the lock of the keys. Raises `filelock.Timeout` if another process still has it after `seconds`."""
        self.read()  # copies the keys of this machine before the lock
        end = time.monotonic() + seconds
        with ExitStack() as lock:
            while True:
                try:
                    lock.enter_context(self._database.lock(self._lock_name, wait=False))
                    break
                except Timeout:
                    if time.monotonic() >= end:
                        raise
                    time.sleep(_LOCK_PAUSE)
            yield


class NodeLocks:
    """Locks that all nodes share. Each lock is a lease, which this node extends while its process runs."""

    def __init__(self, node: Node, database: PostgresDatabase) -> None:
        self._node = node
        self._database = database

    def take(self, name: str) -> NodeLock | None:
        """Take a lock, or return None if another holder has it."""
        holder = self._node.begin()
        try:
            taken = take_lease(self._database, _PREFIX + name, holder, self._node.micros)
        except BaseException:
            self._node.end(holder)
            raise
        if not taken:
            self._node.end(holder)
            return None
        return NodeLock(self._node, self._database, _PREFIX + name, holder)

    def states(self, prefix: str) -> dict[str, bool]:
        """Return the locks whose name begins with `prefix`: a dictionary of name -> whether the lock is held."""
        query = "SELECT substr(name, %s), ends_at > server_micros() FROM leases WHERE starts_with(name, %s) ORDER BY 1"
        with self._database.statements() as connection:
            return {row[0]: bool(row[1]) for row in connection.execute(query, [len(_PREFIX) + 1, _PREFIX + prefix])}

    def forget(self, name: str) -> None:
        """Delete a lock that is not held, so that `states` no longer lists it."""
        with self._database.statements() as connection:
            query = "DELETE FROM leases WHERE name = %s AND ends_at <= server_micros()"
            connection.execute(query, [_PREFIX + name])

    def exclusive(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager that waits until a lock is free, and then holds it until the end of the context. The
        context must be short."""
        return self._database.lock(name, wait=True)


@dataclass(frozen=True, slots=True)
class NodeLock:
    """A lock that this node holds. Its lease has the name `name` and belongs to `holder`."""

    node: Node
    database: PostgresDatabase
    name: str
    holder: str

    def release(self) -> None:
        """Release the lock. If the server cannot be reached, the lock ends after the duration of its lease."""
        self.node.end(self.holder)
        query = "UPDATE leases SET ends_at = 0 WHERE name = %s AND holder = %s"
        with suppress(StoreError), self.database.statements() as connection:
            connection.execute(query, [self.name, self.holder])


class Listener:
    """Waits for changes of the tables of one store. Not thread-safe. The first `wait` connects to the server. Changes
    before the first `wait` are not noticed, so the caller must read the tables once after it."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._connection: psycopg.Connection[Any] | None = None

    def wait(self, seconds: float, *tables: str) -> bool:
        """Return True as soon as one of the tables has new rows, and False after `seconds`. If the listener was already
        connected, a change before the call is noticed, too. If the server cannot be reached, return False after
        `seconds`."""
        deadline = time.monotonic() + seconds
        wanted = {f"{self._schema}/{table}" for table in tables}
        try:
            with translated_errors():
                connection = self._connected()
                while (left := deadline - time.monotonic()) > 0:
                    found = [message.payload for message in connection.notifies(timeout=left, stop_after=1)]
                    if wanted & {*found}:
                        return True
        except StoreError:
            self.close()
            time.sleep(max(0.0, deadline - time.monotonic()))
        return False

    def close(self) -> None:
        """Close the connection. The next `wait` opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = open_connection(self._url)
            self._connection.execute(f"LISTEN {_CHANNEL}".encode())
        return self._connection
