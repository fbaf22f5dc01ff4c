"""Windows, vectors, and the queue of entries that have no vectors yet.

A vector is kept once per space and text (SHA-256 of exactly what was embedded). Rows are float32,
little-endian, finite and of unit length; anything else is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from agentformer.errors import EmbedderError
from agentformer.records.integrity import checksums as crc
from agentformer.records.scopes import where
from agentformer.types import Matrix, Scope, Span, Waiting

HASH_BYTES = 32
_FLOAT = 4  # bytes of a number
_VARIABLES = 500  # hashes per statement; well below every SQLite's limit of bound variables
_FEW = 1_000  # queued entries looked up one by one rather than by walking through a scope


class Window(NamedTuple):
    """A part of an entry's content that fits the model, and the hash of the text that is embedded for it."""

    span: Span
    hash: bytes


class Rows(NamedTuple):
    """Vectors of texts: their hashes, and (len(hashes), dimension) unit rows."""

    hashes: Sequence[bytes]
    matrix: Matrix


class Pending(NamedTuple):
    num: int
    attempts: int
    last_error: str


def text_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def vector_ids(connection: sqlite3.Connection, space: int, hashes: Iterable[bytes]) -> dict[bytes, int]:
    """The vectors of those of these texts that have one."""
    asked = list(hashes)
    found: dict[bytes, int] = {}
    for start in range(0, len(asked), _VARIABLES):
        group = asked[start : start + _VARIABLES]
        query = f"SELECT hash, id FROM vectors WHERE space = ? AND hash IN ({','.join('?' * len(group))})"
        found.update((row[0], row[1]) for row in connection.execute(query, [space, *group]))
    return found


def known_hashes(connection: sqlite3.Connection, space: int, hashes: Iterable[bytes]) -> set[bytes]:
    """Which of these texts have a vector already."""
    return set(vector_ids(connection, space, hashes))


def put_vectors(connection: sqlite3.Connection, space: int, hashes: Sequence[bytes], rows: Matrix) -> None:
    """Keep vectors; one that is there already stays. Raises `EmbedderError` for rows that are not unit vectors."""
    if not hashes:
        return
    import numpy as np

    check_rows(rows, len(hashes))
    data = np.ascontiguousarray(rows, dtype="<f4")
    buffer, size = data.data.cast("B"), data.shape[1] * data.itemsize
    connection.executemany(
        "INSERT OR IGNORE INTO vectors (space, hash, data, checksum) VALUES (?, ?, ?, ?)",
        zip(itertools.repeat(space), hashes, _cut(buffer, size), crc.of_vectors(buffer, len(hashes)), strict=False),
    )


def _cut(buffer: memoryview, size: int) -> Iterator[memoryview]:
    return (buffer[start : start + size] for start in range(0, len(buffer), size))


def matrix(numbers: Sequence[int], blobs: Sequence[bytes], checksums: Sequence[int | None], dimension: int) -> Matrix:
    """Stored vectors as unit rows. Raises `StoreDamaged` where one of them is not what was written."""
    import numpy as np

    data = _sound(blobs, checksums, dimension)
    if data is None:
        problems = map(vector_damage, blobs, checksums, itertools.repeat(dimension))
        number, why = next(found for found in zip(numbers, problems, strict=False) if found[1])
        raise crc.damaged(f"the vector {number}", why)
    return np.frombuffer(data, "<f4").reshape(-1, dimension).astype(np.float32, copy=False)


def _sound(blobs: Sequence[bytes], checksums: Sequence[int | None], dimension: int) -> bytes | None:
    """All vectors in one, or None where one is damaged. They are looked at together: a search reads hundreds, an index
    that is built a million."""
    try:
        data = b"".join(blobs)
    except TypeError:  # one is not even bytes
        return None
    if not {*map(len, blobs)} <= {dimension * _FLOAT}:
        return None
    if checksums.count(None) == len(checksums):
        return data
    sums = crc.of_vectors(data, len(blobs))
    if sums == [*checksums]:
        return data
    sound = all(kept is None or kept == found for kept, found in zip(checksums, sums, strict=True))
    return data if sound else None


def vector_damage(data: object, checksum: int | None, dimension: int | None) -> str:
    """Why a stored vector is not what was written; "" where nothing speaks against it."""
    if not isinstance(data, bytes) or not data or len(data) % _FLOAT:
        return "it is no vector"
    if dimension is not None and len(data) != dimension * _FLOAT:
        return f"it has {len(data)} bytes instead of {dimension * _FLOAT}"
    return crc.DIFFERS if checksum is not None and crc.of_vectors(data, 1) != [checksum] else ""


def put_windows(
    connection: sqlite3.Connection,
    space: int,
    cuts: Sequence[tuple[int, Sequence[Window]]],
    vectors: Mapping[bytes, int],
) -> None:
    """Set the windows of entries in a space; `vectors` has the stored vector of each."""
    former = _vectors_of(connection, [num for num, _ in cuts])
    if former:
        connection.executemany("DELETE FROM windows WHERE entry = ? AND space = ?", ((num, space) for num, _ in cuts))
    rows = ((space, num, w.span.start, w.span.end, vectors[w.hash]) for num, windows in cuts for w in windows)
    connection.executemany(
        "INSERT INTO windows (space, entry, span_start, span_end, vector, checksum) VALUES (?, ?, ?, ?, ?, ?)",
        ((*row, crc.of_values(row)) for row in rows),
    )
    drop_unused(connection, former)


