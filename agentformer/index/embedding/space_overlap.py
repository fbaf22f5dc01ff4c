"""How far two embedding spaces of one store find the same: the overlap of their nearest entries."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import numpy as np

from agentformer.types import Vector

_NEAREST = 10
_SAMPLE = 200  # entries; their mean overlap is then known to a few hundredths
_ROWS = 4_096  # windows read at a time

# Every entry's first window of both spaces, which begins with the same text in both.
_BOTH = """
    SELECT a.entry, a.id AS one, b.id AS other FROM
        (SELECT entry, min(id) AS id FROM windows WHERE space = :one GROUP BY entry) AS a
        JOIN (SELECT entry, min(id) AS id FROM windows WHERE space = :other GROUP BY entry) AS b USING (entry)
    ORDER BY a.entry
"""


def agreement(
    connection: sqlite3.Connection, one: tuple[int, Sequence[Vector]], other: tuple[int, Sequence[Vector]]
) -> float:
    """The mean share of the nearest ten entries that two spaces have in common, 0..1, over queries embedded in both.

    Each side is a space's number and its query vectors, in the same order.
    """
    near, far = (_nearest(connection, space, np.stack(list(queries)), []) for space, queries in (one, other))
    return _overlap(near, far)


def sample_agreement(connection: sqlite3.Connection, one: int, other: int) -> tuple[float | None, int]:
    """`agreement` for entries of the store: each is a query, by the vector of its beginning, and is not its own find.
    Returns None where there is nothing to compare, and how many entries were taken."""
    pairs = connection.execute(_BOTH, {"one": one, "other": other}).fetchall()
    if len(pairs) < 2:
        return None, 0
    step = max(1, len(pairs) // _SAMPLE)
    chosen = pairs[::step][:_SAMPLE]
    entries = [row["entry"] for row in chosen]
    near = _nearest(connection, one, _vectors(connection, [row["one"] for row in chosen]), entries)
    far = _nearest(connection, other, _vectors(connection, [row["other"] for row in chosen]), entries)
    return _overlap(near, far), len(chosen)


def _overlap(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> float:
    shares = [len(set(a) & set(b)) / max(len(a), len(b)) for a, b in zip(one, other, strict=True) if a or b]
    return float(np.mean(shares)) if shares else 1.0


def _nearest(
    connection: sqlite3.Connection, space: int, queries: np.ndarray, excluded: Sequence[int]
) -> list[list[int]]:
    """The nearest entries of each query, by their best window, without the entry at its place in `excluded`. Reads the
    vectors in pieces, so that a large store need not fit into memory twice."""
    best: list[dict[int, float]] = [{} for _ in queries]
    rows = connection.execute(
        "SELECT w.entry, v.data FROM windows AS w JOIN vectors AS v ON v.id = w.vector WHERE w.space = ?", [space]
    )
    while group := rows.fetchmany(_ROWS):
        matrix = np.frombuffer(b"".join(row[1] for row in group), "<f4").reshape(len(group), -1)
        scores = queries @ matrix.T
        wanted = min(scores.shape[1], 4 * _NEAREST)  # several windows may be of one entry
        top = np.argpartition(-scores, wanted - 1, axis=1)[:, :wanted]
        for i, columns in enumerate(top):
            for column in columns:
                entry = group[column][0]
                if not excluded or entry != excluded[i]:
                    best[i][entry] = max(best[i].get(entry, -2.0), float(scores[i, column]))
            best[i] = dict(sorted(best[i].items(), key=lambda item: (-item[1], item[0]))[:_NEAREST])
    return [list(found) for found in best]


def _vectors(connection: sqlite3.Connection, windows: Sequence[int]) -> np.ndarray:
    query = "SELECT v.data FROM windows AS w JOIN vectors AS v ON v.id = w.vector WHERE w.id = ?"
    return np.stack([np.frombuffer(connection.execute(query, [window]).fetchone()[0], "<f4") for window in windows])
