"""How many lists a search must look into, and how many rows to re-rank, so that it finds what an exact one would."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from agentformer.index.vectors.ivf import Tuning
from agentformer.index.vectors.rows import IntArray
from agentformer.index.vectors.training import Interrupted, Stored
from agentformer.types import Matrix, Vector

TOP = 10  # whose recall is measured
_QUERIES = 200
_CAUTION = 1.64  # standard errors, so that other queries reach the target too, 19 times out of 20
_EQUAL = 1e-6  # a difference of cosines that says nothing
_CANDIDATES = (32, 64, 128, 256)
# A query of a user lies further from its passages than a passage from its neighbours; between MiniLM's questions and
# their best passages the mean cosine is about .6.
_LIKENESS = 0.6


class Asked:
    """The latest queries, in memory alone."""

    def __init__(self) -> None:
        self._latest: deque[Vector] = deque(maxlen=_QUERIES)
        self.count = 0  # of all that were ever noted

    def note(self, query: Vector) -> None:
        self._latest.append(query)
        self.count += 1

    def queries(self) -> list[Vector]:
        return list(self._latest)


class Truth(NamedTuple):
    """What an exact search finds."""

    best: IntArray  # positions of the ten best
    wide: IntArray  # of more, best first by 8 bits
    least: float  # the cosine of the last of the ten
    tied: bool  # has a row beyond the ten the same one?


class Look(Protocol):
    def __call__(self, query: Vector, count: int, probes: int) -> IntArray:
        """Positions of the `count` nearest rows in so many lists, best first by 8 bits."""
        ...


def tuned(
    look: Look,
    lists: int,
    vectors: IntArray,
    asked: Sequence[Vector],
    stored: Stored,
    target: float,
    stopped: Callable[[], bool],
) -> Tuning:
    """The least work that surely reaches `target` on one half of the queries and does so on the other half too, whose
    recall is told. `vectors` are the numbers of the stored vectors by position. Raises `Interrupted`."""

    def watched(query: Vector, count: int, probes: int) -> IntArray:
        if stopped():
            raise Interrupted
        return look(query, count, probes)

    def share(query: Vector, truth: Truth, probes: int) -> float:
        found = watched(query, candidates, probes)
        if not truth.tied:
            return float(np.isin(truth.best, found).mean())
        found, scores = _scores(found, query, vectors, stored)  # any of the equals is as good as another
        return min(1.0, float((scores >= truth.least - _EQUAL).sum()) / len(truth.best))

    queries = _queries(asked, vectors, stored)
    seen = [_exact(watched(query, 2 * _CANDIDATES[-1], lists), query, vectors, stored) for query in queries]
    chosen, held = slice(0, None, 2), slice(1, None, 2)
    candidates = _candidates(seen, target)
    for probes in [lists] if target >= 1 else _ladder(lists):
        shares = _shares(share, queries[chosen], seen[chosen], probes)
        if shares and np.mean(shares) - _CAUTION * np.std(shares) / math.sqrt(len(shares)) < target:
            continue
        measured = _shares(share, queries[held], seen[held], probes)
        if not measured or np.mean(measured) >= target:  # else the hard questions happen to be in this half
            break
    else:
        measured = _shares(share, queries[held], seen[held], lists)
    return Tuning(probes, candidates, round(float(np.mean(measured)), 4) if measured else 1.0, len(asked))


def _queries(asked: Sequence[Vector], vectors: IntArray, stored: Stored) -> Matrix:
    """Those of users as far as there are any, then stored vectors with noise."""
    rng = np.random.default_rng(len(vectors))
    made = vectors[rng.choice(len(vectors), min(len(vectors), _QUERIES - len(asked)), replace=False)]
    _, rows = stored(np.unique(made))
    noise = rng.normal(size=rows.shape).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    rows = _LIKENESS * rows + np.sqrt(1 - _LIKENESS**2) * noise
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    queries = np.concatenate([np.asarray(asked, np.float32).reshape(-1, rows.shape[1]), rows.astype(np.float32)])
    return queries[rng.permutation(len(queries))]


def _exact(wide: IntArray, query: Vector, vectors: IntArray, stored: Stored) -> Truth:
    """Among these positions, which are the best by 8 bits, best first."""
    wide, scores = _scores(wide, query, vectors, stored)
    order = np.argsort(-scores, kind="stable")
    least = float(scores[order[:TOP]].min(initial=1.0))
    return Truth(wide[order[:TOP]], wide, least, bool((scores[order[TOP:]] >= least - _EQUAL).any()))


def _scores(places: IntArray, query: Vector, vectors: IntArray, stored: Stored) -> tuple[IntArray, Vector]:
    """Those of these positions whose vectors are stored, with exact cosines."""
    found, rows = stored(np.unique(vectors[places]))
    places = places[np.isin(vectors[places], found)]
    scores: Vector = (rows @ query)[np.searchsorted(found, vectors[places])]
    return places, scores


def _candidates(seen: Sequence[Truth], target: float) -> int:
    """How many of the best by 8 bits hold the exact best, with a tenth of the loss that the whole may have."""
    for count in _CANDIDATES[:-1]:
        share = [np.isin(best, wide[:count]).mean() for best, wide, *_ in seen if len(best)]
        if not share or np.mean(share) >= 1 - (1 - target) / 10:
            return count
    return _CANDIDATES[-1]


def _ladder(lists: int) -> list[int]:
    """Numbers of lists to try, each about a fifth above the one before."""
    steps, probes = [], 1.0
    while probes < lists:
        steps.append(int(probes))
        probes = max(probes + 1, probes * 1.2)
    return [*steps, lists]


def _shares(
    share: Callable[[Vector, Truth, int], float], queries: Matrix, seen: Sequence[Truth], probes: int
) -> list[float]:
    """For each query: the share of the exact best among the candidates of a search with these probes, where re-ranking
    finds them."""
    return [share(query, truth, probes) for query, truth in zip(queries, seen, strict=True) if len(truth.best)]
