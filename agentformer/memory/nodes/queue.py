"""The embedding queue of several nodes. Each node claims a batch of entries that no other node has claimed, so that the
nodes embed different batches at the same time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agentformer.errors import StoreError
from agentformer.index.embedding.windows import Progress
from agentformer.memory.backends.postgres.connection import PostgresDatabase
from agentformer.memory.backends.postgres.indexes import ServerQueue
from agentformer.memory.backends.postgres.server import native
from agentformer.memory.nodes.node import Node
from agentformer.records import vectors as store

_BATCH = 64  # entries of one claim; this work is repeated if a node dies
_POLL_SECONDS = 0.2
# Entries whose claim has ended are free. Rows that another statement has locked are skipped, so that no node waits.
_CLAIM = """
    WITH free AS (
        SELECT entry_namespace, entry FROM pending
        WHERE entry > %s AND refused <= %s AND (claim IS NULL OR claim_ends <= server_micros())
        ORDER BY entry LIMIT %s FOR UPDATE SKIP LOCKED
    )
    UPDATE pending SET claim = %s, claim_ends = server_micros() + %s
    FROM free WHERE pending.entry_namespace = free.entry_namespace AND pending.entry = free.entry
    RETURNING pending.entry
"""
_RELEASE = """
    WITH done AS (UPDATE nodes SET embedded = embedded + %s WHERE id = %s)
    UPDATE pending SET claim = NULL, claim_ends = NULL
    WHERE entry IN (SELECT entry FROM pending WHERE claim = %s FOR UPDATE SKIP LOCKED)
"""
_OTHERS = "SELECT EXISTS (SELECT 1 FROM pending WHERE claim IS NOT NULL AND refused = 0)"


class SharedQueue(ServerQueue):
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
        """Claim and embed batches until no entry is free. Return False if the embedder is unavailable."""
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
            rows = connection.run(_CLAIM, values).fetchall()
        return sorted(row[0] for row in rows)

    def _embed_claimed(self, holder: str, nums: Sequence[int], progress: Progress | None) -> bool:
        done = 0

        def owned(connection: sqlite3.Connection, asked: Sequence[int]) -> list[int]:
            nonlocal done
            query = "SELECT entry FROM pending WHERE claim = %s AND entry = ANY(%s)"
            found = [row[0] for row in native(connection).run(query, [holder, list(asked)])]
            done = len(found)
            return found

        available = False
        try:
            available = self.embed_batch(nums, progress, owned)
        finally:
            with suppress(StoreError), self._shared.statements() as connection:
                connection.run(_RELEASE, [done if available else 0, self._node.id, holder])
        return available

    def _others_work(self) -> bool:
        with self._shared.statements() as connection:
            return bool(connection.run(_OTHERS, []).fetchone()[0])
