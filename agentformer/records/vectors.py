"""Windows, vectors, and the embedding queue, which lists the entries that have no vectors yet. A window is a passage of
an entry that is short enough for the embedding model.

In each embedding space, one vector is stored for each different text, under the SHA-256 of the embedded text. Vectors
are stored as little-endian float32 numbers. A vector that is not finite or not of unit length is refused.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from agentformer.errors import EmbedderError
from agentformer.records.integrity import checksums
from agentformer.types import Connection, Matrix, Row, Scope, Span, Statement, Waiting, common

HASH_BYTES = 32
_FLOAT_BYTES = 4
_SHORT_QUEUE = 1_000  # in a shorter queue, each entry is looked up on its own; for a longer one, the scope is read
# In PostgreSQL, several namespaces may store the vector of the same text, all with the same id; only one is read.
_VECTOR_IDS = Statement(
    sqlite="SELECT hash, id FROM vectors WHERE space = ? AND hash IN ({among})",
    postgres="""
    SELECT v.hash, v.id FROM (SELECT %s::bigint AS space) AS s CROSS JOIN unnest(%s::bytea[]) AS h (hash)
    CROSS JOIN LATERAL (
        SELECT hash, id FROM vectors WHERE vectors.space = s.space AND vectors.hash = h.hash LIMIT 1
    ) AS v
    """,
)
_VECTORS_OF = Statement(
    sqlite="SELECT vector FROM windows WHERE entry IN (SELECT value FROM json_each(?))",
    postgres="SELECT vector FROM windows WHERE entry = ANY(%s)",
)
_DELETE_UNUSED = Statement(
    sqlite="DELETE FROM vectors WHERE id = ? AND NOT EXISTS (SELECT 1 FROM windows WHERE vector = vectors.id)",
    postgres="DELETE FROM vectors AS v WHERE id = %s AND NOT EXISTS "
    "(SELECT 1 FROM windows AS w WHERE w.entry_namespace = v.entry_namespace AND w.vector = v.id)",
)
_CHECKED = ("space", "entry", "span_start", "span_end", "vector")  # columns that the checksum of a window covers
_WINDOW = f"SELECT id, {', '.join(_CHECKED)}, checksum FROM windows WHERE id"
WINDOWS = Statement(sqlite=f"{_WINDOW} IN ({{among}})", postgres=f"{_WINDOW} = ANY(%s)")
_DELETE_WINDOWS = common("DELETE FROM windows WHERE entry = ?")
_DELETE_WINDOWS_OF_SPACE = common("DELETE FROM windows WHERE entry = ? AND space = ?")
_DELETE_ACTIVE_WINDOWS = common(
    "DELETE FROM windows WHERE entry = ? AND space IN (SELECT id FROM spaces WHERE active = 1)"
)
_REMOVE_PENDING = common("DELETE FROM pending WHERE entry = ?")
_ATTEMPTED = (
    "DO UPDATE SET attempts = pending.attempts + 1, last_error = excluded.last_error, refused = excluded.refused"
)
_PUT_PENDING = Statement(
    sqlite=f"INSERT INTO pending VALUES (?, 1, ?, ?) ON CONFLICT (entry) {_ATTEMPTED}",
    postgres=f"""
    INSERT INTO pending (entry_namespace, entry, attempts, last_error, refused)
    SELECT p.namespace, p.num, 1, v.last_error, v.refused
    FROM (VALUES (%s::bigint, %s::text, %s::smallint)) AS v (entry, last_error, refused)
    JOIN entry_places AS p ON p.num = v.entry
    ON CONFLICT (entry_namespace, entry) {_ATTEMPTED}
    """,
)
_PENDING = common(
    "SELECT entry, attempts, last_error FROM pending WHERE entry > ? AND refused <= ? ORDER BY entry LIMIT ?"
)
# Because of the plus sign, SQLite sorts the few queued entries and does not read the whole index.
_WAITING = "SELECT id, attempts, last_error FROM pending JOIN entries ON entries.num = pending.entry"
_WAITING_IN_SCOPE = Statement(
    sqlite=f"{_WAITING} WHERE {{scope}} ORDER BY +id LIMIT ?",
    postgres=f"{_WAITING} AND namespace = entry_namespace WHERE {{scope}} ORDER BY id LIMIT %s",
)
_WAITING_BY_ID = Statement(
    sqlite=f"{_WAITING} WHERE id IN (SELECT value FROM json_each(?)) ORDER BY +id LIMIT ?",
    postgres=f"{_WAITING} AND namespace = entry_namespace WHERE id = ANY(%s) ORDER BY id LIMIT %s",
)
_PENDING_COUNT = common("SELECT count(*) FROM pending WHERE refused <= ?")
_QUEUE_LENGTH = common("SELECT count(*) FROM (SELECT 1 FROM pending LIMIT ?) AS queued")
_COUNT_IN_SCOPE = "SELECT count(*) FROM pending JOIN entries ON entries.num = pending.entry"
_PENDING_IN_SCOPE = Statement(
    sqlite=f"{_COUNT_IN_SCOPE} WHERE {{scope}}",
    postgres=f"{_COUNT_IN_SCOPE} AND namespace = entry_namespace WHERE {{scope}}",
)
# A scope may have a million entries that are not queued. CROSS makes SQLite read the queue first.
_FEW_PENDING_IN_SCOPE = Statement(
    sqlite="SELECT count(*) FROM pending CROSS JOIN entries ON entries.num = pending.entry WHERE {scope}",
    postgres=_PENDING_IN_SCOPE.postgres,
)
HAS_PENDING = common("SELECT EXISTS (SELECT 1 FROM pending)")
_HAS_UNREFUSED = common("SELECT EXISTS (SELECT 1 FROM pending WHERE refused = 0)")


class Window(NamedTuple):
    """A passage of an entry's content that is short enough for the embedding model. `hash` is the SHA-256 of the text
    that is embedded for this passage."""

    span: Span
    hash: bytes


class Rows(NamedTuple):
    """The vectors of several texts. `hashes` has the SHA-256 of each text, and `matrix` has a unit vector for each hash
    in the same order; its shape is (len(hashes), dimension)."""

    hashes: Sequence[bytes]
    matrix: Matrix


class Pending(NamedTuple):
    """An entry that waits for its vectors. `num` is the row number of the entry, `attempts` is the number of attempts
    to embed the entry, and `last_error` is the last error."""

    num: int
    attempts: int
    last_error: str


def text_hash(text: str) -> bytes:
    """Return the SHA-256 of a text, under which the vector of the text is stored."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def vector_ids(connection: Connection, space: int, hashes: Iterable[bytes]) -> dict[bytes, int]:
    """Return a dictionary: hash of a text -> id of its stored vector in the embedding space. It has no item for a text
    without a vector."""
    ids: dict[bytes, int] = {}
    ids.update((row[0], row[1]) for row in connection.run_among(_VECTOR_IDS, list(hashes), [space]))
    return ids


