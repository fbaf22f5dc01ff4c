"""Windows and vectors of the records, as arrays for the index."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from agentformer.index.vectors import Numbers
from agentformer.types import Matrix

_GROUP = 4_096  # read at a time
_VARIABLES = 500  # numbers per statement; well below every SQLite's limit of bound variables
_COLUMNS = "SELECT w.id, w.entry, w.vector, v.data FROM windows AS w JOIN vectors AS v ON v.id = w.vector "


class Windows(NamedTuple):
    """Arrays of one length, and unit rows."""

    windows: Numbers
    entries: Numbers
    vectors: Numbers
    rows: Matrix


def of_space(connection: sqlite3.Connection, space: int, dimension: int) -> Iterator[Windows]:
    """All windows of a space, a group at a time."""
    cursor = connection.execute(_COLUMNS + "WHERE w.space = ? ORDER BY w.id", [space])
    while group := cursor.fetchmany(_GROUP):
        yield _arrays(group, dimension)


def of_entries(connection: sqlite3.Connection, space: int, nums: Sequence[int], dimension: int) -> Windows:
    """The windows of these entries."""
    rows = connection.execute(
        _COLUMNS + "WHERE w.space = ? AND w.entry IN (SELECT value FROM json_each(?)) ORDER BY w.id",
        [space, json.dumps(list(nums))],
    )
    return _arrays(rows.fetchall(), dimension)


def entries_above(connection: sqlite3.Connection, space: int, window: int) -> list[int]:
    """Entries with windows that are younger than this one."""
    rows = connection.execute("SELECT DISTINCT entry FROM windows WHERE id > ? AND space = ?", [window, space])
    return [row[0] for row in rows]


def exact(connection: sqlite3.Connection, vectors: Numbers, dimension: int) -> tuple[Numbers, Matrix]:
    """The vectors of these numbers, ascending, that are still stored: their numbers and unit rows."""
    rows: list[tuple[int, bytes]] = []
    cursor = connection.cursor()
    cursor.row_factory = None  # plain tuples: some hundred rows are read for each search
    for start in range(0, len(vectors), _VARIABLES):
        group = vectors[start : start + _VARIABLES].tolist()
        marks = ",".join("?" * len(group))
        rows += cursor.execute(f"SELECT id, data FROM vectors WHERE id IN ({marks}) ORDER BY id", group).fetchall()
    return np.array([row[0] for row in rows], np.int64), _matrix([row[1] for row in rows], dimension)


def _arrays(group: Sequence[sqlite3.Row], dimension: int) -> Windows:
    windows, entries, vectors = (np.array([row[n] for row in group], np.int64) for n in range(3))
    return Windows(windows, entries, vectors, _matrix([row[3] for row in group], dimension))


def _matrix(blobs: Sequence[bytes], dimension: int) -> Matrix:
    rows = np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dimension)
    return rows.astype(np.float32, copy=False)
