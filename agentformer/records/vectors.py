"""Embedding spaces, windows, vectors, and the queue of entries that have no vectors yet.

A vector is kept once per space and text (SHA-256 of exactly what was embedded). Rows are float32,
little-endian, finite and of unit length; anything else is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from agentformer.errors import EmbedderError, SpaceMismatch
from agentformer.records.scopes import where
from agentformer.types import EmbeddingSpace, Matrix, Scope, Span

# Two loads of one model on different hardware agree far better than this; two models do not come near it.
_SAME_MODEL_COSINE = 0.99
_MOVED_MODEL_COSINE = 0.9999  # under another name a model must agree to the last bits that hardware leaves alone


class Window(NamedTuple):
    """A part of an entry's content that fits the model, and the hash of the text that is embedded for it."""

    span: Span
    hash: bytes


class Pending(NamedTuple):
    num: int
    attempts: int
    last_error: str


def text_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def active_space(connection: sqlite3.Connection) -> tuple[int, EmbeddingSpace] | None:
    """The space that the store's vectors are in, with its number; None before the first vector."""
    row = connection.execute("SELECT id, description FROM spaces WHERE active = 1").fetchone()
    return (row["id"], EmbeddingSpace(**json.loads(row["description"]))) if row else None


def claim_space(connection: sqlite3.Connection, space: EmbeddingSpace) -> int:
    """The number of `space`, which becomes the store's if it has none. Raises `SpaceMismatch`."""
    known = active_space(connection)
    if known:
        check_same(known[1], space)
        return known[0]
    description = json.dumps(dataclasses.asdict(space))
    cursor = connection.execute("INSERT INTO spaces (description, active) VALUES (?, 1)", [description])
    return int(cursor.lastrowid or 0)


def check_same(stored: EmbeddingSpace, given: EmbeddingSpace) -> None:
    """Raises `SpaceMismatch` unless vectors of both may be compared."""
    told = bool(stored.fingerprint and given.fingerprint)
    if dataclasses.replace(stored, fingerprint="") == dataclasses.replace(given, fingerprint=""):
        if told and _cosine(stored, given) < _SAME_MODEL_COSINE:
            raise SpaceMismatch(
                f"another model is now installed under the name of {_name(stored)}: it embeds the probe text "
                "differently; put the former one back, or ingest into a new --index-dir"
            )
    elif _unnamed(stored) != _unnamed(given) or not told or _cosine(stored, given) < _MOVED_MODEL_COSINE:
        raise SpaceMismatch(
            f"this store's vectors are of {_name(stored)}, and the embedder is {_name(given)}; "
            f"use the store's own embedder (--embedder {stored.provider}:{stored.model}), "
            "or ingest into a new --index-dir"
        )


def _unnamed(space: EmbeddingSpace) -> EmbeddingSpace:
    """What must agree for a model that has moved to another folder or provider."""
    return dataclasses.replace(space, provider="", model="", revision="", fingerprint="")


def known_hashes(connection: sqlite3.Connection, space: int, hashes: Iterable[bytes]) -> set[bytes]:
    """Which of these texts have a vector already."""
    query = "SELECT 1 FROM vectors WHERE space = ? AND hash = ?"
    return {h for h in hashes if connection.execute(query, [space, h]).fetchone()}


def put_vectors(connection: sqlite3.Connection, space: int, hashes: Sequence[bytes], rows: Matrix) -> None:
    """Keep vectors; one that is there already stays. Raises `EmbedderError` for rows that are not unit vectors."""
    check_rows(rows, len(hashes))
    data = np.ascontiguousarray(rows, dtype="<f4")
    connection.executemany(
        "INSERT OR IGNORE INTO vectors (space, hash, data) VALUES (?, ?, ?)",
        ((space, h, row.tobytes()) for h, row in zip(hashes, data, strict=True)),
    )


def put_windows(connection: sqlite3.Connection, space: int, num: int, windows: Sequence[Window]) -> None:
    """Set an entry's windows, whose vectors are stored already, and take it off the queue."""
    former = _vectors_of(connection, [num])
    connection.execute("DELETE FROM windows WHERE entry = ? AND space = ?", [num, space])
    connection.executemany(
        "INSERT INTO windows (space, entry, span_start, span_end, vector) VALUES "
        "(?, ?, ?, ?, (SELECT id FROM vectors WHERE space = ? AND hash = ?))",
        ((space, num, w.span.start, w.span.end, space, w.hash) for w in windows),
    )
    connection.execute("DELETE FROM pending WHERE entry = ?", [num])
    _drop_unused(connection, former)


def put_pending(connection: sqlite3.Connection, nums: Sequence[int], error: str) -> None:
    """Queue entries for embedding, or count another failed attempt. Windows of a former text go."""
    forget(connection, nums)
    connection.executemany(
        "INSERT INTO pending VALUES (?, 1, ?) "
        "ON CONFLICT (entry) DO UPDATE SET attempts = attempts + 1, last_error = excluded.last_error",
        ((num, error) for num in nums),
    )


def forget(connection: sqlite3.Connection, nums: Sequence[int]) -> None:
    """Delete the windows of entries, and vectors that nothing else uses."""
    former = _vectors_of(connection, nums)
    connection.executemany("DELETE FROM windows WHERE entry = ?", ((num,) for num in nums))
    _drop_unused(connection, former)


def _vectors_of(connection: sqlite3.Connection, nums: Sequence[int]) -> set[int]:
    query = "SELECT vector FROM windows WHERE entry = ?"
    return {row[0] for num in nums for row in connection.execute(query, [num])}


def _drop_unused(connection: sqlite3.Connection, vectors: Iterable[int]) -> None:
    connection.executemany(
        "DELETE FROM vectors WHERE id = ? AND NOT EXISTS (SELECT 1 FROM windows WHERE vector = vectors.id)",
        ((vector,) for vector in vectors),
    )


def pending(connection: sqlite3.Connection, after: int, limit: int) -> list[Pending]:
    """Queued entries with a number above `after`."""
    rows = connection.execute(
        "SELECT entry, attempts, last_error FROM pending WHERE entry > ? ORDER BY entry LIMIT ?", [after, limit]
    )
    return [Pending(*row) for row in rows]


def pending_count(connection: sqlite3.Connection, scope: Scope | None = None) -> int:
    """How many entries are queued, in all or within a scope."""
    if scope is None:
        return int(connection.execute("SELECT count(*) FROM pending").fetchone()[0])
    condition, values = where(scope)
    query = f"SELECT count(*) FROM pending JOIN entries ON entries.num = pending.entry WHERE {condition}"
    return int(connection.execute(query, values).fetchone()[0])


def check_rows(rows: Matrix, expected: int) -> None:
    """Raises `EmbedderError` unless `rows` are `expected` finite rows of unit length."""
    if rows.ndim != 2 or len(rows) != expected:
        raise EmbedderError(f"the embedder returned {rows.shape} for {expected} texts")
    if len(rows) and not (np.isfinite(rows).all() and np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-3)):
        raise EmbedderError("the embedder returned vectors that are not finite or not of unit length")


def _name(space: EmbeddingSpace) -> str:
    return f"{space.provider}:{space.model} ({space.dimension} dimensions)"


def _cosine(one: EmbeddingSpace, other: EmbeddingSpace) -> float:
    """Of the two fingerprints; -1.0 where they cannot be compared."""
    a, b = (np.frombuffer(base64.b64decode(s.fingerprint), "<f2").astype(np.float32) for s in (one, other))
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12)) if len(a) == len(b) else -1.0
