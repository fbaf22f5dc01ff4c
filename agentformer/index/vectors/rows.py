"""What stands beside the codes of an index, by position: window, entry, vector, and whether the row is alive."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.records.vectors import matrix
from agentformer.types import Matrix

IntArray = NDArray[np.int64]
Mask = NDArray[np.bool_]
_LEAST_ROOM = 256


class Rows:
    """Arrays of one length that grow together. Not thread-safe. A dead row keeps its position, with the entry -1."""

    def __init__(self, windows: IntArray, entries: IntArray, vectors: IntArray) -> None:
        self._windows, self._entries, self._vectors = windows, entries, vectors
        self.size = len(entries)
        self.dead = int(np.count_nonzero(entries < 0))
        self.newest_entry = int(entries.max(initial=-1))
        self.newest_window = int(windows.max(initial=-1))

    @classmethod
    def none(cls) -> Rows:
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty)

    @property
    def live(self) -> int:
        return self.size - self.dead

    @property
    def windows(self) -> IntArray:
        return self._windows[: self.size]

    @property
    def entries(self) -> IntArray:
        return self._entries[: self.size]

    @property
    def vectors(self) -> IntArray:
        return self._vectors[: self.size]

    @property
    def bytes(self) -> int:
        return self._windows.nbytes + self._entries.nbytes + self._vectors.nbytes

    def append(self, windows: IntArray, entries: IntArray, vectors: IntArray) -> None:
        end = self.size + len(windows)
        if end > len(self._entries):
            room = max(end, self.size + self.size // 2, _LEAST_ROOM)
            self._windows = grown(self._windows, room)
            self._entries = grown(self._entries, room)
            self._vectors = grown(self._vectors, room)
        self._windows[self.size : end] = windows
        self._entries[self.size : end] = entries
        self._vectors[self.size : end] = vectors
        self.size = end
        self.dead += int(np.count_nonzero(entries < 0))
        self.newest_entry = max(self.newest_entry, int(entries.max(initial=-1)))
        self.newest_window = max(self.newest_window, int(windows.max(initial=-1)))

    def drop(self, gone: IntArray) -> IntArray:
        """Positions of the rows of these entries, which are dead from now on."""
        gone = gone[(gone >= 0) & (gone <= self.newest_entry)]
        if len(gone) == 0:
            return gone
        if len(gone) == 1:  # one comparison of all rows: half a millisecond for a million
            positions = np.flatnonzero(self.entries == gone[0])
        else:
            table = np.zeros(self.newest_entry + 2, np.bool_)  # its last place is that of the entry -1
            table[gone] = True
            positions = np.flatnonzero(table[self.entries])
        return self.die(positions)

    def die(self, positions: IntArray) -> IntArray:
        """These rows are dead from now on. Returns those that were not."""
        positions = positions[self._entries[positions] >= 0]
        self._entries[positions] = -1
        self.dead += len(positions)
        return positions

    def inside(self, allowed: Mask) -> Mask:
        """The live rows of the entries that `allowed`, a mask by entry number, holds."""
        table = np.zeros(self.newest_entry + 2, np.bool_)
        known = min(len(allowed), self.newest_entry + 1)
        table[:known] = allowed[:known]
        inside: Mask = table[self.entries]
        return inside

    def taken(self, positions: IntArray) -> Rows:
        """These rows alone, in this order."""
        return Rows(self._windows[positions], self._entries[positions], self._vectors[positions])


def grown(array: NDArray[Any], size: int, filling: int = 0) -> NDArray[Any]:
    out = np.full(size, filling, array.dtype)
    out[: len(array)] = array
    return out


_GROUP = 4_096  # read at a time
_VARIABLES = 500  # numbers per statement; well below every SQLite's limit of bound variables
_COLUMNS = "SELECT w.id, w.entry, w.vector, v.data, v.checksum FROM windows AS w JOIN vectors AS v ON v.id = w.vector "


class Windows(NamedTuple):
    """Arrays of one length, and unit rows."""

    windows: IntArray
    entries: IntArray
    vectors: IntArray
    rows: Matrix


def read_space(connection: sqlite3.Connection, space: int, dimension: int) -> Iterator[Windows]:
    """All windows of a space, a group at a time."""
    cursor = _plain(connection).execute(_COLUMNS + "WHERE w.space = ? ORDER BY w.id", [space])
    while group := cursor.fetchmany(_GROUP):
        yield _arrays(group, dimension)


def read_entries(connection: sqlite3.Connection, space: int, nums: Sequence[int], dimension: int) -> Windows:
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


def read_vectors(connection: sqlite3.Connection, vectors: IntArray, dimension: int) -> tuple[IntArray, Matrix]:
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
