"""`DistributedMemory`: many nodes of AgentFormer on one PostgreSQL database. All data is in the database, so a node may
die at any time. Each node claims a batch of the embedding queue that no other node has claimed (`SharedQueue`), so that
the nodes embed different batches at the same time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentformer.errors import Conflict, StoreError
from agentformer.index.embedding.queue import EmbeddingQueue
from agentformer.index.embedding.windows import Progress
from agentformer.memory.backends.postgres.backend import MOVING, PostgresMemoryBackend, PostgresOptions, options_of
from agentformer.memory.backends.postgres.connection import native
from agentformer.memory.backends.postgres.database import PostgresDatabase
from agentformer.memory.nodes.node import Node, release_lease, take_lease
from agentformer.memory.nodes.sharing import DatabaseFiles, DatabaseKeys, Listener, NodeLocks
from agentformer.records import vectors as store
from agentformer.settings import Settings
from agentformer.types import Connection, Embedder, RecordStore

_LEASE_SECONDS = 15.0
_NODES = """
    SELECT id, name, role, embedded, started_at, server_micros() - seen_at, ends_at > server_micros() FROM nodes
    ORDER BY id
"""
_CLAIMS = "SELECT split_part(claim, '/', 1), count(*) FROM pending WHERE claim_ends > server_micros() GROUP BY 1"
_LEASES = "SELECT split_part(holder, '/', 1), name FROM leases WHERE ends_at > server_micros() ORDER BY name"
_QUEUE = """
    SELECT count(*), count(*) FILTER (WHERE claim_ends > server_micros()), count(*) FILTER (WHERE refused = 1),
        coalesce(server_micros() - min(queued_at) FILTER (WHERE refused = 0), 0) FROM pending
"""
_BATCH = 64  # entries of one claim; this work is repeated if a node dies
_POLL_SECONDS = 0.2
# Entries whose claim has ended are free. Rows that another statement has locked are skipped, so that no node waits.
_CLAIM_BATCH = """
    WITH free AS (
        SELECT entry_namespace, entry FROM pending
        WHERE entry > %s AND refused <= %s AND (claim IS NULL OR claim_ends <= server_micros())
        ORDER BY entry LIMIT %s FOR UPDATE SKIP LOCKED
    )
    UPDATE pending SET claim = %s, claim_ends = server_micros() + %s
    FROM free WHERE pending.entry_namespace = free.entry_namespace AND pending.entry = free.entry
    RETURNING pending.entry
"""
_RELEASE_BATCH = """
    WITH done AS (UPDATE nodes SET embedded = embedded + %s WHERE id = %s)
    UPDATE pending SET claim = NULL, claim_ends = NULL
    WHERE entry IN (SELECT entry FROM pending WHERE claim = %s FOR UPDATE SKIP LOCKED)
"""
_OTHERS = "SELECT EXISTS (SELECT 1 FROM pending WHERE claim IS NOT NULL AND refused = 0)"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node in the database. `seen` is the time in seconds since the node last renewed its row. `claimed`
    is the number of entries that the node embeds now, and `embedded` is the number of entries that it has embedded from
    the queue. `leases` are the names of the leases that it holds."""

    id: str
    name: str  # machine and process id
    role: str
    alive: bool
    seen: float
    claimed: int
    embedded: int
    leases: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class QueueState:
    """The state of the embedding queue. `waiting` is the number of entries without vectors. Among these entries,
    `claimed` is the number of those that nodes embed now, and `refused` is the number of those that the embedder has
    refused. `age` is the age in seconds of the oldest entry that was not refused."""

    waiting: int
    claimed: int
    refused: int
    age: float


