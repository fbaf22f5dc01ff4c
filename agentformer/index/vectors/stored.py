"""Windows and vectors of the records, as arrays for the index. A vector that is not what was written raises
`StoreDamaged`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from agentformer.index.vectors import Numbers
from agentformer.records.vectors import matrix
from agentformer.types import Matrix

_GROUP = 4_096  # read at a time
_VARIABLES = 500  # numbers per statement; well below every SQLite's limit of bound variables
_COLUMNS = "SELECT w.id, w.entry, w.vector, v.data, v.checksum FROM windows AS w JOIN vectors AS v ON v.id = w.vector "


class Windows(NamedTuple):
    """Arrays of one length, and unit rows."""

    windows: Numbers
    entries: Numbers
    vectors: Numbers
    rows: Matrix


def of_space(connection: sqlite3.Connection, space: int, dimension: int) -> Iterator[Windows]:
    """All windows of a space, a group at a time."""
    cursor = _plain(connection).execute(_COLUMNS + "WHERE w.space = ? ORDER BY w.id", [space])
    while group := cursor.fetchmany(_GROUP):
        yield _arrays(group, dimension)


def of_entries(connection: sqlite3.Connection, space: int, nums: Sequence[int], dimension: int) -> Windows:
    """The windows of these entries."""
    rows = _plain(connection).execute(
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
    rows: list[tuple[int, bytes, int | None]] = []
    cursor = _plain(connection)
    for start in range(0, len(vectors), _VARIABLES):
        group = vectors[start : start + _VARIABLES].tolist()
        marks = ",".join("?" * len(group))
        query = f"SELECT id, data, checksum FROM vectors WHERE id IN ({marks}) ORDER BY id"
        rows += cursor.execute(query, group).fetchall()
    numbers, blobs, checksums = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(numbers, np.int64), matrix(numbers, blobs, checksums, dimension)


def _plain(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """A cursor that gives tuples: many rows are read, and all of each."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def _arrays(group: Sequence[tuple[Any, ...]], dimension: int) -> Windows:
    windows, entries, vectors, blobs, checksums = zip(*group, strict=True) if group else ((),) * 5
    numbers = [np.array(column, np.int64) for column in (windows, entries, vectors)]
    return Windows(numbers[0], numbers[1], numbers[2], matrix(vectors, blobs, checksums, dimension))