def put_vectors(
    connection: Connection, space: int, hashes: Sequence[bytes], rows: Matrix, namespaces: Collection[str] = ()
) -> None:
    """Store vectors in an embedding space. Row i of `rows` is the vector of the text with the hash `hashes[i]`. A
    vector that already exists is not replaced. `namespaces` are those of the entries with these texts, if they are
    known. Raises `EmbedderError` if a row is not a unit vector."""
    import numpy as np

    if not hashes:
        return
    check_rows(rows, len(hashes))
    data = np.ascontiguousarray(rows, dtype="<f4")
    buffer, size = data.data.cast("B"), data.shape[1] * data.itemsize
    blobs = (buffer[start : start + size] for start in range(0, len(buffer), size))
    sums = checksums.of_vectors(buffer, len(hashes))
    namespace = next(iter(namespaces)) if len(namespaces) == 1 else None
    connection.insert_vectors(zip(itertools.repeat(space), hashes, blobs, sums, strict=False), namespace)


def decode_vectors(ids: Sequence[int], blobs: Sequence[bytes], sums: Sequence[int | None], dimension: int) -> Matrix:
    """Return stored vectors as a matrix with one vector in each row. `blobs` contains the bytes of each vector, and
    `sums` contains its checksum, or None if it has no checksum. Raises `StoreDamaged` if a vector differs from the
    vector that was written."""
    import numpy as np

    data = _join_intact(blobs, sums, dimension)
    if data is None:
        problems = map(vector_damage, blobs, sums, itertools.repeat(dimension))
        number, problem = next(pair for pair in zip(ids, problems, strict=False) if pair[1])
        raise checksums.damage_error(f"the vector {number}", problem)
    return np.frombuffer(data, "<f4").reshape(-1, dimension).astype(np.float32, copy=False)


