"""Reading of windows (embedded parts of entries) and their vectors from the database, for the vector index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from agentformer.index.vectors.flat import IntArray, Rows
from agentformer.records.sqlite.connection import sqlite
from agentformer.records.vectors import decode_vectors
from agentformer.types import Connection, Matrix, Statement

_READ_ROWS = 4_096  # rows read at a time
_READ_NUMBERS = 100_000  # rows read at a time if only their numbers are read
_SELECT = "SELECT w.id, w.entry, w.vector, v.data, v.checksum FROM windows AS w JOIN vectors AS v ON v.id = w.vector "


# In PostgreSQL, several namespaces may have a copy of a vector, all with the same id; only one is read.
VECTORS = Statement(
    sqlite="SELECT id, data, checksum FROM vectors WHERE id IN ({among}) ORDER BY id",
    postgres="""
    SELECT v.id, v.data, v.checksum FROM unnest(%s::bigint[]) AS n (id)
    CROSS JOIN LATERAL (SELECT id, data, checksum FROM vectors WHERE vectors.id = n.id LIMIT 1) AS v ORDER BY v.id
    """,
)


class StoredWindows(NamedTuple):
    """Windows (embedded parts of entries) that were read from the database. The fields are parallel arrays with one
    element for each window: the id of the window, the number of its entry, the id of its vector, and the vector itself
    (`rows`)."""

    windows: IntArray
    entries: IntArray
    vectors: IntArray
    rows: Matrix


def read_space(connection: Connection, space: int, dimension: int) -> Iterator[StoredWindows]:
    """Yield all windows of an embedding space, in batches. Raises `StoreDamaged` if a vector has a wrong checksum."""
    cursor = sqlite(connection).plain_cursor().execute(_SELECT + "WHERE w.space = ? ORDER BY w.id", [space])
    while batch := cursor.fetchmany(_READ_ROWS):
        yield _stored_windows(batch, dimension)


def count_windows(connection: Connection, space: int, limit: int) -> int:
    """Return the number of windows of an embedding space, or `limit` if there are more."""
    query = "SELECT count(*) FROM (SELECT 1 FROM windows WHERE space = ? LIMIT ?)"
    return int(sqlite(connection).execute(query, [space, limit]).fetchone()[0])


def read_numbers(connection: Connection, space: int) -> Rows:
    """Return a row for each window of an embedding space: the numbers of the window, its entry and its vector. The rows
    are sorted by window number."""
    cursor = (
        sqlite(connection)
        .plain_cursor()
        .execute("SELECT id, entry, vector FROM windows WHERE space = ? ORDER BY id", [space])
    )
    read = list[IntArray]()
    while batch := cursor.fetchmany(_READ_NUMBERS):
        read.append(np.array(batch, np.int64).T)
    return Rows(*np.concatenate(read, axis=1)) if read else Rows()


def read_entries(connection: Connection, space: int, entries: Sequence[int], dimension: int) -> StoredWindows:
    """Return the windows of the given entries in one embedding space. Raises `StoreDamaged` if a vector has a wrong
    checksum."""
    rows = (
        sqlite(connection)
        .plain_cursor()
        .execute(
            _SELECT + "WHERE w.space = ? AND w.entry IN (SELECT value FROM json_each(?)) ORDER BY w.id",
            [space, json.dumps(list(entries))],
        )
    )
    return _stored_windows(rows.fetchall(), dimension)


def read_stored_vectors(connection: Connection, vectors: IntArray, dimension: int) -> tuple[IntArray, Matrix]:
    """Read the vectors with the given numbers, which must be sorted in ascending order. Return two arrays: the numbers
    of the vectors that are stored, and these vectors. Raises `StoreDamaged` if a vector has a wrong checksum."""
    rows = connection.run_among(VECTORS, vectors.tolist(), plain=True)
    numbers, blobs, checksums = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(numbers, np.int64), decode_vectors(numbers, blobs, checksums, dimension)


def removed_since(connection: Connection, seq: int) -> IntArray:
    """Return the numbers of the entries that were removed after the change number `seq`."""
    query = "SELECT entry FROM changes WHERE seq > ? AND NOT EXISTS (SELECT 1 FROM entries WHERE num = changes.entry)"
    return np.array([row[0] for row in sqlite(connection).execute(query, [seq])], np.int64)


def _stored_windows(batch: Sequence[tuple[Any, ...]], dimension: int) -> StoredWindows:
    windows, entries, vectors, blobs, checksums = zip(*batch, strict=True) if batch else ((),) * 5
    numbers = [np.array(column, np.int64) for column in (windows, entries, vectors)]
    return StoredWindows(numbers[0], numbers[1], numbers[2], decode_vectors(vectors, blobs, checksums, dimension))
