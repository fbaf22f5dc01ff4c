"""Rows of the vector index: their ids in memory by position, and their vectors in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.records.vectors import decode_vectors
from agentformer.types import Matrix

IntArray = NDArray[np.int64]
Mask = NDArray[np.bool_]
_MIN_CAPACITY = 256
_BATCH = 4_096  # rows read at a time
_VARIABLES = 500  # numbers per statement; well below every SQLite's limit of bound variables
_SELECT = "SELECT w.id, w.entry, w.vector, v.data, v.checksum FROM windows AS w JOIN vectors AS v ON v.id = w.vector "


class Rows:
    """Window number, entry number and vector number of each position, in arrays that grow together. A dead row keeps
    its position, and its entry number is -1. Not thread-safe."""

    def __init__(self, windows: Sequence[int] | IntArray = (), entries: Any = (), vectors: Any = ()) -> None:
        self._numbers = np.array([windows, entries, vectors], np.int64)  # by kind of number and by position
        self.size = len(entries)
        self.dead = int(np.count_nonzero(self.entries < 0))
        self.newest_entry = int(self.entries.max(initial=-1))
        self.newest_window = int(self.windows.max(initial=-1))

    @property
    def live(self) -> int:
        return self.size - self.dead

    @property
    def windows(self) -> IntArray:
        return self._numbers[0, : self.size]

    @property
    def entries(self) -> IntArray:
        return self._numbers[1, : self.size]

    @property
    def vectors(self) -> IntArray:
        return self._numbers[2, : self.size]

    @property
    def bytes(self) -> int:
        return self._numbers.nbytes

    def append(self, windows: IntArray, entries: IntArray, vectors: IntArray) -> None:
        """Append rows."""
        end = self.size + len(windows)
        if end > self._numbers.shape[1]:
            larger = np.zeros((3, max(end, self.size + self.size // 2, _MIN_CAPACITY)), np.int64)
            larger[:, : self.size] = self._numbers[:, : self.size]
            self._numbers = larger
        self._numbers[:, self.size : end] = windows, entries, vectors
        self.size = end
        self.dead += int(np.count_nonzero(entries < 0))
        self.newest_entry = max(self.newest_entry, int(entries.max(initial=-1)))
        self.newest_window = max(self.newest_window, int(windows.max(initial=-1)))

    def drop(self, entries: IntArray) -> IntArray:
        """Mark the rows of these entries as dead. Return the positions of these rows."""
        entries = entries[(entries >= 0) & (entries <= self.newest_entry)]
        if len(entries) == 0:
            return entries
        if len(entries) == 1:  # one comparison of all rows: half a millisecond for a million
            positions = np.flatnonzero(self.entries == entries[0])
        else:
            table = np.zeros(self.newest_entry + 2, np.bool_)  # the last element belongs to the entry -1
            table[entries] = True
            positions = np.flatnonzero(table[self.entries])
        return self.drop_positions(positions)

    def drop_positions(self, positions: IntArray) -> IntArray:
        """Mark the rows at these positions as dead. Return the positions that were alive."""
        positions = positions[self.entries[positions] >= 0]
        self.entries[positions] = -1
        self.dead += len(positions)
        return positions

    def inside(self, allowed: Mask) -> Mask:
        """Return a mask by position of the live rows with entries in the given mask by entry number."""
        table = np.zeros(self.newest_entry + 2, np.bool_)
        end = min(len(allowed), self.newest_entry + 1)
        table[:end] = allowed[:end]
        inside: Mask = table[self.entries]
        return inside

    def take(self, positions: IntArray) -> Rows:
        """Return a copy with only these rows, in this order."""
        return Rows(*self._numbers[:, positions])


class StoredWindows(NamedTuple):
    """Windows read from SQLite: arrays of equal length, and unit rows of shape (windows, dimension)."""

    windows: IntArray
    entries: IntArray
    vectors: IntArray
    rows: Matrix


def read_space(connection: sqlite3.Connection, space: int, dimension: int) -> Iterator[StoredWindows]:
    """Read all windows of a space in batches. Raises `StoreDamaged` for a vector with a wrong checksum."""
    cursor = _tuple_cursor(connection).execute(_SELECT + "WHERE w.space = ? ORDER BY w.id", [space])
    while batch := cursor.fetchmany(_BATCH):
        yield _stored_windows(batch, dimension)


def read_entries(connection: sqlite3.Connection, space: int, entries: Sequence[int], dimension: int) -> StoredWindows:
    """Read the windows of these entries. Raises `StoreDamaged` for a vector with a wrong checksum."""
    rows = _tuple_cursor(connection).execute(
        _SELECT + "WHERE w.space = ? AND w.entry IN (SELECT value FROM json_each(?)) ORDER BY w.id",
        [space, json.dumps(list(entries))],
    )
    return _stored_windows(rows.fetchall(), dimension)


def entries_above(connection: sqlite3.Connection, space: int, window: int) -> list[int]:
    """Return the entries that have windows newer than this window."""
    rows = connection.execute("SELECT DISTINCT entry FROM windows WHERE id > ? AND space = ?", [window, space])
    return [row[0] for row in rows]


def read_vectors(connection: sqlite3.Connection, vectors: IntArray, dimension: int) -> tuple[IntArray, Matrix]:
    """Read full-precision vectors by number, in ascending order. Return the numbers that are still stored, and unit
    rows. Raises `StoreDamaged` for a vector with a wrong checksum."""
    rows: list[tuple[int, bytes, int | None]] = []
    cursor = _tuple_cursor(connection)
    for start in range(0, len(vectors), _VARIABLES):
        batch = vectors[start : start + _VARIABLES].tolist()
        marks = ",".join("?" * len(batch))
        query = f"SELECT id, data, checksum FROM vectors WHERE id IN ({marks}) ORDER BY id"
        rows += cursor.execute(query, batch).fetchall()
    numbers, blobs, checksums = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(numbers, np.int64), decode_vectors(numbers, blobs, checksums, dimension)


def _tuple_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor()
    cursor.row_factory = None  # plain tuples are faster than named rows
    return cursor


def _stored_windows(batch: Sequence[tuple[Any, ...]], dimension: int) -> StoredWindows:
    windows, entries, vectors, blobs, checksums = zip(*batch, strict=True) if batch else ((),) * 5
    numbers = [np.array(column, np.int64) for column in (windows, entries, vectors)]
    return StoredWindows(numbers[0], numbers[1], numbers[2], decode_vectors(vectors, blobs, checksums, dimension))
