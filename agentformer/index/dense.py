"""The dense side of search: a `VectorIndex` that follows the records, with its snapshot."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentformer.index import snapshots
from agentformer.index.scoping import Allowed
from agentformer.index.vectors import Found, VectorIndex
from agentformer.records import entries as records
from agentformer.records.database import Database
from agentformer.records.spaces import active_space
from agentformer.types import Vector

_GROUP = 4_096  # windows read at a time
_FEW = 500  # changed entries looked up one by one; more are cheaper in one pass
# A snapshot is written when this share has changed since the last one, or always while the store is small:
# a single addition to a large store must not write gigabytes.
_SNAPSHOT_SHARE = 0.1
_SMALL = 20_000

_WINDOWS = "SELECT w.id, w.entry, v.data FROM windows AS w JOIN vectors AS v ON v.id = w.vector WHERE w.space = :space "


class DenseIndex:
    """Cosine search that sees every acknowledged change. Thread-safe."""

    def __init__(self, folder: Path, store_id: str) -> None:
        self._folder = folder
        self._store_id = store_id
        self._lock = threading.RLock()
        self._index: VectorIndex | None = None
        self._space = 0
        self._applied = 0
        self._point = ""  # the history's token at `_applied`
        self._saved_seq = -1
        self._unsaved = 0  # entries changed since the last snapshot

    def __len__(self) -> int:
        return len(self._index) if self._index else 0

    @property
    def space(self) -> int:
        """The number of the space that it holds; 0 before the first refresh."""
        return self._space

    def refresh(self, database: Database) -> None:
        """Follow the records up to the newest acknowledged change, in the space that is active now."""
        with self._lock, database.reading() as connection:
            newest = records.last_change(connection)
            space = active_space(connection)
            if space is None or (self._index is not None and self._space == space[0] and self._applied >= newest):
                return
            if self._index is None or self._space != space[0]:
                self._begin(connection, space[0], space[1].dimension)
            self._follow(connection, newest)

    def search(self, database: Database, space: int, query: Vector, limit: int, allowed: Allowed) -> list[Found] | None:
        """The best window of each of the best `limit` entries among `allowed`, best first, with cosines from the
        full-precision vectors. None when the index is not of the `space` that the query was embedded for."""
        with self._lock:
            if self._index is None or self._space != space:
                return None
            found = self._index.search(query, limit, allowed.mask)
        with database.reading() as connection:
            exact = _exact(connection, found, query)
        return sorted(exact, key=lambda item: (-item.score, item.entry))

    def save(self) -> None:
        """Write a snapshot if it would spare a later start enough work."""
        with self._lock:
            if self._index is None or self._applied == self._saved_seq:
                return
            if len(self._index) > _SMALL and self._unsaved < len(self._index) * _SNAPSHOT_SHARE:
                return
            snapshots.save(
                self._folder,
                self._index.snapshot(),
                store_id=self._store_id,
                space=self._space,
                seq=self._applied,
                point=self._point,
            )
            self._saved_seq, self._unsaved = self._applied, 0

    def discard(self) -> None:
        """Delete the snapshot: it holds what was in the index once."""
        with self._lock:
            snapshots.discard(self._folder)
            self._saved_seq = -1

    def _begin(self, connection: sqlite3.Connection, space: int, dimension: int) -> None:
        self._space = space
        saved = snapshots.load(self._folder, store_id=self._store_id, space=space, dimension=dimension)
        if saved is None or saved.point != records.point(connection, saved.seq):
            self._index, self._applied = VectorIndex(dimension), 0
            return
        rows = connection.execute("SELECT id, entry FROM windows WHERE space = ?", [space])
        entry_of = {row[0]: row[1] for row in rows}
        self._index, self._applied = VectorIndex.restored(saved.index, entry_of), saved.seq
        self._point = saved.point
        self._saved_seq = saved.seq

    def _follow(self, connection: sqlite3.Connection, newest: int) -> None:
        assert self._index is not None
        changed = records.changed_since(connection, self._applied)
        for num in changed:
            self._index.drop(num)
        if len(changed) <= _FEW:
            for num in changed:
                self._add(connection.execute(_WINDOWS + "AND w.entry = :num", {"space": self._space, "num": num}))
        else:
            self._add(
                connection.execute(
                    _WINDOWS + "AND w.entry IN (SELECT entry FROM changes WHERE seq > :seq) ORDER BY w.id",
                    {"space": self._space, "seq": self._applied},
                )
            )
        self._applied, self._point = newest, records.point(connection, newest)
        self._unsaved += len(changed)

    def _add(self, rows: sqlite3.Cursor) -> None:
        assert self._index is not None
        while group := rows.fetchmany(_GROUP):
            self._index.add(
                np.fromiter((row[0] for row in group), np.int64, len(group)),
                np.fromiter((row[1] for row in group), np.int64, len(group)),
                _matrix([row[2] for row in group], self._index.dimension),
            )


def _exact(connection: sqlite3.Connection, found: Sequence[Found], query: Vector) -> list[Found]:
    """The same windows with cosines from the full-precision vectors."""
    rows = connection.execute(
        "SELECT w.id, v.data FROM windows AS w JOIN vectors AS v ON v.id = w.vector "
        "WHERE w.id IN (SELECT value FROM json_each(?))",
        [json.dumps([item.window for item in found])],
    )
    scores = {row[0]: float(np.frombuffer(row[1], "<f4") @ query) for row in rows}
    return [item._replace(score=scores.get(item.window, item.score)) for item in found]


def _matrix(blobs: Sequence[bytes], dimension: int) -> NDArray[np.float32]:
    rows = np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dimension)
    return rows.astype(np.float32, copy=False)
