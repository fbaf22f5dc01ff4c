"""Management of the vector index of a store. This module applies the changes of the records (the database of the
entries) to the index, trains the index in the background, saves the index in a snapshot file, and adopts the snapshot
that another process has saved."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import Timeout

from agentformer.index.files import INDEX_FILE, read_index_status
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors import IndexOptions
from agentformer.index.vectors import snapshot as snapshots
from agentformer.index.vectors.flat import IntArray
from agentformer.index.vectors.index import VectorHits, VectorIndex
from agentformer.index.vectors.snapshot import Image, Snapshot
from agentformer.index.vectors.stored_vectors import (
    count_windows,
    read_entries,
    read_numbers,
    read_space,
    read_stored_vectors,
    removed_since,
)
from agentformer.index.vectors.training import BackgroundTrainer, Stopped
from agentformer.records import change_feed
from agentformer.records.integrity.files import temporary_path
from agentformer.records.spaces import active_space
from agentformer.types import Connection, Matrix, RecordStore, Vector, common

log = logging.getLogger("agentformer")

_NEWER = common("SELECT DISTINCT entry FROM windows WHERE id > ? AND space = ?")  # entries with newer windows
_BATCH = 512  # number of changed entries that are applied in one step
_DISCARD_SECONDS = 3.0  # seconds to wait for another process that is writing a snapshot, before the snapshot is deleted
# A snapshot is written if this share of the entries has changed since the last one, so that a single addition to a
# large store does not write gigabytes. In a small store, each change causes a new snapshot.
_SNAPSHOT_SHARE = 0.1
_SMALL = 20_000
# If a store without a snapshot has at least this number of windows, the first search builds a trained index
# immediately. With fewer windows, the first searches use an exact index, which is built faster, but needs 16 bits of
# memory per dimension.
_BUILD_TRAINED = 1_500_000
_LOOK_SECONDS = 2.0  # seconds between two checks for a new snapshot


class _SavedIndex:
    """The state of a store's snapshot: the changes that the snapshot contains, and whether another process has replaced
    it. Not thread-safe."""

    def __init__(self, folder: Path, store_id: str) -> None:
        self._folder = folder
        self._store_id = store_id
        self.seq = -1  # the last change in the snapshot that this process has loaded or written; -1 if there is none
        self.changed = 0  # number of entries that changed after `seq`
        self._seen: tuple[int, ...] = ()  # the version of the files that were loaded, written or examined last
        self._look_at = 0.0  # time of the next check for a new snapshot, by the monotonic clock

    def is_due(self, rows: int) -> bool:
        """Return whether a new snapshot of an index with `rows` rows should be written. This is the case if enough
        entries have changed since the last snapshot, if the index is small, or if there is no snapshot."""
        return self.changed >= rows * _SNAPSHOT_SHARE or rows <= _SMALL or self.seq < 0

    def is_new(self) -> bool:
        """Return whether there is a snapshot that this process has not yet loaded, written or examined. The files are
        checked only every few seconds."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_SECONDS
        found = snapshots.version(self._folder)
        return bool(found) and found != self._seen

    def load(self, connection: Connection, space: int, dimension: int) -> Snapshot | None:
        """Return the content of the snapshot. Return None if it is missing or invalid, or if it was written before the
        records were restored from a backup."""
        self._seen = snapshots.version(self._folder)
        self.seq, self.changed = -1, 0
        snapshot = snapshots.load(self._folder, store_id=self._store_id, space=space, dimension=dimension)
        if snapshot is None or snapshot.point != change_feed.token_at(connection, snapshot.seq):
            return None
        self.seq = snapshot.seq
        return snapshot

    def load_if_better(self, database: RecordStore, present: VectorIndex) -> Snapshot | None:
        """Return the content of the snapshot of another process if this process should use it instead of the index
        `present` (see `VectorIndex.is_snapshot_better`), otherwise None. Each snapshot is examined only once."""
        seen = snapshots.version(self._folder)
        if not seen or seen == self._seen:
            return None
        self._seen = seen
        expected = {"store": self._store_id, "space": present.space, "dimension": present.dimension}
        meta = snapshots.describe(self._folder, **expected)
        if meta is None:
            return None
        with database.reading() as connection:
            if change_feed.token_at(connection, meta["seq"]) != meta["point"]:
                return None
            changes = len(change_feed.entries_since(connection, meta["seq"]))
        about = meta["about"]
        if not present.is_snapshot_better(about["stage"], about.get("trained_rows", 0), changes):
            return None
        found = snapshots.read(self._folder, **expected)
        return None if found is None or found[1] is None else Snapshot(found[1], meta["seq"], meta["point"])

    def write(self, image: Image, space: int, seq: int, point: str) -> None:
        """Write a snapshot of the index `image`, which contains all changes up to `seq`. `point` is the random token
        that the records store with this change (`change_feed.token_at`). Call `set_written` afterwards. Raises
        `OSError` if the files cannot be written."""
        snapshots.save(self._folder, image, store_id=self._store_id, space=space, seq=seq, point=point)

    def set_written(self, seq: int) -> None:
        """Record that the snapshot contains all changes up to `seq`."""
        self.seq, self.changed, self._seen = seq, 0, snapshots.version(self._folder)

    def set_written_without(self, entries: IntArray, image: Image, seq: int) -> None:
        """Check a snapshot that was just written against `entries`, which were changed or removed during the writing.
        If it contains one of them, delete it. Otherwise, record that it contains all changes up to `seq`. Afterwards,
        `is_new` returns True if there is a snapshot, so that this process can map its codes."""
        if np.isin(entries, image.rows.entries).any():
            snapshots.discard(self._folder)
        else:
            self.set_written(seq)
        self._seen = ()


