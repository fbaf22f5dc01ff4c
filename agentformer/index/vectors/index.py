"""The vector index in memory. In a small index, a search compares the query with every row. A large index is trained: a
search reads only some lists of rows, and the caller computes exact scores for the best rows.

A row is the vector of one window. A row is identified by its position in the index. Each change is visible to the next
search. During a training, searches use the present index. After the training, the trained index replaces the present
index in one step.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors.flat import Flat, IntArray, Rows, Selection, SelectionCache
from agentformer.index.vectors.ivf import Ivf, OutlierCodes, Outliers, Tuning
from agentformer.index.vectors.options import IndexOptions
from agentformer.index.vectors.training import (
    TUNING_QUERIES,
    Interrupted,
    ReadVectors,
    Stopped,
    Tuner,
    positions_of,
    train_ivf,
)
from agentformer.types import Matrix, Vector

# with so many dead rows, a flat index is swept: a sweep needs one copy, and dead rows slow down searches
_SWEEP_SHARE = 0.25
_SWEEP_MIN = 1024
_MAX_HOLES = 1024  # dead rows that wait in a trained index to be removed together
_SWITCH_ROWS = 256  # number of rows that the last step of a training may add while searches wait
_CATCH_UP_BATCH = 4_096
_SPARE = 16  # number of additional rows for re-ranking, since rounding may have moved good rows below `limit`
_TUNE_EVERY = 200  # queries of users after which the search effort is tuned again
_MIN_OUTLIERS = 1_024  # a training is needed if the outliers exceed this number and this share of the rows
_OUTLIER_SHARE = 0.01

_NONE = np.zeros(0, np.int64)
EVERYTHING = ScopeMask(np.zeros(0, np.bool_), 0)  # a marker for all live rows


class VectorHits(NamedTuple):
    """The windows nearest to a query, best first by approximate cosine, with the numbers of their entries and vectors.
    They belong to at least `limit` different entries if the search found that many."""

    query: Vector
    limit: int
    windows: IntArray
    entries: IntArray
    vectors: IntArray
    scores: NDArray[np.float32]
    sure: int  # the ten nearest are among so many first windows, with the target recall


class Image(NamedTuple):
    """The content of a snapshot file: the FAISS index, the numbers of its rows, and its state."""

    index: Any  # of FAISS
    rows: Rows
    lists: NDArray[np.int32] | None  # by position
    about: dict[str, Any]  # JSON values
    outliers: OutlierCodes | None = None


class TrainingRows(NamedTuple):
    """The rows of the index at the start of a training. Some of these rows may be removed during the training, and new
    rows may be added."""

    index_rows: Rows  # the rows of the index, which continue to grow
    size: int  # of `index_rows` at the start
    live: IntArray  # positions of the live ones
    rows: Rows  # a copy of the live ones


class VectorIndex:
    """A search index for vectors by cosine. Thread-safe, with two exceptions: only one thread at a time may call
    `change`, and only one thread at a time may call `train` or `tune`."""

    def __init__(self, dimension: int, options: IndexOptions | None = None, space: int = 0) -> None:
        self.dimension = dimension
        self.space = space  # the number of the embedding space
        self._options = options or IndexOptions()
        self._lock = ReadWriteLock()
        self._stage: Flat | Ivf = Flat(dimension)
        self._rows = Rows()
        self._holes = 0  # dead rows that the stage still holds
        self._generation = 0
        self._selections = SelectionCache()
        self._queries: deque[Vector] = deque(maxlen=TUNING_QUERIES)  # the latest ones, for tuning
        self._query_count = 0  # of all queries ever searched
        self._tuned_at = 0  # `_query_count` at the last tuning

    def __len__(self) -> int:
        return self._rows.live

    @property
    def newest_window(self) -> int:
        return self._rows.newest_window

    def change(self, dropped: IntArray, windows: IntArray, entries: IntArray, vectors: IntArray, rows: Matrix) -> None:
        """Remove all windows of the entries `dropped`, and add new windows, in one step. `windows`, `entries` and
        `vectors` contain the numbers of each new window, its entry and its vector. `rows` contains the vectors
        themselves, one vector of length 1 in each row."""
        stage: Any = self._stage  # the stage encodes rows and adds the codes
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
            if self._holes > (_MAX_HOLES if isinstance(self._stage, Ivf) else flat_holes):
                self._sweep()

    def search(self, query: Vector, limit: int, allowed: ScopeMask) -> VectorHits:
        """Return the windows nearest to the query. They belong to at least `limit` entries of the scope mask `allowed`,
        or to all of its entries if there are fewer. Some additional windows are returned, because exact scores may
        change the order."""
        self._queries.append(query)
        self._query_count += 1
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
        """Return the present rows, for the parameter `start` of `train`."""
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
        """Train a new index from the rows `start`, and replace the present index with the new index. Searches continue
        during the training. The function `changed` returns the entries that changed since `start`. Before the
        replacement, the function `save` receives the content of the new index, without the changed entries. At the
        replacement, all changes since `start` are applied. Raises `Interrupted` if `stopped` returns True."""
        rows = start.rows
        trained = train_ivf(rows.vectors, read_vectors, self.dimension, self._options.exact_rows, stopped)
        live, query_count = trained.select(rows, rows.entries >= 0, 0), self._query_count

        def search_lists(query: Vector, count: int, probes: int) -> IntArray:
            return trained.search(query, count, live, probes).positions

        tuner = Tuner(search_lists, trained.lists, rows.vectors, read_vectors, stopped)
        trained.tuning = tuner.tune(list(self._queries), self._options.target_recall)
        trained.remove(rows.drop(changed()))
        save(image_of(trained, rows))
        self._catch_up(trained, start, read_vectors)
        self._tuned_at = query_count

    def needs_tuning(self) -> bool:
        """Return whether there were enough searches since the last tuning to tune a trained index again."""
        return isinstance(self._stage, Ivf) and self._query_count - self._tuned_at >= _TUNE_EVERY

    def tune(self, read_vectors: ReadVectors, stopped: Stopped) -> None:
        """Choose how many lists a search reads. The number is the smallest number that finds enough of the exact
        results of the latest queries. Raises `Interrupted` if `stopped` returns True."""
        stage, query_count = self._stage, self._query_count
        if not isinstance(stage, Ivf):
            return
        with self._lock.read():
            vectors = self._rows.vectors.copy()

        def search_lists(query: Vector, count: int, probes: int) -> IntArray:
            with self._lock.read():
                positions = stage.search(query, count, self._selection(EVERYTHING), probes).positions
            return positions[positions < len(vectors)]

        self._tuned_at = query_count
        tuner = Tuner(search_lists, stage.lists, vectors, read_vectors, stopped)
        stage.tuning = tuner.tune(list(self._queries), self._options.target_recall)

    def status(self) -> dict[str, Any]:
        """Return the state of the index as JSON values. `recall` is the measured share of the ten best results that a
        search finds. `recall` is null if every search is exact."""
        return {**_about(self._stage, self._rows), "memory_bytes": self._stage.bytes + self._rows.bytes}

    @contextmanager
    def image(self) -> Iterator[Image]:
        """Yield the content of a snapshot, without removed rows. Changes wait until the `with` block ends. Searches do
        not wait."""
        with self._lock.write():
            self._sweep()
        with self._lock.read():
            yield image_of(self._stage, self._rows)

    @classmethod
    def from_image(cls, image: Image, options: IndexOptions | None = None, space: int = 0) -> VectorIndex:
        """Create an index from the content of a snapshot."""
        index = cls(int(image.index.d), options, space)
        index._rows = image.rows
        if image.lists is None:
            index._stage = Flat(index.dimension, image.index)
        else:
            about = image.about
            tuning = Tuning(about["probes"], about["candidates"], about["recall"], about["queries"])
            trained = (about["trained_rows"], about["trained_at"], index._options.exact_rows)
            outliers = Outliers(index.dimension, image.outliers)
            index._stage = Ivf(image.index, *trained, tuning, outliers, image.lists, len(image.lists))
        return index

    def _nearest(self, query: Vector, limit: int, selection: Selection) -> VectorHits:
        stage, rows, probes = self._stage, self._rows, 0
        if not selection.count or limit < 1:
            return VectorHits(query, limit, _NONE, _NONE, _NONE, np.zeros(0, np.float32), 0)
        sure = stage.tuning.candidates if isinstance(stage, Ivf) else 0
        count = max(limit + _SPARE, sure)
        while True:
            positions, scores = stage.search(query, count, selection, probes)
            entries = rows.entries[positions]
            if len(positions) >= selection.count or len(np.unique(entries)) >= limit:
                break
            if len(positions) >= count:
                count *= 4  # a few entries with many windows have filled the list
            elif probes or isinstance(stage, Flat):
                break
            else:
                probes = stage.lists  # the tuned number of lists holds fewer rows than asked for
        return VectorHits(query, limit, rows.windows[positions], entries, rows.vectors[positions], scores, sure)

    def _selection(self, allowed: ScopeMask) -> Selection:
        def make() -> Selection:
            rows = self._rows
            inside = rows.entries >= 0 if allowed is EVERYTHING else rows.inside(allowed.mask)
            return self._stage.select(rows, inside, self._holes)

        return self._selections.get(allowed, self._generation, make)

    def _sweep(self) -> None:
        if not self._holes:
            return
        if isinstance(self._stage, Ivf):
            self._stage.remove(np.flatnonzero(self._rows.entries < 0))
        else:
            live = np.flatnonzero(self._rows.entries >= 0)
            self._stage, self._rows = self._stage.take(live), self._rows.take(live)
        self._holes = 0
        self._generation += 1

    def _catch_up(self, trained: Ivf, start: TrainingRows, read_vectors: ReadVectors) -> None:
        """Apply all changes since `start` to the trained index, and replace the present index with the trained index.
        Raises `Interrupted` if dead rows were deleted from the present index during the training, because its row
        positions have changed. In that case the training starts again."""
        former, first, live, rows = start
        done = first
        while True:
            with self._lock.read():
                tail = self._rows.vectors[done:].copy()
            if len(tail) <= _SWITCH_ROWS:
                break
            _put_vectors(trained, tail[:_CATCH_UP_BATCH], rows.size + done - first, read_vectors)
            done += len(tail[:_CATCH_UP_BATCH])
        with self._lock.write():
            if self._rows is not former:
                raise Interrupted
            _put_vectors(trained, former.vectors[done:], rows.size + done - first, read_vectors)
            rows.drop_positions(np.flatnonzero(former.entries[live] < 0))
            rows.append(former.windows[first:], former.entries[first:], former.vectors[first:])
            self._stage, self._rows, self._holes = trained, rows, rows.dead
            self._generation += 1


def image_of(stage: Flat | Ivf, rows: Rows) -> Image:
    """Return the content of a snapshot: the index `stage` and the numbers of its rows."""
    if isinstance(stage, Ivf):
        return Image(stage.index, rows, stage.list_of[: rows.size], _about(stage, rows), stage.outliers.codes())
    return Image(stage.index, rows, None, _about(stage, rows))


def _about(stage: Flat | Ivf, rows: Rows) -> dict[str, Any]:
    about: dict[str, Any] = {"stage": stage.name, "rows": rows.live, "dead": rows.dead, "recall": None}
    if isinstance(stage, Ivf):
        trained = {"trained_rows": stage.trained_rows, "trained_at": stage.trained_at}
        about |= {"lists": stage.lists, **dataclasses.asdict(stage.tuning), **trained}
    return about


def _put_vectors(ivf: Ivf, vectors: IntArray, start: int, read_vectors: ReadVectors) -> None:
    if len(vectors) == 0:
        return
    numbers, rows = read_vectors(np.unique(vectors))
    positions, which = positions_of(vectors, np.argsort(vectors, kind="stable"), numbers)
    ivf.reserve(start + len(vectors))
    ivf.put(ivf.encode(rows[which]), positions + start)


class ReadWriteLock:
    """A lock that many readers can hold together, or that one writer holds alone. New readers wait while a writer
    waits, so that frequent searches do not delay a change. A thread that holds the lock must not acquire it again."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())  # a writer holds it until its block ends
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
