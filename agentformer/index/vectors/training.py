"""Training of the vector index, and the background thread that does this work. Training groups the stored vectors into
lists.

The work is divided into short steps, and it can be stopped between two steps.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from agentformer.index.vectors.flat import IntArray, limit_threads
from agentformer.index.vectors.ivf import Ivf, Outliers, Tuning
from agentformer.index.vectors.lists import Lists
from agentformer.settings.access import file_lock
from agentformer.types import Matrix

log = logging.getLogger("agentformer")

LOCK_FILE = "vectors.lock"
_BUSY_SECONDS = 60.0  # seconds to wait if another process is training
_FAILED_SECONDS = 600.0  # seconds before a failed training is tried again; doubled after each failure
_CLOSE_SECONDS = 10.0  # maximum seconds to wait for the thread; it stops after a slice, which takes less

_SLICE = 4_096  # rows between two checks of `stopped`: a third of a second in an index of a million rows
_PER_LIST = 40  # sampled rows per centroid; FAISS warns below 39
_MARGIN = 1.25  # the codes can represent numbers up to this factor times the largest one of the sample
_ROUNDS = 8  # number of k-means iterations; more had no measurable benefit
_ONE_LEVEL = 1_024  # up to this number of lists, k-means compares each row of the sample with each centroid
_REFINING = 2  # additional iterations with all centroids, after the iterations within each group
_GRAPH = 2_048  # from this number of lists on, a graph finds the nearest centroids faster than a comparison with all
# Parameters of this graph (HNSW): links of a centroid, and the widths of the searches. With 12,640 lists, it finds the
# nearest list for 99.2% of the rows, in 58% of the time of a comparison with each centroid.
_LINKS, _BUILD_WIDTH, _WIDTH = 32, 80, 32
_UNTUNED_SHARE, _UNTUNED_CANDIDATES = 0.02, 128  # before the first tuning: share of lists read, rows re-ranked

TUNING_QUERIES = 200  # number of queries with which recall is measured

# Receives vector numbers. Returns the numbers of the vectors that are still stored, in ascending order, and these
# vectors, of length 1.
ReadVectors = Callable[[IntArray], tuple[IntArray, Matrix]]
Stopped = Callable[[], bool]
Spill = Callable[[Ivf], None]


class Interrupted(Exception):
    """Raised inside a training or tuning that must stop."""


def train_ivf(
    vectors: IntArray, read_vectors: ReadVectors, dimension: int, exact_rows: int, spill: Spill, stopped: Stopped
) -> Ivf:
    """Train an index. `vectors` contains the ids of the stored vectors. The vector with the id `vectors[i]` gets the
    position i in the index. `read_vectors` reads vectors by their ids. A search in a scope with at most `exact_rows`
    rows reads every row of the scope. `spill` is called with the index after each step; it may move rows from memory to
    a file. Raises `Interrupted` if `stopped` returns True."""
    import faiss

    limit_threads(training=True)
    rng = np.random.default_rng(len(vectors))
    lists = list_count(len(vectors))
    chosen = rng.choice(vectors, min(len(vectors), lists * _PER_LIST), replace=False)
    sample = _sample(np.unique(chosen), read_vectors, dimension, stopped)
    quantizer = _quantizer(_centroids(sample, min(lists, len(sample)), rng, stopped))
    # one range for all dimensions; new texts rarely have numbers outside this range
    kind, metric = faiss.ScalarQuantizer.QT_8bit_uniform, faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexIVFScalarQuantizer(quantizer, dimension, quantizer.ntotal, kind, metric, False)
    index.train(sample[:_SLICE])
    largest = _MARGIN * max(float(np.abs(sample[at : at + _SLICE]).max()) for at in range(0, len(sample), _SLICE))
    faiss.copy_array_to_vector(np.array([-largest, 2 * largest], np.float32), index.sq.trained)
    del sample
    trained_at = datetime.now(UTC).isoformat(timespec="seconds")
    tuning = Tuning(max(1, math.ceil(quantizer.ntotal * _UNTUNED_SHARE)), _UNTUNED_CANDIDATES, None)
    ivf = Ivf([Lists(index)], len(vectors), trained_at, exact_rows, tuning, Outliers(dimension))
    starts = range(0, len(vectors), _SLICE)
    wanted = (np.unique(vectors[start : start + _SLICE]) for start in starts)
    for start, (numbers, rows) in zip(starts, _read_ahead(wanted, read_vectors), strict=True):
        if stopped():
            raise Interrupted
        put_vectors(ivf, vectors[start : start + _SLICE], start, numbers, rows)
        spill(ivf)
    return ivf


def put_vectors(ivf: Ivf, vectors: IntArray, start: int, numbers: IntArray, rows: Matrix) -> None:
    """Add vectors at consecutive positions from `start` on. `vectors` contains the vector number of each position.
    `numbers` and `rows` contain the number and the content of each vector that could be read from the records. A
    position whose vector is not stored any more stays without a row."""
    if len(vectors) == 0:
        return
    positions, which = positions_of(vectors, np.argsort(vectors, kind="stable"), numbers)
    order = np.argsort(positions, kind="stable")
    ivf.reserve(start + len(vectors))
    ivf.put(ivf.encode(rows[which[order]]), positions[order] + start)


def _read_ahead(wanted: Iterable[IntArray], read_vectors: ReadVectors) -> Iterator[tuple[IntArray, Matrix]]:
    """Yield the vectors of each array of numbers. Another thread reads the vectors of the next array in advance."""
    with ThreadPoolExecutor(1, "agentformer-read") as executor:
        waiting: Future[tuple[IntArray, Matrix]] | None = None
        for numbers in wanted:
            following = executor.submit(read_vectors, numbers)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


def list_count(rows: int) -> int:
    """Return the number of lists for an index with `rows` rows: about 4 x sqrt(rows), as FAISS recommends. A small
    index has fewer lists, so that each list has enough rows."""
    return max(1, min(int(4 * math.sqrt(rows)) // 16 * 16 or 4, rows // _PER_LIST or 1))


def positions_of(vectors: IntArray, order: IntArray, numbers: IntArray) -> tuple[IntArray, IntArray]:
    """Find the elements of `vectors` that are in `numbers`. Return two arrays: the index of each found element in
    `vectors`, and the index of the equal number in `numbers`. `order` is the result of `argsort` for `vectors`. A
    number occurs once in `numbers`, but may occur several times in `vectors`, because entries with equal texts share a
    vector."""
    ordered = vectors[order]
    first, last = np.searchsorted(ordered, numbers, "left"), np.searchsorted(ordered, numbers, "right")
    counts = last - first
    which = np.repeat(np.arange(len(numbers)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.repeat(first, counts) + within], which


def _sample(vectors: IntArray, read_vectors: ReadVectors, dimension: int, stopped: Stopped) -> Matrix:
    sample, size = np.empty((len(vectors), dimension), np.float32), 0
    slices = (vectors[start : start + _SLICE] for start in range(0, len(vectors), _SLICE))
    for _, rows in _read_ahead(slices, read_vectors):
        if stopped():
            raise Interrupted
        sample[size : size + len(rows)] = rows
        size += len(rows)
    return sample[:size]


def _quantizer(centroids: NDArray[np.float32]) -> Any:
    """Return a FAISS index of the centroids, which finds the centroid nearest to a vector. For many centroids, the
    search is approximate, because an exact search would be slow."""
    import faiss

    if len(centroids) < _GRAPH:
        quantizer: Any = faiss.IndexFlatIP(centroids.shape[1])
    else:
        quantizer = faiss.IndexHNSWFlat(centroids.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
        quantizer.hnsw.efConstruction, quantizer.hnsw.efSearch = _BUILD_WIDTH, _WIDTH
    quantizer.add(centroids)
    return quantizer


def _centroids(sample: Matrix, lists: int, rng: np.random.Generator, stopped: Stopped) -> NDArray[np.float32]:
    """Compute the centroids of the lists with spherical k-means. The time of k-means grows with the product of rows and
    centroids. Therefore many centroids are computed in two levels: first groups of the sample, then the centroids of
    each group. The k-means of FAISS is not used, because it cannot be interrupted and needs a second copy of the
    sample."""
    if lists <= _ONE_LEVEL:
        return _k_means(sample, lists, _ROUNDS, rng, stopped)
    groups = math.isqrt(lists)
    coarse = sample[np.sort(rng.choice(len(sample), min(len(sample), groups * 4 * _PER_LIST), replace=False))]
    group_of = _assign(sample, _quantizer(_k_means(coarse, groups, _ROUNDS, rng, stopped)), stopped)
    order, sizes = np.argsort(group_of, kind="stable"), np.bincount(group_of, minlength=groups)
    ends = np.cumsum(sizes)
    shares = np.diff(np.round(ends * lists / len(sample)).astype(np.int64), prepend=0)  # lists of each group
    found = [
        _k_means(sample[order[end - size : end]], min(share, size), _ROUNDS, rng, stopped)
        for end, size, share in zip(ends.tolist(), sizes.tolist(), shares.tolist(), strict=True)
        if share and size
    ]
    return _k_means(sample, lists, _REFINING, rng, stopped, np.concatenate(found))


def _k_means(
    sample: Matrix,
    lists: int,
    rounds: int,
    rng: np.random.Generator,
    stopped: Stopped,
    first: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return the centroids of the sample, (lists, dim), after `rounds` iterations. The iterations start with `first`,
    or with random rows of the sample if `first` is None."""
    centroids = np.ascontiguousarray(sample[rng.choice(len(sample), lists, replace=False)] if first is None else first)
    for _ in range(rounds):
        quantizer = _quantizer(centroids)
        sums, counts = np.zeros_like(centroids), np.zeros(len(centroids), np.int64)
        for start in range(0, len(sample), _SLICE):
            if stopped():
                raise Interrupted
            rows = sample[start : start + _SLICE]
            _add_to_lists(rows, quantizer.assign(rows, 1).reshape(-1), sums, counts)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = sample[rng.choice(len(sample), len(empty), replace=False)]
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centroids = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centroids).astype(np.float32)
    return centroids


