"""From what the index holds to be near, by rounded vectors, to ranks by the full-precision ones."""

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

_FIRST = 32  # entries that are placed exactly where another side has its say about the others


class Ranked(NamedTuple):
    """Entries by nearness, best first, each with its best window, that one's vector and cosine. Lists of one length."""

    entries: list[int]
    windows: list[int]
    vectors: list[int]
    scores: list[float]
    exact: int  # the first so many scores are of full precision; the others are of the index


def ranked(connection: sqlite3.Connection, near: VectorHits, *, alone: bool) -> Ranked:
    """The best window of each of the best entries, placed by full-precision vectors: all where these ranks decide
    `alone`, else the first. To read the others costs more than to find them, and they only add to what the words have
    found."""
    if not len(near.windows):
        return Ranked([], [], [], [], 0)
    sure = len(near.windows) if alone else max(_holding(near.entries, _FIRST), near.sure)
    scores = near.scores.astype(np.float32)
    scores[:sure] = _cosines(connection, near.query, near.vectors[:sure], scores[:sure])
    behind = np.arange(len(scores)) >= sure
    order = np.lexsort((near.entries, -scores, behind))  # the first of equal windows stays the first
    entries = near.entries[order].tolist()
    first = {entry: place for place, entry in zip(range(len(entries) - 1, -1, -1), reversed(entries), strict=True)}
    places = sorted(first.values())[: near.limit]
    top = order[places]
    return Ranked(
        near.entries[top].tolist(),
        near.windows[top].tolist(),
        near.vectors[top].tolist(),
        scores[top].tolist(),
        int(np.searchsorted(places, sure)),
    )


def refined(connection: sqlite3.Connection, query: Vector, found: Ranked, places: Iterable[int]) -> dict[int, float]:
    """The full-precision cosines at these places."""
    told = {place: found.scores[place] for place in places}
    rough = [place for place in told if place >= found.exact]
    if rough:
        vectors = np.array([found.vectors[place] for place in rough], np.int64)
        scores = np.array([found.scores[place] for place in rough], np.float32)
        told.update(zip(rough, _cosines(connection, query, vectors, scores).tolist(), strict=True))
    return told


def _holding(entries: IntArray, count: int) -> int:
    """How many of the first windows belong to so many entries."""
    _, firsts = np.unique(entries, return_index=True)
    return len(entries) if len(firsts) < count else int(np.sort(firsts)[count - 1]) + 1


def _cosines(
    connection: sqlite3.Connection, query: Vector, vectors: IntArray, rough: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Of these vectors to the query. One that is gone since keeps the score that the index gave it."""
    numbers, rows = stored.read_vectors(connection, np.sort(vectors), len(query))
    if not len(numbers):
        return rough
    places = np.minimum(np.searchsorted(numbers, vectors), len(numbers) - 1)
    return np.where(numbers[places] == vectors, (rows @ query)[places], rough)