def _join_intact(blobs: Sequence[bytes], sums: Sequence[int | None], dimension: int) -> bytes | None:
    """Return the bytes of all vectors as one bytes object, or None if a vector is damaged. All vectors are checked in
    one step, because this is much faster for a million vectors."""
    try:
        data = b"".join(blobs)
    except TypeError:  # a value of another type
        return None
    if not {*map(len, blobs)} <= {dimension * _FLOAT_BYTES}:
        return None
    if sums.count(None) == len(sums):
        return data
    actual = checksums.of_vectors(data, len(blobs))
    if actual == [*sums]:
        return data
    intact = all(stored is None or stored == computed for stored, computed in zip(sums, actual, strict=True))
    return data if intact else None


def vector_damage(data: object, checksum: int | None, dimension: int | None) -> str:
    """Return a text that describes the damage of a stored vector, or "" if the vector is not damaged. If `dimension` is
    None, the length of the vector is not checked."""
    if not isinstance(data, bytes) or not data or len(data) % _FLOAT_BYTES:
        return "it is not a vector"
    if dimension is not None and len(data) != dimension * _FLOAT_BYTES:
        return f"it has {len(data)} bytes instead of {dimension * _FLOAT_BYTES}"
    return checksums.DIFFERS if checksum is not None and checksums.of_vectors(data, 1) != [checksum] else ""


def put_windows(
    connection: Connection,
    space: int,
    cuts: Sequence[tuple[int, Sequence[Window]]],
    vectors: Mapping[bytes, int],
) -> None:
    """Replace the windows (embedded passages) of entries in an embedding space. Each item of `cuts` has the row number
    of an entry and its new windows. `vectors` maps the hash of a text to the id of its stored vector."""
    former = _vectors_of(connection, [num for num, _ in cuts])
    if former:
        connection.run_many(_DELETE_WINDOWS_OF_SPACE, ((num, space) for num, _ in cuts))
    rows = ((space, num, w.span.start, w.span.end, vectors[w.hash]) for num, windows in cuts for w in windows)
    connection.insert_windows((*row, checksums.of_values(row)) for row in rows)
    delete_unused_vectors(connection, former)


def window_spans(connection: Connection, windows: Sequence[int]) -> dict[int, Span]:
    """Return a dictionary: window id -> the span of characters that this window (embedded passage) covers in the
    content of its entry. It has no item for a missing window. Raises `StoreDamaged` if a window is damaged."""
    spans = {}
    for number, *values, checksum in connection.run_among(WINDOWS, windows, plain=True):
        if checksum is not None and checksums.of_values(values) != checksum:
            raise checksums.damage_error(f"the window {number}", checksums.DIFFERS)
        spans[number] = Span(values[2], values[3])
    return spans


def window_damage(row: Row) -> str:
    """Return a text that describes the damage of a stored window, or "" if the window is not damaged."""
    values = [row[name] for name in _CHECKED]
    return checksums.DIFFERS if row["checksum"] is not None and checksums.of_values(values) != row["checksum"] else ""


def remove_pending(connection: Connection, nums: Sequence[int]) -> None:
    connection.run_many(_REMOVE_PENDING, ((num,) for num in nums))


