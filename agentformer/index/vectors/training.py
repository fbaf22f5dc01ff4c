"""Options of the vector index, training of an inverted file from the stored vectors, and the background thread for it.

The work is done in slices. It can be stopped between two slices.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from agentformer.index.vectors.flat import use_half_the_cores
from agentformer.index.vectors.ivf import AssignedRows, Ivf, Outliers, Tuning
from agentformer.index.vectors.rows import IntArray
from agentformer.types import Matrix

log = logging.getLogger("agentformer")

LOCK_FILE = "vectors.lock"
_BUSY_SECONDS = 60.0  # seconds to wait if another process is training
_FAILED_SECONDS = 600.0  # seconds before a failed training is tried again; doubled after each failure
_CLOSE_SECONDS = 10.0  # maximum seconds to wait for the thread; a slice is much shorter

_SLICE = 4_096  # rows between two checks of `stopped`: a third of a second at a million rows
_PER_LIST = 40  # sampled rows per centroid; FAISS warns below 39
_MARGIN = 1.25  # factor by which later rows may exceed the largest number of the sample
_ROUNDS = 8  # number of k-means iterations; more had no measurable benefit

# Returns the numbers that are still stored, ascending, and their unit rows.
ReadVectors = Callable[[IntArray], tuple[IntArray, Matrix]]
Stopped = Callable[[], bool]


class Interrupted(Exception):
    """Raised inside a training that was stopped."""


def train_ivf(vectors: IntArray, read_vectors: ReadVectors, dimension: int, exact_rows: int, stopped: Stopped) -> Ivf:
    """Return an index of the vectors with these numbers. Each vector gets the same position as its number in `vectors`.
    Raises `Interrupted`."""
    import faiss

    use_half_the_cores()
    rng = np.random.default_rng(len(vectors))
    lists = list_count(len(vectors))
    chosen = rng.choice(vectors, min(len(vectors), lists * _PER_LIST), replace=False)
    sample = np.concatenate([rows for _, rows in _slices(chosen, read_vectors, stopped)])
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(_centroids(sample, min(lists, len(sample)), rng, stopped))
    # one range for all dimensions; new texts rarely have numbers outside this range
    kind = faiss.ScalarQuantizer.QT_8bit_uniform
    index = faiss.IndexIVFScalarQuantizer(
        quantizer, dimension, quantizer.ntotal, kind, faiss.METRIC_INNER_PRODUCT, False
    )
    index.train(sample)
    largest = _MARGIN * float(np.abs(sample).max())
    faiss.copy_array_to_vector(np.array([-largest, 2 * largest], np.float32), index.sq.trained)
    del sample
    trained_at = datetime.now(UTC).isoformat(timespec="seconds")
    ivf = Ivf(index, len(vectors), trained_at, exact_rows, Tuning(1, 1, 0.0), Outliers(dimension))
    _fill(ivf, vectors, read_vectors, stopped)
    return ivf


def list_count(rows: int) -> int:
    """Return the number of lists for this number of rows: 4 x sqrt(rows), as FAISS recommends, in steps of 16."""
    return max(1, min(int(4 * math.sqrt(rows)) // 16 * 16 or 4, rows // _PER_LIST or 1))


def positions_of(vectors: IntArray, order: IntArray, numbers: IntArray) -> tuple[IntArray, IntArray]:
    """Return the positions in `vectors` that contain one of `numbers`, and for each position the index into `numbers`.

    `order` sorts `vectors`. Entries with equal texts share a vector, so a number may have several positions.
    """
    ordered = vectors[order]
    first, last = np.searchsorted(ordered, numbers, "left"), np.searchsorted(ordered, numbers, "right")
    counts = last - first
    which = np.repeat(np.arange(len(numbers)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.repeat(first, counts) + within], which


def _fill(ivf: Ivf, vectors: IntArray, read_vectors: ReadVectors, stopped: Stopped) -> None:
    order = np.argsort(vectors, kind="stable")
    ivf.reserve(len(vectors))
    for numbers, rows in _slices(vectors, read_vectors, stopped):
        positions, which = positions_of(vectors, order, numbers)
        lists = _nearest_lists(ivf.index.quantizer, rows)
        ivf.put(AssignedRows(rows[which], lists[which]), positions)


def _slices(vectors: IntArray, read_vectors: ReadVectors, stopped: Stopped) -> Iterator[tuple[IntArray, Matrix]]:
    ordered = np.unique(vectors)
    for start in range(0, len(ordered), _SLICE):
        if stopped():
            raise Interrupted
        numbers, rows = read_vectors(ordered[start : start + _SLICE])
        if len(numbers):
            yield numbers, np.ascontiguousarray(rows, np.float32)


def _centroids(sample: Matrix, lists: int, rng: np.random.Generator, stopped: Stopped) -> NDArray[np.float32]:
    """Run spherical k-means. The k-means of FAISS is not used, because it cannot be interrupted and needs a second copy
    of the sample."""
    import faiss

    centroids = np.ascontiguousarray(sample[rng.choice(len(sample), lists, replace=False)])
    for _ in range(_ROUNDS):
        quantizer = faiss.IndexFlatIP(sample.shape[1])
        quantizer.add(centroids)
        sums, counts = np.zeros_like(centroids), np.zeros(lists, np.int64)
        for start in range(0, len(sample), _SLICE):
            if stopped():
                raise Interrupted
            rows = sample[start : start + _SLICE]
            _add_to_lists(rows, _nearest_lists(quantizer, rows), sums, counts)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = sample[rng.choice(len(sample), len(empty), replace=False)]
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centroids = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centroids).astype(np.float32)
    return centroids


def _add_to_lists(rows: Matrix, lists: IntArray, sums: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
    """Add each row to the sum and the count of its list."""
    order = np.argsort(lists, kind="stable")
    present, starts = np.unique(lists[order], return_index=True)
    sums[present] += np.add.reduceat(rows[order], starts, axis=0)
    counts += np.bincount(lists, minlength=len(counts))


def _nearest_lists(quantizer: Any, rows: Matrix) -> IntArray:
    lists: IntArray = quantizer.assign(rows, 1).reshape(-1)
    return lists


class BackgroundTrainer:
    """Runs trainings in a thread. Only one training runs at a time, and only in one process. The thread ends after the
    training. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._lock_file = folder / LOCK_FILE
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._not_before = 0.0
        self._retry_seconds = _FAILED_SECONDS
        self.problem = ""  # why the last training failed

    @property
    def running(self) -> bool:
        return self._thread is not None

    def start(self, train: Callable[[Stopped], None]) -> None:
        """Call `train` in the background. Nothing happens if a training is running, or if a training has failed a short
        time ago."""
        if self._thread is not None or time.monotonic() < self._not_before:
            return
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, args=[train], name="agentformer-index", daemon=True)
                atexit.register(self.close)  # a daemon thread must not run while the interpreter exits
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system cannot start a thread; searches still work
                    self._thread = None
                    self._failed(error)

    def wait(self) -> None:
        """Wait until no training runs."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Stop the thread between two slices of its work. Calling this twice does no harm."""
        self._stopped.set()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_SECONDS)

    def lock(self, seconds: float = 0.0) -> FileLock:
        """Return the lock for training and for writing a snapshot. Acquiring the lock raises `Timeout` after the given
        number of seconds."""
        return FileLock(self._lock_file, timeout=seconds)

    def _run(self, train: Callable[[Stopped], None]) -> None:
        try:
            with self.lock():
                train(self._stopped.is_set)
            self.problem, self._retry_seconds = "", _FAILED_SECONDS
        except Interrupted:
            pass
        except Timeout:
            self._not_before = time.monotonic() + _BUSY_SECONDS
        except Exception as error:  # noqa: BLE001 - after any error, the present index stays in use
            self._failed(error)
        finally:
            self._thread = None
            atexit.unregister(self.close)

    def _failed(self, error: Exception) -> None:
        if self._stopped.is_set():
            return
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        if not self.problem:
            log.warning("Training the vector index failed; searches use the present index: %s", problem)
        self.problem = problem
        self._not_before = time.monotonic() + self._retry_seconds
        self._retry_seconds *= 2
