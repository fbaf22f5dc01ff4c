"""Training of the vector index, tuning of its searches, and the background thread that does this work. Training groups
the stored vectors into lists. Tuning chooses how many lists a search reads.

The work is divided into short steps, and it can be stopped between two steps.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from agentformer.index.vectors.flat import IntArray, limit_threads
from agentformer.index.vectors.ivf import AssignedRows, Ivf, Outliers, Tuning
from agentformer.types import Matrix, Vector

log = logging.getLogger("agentformer")

LOCK_FILE = "vectors.lock"
_BUSY_SECONDS = 60.0  # seconds to wait if another process is training
_FAILED_SECONDS = 600.0  # seconds before a failed training is tried again; doubled after each failure
_CLOSE_SECONDS = 10.0  # maximum seconds to wait for the thread; a slice is much shorter

_SLICE = 4_096  # rows between two checks of `stopped`: a third of a second at a million rows
_PER_LIST = 40  # sampled rows per centroid; FAISS warns below 39
_MARGIN = 1.25  # factor by which later rows may exceed the largest number of the sample
_ROUNDS = 8  # number of k-means iterations; more had no measurable benefit

TUNING_QUERIES = 200  # number of queries with which recall is measured
_TOP = 10  # recall is measured of so many
_CAUTION = 1.64  # number of standard errors, so that other queries also reach the target with 95% probability
_EQUAL = 1e-6  # cosines that differ by less are treated as equal
_CANDIDATES = (32, 64, 128, 256)
# The distance between a query of a user and its passages is larger than the distance between two near passages. For
# MiniLM, the mean cosine of questions and their best passages is about .6.
_QUERY_COSINE = 0.6

# Returns the numbers that are still stored, ascending, and their unit rows.
ReadVectors = Callable[[IntArray], tuple[IntArray, Matrix]]
# Returns the positions of the `count` rows nearest to a query in so many lists, best first by 8 bits.
SearchLists = Callable[[Vector, int, int], IntArray]
Stopped = Callable[[], bool]


class Interrupted(Exception):
    """Raised inside a training or tuning that must stop."""


# ------------------------------------------------------------------ training


def train_ivf(vectors: IntArray, read_vectors: ReadVectors, dimension: int, exact_rows: int, stopped: Stopped) -> Ivf:
    """Train an index. `vectors` contains the numbers of the stored vectors; the vector at index i of this array gets
    the position i. `read_vectors` reads vectors by number. A search in a scope with at most `exact_rows` rows reads
    every row of the scope. Raises `Interrupted` if `stopped` returns True."""
    import faiss

    limit_threads(training=True)
    rng = np.random.default_rng(len(vectors))
    lists = list_count(len(vectors))
    chosen = rng.choice(vectors, min(len(vectors), lists * _PER_LIST), replace=False)
    sample = np.concatenate([rows for _, rows in _slices(chosen, read_vectors, stopped)])
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(_centroids(sample, min(lists, len(sample)), rng, stopped))
    # one range for all dimensions; new texts rarely have numbers outside this range
    kind, metric = faiss.ScalarQuantizer.QT_8bit_uniform, faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexIVFScalarQuantizer(quantizer, dimension, quantizer.ntotal, kind, metric, False)
    index.train(sample)
    largest = _MARGIN * float(np.abs(sample).max())
    faiss.copy_array_to_vector(np.array([-largest, 2 * largest], np.float32), index.sq.trained)
    del sample
    trained_at = datetime.now(UTC).isoformat(timespec="seconds")
    ivf = Ivf(index, len(vectors), trained_at, exact_rows, Tuning(1, 1, 0.0), Outliers(dimension))
    order = np.argsort(vectors, kind="stable")
    ivf.reserve(len(vectors))
    for numbers, rows in _slices(vectors, read_vectors, stopped):
        positions, which = positions_of(vectors, order, numbers)
        ivf.put(AssignedRows(rows[which], quantizer.assign(rows, 1).reshape(-1)[which]), positions)
    return ivf


def list_count(rows: int) -> int:
    """Return the number of lists for an index with `rows` rows: about 4 x sqrt(rows), as FAISS recommends. A small
    index has fewer lists, so that each list has enough rows."""
    return max(1, min(int(4 * math.sqrt(rows)) // 16 * 16 or 4, rows // _PER_LIST or 1))


def positions_of(vectors: IntArray, order: IntArray, numbers: IntArray) -> tuple[IntArray, IntArray]:
    """Find the places in `vectors` that contain one of the distinct `numbers`. Return two arrays: the found places, and
    for each place the index of its number in `numbers`. `order` is the result of `argsort` for `vectors`. A number may
    occur at several places, because entries with equal texts share a vector."""
    ordered = vectors[order]
    first, last = np.searchsorted(ordered, numbers, "left"), np.searchsorted(ordered, numbers, "right")
    counts = last - first
    which = np.repeat(np.arange(len(numbers)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.repeat(first, counts) + within], which


def _slices(vectors: IntArray, read_vectors: ReadVectors, stopped: Stopped) -> Iterator[tuple[IntArray, Matrix]]:
    ordered = np.unique(vectors)
    for start in range(0, len(ordered), _SLICE):
        if stopped():
            raise Interrupted
        numbers, rows = read_vectors(ordered[start : start + _SLICE])
        if len(numbers):
            yield numbers, np.ascontiguousarray(rows, np.float32)


def _centroids(sample: Matrix, lists: int, rng: np.random.Generator, stopped: Stopped) -> NDArray[np.float32]:
    """Compute the centroids of the lists with spherical k-means. The k-means of FAISS is not used, because it cannot be
    interrupted and needs a second copy of the sample."""
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
            _add_to_lists(rows, quantizer.assign(rows, 1).reshape(-1), sums, counts)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = sample[rng.choice(len(sample), len(empty), replace=False)]
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centroids = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centroids).astype(np.float32)
    return centroids


def _add_to_lists(rows: Matrix, lists: IntArray, sums: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
    order = np.argsort(lists, kind="stable")
    present, starts = np.unique(lists[order], return_index=True)
    sums[present] += np.add.reduceat(rows[order], starts, axis=0)
    counts += np.bincount(lists, minlength=len(counts))


# ------------------------------------------------------------------ tuning


class _Truth(NamedTuple):
    """The result of an exact search for one query, with which the result of an approximate search is compared."""

    best: IntArray  # positions of the ten best
    wide: IntArray  # of more, best first by 8 bits
    least: float  # the cosine of the last of the ten
    tied: bool  # True if a row beyond the ten has the same cosine


@dataclass(frozen=True)
class Tuner:
    """Measures the recall of a trained index, by comparison with exact searches, and chooses how many lists a search
    reads. `search_lists` searches a number of lists. `vectors` contains the vector number of each row."""

    search_lists: SearchLists
    lists: int
    vectors: IntArray
    read_vectors: ReadVectors
    stopped: Stopped

    def tune(self, user_queries: Sequence[Vector], target: float) -> Tuning:
        """Return the smallest number of lists that reaches the recall `target`. The numbers are tried with one half of
        the queries, and the target must be exceeded by a margin for chance. The other half then confirms the number,
        and the recall in the result is measured with this other half. Raises `Interrupted`."""
        queries = self._queries(user_queries)
        truths = [self._truth(query) for query in queries]
        chosen, control = slice(0, None, 2), slice(1, None, 2)
        candidates = _candidates(truths, target)

        def recalls(half: slice, probes: int) -> list[float]:
            pairs = zip(queries[half], truths[half], strict=True)
            return [self._recall(query, truth, candidates, probes) for query, truth in pairs if len(truth.best)]

        for probes in [self.lists] if target >= 1 else _ladder(self.lists):
            recall = recalls(chosen, probes)
            if recall and np.mean(recall) - _CAUTION * np.std(recall) / math.sqrt(len(recall)) < target:
                continue
            measured = recalls(control, probes)
            # otherwise this half contains more difficult queries by chance
            if not measured or np.mean(measured) >= target:
                break
        else:
            measured = recalls(control, self.lists)
        return Tuning(probes, candidates, round(float(np.mean(measured)), 4) if measured else 1.0, len(user_queries))

    def _queries(self, user_queries: Sequence[Vector]) -> Matrix:
        """Return the queries of users, in random order. If there are fewer than `TUNING_QUERIES`, add stored vectors
        with random noise."""
        rng = np.random.default_rng(len(self.vectors))
        count = min(len(self.vectors), TUNING_QUERIES - len(user_queries))
        sample = self.vectors[rng.choice(len(self.vectors), count, replace=False)]
        _, rows = self.read_vectors(np.unique(sample))
        noise = rng.normal(size=rows.shape).astype(np.float32)
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        rows = _QUERY_COSINE * rows + np.sqrt(1 - _QUERY_COSINE**2) * noise
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        users = np.asarray(user_queries, np.float32).reshape(-1, rows.shape[1])
        queries = np.concatenate([users, rows.astype(np.float32)])
        return queries[rng.permutation(len(queries))]

    def _search(self, query: Vector, count: int, probes: int) -> IntArray:
        if self.stopped():
            raise Interrupted
        return self.search_lists(query, count, probes)

    def _truth(self, query: Vector) -> _Truth:
        wide, scores = self._scores(self._search(query, 2 * _CANDIDATES[-1], self.lists), query)
        order = np.argsort(-scores, kind="stable")
        least = float(scores[order[:_TOP]].min(initial=1.0))
        return _Truth(wide[order[:_TOP]], wide, least, bool((scores[order[_TOP:]] >= least - _EQUAL).any()))

    def _recall(self, query: Vector, truth: _Truth, candidates: int, probes: int) -> float:
        """Return the share of the exact best rows that are among the first `candidates` rows of a search. These rows
        get exact scores, so a row among them is not lost."""
        positions = self._search(query, candidates, probes)
        if not truth.tied:
            return float(np.isin(truth.best, positions).mean())
        _, scores = self._scores(positions, query)  # all rows with this cosine are equally good
        return min(1.0, float((scores >= truth.least - _EQUAL).sum()) / len(truth.best))

    def _scores(self, positions: IntArray, query: Vector) -> tuple[IntArray, Vector]:
        """Return the positions whose vector is still stored, and the exact cosine of each of these vectors with the
        query."""
        numbers, rows = self.read_vectors(np.unique(self.vectors[positions]))
        positions = positions[np.isin(self.vectors[positions], numbers)]
        scores: Vector = (rows @ query)[np.searchsorted(numbers, self.vectors[positions])]
        return positions, scores


def _candidates(truths: Sequence[_Truth], target: float) -> int:
    """Return how many of the best rows by 8-bit codes must get exact scores, so that the exact best rows are among
    them. The recall `target` 0.99 allows a loss of 0.01, for example; a tenth of this loss is accepted here."""
    for count in _CANDIDATES[:-1]:
        shares = [np.isin(truth.best, truth.wide[:count]).mean() for truth in truths if len(truth.best)]
        if not shares or np.mean(shares) >= 1 - (1 - target) / 10:
            return count
    return _CANDIDATES[-1]


def _ladder(lists: int) -> list[int]:
    """Return the numbers of lists to try, in ascending order. Each number is about a fifth larger than the number
    before."""
    steps, probes = [], 1.0
    while probes < lists:
        steps.append(int(probes))
        probes = max(probes + 1, probes * 1.2)
    return [*steps, lists]


# ------------------------------------------------------------------ background


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
                except RuntimeError as error:  # the system cannot start a thread; searches still work
                    self._thread = None
                    self._failed(error)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the training ends, but at most `seconds` (None: without a limit)."""
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def close(self) -> None:
        """Stop the training at the end of its present step, and wait for the thread. A second call has no effect."""
        self._stopped.set()
        self.wait(_CLOSE_SECONDS)

    def lock(self, seconds: float = 0.0) -> FileLock:
        """Return the file lock that a process holds while it trains the index or writes a snapshot. Acquiring the lock
        raises `Timeout` if another process does not release the lock within `seconds`."""
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