def spans(connection: sqlite3.Connection, windows: Sequence[int]) -> dict[int, Span]:
    """Where these windows lie in their entries' contents; those that are gone are left out. Raises `StoreDamaged`."""
    found = {}
    for start in range(0, len(windows), _VARIABLES):
        group = windows[start : start + _VARIABLES]
        marks = ",".join("?" * len(group))
        for row in connection.execute(f"SELECT * FROM windows WHERE id IN ({marks})", group):
            if why := window_damage(row):
                raise crc.damaged(f"the window {row['id']}", why)
            found[row["id"]] = Span(row["span_start"], row["span_end"])
    return found


def window_damage(row: sqlite3.Row) -> str:
    """Why a stored window is not what was written; "" where nothing speaks against it."""
    values = [row[name] for name in ("space", "entry", "span_start", "span_end", "vector")]
    return crc.DIFFERS if row["checksum"] is not None and crc.of_values(values) != row["checksum"] else ""


def put_embedded(connection: sqlite3.Connection, nums: Sequence[int]) -> None:
    """Take entries off the queue."""
    connection.executemany("DELETE FROM pending WHERE entry = ?", ((num,) for num in nums))


def put_pending(connection: sqlite3.Connection, nums: Sequence[int], error: str, *, refused: bool = False) -> None:
    """Queue entries for embedding, or count another failed attempt; `refused` when the model does not take them.

    Their windows in the active space go: they may be of a former text. Those of a space that is being built stay;
    `spaces.changed_while_moving` looks after them.
    """
    former = _vectors_of(connection, nums)
    if former:
        connection.executemany(
            "DELETE FROM windows WHERE entry = ? AND space IN (SELECT id FROM spaces WHERE active = 1)",
            ((num,) for num in nums),
        )
        drop_unused(connection, former)
    connection.executemany(
        "INSERT INTO pending VALUES (?, 1, ?, ?) ON CONFLICT (entry) DO UPDATE SET "
        "attempts = attempts + 1, last_error = excluded.last_error, refused = excluded.refused",
        ((num, error, int(refused)) for num in nums),
    )


def forget(connection: sqlite3.Connection, nums: Sequence[int]) -> None:
    """Delete the windows of entries, and vectors that nothing else uses."""
    former = _vectors_of(connection, nums)
    connection.executemany("DELETE FROM windows WHERE entry = ?", ((num,) for num in nums))
    drop_unused(connection, former)


def _vectors_of(connection: sqlite3.Connection, nums: Sequence[int]) -> set[int]:
    query = "SELECT vector FROM windows WHERE entry IN (SELECT value FROM json_each(?))"
    return {row[0] for row in connection.execute(query, [json.dumps(nums)])} if nums else set()


def drop_unused(connection: sqlite3.Connection, vectors: Iterable[int]) -> None:
    """Delete those of these vectors that no window has."""
    connection.executemany(
        "DELETE FROM vectors WHERE id = ? AND NOT EXISTS (SELECT 1 FROM windows WHERE vector = vectors.id)",
        ((vector,) for vector in vectors),
    )


def pending(connection: sqlite3.Connection, after: int, limit: int, *, refused: bool) -> list[Pending]:
    """Queued entries with a number above `after`; with `refused`, also those that the model did not take."""
    rows = connection.execute(
        "SELECT entry, attempts, last_error FROM pending WHERE entry > ? AND refused <= ? ORDER BY entry LIMIT ?",
        [after, int(refused), limit],
    )
    return [Pending(*row) for row in rows]


def waiting(connection: sqlite3.Connection, what: Scope | Sequence[str], limit: int) -> list[Waiting]:
    """Queued entries of a scope, or those of these ids that are queued, in order of id."""
    if isinstance(what, Scope):
        condition, values = where(what)
    else:
        condition, values = "id IN (SELECT value FROM json_each(?))", [json.dumps(list(what))]
    rows = connection.execute(
        "SELECT id, attempts, last_error FROM pending JOIN entries ON entries.num = pending.entry "
        f"WHERE {condition} ORDER BY +id LIMIT ?",  # few wait: they are sorted, not met on the way through all
        [*values, limit],
    )
    return [Waiting(*row) for row in rows]


def pending_count(connection: sqlite3.Connection, scope: Scope | None = None, *, refused: bool = True) -> int:
    """How many entries are queued, in all or within a scope; with `refused`, also those that the model did not take."""
    if scope is None:
        rows = connection.execute("SELECT count(*) FROM pending WHERE refused <= ?", [int(refused)])
        return int(rows.fetchone()[0])
    condition, values = where(scope)
    queued = connection.execute("SELECT count(*) FROM (SELECT 1 FROM pending LIMIT ?)", [_FEW]).fetchone()[0]
    if not queued:
        return 0
    # A scope may hold a million entries of which none waits; CROSS keeps SQLite from walking through them.
    join = "CROSS JOIN entries" if queued < _FEW else "JOIN entries"
    query = f"SELECT count(*) FROM pending {join} ON entries.num = pending.entry WHERE {condition}"
    return int(connection.execute(query, values).fetchone()[0])


def any_pending(connection: sqlite3.Connection, *, refused: bool) -> bool:
    """Is an entry queued? With `refused`, also one that the model did not take."""
    query = "SELECT EXISTS (SELECT 1 FROM pending WHERE refused <= ?)"
    return bool(connection.execute(query, [int(refused)]).fetchone()[0])


def check_rows(rows: Matrix, expected: int) -> None:
    """Raises `EmbedderError` unless `rows` are `expected` finite rows of unit length."""
    import numpy as np

    if rows.ndim != 2 or len(rows) != expected:
        raise EmbedderError(f"the embedder returned {rows.shape} for {expected} texts")
    if len(rows) and not (np.isfinite(rows).all() and np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-3)):
        raise EmbedderError("the embedder returned vectors that are not finite or not of unit length")
