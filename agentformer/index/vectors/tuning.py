"""Tuning of a trained index: how many lists to search and how many rows to re-rank to reach the target recall."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agentformer.index.vectors.ivf import Tuning
from agentformer.index.vectors.rows import IntArray
from agentformer.index.vectors.training import Interrupted, ReadVectors, Stopped
from agentformer.types import Matrix, Vector

TOP = 10  # recall is measured of so many
_QUERIES = 200
_CAUTION = 1.64  # number of standard errors, so that other queries also reach the target with 95% probability
_EQUAL = 1e-6  # cosines that differ by less are treated as equal
_CANDIDATES = (32, 64, 128, 256)
# The distance between a query of a user and its passages is larger than the distance between two near passages. For
# MiniLM, the mean cosine of questions and their best passages is about .6.
_QUERY_COSINE = 0.6

# Returns the positions of the `count` rows nearest to a query in so many lists, best first by 8 bits.
SearchLists = Callable[[Vector, int, int], IntArray]


class QueryLog:
    """The latest queries. They are kept in memory only."""

    def __init__(self) -> None:
        self._latest: deque[Vector] = deque(maxlen=_QUERIES)
        self.count = 0  # of all queries ever added

    def add(self, query: Vector) -> None:
        """Add a query. If the log is full, the oldest query is removed."""
        self._latest.append(query)
        self.count += 1

    def latest(self) -> list[Vector]:
        """Return the latest queries."""
        return list(self._latest)


class _Truth(NamedTuple):
    """The result of an exact search."""

    best: IntArray  # positions of the ten best
    wide: IntArray  # of more, best first by 8 bits
    least: float  # the cosine of the last of the ten
    tied: bool  # True if a row beyond the ten has the same cosine


@dataclass(frozen=True)
class Tuner:
    """Measures the recall of a trained index by comparing it with exact searches. `vectors` are vector numbers by
    position."""

    search_lists: SearchLists
    lists: int
    vectors: IntArray
    read_vectors: ReadVectors
    stopped: Stopped

    def tune(self, user_queries: Sequence[Vector], target: float) -> Tuning:
        """Return the smallest effort that reaches the target recall.

        On one half of the queries, it reaches the target with a margin for chance. On the other half, it also reaches
        the target; the reported recall is measured on that half. Raises `Interrupted`.
        """
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
        """Return the queries of users, in random order. If there are too few, add stored vectors plus noise."""
        rng = np.random.default_rng(len(self.vectors))
        count = min(len(self.vectors), _QUERIES - len(user_queries))
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
        least = float(scores[order[:TOP]].min(initial=1.0))
        return _Truth(wide[order[:TOP]], wide, least, bool((scores[order[TOP:]] >= least - _EQUAL).any()))

    def _recall(self, query: Vector, truth: _Truth, candidates: int, probes: int) -> float:
        """Return the share of the exact best rows that are among the candidates. Re-ranking then finds these rows."""
        positions = self._search(query, candidates, probes)
        if not truth.tied:
            return float(np.isin(truth.best, positions).mean())
        _, scores = self._scores(positions, query)  # all rows with this cosine are equally good
        return min(1.0, float((scores >= truth.least - _EQUAL).sum()) / len(truth.best))

    def _scores(self, positions: IntArray, query: Vector) -> tuple[IntArray, Vector]:
        """Return the positions that have a stored vector, and their exact cosines."""
        numbers, rows = self.read_vectors(np.unique(self.vectors[positions]))
        positions = positions[np.isin(self.vectors[positions], numbers)]
        scores: Vector = (rows @ query)[np.searchsorted(numbers, self.vectors[positions])]
        return positions, scores


def _candidates(truths: Sequence[_Truth], target: float) -> int:
    """Return how many of the best rows by 8-bit codes must be re-ranked to include the exact best rows. A tenth of the
    loss that the target allows is accepted."""
    for count in _CANDIDATES[:-1]:
        shares = [np.isin(truth.best, truth.wide[:count]).mean() for truth in truths if len(truth.best)]
        if not shares or np.mean(shares) >= 1 - (1 - target) / 10:
            return count
    return _CANDIDATES[-1]


def _ladder(lists: int) -> list[int]:
    """Return numbers of lists to try. Each number is about a fifth larger than the number before it."""
    steps, probes = [], 1.0
    while probes < lists:
        steps.append(int(probes))
        probes = max(probes + 1, probes * 1.2)
    return [*steps, lists]
