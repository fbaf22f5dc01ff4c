"""Do windows and vectors agree with the entries? Like the checks of the records: on one transaction, changing nothing,
and raising nothing for what is damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np

from agentformer.errors import EmbedderError, StoreDamaged
from agentformer.index.embedding.windows import SHARES, WindowCutter
from agentformer.records import vectors as store
from agentformer.records.integrity import Findings
from agentformer.records.integrity import verify as checksums
from agentformer.records.integrity.verify import lenient_text
from agentformer.records.spaces import active_space, building_space, decode_space
from agentformer.types import UNSEARCHED_KINDS, Embedder, MemoryEntry, Span

_GROUP = 500  # entries read at a time
_ROWS = 4_096  # vectors looked at at a time
_UNIT = 1e-3  # by which a vector's length may differ from 1, as when it was stored
_LETTERS = 16  # outside all windows, from which on something is missing although no model is there to tell
_NOT_COMPARED = "texts with a context were not compared with their vectors: {}"


class _Piece(NamedTuple):
    """A window as it is stored; `hash` is None where its vector is not there, or not of its space."""

    span: Span
    hash: bytes | None
    damaged: bool


class _Model:
    """What an embedder can tell of windows, as long as it can be asked."""

    def __init__(self, embedder: Embedder | None, why: str) -> None:
        self.why_not = why
        self.missed = False  # was it asked, and could not tell?
        self._embedder = embedder
        self._cutters: list[WindowCutter] = []

    def texts(self, entry: MemoryEntry, span: Span) -> Iterator[str]:
        """What may have been embedded for a window: with a context, it depends on how much the model took."""
        if not entry.context:
            yield entry.content[span.start : span.end]
        elif self._embedder is not None:
            try:
                self._cutters = self._cutters or [WindowCutter(self._embedder, share) for share in SHARES]
                for cutter in self._cutters:
                    yield cutter.text(entry, span)
            except EmbedderError as error:
                self._lost(error)

    def tells(self, entry: MemoryEntry) -> bool:
        self.missed = self.missed or bool(entry.context and self._embedder is None)
        return not entry.context or self._embedder is not None

    def tokens(self, text: str) -> Sequence[Span] | None:
        """None where nobody can tell."""
        if self._embedder is None:
            return None
        try:
            return self._embedder.token_spans(text)
        except EmbedderError as error:
            self._lost(error)
            return None

    def _lost(self, error: EmbedderError) -> None:
        self._embedder, self.why_not, self.missed = None, str(error), True


def windows(
    connection: sqlite3.Connection, embedder: Embedder | None, why_not: str, damaged: Collection[int]
) -> Findings:
    """Does each entry that is searched have windows that cover it, with the vectors of just these texts, or does it
    wait for them? Keys are numbers of entries. `embedder` is that of the active space, or None for the reason
    `why_not`; entries that are `damaged` are left out."""
    found = Findings("windows", "each entry has windows that cover its text, with their vectors, or waits for them")
    found.advice = "`agentformer doctor --repair` has them embedded again"
    with lenient_text(connection), found.reading(sqlite3.DatabaseError):
        _strays(connection, found)
        active, building = active_space(connection), building_space(connection)
        if active is None:
            _unembedded(connection, found, damaged)
            return found
        model = _Model(embedder, why_not)
        _space(connection, found, active[0], model, _queue(connection, "pending"), damaged)
        if model.missed:
            found.note(_NOT_COMPARED.format(model.why_not))
        if building is not None:
            moving = _queue(connection, "moving")
            _space(connection, found, building[0], _Model(None, ""), moving, damaged, moving=True)
    return found


def vectors(connection: sqlite3.Connection) -> Findings:
    """Is each vector as it was written, of its space's dimension, finite and of unit length? Keys are `Damaged`."""
    found = Findings("vectors", "each vector is as it was written, and a unit vector of its space")
    found.advice = "`agentformer doctor --repair` has its text embedded again"
    with found.reading(sqlite3.DatabaseError):
        dimensions = _dimensions(connection)
        stored = checksums.readable_rows(connection, "vectors", "id")
        while group := list(islice(stored, _ROWS)):
            rows = []
            for row in group:
                if isinstance(row, checksums.DamagedRow):
                    found.add(f"vectors from number {row.num} on: {row.why}", row)
                else:
                    rows.append(row)
            found.looked_at += len(rows)
            _check_vectors(found, rows, dimensions)
        unused = connection.execute(
            "SELECT count(*) FROM vectors WHERE NOT EXISTS (SELECT 1 FROM windows WHERE vector = vectors.id)"
        ).fetchone()[0]
        if unused:
            found.note(
                f"{unused} vectors belong to no entry: work that was broken off finds them again; "
                "`agentformer doctor --repair` deletes them"
            )
    return found


def _check_vectors(found: Findings, rows: Sequence[sqlite3.Row], dimensions: Mapping[int, int]) -> None:
    whole = []
    for row in rows:
        if why := store.vector_damage(row["data"], row["checksum"], dimensions.get(row["space"])):
            found.add(f"vector {row['id']} is damaged: {why}", _one(row["id"]))
        else:
            whole.append(row)
    for _, some in groupby(whole, key=lambda row: len(row["data"])):
        alike = list(some)
        matrix = np.frombuffer(b"".join(row["data"] for row in alike), "<f4").reshape(len(alike), -1)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64))
            wrong = np.flatnonzero(~(np.abs(lengths - 1) <= _UNIT))
        for place in wrong.tolist():
            found.add(f"vector {alike[place]['id']} is no unit vector", _one(alike[place]["id"]))


