"""Exact cosines for what the vector index found with rounded vectors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors import rows as stored
from agentformer.index.vectors.index import VectorHits
from agentformer.index.vectors.rows import IntArray
from agentformer.types import Vector

_RESCORED = 32  # entries with exact cosines if words also decide; to read all vectors costs more than to find them


class RankedEntries(NamedTuple):
    """Entries by cosine, best first, each with its best window and that window's vector and cosine. Lists of one
    length."""

    entries: list[int]
    windows: list[int]
    vectors: list[int]
    scores: list[float]
    exact: int  # number of exact scores at the beginning; the others are the index's


NO_ENTRIES = RankedEntries([], [], [], [], 0)


def rescore(connection: sqlite3.Connection, found: VectorHits, *, alone: bool) -> RankedEntries:
    """Order the best window of each entry by exact cosine: all if the vectors decide `alone`, else the first ones."""
    if not len(found.windows):
        return NO_ENTRIES
    exact = len(found.windows) if alone else max(_windows_of(found.entries, _RESCORED), found.sure)
    scores = found.scores.astype(np.float32)
    scores[:exact] = _cosines(connection, found.query, found.vectors[:exact], scores[:exact])
    rounded = np.arange(len(scores)) >= exact
    order = np.lexsort((found.entries, -scores, rounded))  # the first of equal windows stays the first
    entries = found.entries[order].tolist()
    first = {entry: place for place, entry in zip(range(len(entries) - 1, -1, -1), reversed(entries), strict=True)}
    places = sorted(first.values())[: found.limit]
    best = order[places]
    return RankedEntries(
        found.entries[best].tolist(),
        found.windows[best].tolist(),
        found.vectors[best].tolist(),
        scores[best].tolist(),
        int(np.searchsorted(places, exact)),
    )


def exact_scores(
    connection: sqlite3.Connection, query: Vector, ranked: RankedEntries, places: Iterable[int]
) -> dict[int, float]:
    """Return the exact cosines at these places of `ranked`."""
    scores = {place: ranked.scores[place] for place in places}
    rounded = [place for place in scores if place >= ranked.exact]
    if rounded:
        vectors = np.array([ranked.vectors[place] for place in rounded], np.int64)
        former = np.array([ranked.scores[place] for place in rounded], np.float32)
        scores.update(zip(rounded, _cosines(connection, query, vectors, former).tolist(), strict=True))
    return scores


def _windows_of(entries: IntArray, count: int) -> int:
    """Return the number of windows from the first on that belong to the first `count` entries."""
    _, firsts = np.unique(entries, return_index=True)
    return len(entries) if len(firsts) < count else int(np.sort(firsts)[count - 1]) + 1


def _cosines(
    connection: sqlite3.Connection, query: Vector, vectors: IntArray, rounded: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the cosines of these vectors with the query. A vector that was deleted meanwhile keeps its rounded
    score."""
    numbers, rows = stored.read_vectors(connection, np.sort(vectors), len(query))
    if not len(numbers):
        return rounded
    places = np.minimum(np.searchsorted(numbers, vectors), len(numbers) - 1)
    return np.where(numbers[places] == vectors, (rows @ query)[places], rounded)