class VectorFollower:
    """The vector index of a store. A search sees every change that was committed before it. Thread-safe."""

    def __init__(self, folder: Path, store_id: str, options: IndexOptions | None = None) -> None:
        self._folder = folder
        self._saved = _SavedIndex(folder, store_id)
        self._options = options or IndexOptions()
        self._trainer = BackgroundTrainer(folder)
        self._following = threading.Lock()  # held by the thread that applies changes; searches do not need it
        self._index: VectorIndex | None = None
        self._applied = 0
        self._point = ""  # the token of the change `_applied`
        self._train_not_before = 0.0  # by the monotonic clock

    def __len__(self) -> int:
        return len(self._index or ())

    @property
    def space(self) -> int:
        """The number of the embedding space that the index in memory belongs to, or 0 if no index is in memory."""
        index = self._index
        return index.space if index is not None else 0

    def refresh(self, database: RecordStore) -> None:
        """Apply all committed changes of the records to the index. If the store has moved to another embedding space,
        the index of the new space is loaded or built."""
        with database.reading() as connection:
            newest, space = change_feed.last_seq(connection), active_space(connection)
        if space is not None:
            self.follow(database, newest, space[0])

    def follow(self, database: RecordStore, newest: int, space: int) -> None:
        """Apply the changes of the records, so that a search sees at least the change number `newest`, and start a
        training if one is needed. `space` is the number of the active embedding space. The caller must have just read
        `newest` and `space` from the database. If the index already contains this change and belongs to this space, the
        database is not read."""
        if self.space != space or self._applied < newest:
            with self._following, database.reading() as connection:
                newest, active = change_feed.last_seq(connection), active_space(connection)
                if active is not None:
                    self._apply(connection, newest, active[0], active[1].dimension)
        self._train_soon(database)

    def search(self, space: int, query: Vector, limit: int, allowed: ScopeMask) -> VectorHits | None:
        """Return the windows of the scope mask `allowed` that are nearest to the query, with approximate cosines.
        `space` is the number of the embedding space of the query. Return None if the index belongs to another space."""
        index = self._index
        if index is None or index.space != space:
            return None
        return index.search(query, limit, allowed)

    def save(self) -> None:
        """Write a snapshot of the index. Nothing is written if the last snapshot is recent enough, or if another
        process is writing a snapshot. Raises `OSError` if the files cannot be written."""
        with self._following:
            index, saved = self._index, self._saved
            if index is None or self._applied == saved.seq or not saved.is_due(len(index)):
                return
            with suppress(Timeout), self._trainer.lock(), index.image() as image:
                saved.write(image, index.space, self._applied, self._point)
                saved.set_written(self._applied)

    def discard(self) -> None:
        """Delete the snapshot, which may contain vectors of removed entries. Raises `OSError` if the files cannot be
        deleted, and its subclass `Timeout` if another process is training the index or writing a snapshot."""
        with self._following:
            self._saved.seq = -1
            snapshots.discard(self._folder)
            with self._trainer.lock(0.0 if self._trainer.running else _DISCARD_SECONDS):
                snapshots.discard(self._folder)

    def unload(self) -> None:
        """Remove the index from memory. The next search loads the snapshot or builds the index."""
        with self._following:
            self._index, self._applied, self._point = None, 0, ""

    def status(self) -> dict[str, Any]:
        """Return the state of the index as JSON values. If the index is not in memory, return the state that was saved
        with the snapshot."""
        index = self._index
        about = read_index_status(self._folder) if index is None else {**index.status(), "in_memory": True}
        return {**about, "training": self._trainer.running, "problem": self._trainer.problem or None}

    def train_now(self, database: RecordStore) -> None:
        """Train the index if a training is needed, and wait until the training ends."""
        self.refresh(database)
        self._train_not_before = 0.0
        self._train_soon(database)
        self._trainer.wait()

    def close(self) -> None:
        """Stop the background training. A second call has no effect."""
        self._trainer.close()

    def _apply(self, connection: Connection, newest: int, space: int, dimension: int) -> None:
        """Apply the changes up to `newest`. If no index has this space and this history, load or build one first."""
        index, unlisted = self._index, []
        if index is not None and change_feed.token_at(connection, self._applied) != self._point:
            index = None  # it is so far behind that the feed no longer lists all that it lacks
        if index is None or index.space != space:
            index = self._load(connection, space, dimension)
            if self._applied:  # the store may have returned to a former space, whose new windows are not in the feed
                unlisted = [row[0] for row in connection.run(_NEWER, [index.newest_window, space])]
        elif self._applied >= newest:
            return
        if self._applied == 0 and len(index) == 0:
            self._build(connection, index, space, dimension)
            self._saved.changed += len(index)
        else:
            changed = list(dict.fromkeys([*unlisted, *change_feed.entries_since(connection, self._applied)]))
            self._apply_changes(connection, index, changed)
            self._saved.changed += len(changed)
        self._index = index
        self._applied, self._point = newest, change_feed.token_at(connection, newest)

    def _build(self, connection: Connection, index: VectorIndex, space: int, dimension: int) -> None:
        """Fill an empty index with all windows of the embedding space."""
        if count_windows(connection, space, _BUILD_TRAINED) < _BUILD_TRAINED:
            for windows in read_space(connection, space, dimension):
                index.change(np.zeros(0, np.int64), *windows)
            return

        def read_vectors(vectors: IntArray) -> tuple[IntArray, Matrix]:
            return read_stored_vectors(connection, vectors, dimension)

        index.build(read_numbers(connection, space), read_vectors)

    def _apply_changes(self, connection: Connection, index: VectorIndex, changed: Sequence[int]) -> None:
        for start in range(0, len(changed), _BATCH):
            batch = changed[start : start + _BATCH]
            windows = read_entries(connection, index.space, batch, index.dimension)
            index.change(np.array(batch, np.int64), *windows)

    def _load(self, connection: Connection, space: int, dimension: int) -> VectorIndex:
        """Return the index from the snapshot, or an empty index if no valid snapshot exists."""
        snapshot = self._saved.load(connection, space, dimension)
        self._applied = snapshot.seq if snapshot else 0
        self._train_not_before = time.monotonic() + self._options.train_after
        if snapshot is None:
            return self._with_spill(VectorIndex(dimension, self._options, space))
        return self._with_spill(VectorIndex.from_image(snapshot.image, self._options, space))

    def _with_spill(self, index: VectorIndex) -> VectorIndex:
        index.spill_path = temporary_path(self._folder / INDEX_FILE)
        return index

    def _train_soon(self, database: RecordStore) -> None:
        index = self._index
        if index is None or time.monotonic() < self._train_not_before:
            return
        if index.needs_training() or index.needs_tuning() or self._wants_snapshot(index) or self._saved.is_new():
            self._trainer.start(lambda stopped: self._train(database, index, stopped))

    def _wants_snapshot(self, index: VectorIndex) -> bool:
        """Return whether a large index needs a new snapshot, from which searches can read its codes. This is the case
        if there is no snapshot, or if the index has changed much since the last snapshot."""
        return index.wants_mapping() or (self._saved.seq < 0 and index.is_large())

    def _train(self, database: RecordStore, index: VectorIndex, stopped: Stopped) -> None:
        """Train, tune, save or replace the index, until none of this is needed. The caller must hold the lock of the
        trainer."""

        def read_vectors(vectors: IntArray) -> tuple[IntArray, Matrix]:
            with database.reading() as connection:
                return read_stored_vectors(connection, vectors, index.dimension)

        self._adopt(database, stopped)
        while (index := self._index or index) and index.needs_training() and not stopped():
            with self._following:  # so that no change happens between reading the rows and reading their change number
                if self._index is not index:
                    return
                seq, point, start = self._applied, self._point, index.training_rows()

            def changed(seq: int = seq) -> IntArray:
                with database.reading() as connection:
                    return np.array(change_feed.entries_since(connection, seq), np.int64)

            def save(image: Image, seq: int = seq, point: str = point) -> None:
                self._save_trained(image, index.space, seq, point, changed)

            index.train(start, read_vectors, stopped, changed, save)
            self._adopt(database, stopped)
        if self._index is index and index.needs_tuning():
            index.tune(read_vectors, stopped)
        if self._index is index and self._wants_snapshot(index) and not stopped():
            self._write_frozen(database, index)
            self._adopt(database, stopped)

    def _write_frozen(self, database: RecordStore, index: VectorIndex) -> None:
        """Write a snapshot of a large index while searches and changes continue. If any process has removed an entry of
        the snapshot meanwhile, the snapshot is deleted. Raises `OSError` if the files cannot be written."""
        with self._following:
            if self._index is not index:
                return
            seq, point, image = self._applied, self._point, index.frozen()
        self._saved.write(image, index.space, seq, point)
        with database.reading() as connection:
            removed = removed_since(connection, seq)
        self._saved.set_written_without(removed, image, seq)

    def _adopt(self, database: RecordStore, stopped: Stopped) -> None:
        """Use the index in the snapshot instead of the current index if the snapshot is better. It is better if another
        process has trained it, or if its codes can be mapped while the codes of the current index are in memory. The
        caller must hold the lock of the trainer, so that no process writes a snapshot meanwhile."""
        former = self._index
        snapshot = self._saved.load_if_better(database, former) if former is not None else None
        if former is None or snapshot is None:
            return
        index = self._with_spill(VectorIndex.from_image(snapshot.image, self._options, former.space))
        applied = snapshot.seq
        while not stopped():
            with database.reading() as connection:
                newest, changed = change_feed.last_seq(connection), change_feed.entries_since(connection, applied)
                if len(changed) <= _BATCH:
                    break
                self._apply_changes(connection, index, changed)
                applied = newest
        self._switch(database, former, index, applied, snapshot.seq)

    def _switch(self, database: RecordStore, former: VectorIndex, index: VectorIndex, applied: int, saved: int) -> None:
        """Use `index`, which contains all changes up to `applied`, instead of `former`. `saved` is the last change that
        the snapshot contains."""
        with self._following, database.reading() as connection:
            if self._index is not former:
                return
            newest = max(change_feed.last_seq(connection), self._applied)
            # also windows without a change
            unlisted = [row[0] for row in connection.run(_NEWER, [index.newest_window, index.space])]
            changed = list(dict.fromkeys([*unlisted, *change_feed.entries_since(connection, applied)]))
            self._apply_changes(connection, index, changed)
            index.queries = former.queries
            self._index = index
            self._applied, self._point = newest, change_feed.token_at(connection, newest)
            self._saved.seq, self._saved.changed = saved, len(changed)

    def _save_trained(self, image: Image, space: int, seq: int, point: str, changed: Callable[[], IntArray]) -> None:
        """Write the snapshot of an index that was just trained. If the snapshot cannot be written, log a warning; the
        index stays in memory. `changed` returns the entries that changed during the training. If the snapshot contains
        one of these entries, the snapshot is deleted."""
        try:
            self._saved.write(image, space, seq, point)
        except OSError as error:
            log.warning(
                "The trained vector index could not be saved; after the next start, it is trained again: %s", error
            )
            return
        entries = changed()
        self._saved.set_written_without(entries[entries <= image.rows.newest_entry], image, seq)
