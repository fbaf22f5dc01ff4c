"""Building a trained index from the stored vectors, in slices short enough to be ended between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.base import half_the_cores
from agentformer.index.vectors.ivf import Inverted, Placed, Tuning
from agentformer.index.vectors.outliers import Apart
from agentformer.index.vectors.rows import IntArray
from agentformer.types import Matrix

_SLICE = 4_096  # rows between two looks at whether it is to end: a third of a second at a million rows
_PER_LIST = 40  # sampled rows for each centroid; FAISS warns below 39
_MARGIN = 1.25  # by which rows to come may exceed the sample's largest number
_ROUNDS = 8  # of k-means; more gained nothing that could be measured


class Interrupted(Exception):
    """The training is to end; nobody outside the training sees this."""


class Stored(Protocol):
    """The exact vectors."""

    def __call__(self, vectors: IntArray) -> tuple[IntArray, Matrix]:
        """The vectors of these numbers that are still stored: their numbers, ascending, and unit rows."""
        ...


def lists_for(rows: int) -> int:
    """How many lists an index of so many rows has: 4 x sqrt(rows), as FAISS's guidelines have it, in steps of 16."""
    return max(1, min(int(4 * math.sqrt(rows)) // 16 * 16 or 4, rows // _PER_LIST or 1))


def trained(
    vectors: IntArray, stored: Stored, dimension: int, exact_rows: int, stopped: Callable[[], bool]
) -> Inverted:
    """An index of the vectors of these numbers, each under its place in `vectors`. Raises `Interrupted` once
    `stopped` says so."""
    import faiss

    half_the_cores()
    rng = np.random.default_rng(len(vectors))
    lists = lists_for(len(vectors))
    chosen = rng.choice(vectors, min(len(vectors), lists * _PER_LIST), replace=False)
    sample = np.concatenate([rows for _, rows in _slices(chosen, stored, stopped)])
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(_centroids(sample, min(lists, len(sample)), rng, stopped))
    kind = faiss.ScalarQuantizer.QT_8bit_uniform  # one range for all dimensions, so that new texts seldom leave it
    index = faiss.IndexIVFScalarQuantizer(
        quantizer, dimension, quantizer.ntotal, kind, faiss.METRIC_INNER_PRODUCT, False
    )
    index.train(sample)
    reach = _MARGIN * float(np.abs(sample).max())
    faiss.copy_array_to_vector(np.array([-reach, 2 * reach], np.float32), index.sq.trained)
    del sample
    at = datetime.now(UTC).isoformat(timespec="seconds")
    made = Inverted(index, len(vectors), at, exact_rows, Tuning(1, 1, 0.0), Apart(dimension))
    _fill(made, vectors, stored, stopped)
    return made


def positions_of(vectors: IntArray, order: IntArray, found: IntArray) -> tuple[IntArray, IntArray]:
    """Places in `vectors` that hold a number of `found`, and for each which one. `order` sorts `vectors`. Equal texts
    share a vector, so one number may have several places."""
    ranked = vectors[order]
    first, last = np.searchsorted(ranked, found, "left"), np.searchsorted(ranked, found, "right")
    counts = last - first
    which = np.repeat(np.arange(len(found)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.repeat(first, counts) + within], which


def _fill(index: Inverted, vectors: IntArray, stored: Stored, stopped: Callable[[], bool]) -> None:
    order = np.argsort(vectors, kind="stable")
    index.reserve(len(vectors))
    for found, rows in _slices(vectors, stored, stopped):
        positions, which = positions_of(vectors, order, found)
        placed = _placed(index.index.quantizer, rows)
        index.put(Placed(rows[which], placed[which]), positions)


def _slices(vectors: IntArray, stored: Stored, stopped: Callable[[], bool]) -> Iterator[tuple[IntArray, Matrix]]:
    ordered = np.unique(vectors)
    for start in range(0, len(ordered), _SLICE):
        if stopped():
            raise Interrupted
        found, rows = stored(ordered[start : start + _SLICE])
        if len(found):
            yield found, np.ascontiguousarray(rows, np.float32)


def _centroids(
    sample: Matrix, lists: int, rng: np.random.Generator, stopped: Callable[[], bool]
) -> NDArray[np.float32]:
    """Spherical k-means. Not FAISS's own, which cannot be ended and holds a second sample."""
    import faiss

    centroids = np.ascontiguousarray(sample[rng.choice(len(sample), lists, replace=False)])
    for _ in range(_ROUNDS):
        quantizer = faiss.IndexFlatIP(sample.shape[1])
        quantizer.add(centroids)
        sums, counts = np.zeros_like(centroids), np.zeros(lists, np.int64)
        for start in range(0, len(sample), _SLICE):
            if stopped():
                raise Interrupted
            part = sample[start : start + _SLICE]
            _gather(part, _placed(quantizer, part), sums, counts)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = sample[rng.choice(len(sample), len(empty), replace=False)]
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centroids = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centroids).astype(np.float32)
    return centroids


def _gather(rows: Matrix, lists: IntArray, sums: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
    """Add each row to the sum of its list."""
    order = np.argsort(lists, kind="stable")
    present, starts = np.unique(lists[order], return_index=True)
    sums[present] += np.add.reduceat(rows[order], starts, axis=0)
    counts += np.bincount(lists, minlength=len(counts))


def _placed(quantizer: Any, rows: Matrix) -> IntArray:
    lists: IntArray = quantizer.assign(rows, 1).reshape(-1)
    return lists
