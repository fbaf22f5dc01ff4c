"""Tuning of the searches of a trained index: how many lists a search reads, and how many rows get exact scores."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.flat import IntArray, Nearest, Rows, limit_threads
from agentformer.index.vectors.ivf import Ivf, Tuning
from agentformer.index.vectors.lists import ListCodes
from agentformer.index.vectors.training import TUNING_QUERIES, Interrupted, ReadVectors, Stopped
from agentformer.types import Matrix, Vector

_SCANNED = 16_384  # rows of one step of a scan
_TOP = 10  # recall is measured for so many best rows
_CAUTION = 1.64  # number of standard errors, so that other queries also reach the target with 95% probability
_EQUAL = 1e-6  # cosines that differ by less are treated as equal
_CANDIDATES = (32, 64, 128, 256)
# The distance between a query of a user and its passages is larger than the distance between two near passages. For
# MiniLM, the mean cosine of questions and their best passages is about .6.
_QUERY_COSINE = 0.6
_TUNE_EVERY = 200  # queries of users after which the search effort is tuned again; doubled after each tuning

Lock = Callable[[], AbstractContextManager[None]]


class LatestQueries:
    """The latest queries of an index, and the number of queries since its last tuning."""

    def __init__(self) -> None:
        self.latest: deque[Vector] = deque(maxlen=TUNING_QUERIES)
        self.count = 0  # number of all searches
        self.tuned_at = 0  # `count` at the last tuning
        self.tune_after = _TUNE_EVERY

    def add(self, query: Vector) -> None:
        """Record the query of a search."""
        self.latest.append(query)
        self.count += 1

    def suffice(self) -> bool:
        """Return whether there have been enough queries for another tuning."""
        return self.count - self.tuned_at >= self.tune_after


class _Truth(NamedTuple):
    """The result of an exact search for one query, with which the result of an approximate search is compared."""

    best: IntArray  # positions of the ten best
    wide: IntArray  # positions of more rows, in the order of their 8-bit scores
    least: float  # the cosine of the last of the ten
    tied: bool  # True if a row beyond the ten has the same cosine


class Tuner:
    """Measures the recall of a trained index, by comparison with exact searches, and chooses how many lists a search
    reads. `rows` are the rows of the index. The tuner holds `lock` while it uses `stage`. The methods raise
    `Interrupted` if `stopped` returns True."""

    def __init__(self, stage: Ivf, rows: Rows, read_vectors: ReadVectors, stopped: Stopped, lock: Lock) -> None:
        self._stage, self._rows, self._lock = stage, rows, lock
        self._read_vectors, self._stopped = read_vectors, stopped
        self._live = rows.entries >= 0
        with lock():
            self._selection = stage.select(rows, self._live, rows.dead)

    def tune(self, user_queries: Sequence[Vector], target: float) -> Tuning:
        """Find the smallest number of lists with which searches reach the recall `target` (0..1). Return this number,
        the number of rows that get exact scores, and the measured recall. Each number of lists is tried with one half
        of the queries. Their recall may be high by chance, so it must exceed the target by a margin. Then the other
        half of the queries must reach the target, too. The recall in the result is that of the other half."""
        queries = self._queries(user_queries)
        wide = self._scan(queries, 2 * _CANDIDATES[-1])
        truths = [self._truth(query, positions) for query, positions in zip(queries, wide, strict=True)]
        chosen, control = slice(0, None, 2), slice(1, None, 2)
        candidates = _candidates(truths, target)

        def recalls(half: slice, probes: int) -> list[float]:
            pairs = zip(queries[half], truths[half], strict=True)
            return [self._recall(query, truth, candidates, probes) for query, truth in pairs if len(truth.best)]

        for probes in [self._stage.lists] if target >= 1 else _ladder(self._stage.lists):
            recall = recalls(chosen, probes)
            if recall and np.mean(recall) - _CAUTION * np.std(recall) / math.sqrt(len(recall)) < target:
                continue
            measured = recalls(control, probes)
            # if this recall is lower, this half contains more difficult queries by chance, and the next number is tried
            if not measured or np.mean(measured) >= target:
                break
        else:
            measured = recalls(control, self._stage.lists)
        return Tuning(probes, candidates, round(float(np.mean(measured)), 4) if measured else 1.0, len(user_queries))

    def _queries(self, user_queries: Sequence[Vector]) -> Matrix:
        """Return the queries of users, in random order. If there are fewer than `TUNING_QUERIES`, add stored vectors
        with random noise."""
        vectors = self._rows.vectors
        rng = np.random.default_rng(len(vectors))
        count = min(len(vectors), TUNING_QUERIES - len(user_queries))
        _, rows = self._read_vectors(np.unique(vectors[rng.choice(len(vectors), count, replace=False)]))
        noise = rng.normal(size=rows.shape).astype(np.float32)
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        rows = _QUERY_COSINE * rows + np.sqrt(1 - _QUERY_COSINE**2) * noise
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        users = np.asarray(user_queries, np.float32).reshape(-1, rows.shape[1])
        queries = np.concatenate([users, rows.astype(np.float32)])
        return queries[rng.permutation(len(queries))]

    def _truth(self, query: Vector, positions: IntArray) -> _Truth:
        if self._stopped():
            raise Interrupted
        wide, scores = self._scores(positions, query)
        order = np.argsort(-scores, kind="stable")
        least = float(scores[order[:_TOP]].min(initial=1.0))
        return _Truth(wide[order[:_TOP]], wide, least, bool((scores[order[_TOP:]] >= least - _EQUAL).any()))

    def _recall(self, query: Vector, truth: _Truth, candidates: int, probes: int) -> float:
        """Return the share of the exact best rows that are among the first `candidates` rows of a search. All these
        candidates get exact scores later, so their order does not matter."""
        if self._stopped():
            raise Interrupted
        with self._lock():
            positions = self._stage.search(query, candidates, self._selection, probes).positions
        positions = positions[positions < self._rows.size]
        if not truth.tied:
            return float(np.isin(truth.best, positions).mean())
        _, scores = self._scores(positions, query)  # all rows with the same cosine are equally good
        return min(1.0, float((scores >= truth.least - _EQUAL).sum()) / len(truth.best))

    def _scores(self, positions: IntArray, query: Vector) -> tuple[IntArray, Vector]:
        """Return the positions whose vector is still stored, and the exact cosines of these vectors with the query."""
        vectors = self._rows.vectors[positions]
        numbers, rows = self._read_vectors(np.unique(vectors))
        stored = np.isin(vectors, numbers)
        scores: Vector = (rows @ query)[np.searchsorted(numbers, vectors[stored])]
        return positions[stored], scores

    def _scan(self, queries: Matrix, count: int) -> list[IntArray]:
        """Return for each query the positions of the `count` nearest rows, in the order of their 8-bit scores. Every
        row that was not removed is compared."""
        import faiss

        limit_threads()
        stage = self._stage
        scores: NDArray[np.float32] = np.zeros((len(queries), 0), np.float32)
        positions: IntArray = np.zeros((len(queries), 0), np.int64)
        number = 0
        while number < stage.lists:
            if self._stopped():
                raise Interrupted
            number, rows = self._read_many(number)
            if len(rows.positions):
                decoded, most = stage.index.sq.decode(rows.codes), min(count, len(rows.positions))
                near, which = faiss.knn(queries, decoded, most, faiss.METRIC_INNER_PRODUCT)
                scores = np.concatenate([scores, near], axis=1)
                positions = np.concatenate([positions, rows.positions[which]], axis=1)
                best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
                scores, positions = np.take_along_axis(scores, best, 1), np.take_along_axis(positions, best, 1)
        found = [Nearest(*pair) for pair in zip(positions, scores, strict=True)]
        with self._lock():
            if outliers := stage.outliers.select(self._live):
                pairs = zip(found, queries, strict=True)
                found = [stage.outliers.merge(near, query, count, outliers) for near, query in pairs]
        return [near.positions for near in found]

    def _read_many(self, number: int) -> tuple[int, ListCodes]:
        """Read several lists, beginning with list `number`. Return the number of the next list, and copies of the
        rows."""
        read, size = list[ListCodes](), 0
        with self._lock():
            while number < self._stage.lists and size < _SCANNED:
                read.append(self._stage.read(number, self._live))
                size += len(read[-1].positions)
                number += 1
            return number, ListCodes(*(np.concatenate(column) for column in zip(*read, strict=True)))


def _candidates(truths: Sequence[_Truth], target: float) -> int:
    """Return the number of rows, best first by their 8-bit codes, that must get exact scores to find the exact best
    rows. A few of the exact best rows may be missed: a tenth of the share that the recall `target` allows to miss. For
    the target 0.99, which allows 1%, this is 0.1%."""
    for count in _CANDIDATES[:-1]:
        shares = [np.isin(truth.best, truth.wide[:count]).mean() for truth in truths if len(truth.best)]
        if not shares or np.mean(shares) >= 1 - (1 - target) / 10:
            return count
    return _CANDIDATES[-1]


def _ladder(lists: int) -> list[int]:
    """Return the numbers of lists to try, ascending. Each is about a fifth larger than the one before."""
    steps, probes = [], 1.0
    while probes < lists:
        steps.append(int(probes))
        probes = max(probes + 1, probes * 1.2)
    return [*steps, lists]