def _one(num: int) -> checksums.DamagedRow:
    return checksums.DamagedRow("vectors", num, num, "", "")


def _dimensions(connection: sqlite3.Connection) -> dict[int, int]:
    found = {}
    for row in connection.execute("SELECT * FROM spaces"):
        try:
            found[row["id"]] = decode_space(row).dimension
        except StoreDamaged:
            continue  # told of itself
    return found


def _strays(connection: sqlite3.Connection, found: Findings) -> None:
    """Windows of entries, and of spaces, that are not there."""
    rows = connection.execute(
        "SELECT DISTINCT entry FROM windows WHERE entry NOT IN (SELECT num FROM entries) "
        "OR space NOT IN (SELECT id FROM spaces)"
    )
    found.add_all((f"there are windows of entry number {row[0]} that belong nowhere", row[0]) for row in rows)


def _unembedded(connection: sqlite3.Connection, found: Findings, damaged: Collection[int]) -> None:
    """Without any vector, all entries wait."""
    waiting = _queue(connection, "pending")
    for entries in _searched(connection, damaged):
        found.looked_at += len(entries)
        for num, entry in entries:
            if num not in waiting and entry.content.strip():
                found.add(f"entry {entry.id} has no windows and does not wait for them", num)


def _space(
    connection: sqlite3.Connection,
    found: Findings,
    space: int,
    model: _Model,
    waiting: Collection[int],
    damaged: Collection[int],
    *,
    moving: bool = False,
) -> None:
    """All entries against their windows in one space; with `moving`, those that wait may have windows of a former
    text."""
    for entries in _searched(connection, damaged):
        pieces = _pieces(connection, space, entries[0][0], entries[-1][0])
        found.looked_at += 0 if moving else len(entries)
        for num, entry in entries:
            if num in waiting:
                problem = "waits for its vectors and has some" if pieces.get(num) and not moving else ""
            else:
                problem = _problem(entry, pieces.get(num, []), model)
            if problem:
                found.add(f"entry {entry.id} {problem}", num)


def _problem(entry: MemoryEntry, pieces: Sequence[_Piece], model: _Model) -> str:
    """What is wrong with an entry's windows; "" for nothing."""
    if not pieces:
        return "has no windows and does not wait for them" if entry.content.strip() else ""
    for span, digest, _ in pieces:
        if digest is None:
            return "has a window whose vector is not there"
        if not 0 <= span.start < span.end <= len(entry.content):
            return f"has a window from {span.start} to {span.end}, and {len(entry.content)} characters"
        if all(store.text_hash(text) != digest for text in model.texts(entry, span)) and model.tells(entry):
            return "has a window with the vector of another text"
    if any(piece.damaged for piece in pieces):
        return "has a window that is not what was written"
    return "has text in none of its windows" if _uncovered(entry.content, pieces, model) else ""


def _uncovered(content: str, pieces: Sequence[_Piece], model: _Model) -> bool:
    gaps, end = [], 0
    for span in sorted(piece.span for piece in pieces):
        if content[end : span.start].strip():
            gaps.append(Span(end, span.start))
        end = max(end, span.end)
    if content[end:].strip():
        gaps.append(Span(end, len(content)))
    if not gaps:
        return False
    tokens = model.tokens(content)
    if tokens is None:
        return any(sum(map(str.isalnum, content[start:end])) >= _LETTERS for start, end in gaps)
    inside = [token for token in tokens if content[token.start : token.end].strip()]
    return any(start <= token.start and token.end <= end for start, end in gaps for token in inside)


def _searched(connection: sqlite3.Connection, damaged: Collection[int]) -> Iterator[Sequence[tuple[int, MemoryEntry]]]:
    """All entries that are searched, as far as windows know them, in order of number."""
    marks = ", ".join("?" * len(UNSEARCHED_KINDS))
    query = (
        "SELECT num, id, content, context FROM entries "
        f"WHERE num > ? AND +kind NOT IN ({marks}) ORDER BY num LIMIT {_GROUP}"
    )
    after = -1
    while rows := connection.execute(query, [after, *sorted(UNSEARCHED_KINDS)]).fetchall():
        after = rows[-1][0]
        entries = [(row[0], MemoryEntry(row[1], row[2], context=row[3])) for row in rows if row[0] not in damaged]
        if entries:
            yield entries


def _pieces(connection: sqlite3.Connection, space: int, first: int, last: int) -> dict[int, list[_Piece]]:
    rows = connection.execute(
        "SELECT w.*, v.hash FROM windows AS w "
        "LEFT JOIN vectors AS v ON v.id = w.vector AND v.space = w.space "
        "WHERE w.entry BETWEEN ? AND ? AND w.space = ?",
        [first, last, space],
    )
    found: dict[int, list[_Piece]] = {}
    for row in rows:
        span = Span(row["span_start"], row["span_end"])
        piece = _Piece(span, row["hash"], bool(store.window_damage(row)))
        found.setdefault(row["entry"], []).append(piece)
    return found


def _queue(connection: sqlite3.Connection, table: str) -> set[int]:
    return {row[0] for row in connection.execute(f"SELECT entry FROM {table}")}