class SharedQueue(EmbeddingQueue):
    """An `EmbeddingQueue` that several nodes process at the same time. An entry is claimed by one node at a time. If
    the node dies, its claim ends, and another node embeds the entries of its batch."""

    def __init__(self, node: Node, database: PostgresDatabase, *arguments: Any, **options: Any) -> None:
        super().__init__(lambda wait: database.lock("embedding", wait=wait), database, *arguments, **options)
        self._node = node
        self._shared = database

    def catch_up(self, progress: Progress | None = None, *, wait: bool = True, refused: bool = True) -> int:
        """Embed the entries of the queue that no other node has claimed, and return the number of entries that remain.
        If `wait` is True, the call also waits for the entries that other nodes have claimed, and embeds them if a node
        dies. `refused` is explained in `EmbeddingQueue.catch_up`."""
        with self._shared.reading() as connection:
            if not store.has_pending(connection, refused=refused):
                return 0
        self.retry_embedder()
        again = refused
        while self._embed_free(progress, again) and wait and self._others_work():
            again = False  # each refused entry is tried once
            time.sleep(_POLL_SECONDS)
        with self._shared.reading() as connection:
            return store.pending_count(connection, refused=refused)

    def _embed_free(self, progress: Progress | None, refused: bool) -> bool:
        """Claim and embed batches until the queue has no entry that can be claimed. Return False if the embedder is
        unavailable."""
        after = 0
        while True:
            with self._node.holding() as holder:
                nums = self._claim(holder, after, refused)
                if not nums:
                    return True
                after = nums[-1]
                if not self._embed_claimed(holder, nums, progress):
                    return False

    def _claim(self, holder: str, after: int, refused: bool) -> list[int]:
        values = [after, int(refused), _BATCH, holder, self._node.micros]
        with self._shared.statements() as connection:
            rows = connection.execute(_CLAIM_BATCH, values).fetchall()
        return sorted(row[0] for row in rows)

    def _embed_claimed(self, holder: str, nums: Sequence[int], progress: Progress | None) -> bool:
        """Embed entries that `holder` has claimed, and release them. Return False if the embedder is unavailable."""
        done = 0

        def owned(connection: Connection, asked: Sequence[int]) -> list[int]:
            nonlocal done
            query = "SELECT entry FROM pending WHERE claim = %s AND entry = ANY(%s)"
            claimed = [row[0] for row in native(connection).execute(query, [holder, list(asked)])]
            done = len(claimed)
            return claimed

        available = False
        try:
            available = self.embed_batch(nums, progress, owned)
        finally:
            with suppress(StoreError), self._shared.statements() as connection:
                connection.execute(_RELEASE_BATCH, [done if available else 0, self._node.id, holder])
        return available

    def _others_work(self) -> bool:
        with self._shared.statements() as connection:
            return bool(connection.execute(_OTHERS, []).fetchone()[0])


class DistributedMemory(PostgresMemoryBackend):
    """A `MemoryBackend` on a PostgreSQL database that any number of nodes share. Nodes embed different batches of the
    queue at the same time. Only one node at a time cleans a session, or embeds the whole store again."""

    def __init__(
        self,
        url: str,
        embedder: Embedder,
        options: PostgresOptions | None = None,
        *,
        lease_seconds: float = _LEASE_SECONDS,
    ) -> None:
        options = options or PostgresOptions()
        super().__init__(url, embedder, options)
        self._place = url, options.schema
        self.node = Node(self._database, lease_seconds)
        self.files = DatabaseFiles(self._database)
        self.locks = NodeLocks(self.node, self._database)
        if not self._database.read_only:
            self._queue = SharedQueue(self.node, self._database, embedder, window_tokens=options.window_tokens)

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> DistributedMemory:
        """Open the database of `Settings.postgres_url`, with the search options of the settings."""
        return cls(settings.postgres_url, embedder, options_of(settings), lease_seconds=settings.node_lease_seconds)

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take or extend a lease, by the clock of the server; see `MemoryBackend.lease`."""
        return take_lease(self._database, name, holder, int(seconds * 1_000_000))

    def release(self, name: str, holder: str) -> None:
        """End a lease; see `MemoryBackend.release`."""
        release_lease(self._database, name, holder)

    @contextmanager
    def _migration_lock(self) -> Iterator[None]:
        with self.node.lease("reembed") as taken:
            if not taken:
                raise Conflict(MOVING)
            yield

    def key_place(self, folder: Path) -> DatabaseKeys:
        """Return the object that stores the API keys in the database. `folder` is the index folder of this machine,
        which may contain API keys from before the database was used."""
        return DatabaseKeys(self._database, folder)

    @property
    def records(self) -> RecordStore:
        """The database of this memory, which also contains the tables of the upload jobs."""
        return self._database

    def join(self, role: str) -> None:
        """Register this process as a node with a role, such as `worker`, unless the database is read-only."""
        if not self._database.read_only:
            self.node.join(role)

    def listener(self) -> Listener:
        """Return a `Listener`, which waits until any node changes one of the tables. The caller must close it."""
        return Listener(*self._place)

    def nodes(self) -> list[NodeState]:
        """Return the nodes that are registered, in the order of their start. A dead node is listed for some time."""
        with self._database.statements() as connection:
            claims = dict(tuple(row) for row in connection.execute(_CLAIMS, []))
            held: dict[str, list[str]] = {}
            for node, name in connection.execute(_LEASES, []):
                held.setdefault(node, []).append(name)
            return [
                NodeState(
                    row[0], row[1], row[2], row[6], row[5] / 1e6, claims.get(row[0], 0), row[3],
                    tuple(held.get(row[0], ())),
                )
                for row in connection.execute(_NODES, [])
            ]  # fmt: skip

    def queue(self) -> QueueState:
        """Return the state of the embedding queue."""
        with self._database.statements() as connection:
            waiting, claimed, refused, micros = connection.execute(_QUEUE, []).fetchone()
        return QueueState(waiting, claimed, refused, micros / 1e6)

    def status(self) -> dict[str, Any]:
        """Return JSON values: the status of the backend `postgres`, and the number of nodes that are alive."""
        return {**super().status(), "nodes": sum(node.alive for node in self.nodes())}

    def close(self) -> None:
        """Remove this process from the list of nodes, and close the connections. Idempotent."""
        if not self._closed:
            self.node.close()
        super().close()
