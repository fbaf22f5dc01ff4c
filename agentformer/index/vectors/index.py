"""The vector index in memory. In a small index, a search compares the query with every row. A large index is trained: a
search reads only some lists of rows, and the caller computes exact scores for the best rows.

A row is the vector of one window (an embedded part of an entry), and is identified by its position in the index. Each
change is visible to the next search. During a training, searches use the current index. After the training, the trained
index replaces the current index in one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors import IndexOptions
from agentformer.index.vectors.flat import Flat, IntArray, Rows, Selection, SelectionCache
from agentformer.index.vectors.ivf import Ivf
from agentformer.index.vectors.lists import MAP_BYTES, can_map
from agentformer.index.vectors.snapshot import Image, about_of, image_of, stage_of
from agentformer.index.vectors.training import Interrupted, ReadVectors, Stopped, put_vectors, train_ivf
from agentformer.index.vectors.tuning import LatestQueries, Tuner
from agentformer.types import Matrix, Vector

# Dead rows slow down searches, and their removal from a flat index needs a copy of the index. They are removed if they
# are more than this share of the rows and more than this number.
_SWEEP_SHARE = 0.25
_SWEEP_MIN = 1024
_MAX_HOLES = 1024  # dead rows that may wait in a trained index until they are removed together
_SWITCH_ROWS = 256  # number of rows that the last step of a training may add while searches wait
_CATCH_UP_BATCH = 4_096
_FEW_CHANGES = 4_096  # so many changes are replayed on a trained snapshot, even if this index has fewer rows
_SPARE = 16  # additional rows for re-ranking, because rounding may have moved good rows below `limit`
_SPILL_BYTES = 256_000_000  # maximum bytes of codes that a training keeps in memory
_MERGE_SHARE = 0.1  # share of the mapped rows; if more rows changed, a new snapshot is written
_MIN_OUTLIERS = 1_024  # a training is needed if the outliers exceed this number and this share of the rows
_OUTLIER_SHARE = 0.01

_NONE = np.zeros(0, np.int64)
EVERYTHING = ScopeMask(np.zeros(0, np.bool_), 0)  # the mask for a search in all live rows


class VectorHits(NamedTuple):
    """The windows nearest to a query, best first by approximate cosine. The arrays have one element for each window:
    its number (`windows`), the numbers of its entry and its vector, and its cosine (`scores`). The windows belong to at
    least `limit` different entries, if the search could find so many."""

    query: Vector
    limit: int
    windows: IntArray
    entries: IntArray
    vectors: IntArray
    scores: NDArray[np.float32]
    candidates: int  # the first `candidates` windows contain the ten nearest ones, with the target recall


class TrainingRows(NamedTuple):
    """The rows that a training starts from. They are recorded because the index may change during the training."""

    index_rows: Rows  # the rows of the index, which change during the training
    size: int  # number of rows in `index_rows` at the start
    live: IntArray  # positions of the rows that were live at the start
    rows: Rows  # a copy of the live rows at the start


class ReadWriteLock:
    """A lock that many readers can hold together, or that one writer holds alone. New readers wait while a writer
    waits, so that frequent searches do not delay a change. A thread that holds the lock must not acquire it again."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())  # a writer holds the inner lock during its block
        self._readers = 0
        self._waiting_writers = 0

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock as a reader. Other readers can hold it at the same time."""
        with self._condition:
            while self._waiting_writers:
                self._condition.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                if not self._readers:
                    self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the lock as the writer. No other thread can hold it at the same time."""
        with self._condition:
            self._waiting_writers += 1
            try:
                while self._readers:
                    self._condition.wait()
            finally:
                self._waiting_writers -= 1
                self._condition.notify_all()
            yield


