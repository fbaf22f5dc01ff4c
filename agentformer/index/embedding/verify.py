"""Verification of the windows and vectors in the database. A window is a part of an entry that was embedded. Each
function compares windows or vectors with the entries in one transaction.

Damage is returned as findings, and no error is raised. A repair deletes the damaged data and puts the affected entries
into the queue, so that they are embedded again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, islice
from typing import NamedTuple

import numpy as np

from agentformer.errors import EmbedderError, StoreDamaged
from agentformer.index.embedding.windows import SHARES, WindowCutter
from agentformer.records import change_feed
from agentformer.records import vectors as store
from agentformer.records.integrity.findings import Findings
from agentformer.records.integrity.verify import DamagedRow, readable_rows
from agentformer.records.scopes import SEARCHED
from agentformer.records.spaces import active_space, add_to_move, building_space, decode_space
from agentformer.types import (
    UNSEARCHED_KINDS,
    Connection,
    Embedder,
    MemoryEntry,
    RecordStore,
    Row,
    Span,
    Statement,
    common,
)

_ENTRIES = 500  # read at a time
_ROWS = 4_096  # vectors verified at a time
_UNIT = 1e-3  # maximum difference between a vector's length and 1, as for new vectors
_MIN_GAP = 16  # if tokens are unknown, this many letters outside all windows are a finding
_REPAIRED = 256  # number of entries changed in one transaction, so that other writers do not wait long
_REASON = "its vectors were damaged"
_REQUEUED = "embedded again as soon as the embedder is available"
_UNUSED = Statement(
    sqlite="SELECT count(*) FROM vectors WHERE NOT EXISTS (SELECT 1 FROM windows WHERE vector = vectors.id)",
    postgres="SELECT count(DISTINCT id) FROM vectors AS v WHERE NOT EXISTS "
    "(SELECT 1 FROM windows AS w WHERE w.entry_namespace = v.entry_namespace AND w.vector = v.id)",
)
_OWNERS_OF_VECTORS = Statement(
    sqlite="SELECT DISTINCT entry FROM windows WHERE vector IN (SELECT value FROM json_each(?))",
    postgres="SELECT DISTINCT entry FROM windows WHERE vector = ANY(%s)",
)
_DELETE_WINDOWS_OF_VECTORS = Statement(
    sqlite="DELETE FROM windows WHERE vector IN (SELECT value FROM json_each(?))",
    postgres="DELETE FROM windows WHERE vector = ANY(%s)",
)
_DELETE_VECTORS = Statement(
    sqlite="DELETE FROM vectors WHERE id IN (SELECT value FROM json_each(?))",
    postgres="DELETE FROM vectors WHERE id = ANY(%s)",
)
_DELETE_WINDOWS = common("DELETE FROM windows WHERE entry = ?")
_DELETE_WINDOWS_WITHOUT_SPACE = common("DELETE FROM windows WHERE space NOT IN (SELECT id FROM spaces)")
_KINDS = Statement(
    sqlite="SELECT num, kind FROM entries WHERE num IN (SELECT value FROM json_each(?))",
    postgres="SELECT num, kind FROM entries WHERE num = ANY(%s)",
)
_SPACES = common("SELECT * FROM spaces")
_WITHOUT_OWNER = common(
    "SELECT DISTINCT entry FROM windows WHERE entry NOT IN (SELECT num FROM entries) "
    "OR space NOT IN (SELECT id FROM spaces)"
)
_TEXTS = "SELECT num, id, content, context FROM entries WHERE num >"
_SEARCHED_TEXTS = Statement(
    sqlite=f"{_TEXTS} ? AND +{SEARCHED} ORDER BY num LIMIT {_ENTRIES}",
    postgres=f"{_TEXTS} %s AND {SEARCHED} ORDER BY num LIMIT {_ENTRIES}",
)
_WITH_HASHES = "SELECT w.*, v.hash FROM windows AS w LEFT JOIN vectors AS v ON v.id = w.vector AND v.space = w.space"
_WINDOWS = Statement(
    sqlite=f"{_WITH_HASHES} WHERE w.entry BETWEEN ? AND ? AND w.space = ?",
    postgres=f"{_WITH_HASHES} AND v.entry_namespace = w.entry_namespace "
    "WHERE w.entry BETWEEN %s AND %s AND w.space = %s",
)
_QUEUED, _MOVING = common("SELECT entry FROM pending"), common("SELECT entry FROM moving")


class _Window(NamedTuple):
    """A window as it is stored. `hash` is the hash of the embedded text, or None if the vector is missing or belongs to
    another space. `damaged` is True if the checksum of the window is wrong."""

    span: Span
    hash: bytes | None
    damaged: bool


class _Model:
    """Computes the texts and the tokens of windows with the embedder. After the first failure of the embedder,
    `problem` contains the reason, and the embedder is not called again."""

    def __init__(self, embedder: Embedder | None, problem: str) -> None:
        self.problem = problem  # why the embedder is unavailable
        self.missed = False  # True if a text could not be compared
        self._embedder = embedder
        self._cutters: list[WindowCutter] = []

    def texts(self, entry: MemoryEntry, span: Span) -> Iterator[str]:
        """Yield all texts that may have been embedded for the part `span` of an entry. There may be several texts,
        because the context line before the part is cut to a length that depends on the window size."""
        if not entry.context:
            yield entry.content[span.start : span.end]
        elif self._embedder is not None:
            try:
                self._cutters = self._cutters or [WindowCutter(self._embedder, share) for share in SHARES]
                for cutter in self._cutters:
                    yield cutter.text(entry, span)
            except EmbedderError as error:
                self._failed(error)

    def can_compare(self, entry: MemoryEntry) -> bool:
        """Return whether the windows of an entry can be compared with their embedded texts. If the entry has a context
        line, the comparison needs the embedder, because the embedder determines the length of this line. If the result
        is False, `missed` becomes True."""
        self.missed = self.missed or bool(entry.context and self._embedder is None)
        return not entry.context or self._embedder is not None

    def tokens(self, text: str) -> Sequence[Span] | None:
        """Return the position of each token in a text, or None if the embedder is unavailable."""
        try:
            return self._embedder.token_spans(text) if self._embedder is not None else None
        except EmbedderError as error:
            self._failed(error)
            return None

    def _failed(self, error: EmbedderError) -> None:
        self._embedder, self.problem, self.missed = None, str(error), True


@dataclass(frozen=True)
class _Space:
    """An embedding space to verify. The entries in `queue` have no vectors yet. `moving` is True for the new space of a
    migration that is not complete. In this space, entries in `queue` may still have windows of their former text; these
    windows are not reported."""

    number: int
    model: _Model
    queue: Collection[int]
    moving: bool = False


def verify_windows(
    connection: Connection, embedder: Embedder | None, problem: str, damaged: Collection[int]
) -> Findings:
    """Verify the windows of each searchable entry. The windows must cover the text of the entry, and each window must
    have the vector of its text. An entry in the queue needs no windows. The key of each finding is the number of the
    entry. `embedder` belongs to the active embedding space. If `embedder` is None, `problem` says why the embedder is
    unavailable. Entries with a number in `damaged` are not verified."""
    findings = Findings("windows", "each searched text is embedded completely, or waits to be embedded")
    findings.advice = "run `agentformer doctor --repair` to embed the entry again"
    with connection.lenient_text(), findings.reading(sqlite3.DatabaseError):
        findings.add_all(
            (f"some windows with the entry number {row[0]} belong to no entry, or to no embedding space", row[0])
            for row in connection.run(_WITHOUT_OWNER)
        )
        active, building = active_space(connection), building_space(connection)
        if active is None:
            _verify_space(connection, findings, _Space(0, _Model(None, ""), _queue(connection, _QUEUED)), damaged)
            return findings
        model = _Model(embedder, problem)
        _verify_space(connection, findings, _Space(active[0], model, _queue(connection, _QUEUED)), damaged)
        if model.missed:
            findings.note(
                f"the texts of entries with a context line were not compared with their vectors, because the embedder "
                f"is unavailable: {model.problem}"
            )
        if building is not None:
            target = _Space(building[0], _Model(None, ""), _queue(connection, _MOVING), moving=True)
            _verify_space(connection, findings, target, damaged)
    return findings


def verify_vectors(connection: Connection) -> Findings:
    """Verify that each vector has a correct checksum, the dimension of its embedding space, and the length 1. The key
    of each finding is a `DamagedRow` that contains the number of the vector."""
    findings = Findings("vectors", "each vector has the correct checksum, dimension and length")
    findings.advice = "run `agentformer doctor --repair` to delete the vector and embed its text again"
    with findings.reading(sqlite3.DatabaseError):
        dimensions = _dimensions(connection)
        stored = readable_rows(connection, "vectors", "id")
        while batch := list(islice(stored, _ROWS)):
            rows = []
            for row in batch:
                if isinstance(row, DamagedRow):
                    findings.add(f"the vectors with number {row.num} and above are damaged: {row.why}", row)
                else:
                    rows.append(row)
            findings.looked_at += len(rows)
            _verify_rows(findings, rows, dimensions)
        unused = connection.run(_UNUSED).fetchone()[0]
        if unused:
            findings.note(
                f"{unused} vectors belong to no entry; an interrupted import or embedding uses them when it is "
                "repeated; `agentformer doctor --repair` deletes them"
            )
    return findings


def repair_vectors(database: RecordStore, findings: Findings) -> None:
    """Delete the vectors that are damaged according to `findings`, and delete the text windows that use these vectors.
    Put the entries of these windows into the embedding queue, so that they are embedded again."""
    numbers = [damaged.num for damaged in findings.keys if damaged.last == damaged.num]
    for batch in _batches(numbers):
        with database.writing() as connection:
            rows = connection.run(_OWNERS_OF_VECTORS, [batch])
            _requeue(connection, [row[0] for row in rows])
            connection.run(_DELETE_WINDOWS_OF_VECTORS, [batch])
            connection.run(_DELETE_VECTORS, [batch])
    findings.mark_repaired(len(numbers), f"the damaged vectors were deleted, and their texts are {_REQUEUED}")


def repair_windows(database: RecordStore, findings: Findings) -> None:
    """Put the entries with wrong windows into the queue. Delete windows without an entry or embedding space."""
    for batch in _batches(findings.keys):
        with database.writing() as connection:
            missing = sorted(set(batch) - set(_requeue(connection, batch)))
            connection.run_many(_DELETE_WINDOWS, ((num,) for num in missing))
            connection.run(_DELETE_WINDOWS_WITHOUT_SPACE)
    findings.mark_repaired(len(findings.keys), f"these entries are {_REQUEUED}")


def _requeue(connection: Connection, nums: Sequence[int]) -> list[int]:
    """Put the searchable entries among `nums` into the queue. Return the numbers of all entries that exist."""
    rows = connection.run(_KINDS, [list(nums)]).fetchall()
    searched = [row["num"] for row in rows if row["kind"] not in UNSEARCHED_KINDS]
    store.put_pending(connection, searched, _REASON)
    add_to_move(connection, searched)
    change_feed.append(connection, searched)
    return [row["num"] for row in rows]


def _batches(numbers: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(numbers), _REPAIRED):
        yield list(numbers[start : start + _REPAIRED])


def _verify_rows(findings: Findings, rows: Sequence[Row], dimensions: Mapping[int, int]) -> None:
    intact = []
    for row in rows:
        if problem := store.vector_damage(row["data"], row["checksum"], dimensions.get(row["space"])):
            findings.add(f"vector {row['id']} is damaged: {problem}", _damaged_vector(row["id"]))
        else:
            intact.append(row)
    for _, group in groupby(intact, key=lambda row: len(row["data"])):
        alike = list(group)
        matrix = np.frombuffer(b"".join(row["data"] for row in alike), "<f4").reshape(len(alike), -1)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64))
            wrong = np.flatnonzero(~(np.abs(lengths - 1) <= _UNIT))
        for i in wrong.tolist():
            findings.add(f"vector {alike[i]['id']} is not a unit vector", _damaged_vector(alike[i]["id"]))


def _damaged_vector(num: int) -> DamagedRow:
    return DamagedRow("vectors", num, num, "")


def _dimensions(connection: Connection) -> dict[int, int]:
    dimensions = {}
    for row in connection.run(_SPACES):
        try:
            dimensions[row["id"]] = decode_space(row).dimension
        except StoreDamaged:
            continue  # the check of the metadata reports this damage
    return dimensions


def _verify_space(connection: Connection, findings: Findings, space: _Space, damaged: Collection[int]) -> None:
    for entries in _searched_entries(connection, damaged):
        windows = _read_windows(connection, space.number, entries[0][0], entries[-1][0])
        findings.looked_at += 0 if space.moving else len(entries)
        for num, entry in entries:
            problem = ""
            if num not in space.queue:
                problem = _problem(entry, windows.get(num, []), space.model)
            elif windows.get(num) and not space.moving:
                problem = "waits for its vectors, but already has some of them"
            if problem:
                findings.add(f"entry {entry.id} {problem}", num)


def _problem(entry: MemoryEntry, windows: Sequence[_Window], model: _Model) -> str:
    """Return the end of a sentence that begins with the entry and says what is wrong, or ""."""
    if not windows:
        return "has no windows (embedded parts) and does not wait to be embedded" if entry.content.strip() else ""
    for span, digest, _ in windows:
        if digest is None:
            return "has a window without its vector"
        if not 0 <= span.start < span.end <= len(entry.content):
            return (
                f"has a window from {span.start} to {span.end}, but its text has only {len(entry.content)} characters"
            )
        if all(store.text_hash(text) != digest for text in model.texts(entry, span)) and model.can_compare(entry):
            return "has a window with the vector of another text"
    if any(window.damaged for window in windows):
        return "has a window with a wrong checksum"
    return "has text outside of all windows" if _has_gap(entry.content, windows, model) else ""


def _has_gap(content: str, windows: Sequence[_Window], model: _Model) -> bool:
    """Return whether a part of the text is in no window. Only a part that contains a token counts. If the model cannot
    compute tokens, only a part with a minimum number of letters and digits counts."""
    spans = sorted(window.span for window in windows)
    ends = accumulate((span.end for span in spans), max, initial=0)
    starts = (*(span.start for span in spans), len(content))
    gaps = [Span(end, start) for end, start in zip(ends, starts, strict=True) if content[end:start].strip()]
    if not gaps:
        return False
    tokens = model.tokens(content)
    if tokens is None:
        return any(sum(map(str.isalnum, content[start:end])) >= _MIN_GAP for start, end in gaps)
    visible = [token for token in tokens if content[token.start : token.end].strip()]
    return any(start <= token.start and token.end <= end for start, end in gaps for token in visible)


def _searched_entries(connection: Connection, damaged: Collection[int]) -> Iterator[Sequence[tuple[int, MemoryEntry]]]:
    """Yield all searchable entries in batches, in order of their number, with id, content and context only."""
    after = -1
    while rows := connection.run(_SEARCHED_TEXTS, [after]).fetchall():
        after = rows[-1][0]
        entries = [
            (row[0], MemoryEntry(row[1], row[2], context=row[3]))
            for row in rows
            if row[0] not in damaged
            and all(isinstance(value, str) for value in row[1:])  # otherwise, the row is in a damaged page
        ]
        if entries:
            yield entries


def _read_windows(connection: Connection, space: int, first: int, last: int) -> dict[int, list[_Window]]:
    rows = connection.run(_WINDOWS, [first, last, space])
    windows: dict[int, list[_Window]] = {}
    for row in rows:
        window = _Window(Span(row["span_start"], row["span_end"]), row["hash"], bool(store.window_damage(row)))
        windows.setdefault(row["entry"], []).append(window)
    return windows


def _queue(connection: Connection, query: Statement) -> set[int]:
    return {row[0] for row in connection.run(query)}