def _assign(sample: Matrix, quantizer: Any, stopped: Stopped) -> IntArray:
    lists = np.empty(len(sample), np.int64)
    for start in range(0, len(sample), _SLICE):
        if stopped():
            raise Interrupted
        lists[start : start + _SLICE] = quantizer.assign(sample[start : start + _SLICE], 1).reshape(-1)
    return lists


def _add_to_lists(rows: Matrix, lists: IntArray, sums: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
    order = np.argsort(lists, kind="stable")
    present, starts = np.unique(lists[order], return_index=True)
    sums[present] += np.add.reduceat(rows[order], starts, axis=0)
    counts += np.bincount(lists, minlength=len(counts))


class BackgroundTrainer:
    """Runs a training in a background thread. A lock file makes sure that only one process trains the index at a time.
    The thread ends with the training. Thread-safe."""

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
        """Call `train` in the background thread. Nothing happens if a training is running, or if the waiting time after
        a failure is not over. `train` receives a function that returns True when the training must stop."""
        if self._thread is not None or time.monotonic() < self._not_before:
            return
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, args=[train], name="agentformer-index", daemon=True)
                atexit.register(self.close)  # a daemon thread must not run while the interpreter exits
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system cannot start a thread; searches work without the training
                    self._thread = None
                    self._failed(error)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the training ends, but at most `seconds` (None: without a limit)."""
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def close(self) -> None:
        """Stop the training at the end of its current step, and wait for the thread. A second call has no effect."""
        self._stopped.set()
        self.wait(_CLOSE_SECONDS)

    def lock(self, seconds: float = 0.0) -> FileLock:
        """Return the file lock that a process holds while it trains the index or writes a snapshot. Acquiring the lock
        raises `Timeout` if another process does not release the lock within `seconds`."""
        return file_lock(self._lock_file, timeout=seconds)

    def _run(self, train: Callable[[Stopped], None]) -> None:
        try:
            with self.lock():
                train(self._stopped.is_set)
            self.problem, self._retry_seconds = "", _FAILED_SECONDS
        except Interrupted:
            pass
        except Timeout:  # another process trains the index
            self._not_before = time.monotonic() + _BUSY_SECONDS
        except Exception as error:  # noqa: BLE001 - after any error, the current index stays in use
            self._failed(error)
        finally:
            self._thread = None
            atexit.unregister(self.close)

    def _failed(self, error: Exception) -> None:
        # not reported when the interpreter exits: its executors end before `atexit` calls `close`, so a training fails
        if self._stopped.is_set() or "interpreter shutdown" in str(error):
            return
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        if not self.problem:
            log.warning("Training the vector index failed; searches use the current index: %s", problem)
        self.problem = problem
        self._not_before = time.monotonic() + self._retry_seconds
        self._retry_seconds *= 2