class VectorIndex:
    """An index that finds the vectors with the highest cosine to a query. Thread-safe, with two exceptions: only one
    thread at a time may call `change`, and only one thread at a time may call `train` or `tune`."""

    def __init__(self, dimension: int, options: IndexOptions | None = None, space: int = 0) -> None:
        self.dimension = dimension
        self.spill_path: Path | None = None  # path of a temporary file for the codes during a large training
        self.space = space  # the number of the embedding space
        self._options = options or IndexOptions()
        self._lock = ReadWriteLock()
        self._stage: Flat | Ivf = Flat(dimension)
        self._rows = Rows()
        self._holes = 0  # dead rows that the stage still stores
        self._stuck = 0  # the number of these rows that cannot be removed, because they are mapped from a file
        self._generation = 0
        self._selections = SelectionCache()
        self.queries = LatestQueries()  # for tuning; an index that replaces this index receives them

    def __len__(self) -> int:
        return self._rows.live

    @property
    def newest_window(self) -> int:
        return self._rows.newest_window

    def change(self, dropped: IntArray, windows: IntArray, entries: IntArray, vectors: IntArray, rows: Matrix) -> None:
        """Remove all windows of the entries `dropped`, and add new windows, in one step. The other arrays have one
        element for each new window: its number (`windows`), the number of its entry (`entries`), the number of its
        vector (`vectors`), and the vector itself, of length 1 (`rows`)."""
        stage: Any = self._stage  # `encode` needs no lock, so it runs before the lock is taken
        codes = stage.encode(rows) if len(windows) else None
        with self._lock.write():
            self._holes += len(self._rows.drop(dropped))
            if codes is not None:
                if stage is not self._stage:  # a training has ended in the meantime
                    stage = self._stage
                    codes = stage.encode(rows)
                stage.add(codes, self._rows.size)
                self._rows.append(windows, entries, vectors)
            self._generation += 1
            # removing dead rows needs a pass over a trained index, or a copy of a flat index
            flat_holes = max(_SWEEP_MIN, int(self._rows.size * _SWEEP_SHARE))
            if self._holes - self._stuck > (_MAX_HOLES if isinstance(self._stage, Ivf) else flat_holes):
                self._remove_dead_rows()

    def search(self, query: Vector, limit: int, allowed: ScopeMask) -> VectorHits:
        """Return the windows in the scope mask `allowed` that are nearest to the query. They belong to at least `limit`
        entries if the scope has so many. Some additional windows are returned, because exact scores may change the
        order."""
        self.queries.add(query)
        with self._lock.read():
            return self._nearest(query, limit, self._selection(allowed))

    def needs_training(self) -> bool:
        """Return whether the index should be trained. The first training is needed when the index has enough rows.
        Another training is needed when the number of rows has doubled, or when the index has too many dead rows (rows
        of removed entries) or too many outliers (vectors that the 8-bit codes represent badly)."""
        rows, stage = self._rows, self._stage
        if isinstance(stage, Flat):
            return rows.live >= self._options.train_at
        outliers = stage.outliers.size > max(_MIN_OUTLIERS, rows.live * _OUTLIER_SHARE)
        return outliers or rows.live >= 2 * stage.trained_rows or rows.dead > max(rows.live, _SWEEP_MIN)

    def training_rows(self) -> TrainingRows:
        """Return the current rows, from which a training with `train` starts."""
        with self._lock.read():
            live = np.flatnonzero(self._rows.entries >= 0)
            return TrainingRows(self._rows, self._rows.size, live, self._rows.take(live))

    def train(
        self,
        start: TrainingRows,
        read_vectors: ReadVectors,
        stopped: Stopped,
        changed: Callable[[], IntArray],
        save: Callable[[Image], None],
    ) -> None:
        """Train a new index from the rows `start`, and replace the current index with the new index. Searches continue
        during the training. The function `changed` returns the entries that changed since `start`. Before the
        replacement, the function `save` receives the content of the new index, without the changed entries. At the
        replacement, all changes since `start` are applied. Raises `Interrupted` if `stopped` returns True."""
        rows = start.rows
        trained = self._trained(rows.vectors, read_vectors, stopped)
        query_count = self.queries.count
        tuner = Tuner(trained, rows, read_vectors, stopped, nullcontext)
        trained.tuning = tuner.tune(list(self.queries.latest), self._options.target_recall)
        trained.remove(rows.drop(changed()))
        save(image_of(trained, rows))
        self._catch_up(trained, start, read_vectors)
        self.queries.tuned_at = query_count

    def build(self, rows: Rows, read_vectors: ReadVectors) -> None:
        """Build a trained index of these rows. The index must be empty. The index is not tuned here, because a search
        waits until this method returns."""
        self._stage, self._rows = self._trained(rows.vectors, read_vectors, lambda: False), rows
        self._generation += 1

    def _trained(self, vectors: IntArray, read_vectors: ReadVectors, stopped: Stopped) -> Ivf:
        def spill(trained: Ivf) -> None:
            if self.spill_path is not None:
                trained.spill(self.spill_path, _SPILL_BYTES)

        return train_ivf(vectors, read_vectors, self.dimension, self._options.exact_rows, spill, stopped)

    def needs_tuning(self) -> bool:
        """Return whether a trained index was never tuned, or was searched many times since its last tuning."""
        stage = self._stage
        return isinstance(stage, Ivf) and (stage.tuning.recall is None or self.queries.suffice())

    def tune(self, read_vectors: ReadVectors, stopped: Stopped) -> None:
        """Choose how many lists a search reads: the smallest number with which the latest queries find enough of their
        exact results. Raises `Interrupted` if `stopped` returns True."""
        stage, query_count = self._stage, self.queries.count
        if not isinstance(stage, Ivf):
            return
        with self._lock.read():
            rows = self._rows.take(np.arange(self._rows.size))
        self.queries.tuned_at = query_count
        tuner = Tuner(stage, rows, read_vectors, stopped, self._lock.read)
        stage.tuning = tuner.tune(list(self.queries.latest), self._options.target_recall)
        self.queries.tune_after *= 2

    def is_large(self) -> bool:
        """Return whether the codes of a trained index are so large that they should be mapped from a snapshot."""
        return isinstance(self._stage, Ivf) and self._rows.size * self.dimension >= MAP_BYTES and can_map()

    def wants_mapping(self) -> bool:
        """Return whether a new snapshot should be written, so that searches read the codes from its file (mapping) and
        not from the memory of this process. This is the case if many codes are not in a mapped file yet, or if many
        rows of the mapped codes were removed."""
        stage = self._stage
        if not isinstance(stage, Ivf) or not self.is_large():
            return False
        changed = max(stage.size - stage.mapped, self._stuck)
        return changed * self.dimension > MAP_BYTES and changed > _MERGE_SHARE * stage.mapped

    def is_snapshot_better(self, stage: str, trained_rows: int, changes: int) -> bool:
        """Return whether a snapshot should replace this index. `stage` says whether the index in the snapshot is flat
        or trained (`Flat.name` or `Ivf.name`). `trained_rows` is the number of rows with which it was trained.
        `changes` is the number of changes since the snapshot was written, which must be applied to it again.

        A flat snapshot is never better. A trained snapshot is better than a flat index, unless there are more changes
        than rows in this index, and more than `_FEW_CHANGES`. A trained snapshot is better than a trained index if it
        was trained with at least twice the rows. It is also better than a large index (see `is_large`) if there are
        fewer changes than rows that this index does not map from a file."""
        own = self._stage
        if stage == Flat.name:
            return False
        if isinstance(own, Flat):
            return changes <= max(self._rows.live, _FEW_CHANGES)
        saves_memory = self.is_large() and changes < own.size - own.mapped
        return saves_memory or trained_rows >= 2 * own.trained_rows

    def frozen(self) -> Image:
        """Return a copy of a trained index for a snapshot. Searches and changes continue while the caller writes the
        copy."""
        with self._lock.write():
            self._remove_dead_rows()
            stage, rows = self._stage, self._rows.take(np.arange(self._rows.size))
            if not isinstance(stage, Ivf):
                raise TypeError("only a trained index can be frozen")
            return image_of(stage.freeze(), rows)

    def status(self) -> dict[str, Any]:
        """Return the state of the index as JSON values. `recall` is the measured share of the ten best results that a
        search finds. `recall` is null if every search is exact."""
        return {**about_of(self._stage, self._rows), "memory_bytes": self._stage.bytes + self._rows.bytes}

    @contextmanager
    def image(self) -> Iterator[Image]:
        """Yield the content of this index, without removed rows, for a snapshot. Changes wait until the `with` block
        ends; searches do not wait."""
        with self._lock.write():
            self._remove_dead_rows()
        with self._lock.read():
            yield image_of(self._stage, self._rows)

    @classmethod
    def from_image(cls, image: Image, options: IndexOptions | None = None, space: int = 0) -> VectorIndex:
        """Create an index from the content of a snapshot."""
        index = cls(int(image.index.d), options, space)
        index._rows = image.rows
        index._stage = stage_of(image, index._options.exact_rows)
        return index

    def _nearest(self, query: Vector, limit: int, selection: Selection) -> VectorHits:
        stage, rows, probes = self._stage, self._rows, 0  # 0 probes: the tuned number of lists
        if not selection.count or limit < 1:
            return VectorHits(query, limit, _NONE, _NONE, _NONE, np.zeros(0, np.float32), 0)
        candidates = stage.tuning.candidates if isinstance(stage, Ivf) else 0
        count = max(limit + _SPARE, candidates)
        while True:
            positions, scores = stage.search(query, count, selection, probes)
            entries = rows.entries[positions]
            if len(positions) >= selection.count or len({*entries.tolist()}) >= limit:
                break
            if len(positions) >= count:
                count *= 4  # repeated, because a few entries with many windows have filled the list
            elif probes or isinstance(stage, Flat):
                break
            else:
                probes = stage.lists  # the tuned number of lists contains fewer rows than requested
        windows, entries, vectors = (
            each.astype(np.int64) for each in (rows.windows[positions], entries, rows.vectors[positions])
        )
        return VectorHits(query, limit, windows, entries, vectors, scores, candidates)

    def _selection(self, allowed: ScopeMask) -> Selection:
        def make() -> Selection:
            rows = self._rows
            inside = rows.entries >= 0 if allowed is EVERYTHING else rows.inside(allowed.mask)
            return self._stage.select(rows, inside, self._holes)

        return self._selections.get(allowed, self._generation, make)

    def _remove_dead_rows(self) -> None:
        if not self._holes:
            return
        if isinstance(self._stage, Ivf):
            dead = self._rows.entries < 0
            self._stage.remove(np.flatnonzero(dead))
            self._stuck = self._stage.stuck(dead)
        else:
            live = np.flatnonzero(self._rows.entries >= 0)
            self._stage, self._rows, self._stuck = self._stage.take(live), self._rows.take(live), 0
        self._holes = self._stuck
        self._generation += 1

    def _catch_up(self, trained: Ivf, start: TrainingRows, read_vectors: ReadVectors) -> None:
        """Apply all changes since `start` to the trained index, and replace the current index with the trained index.
        Raises `Interrupted` if dead rows were deleted from the current index during the training, because its row
        positions have changed. In that case the training starts again."""
        former, first, live, rows = start
        done = first
        while True:
            with self._lock.read():
                tail = self._rows.vectors[done:].copy()
            if len(tail) <= _SWITCH_ROWS:
                break
            tail = tail[:_CATCH_UP_BATCH]
            put_vectors(trained, tail, rows.size + done - first, *read_vectors(np.unique(tail)))
            done += len(tail)
        with self._lock.write():
            if self._rows is not former:
                raise Interrupted
            tail = former.vectors[done:]
            put_vectors(trained, tail, rows.size + done - first, *read_vectors(np.unique(tail)))
            rows.drop_positions(np.flatnonzero(former.entries[live] < 0))
            rows.append(former.windows[first:], former.entries[first:], former.vectors[first:])
            self._stage, self._rows, self._holes, self._stuck = trained, rows, rows.dead, 0
            self._generation += 1