def put_pending(connection: Connection, nums: Sequence[int], error: str, *, refused: bool = False) -> None:
    """Add entries to the embedding queue. For an entry that is already in the queue, count another failed attempt.
    `refused` is true if the embedding model does not accept these entries. The windows (embedded passages) of the
    entries in the active embedding space are deleted, because these windows may belong to a former text."""
    former = _vectors_of(connection, nums)
    if former:
        connection.run_many(_DELETE_ACTIVE_WINDOWS, ((num,) for num in nums))
        delete_unused_vectors(connection, former)
    connection.run_many(_PUT_PENDING, ((num, error, int(refused)) for num in nums))


def delete_windows(connection: Connection, nums: Sequence[int]) -> None:
    """Delete the windows (embedded passages) of entries, and the vectors that no other window uses."""
    former = _vectors_of(connection, nums)
    connection.run_many(_DELETE_WINDOWS, ((num,) for num in nums))
    delete_unused_vectors(connection, former)


def _vectors_of(connection: Connection, nums: Sequence[int]) -> set[int]:
    return {row[0] for row in connection.run(_VECTORS_OF, [list(nums)])} if nums else set()


def delete_unused_vectors(connection: Connection, vectors: Iterable[int]) -> None:
    """Delete each of these vectors that no window (embedded passage) uses."""
    connection.run_many(_DELETE_UNUSED, ((vector,) for vector in vectors))


def pending_entries(connection: Connection, after: int, limit: int, *, refused: bool) -> list[Pending]:
    """Return at most `limit` entries of the embedding queue, in order of their row numbers, beginning after the row
    number `after`. Entries that the embedding model refused are included only if `refused` is true."""
    return [Pending(*row) for row in connection.run(_PENDING, [after, int(refused), limit])]


def waiting_entries(connection: Connection, selected: Scope | Sequence[str], limit: int) -> list[Waiting]:
    """Return at most `limit` entries of the embedding queue, in order of id. If `selected` is a scope, the entries
    match this scope. Otherwise, `selected` contains the ids of the entries."""
    if isinstance(selected, Scope):
        rows = connection.run(_WAITING_IN_SCOPE, [limit], scope=selected)
    else:
        rows = connection.run(_WAITING_BY_ID, [list(selected), limit])
    return [Waiting(*row) for row in rows]


def pending_count(connection: Connection, scope: Scope | None = None, *, refused: bool = True) -> int:
    """Return the number of entries in the embedding queue, in a scope or in the whole store. In a scope, entries that
    the model refused are always counted. In the whole store, they are counted only if `refused` is true."""
    if scope is None:
        return int(connection.run(_PENDING_COUNT, [int(refused)]).fetchone()[0])
    queued = connection.run(_QUEUE_LENGTH, [_SHORT_QUEUE]).fetchone()[0]
    if not queued:
        return 0
    query = _FEW_PENDING_IN_SCOPE if queued < _SHORT_QUEUE else _PENDING_IN_SCOPE
    return int(connection.run(query, scope=scope).fetchone()[0])


def has_pending(connection: Connection, *, refused: bool) -> bool:
    """Return whether the embedding queue has an entry. Refused entries are considered only if `refused` is true."""
    return bool(connection.run(HAS_PENDING if refused else _HAS_UNREFUSED).fetchone()[0])


def check_rows(rows: Matrix, expected: int) -> None:
    """Raise `EmbedderError` if `rows` is not a matrix with `expected` rows, or if a row is not finite or not of unit
    length."""
    import numpy as np

    if rows.ndim != 2 or len(rows) != expected:
        raise EmbedderError(
            f"the embedder returned vectors of shape {rows.shape} instead of one vector for each of {expected} texts"
        )
    if len(rows) and not (np.isfinite(rows).all() and np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-3)):
        raise EmbedderError(
            "the embedder returned a vector that is not finite or not of unit length; normalize its vectors"
        )
