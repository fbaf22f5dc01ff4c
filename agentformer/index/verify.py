"""Verification of the index files. The word index and the snapshot of the vector index are compared with the records,
which are the database of the entries.

The index files are opened before the records are read. Therefore the records are at least as new as the files. Entries
that changed after the files were written are not compared, because the next search updates them in the index. A damaged
index is repaired by deleting its files, because the next search rebuilds the index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tantivy
from filelock import Timeout

from agentformer.errors import StoreDamaged, is_passing
from agentformer.index.files import WORDS_FOLDER
from agentformer.index.vectors import snapshot as snapshots
from agentformer.index.vectors.flat import IntArray, Mask
from agentformer.index.vectors.lists import Lists
from agentformer.index.vectors.snapshot import Image
from agentformer.index.vectors.stored_vectors import read_stored_vectors
from agentformer.index.words.fields import ANALYSIS, UNKNOWN_LANGUAGE, AnalyzedEntry, schema
from agentformer.index.words.writer import UncommittedManifest, is_index_failure, read_manifest
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records.change_feed import neighbor_texts
from agentformer.records.integrity.findings import Findings
from agentformer.records.scopes import SEARCHED
from agentformer.records.spaces import active_space
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import Database
from agentformer.settings.access import file_lock
from agentformer.types import Matrix

_BUSY_SECONDS = 120.0  # seconds to wait for a commit; an index that is being rebuilt is not verified
_SAMPLE = 1_000  # number of entries whose terms are all looked up
_PAGE = 100_000  # entry numbers read from the word index at a time
_ROWS = 4_096  # vectors compared at a time
_MIN_COSINE = 0.99  # minimum cosine of a vector and its code; codes of 8 bits per dimension are well above
_TRIES = 3  # attempts to read the snapshot, because another process may be replacing it


def verify_words(folder: Path, database: Database, damaged: Collection[int]) -> Findings:
    """Compare the word index in the memory folder with the records. Return the findings. Entries with a number in
    `damaged` are not compared."""
    findings = Findings("words", "each searched text is in the word index", "the next search rebuilds it")
    words = _open_words(folder / WORDS_FOLDER, database.store_id, findings)
    if words is not None:
        with database.reading() as connection, findings.reading(sqlite3.DatabaseError):
            _compare_words(connection, words, findings, damaged)
    return findings


def verify_snapshot(
    folder: Path, database: Database, damaged: Collection[int], damaged_vectors: Collection[int]
) -> Findings:
    """Compare the snapshot of the vector index with the records. Return the findings. Entries with a number in
    `damaged` and vectors with a number in `damaged_vectors` are not compared."""
    findings = Findings("snapshot", "each vector is in the saved vector index", "the next search rebuilds it")
    files = _read_snapshot(folder, findings)
    if files is None:
        return findings
    meta, image = files
    if meta.get("store") != database.store_id:
        findings.add("the saved vector index belongs to another store")
    elif image is None:
        findings.note(
            "the saved vector index was written by another version of agentformer; the next search rebuilds it"
        )
    else:
        with database.reading() as connection, findings.reading(sqlite3.DatabaseError):
            _compare_snapshot(connection, meta, image, findings, damaged, damaged_vectors)
    return findings


class _Words(NamedTuple):
    """The word index as it was at its last commit. `seq` is the number of the last change of the records that the index
    contains. `point` is the random token that the records had for this change. A different token in the records now
    means that they were restored from a backup."""

    searcher: Any
    schema: Any
    seq: int
    point: str


def _open_words(folder: Path, store_id: str, findings: Findings) -> _Words | None:
    """Return the word index as it is on disk. The lock of the index is held while it is opened, so that no process
    writes it. Return None if there is no index. If the index cannot be compared with the records, add the reason to
    `findings` and return None."""
    if not folder.exists():
        return None
    try:
        with _words_lock(folder):
            state = read_manifest(folder, verify=True)
            if not state:
                return None
            if state.get("store") != store_id:
                findings.add("the word index belongs to another store")
                return None
            if state.get("analysis") != ANALYSIS:
                findings.note(
                    "the word index was written by another version of agentformer; the next search rebuilds it"
                )
                return None
            index = tantivy.Index(schema(), path=str(folder))
            index.reload()
            return _Words(index.searcher(), index.schema, int(state["seq"]), str(state["point"]))
    except Timeout:
        findings.note("the word index was not verified, because another process is writing it; verify it again later")
    except UncommittedManifest:
        findings.note("the last commit of the word index was interrupted; the next search rebuilds it")
    except BaseException as error:
        if not is_index_failure(error):
            raise
        if folder.exists():  # otherwise another process has just deleted the index after a removal
            _add_failure(findings, "the word index", error)
    return None


def _words_lock(folder: Path) -> AbstractContextManager[object]:
    try:
        return file_lock(str(folder) + ".lock", timeout=_BUSY_SECONDS).acquire()
    except Timeout:
        raise
    except OSError:
        return nullcontext()  # if the lock cannot be written, no process can write the index


def _compare_words(connection: SqliteConnection, words: _Words, findings: Findings, damaged: Collection[int]) -> None:
    """Add the differences between the word index and the records to `findings`: missing, unknown and repeated entries,
    and entries of a sample that lack terms. Entries that were changed after the last commit of the index, and those in
    `damaged`, are not compared."""
    if change_feed.token_at(connection, words.seq) != words.point:
        findings.note(
            "the word index was made from another history of the records, for example before a backup was restored; "
            "the next search rebuilds it"
        )
        return
    changed = np.array([*change_feed.entries_since(connection, words.seq), *damaged], np.int64)
    # SQLite returns the numbers as one text, because one Python object for each number would be slow.
    numbers = connection.execute(f"SELECT group_concat(num) FROM entries WHERE {SEARCHED}").fetchone()[0]
    expected = np.setdiff1d(np.fromstring(numbers or "", dtype=np.int64, sep=","), changed)
    try:
        indexed = _indexed_entries(words)
        findings.looked_at = len(indexed)
        entries = np.setdiff1d(indexed, changed)
        if len(entries) != int(np.count_nonzero(~np.isin(indexed, changed))):
            findings.add("the word index contains some entries twice")
        if len(missing := np.setdiff1d(expected, entries)):
            findings.add(f"the word index lacks {len(missing)} entries, such as entry number {missing[0]}")
        if len(unknown := np.setdiff1d(entries, expected)):
            findings.add(
                f"the word index contains {len(unknown)} entries that do not exist, such as entry number {unknown[0]}"
            )
        common = np.intersect1d(expected, entries)
        for entry_id in _entries_without_terms(connection, words, common[:: max(1, len(common) // _SAMPLE)]):
            findings.add(f"the word index lacks terms of entry {entry_id}")
    except BaseException as error:
        if not is_index_failure(error):
            raise
        _add_failure(findings, "the word index", error)


def _indexed_entries(words: _Words) -> IntArray:
    count, everything = int(words.searcher.num_docs), tantivy.Query.all_query()
    parts = [np.zeros(0, np.int64)]
    for start in range(0, count, _PAGE):
        hits = words.searcher.search(everything, limit=_PAGE, offset=start, order_by_field="num", count=False).hits
        parts.append(np.array([number for number, _ in hits], np.int64))  # a hit has the value that it is ordered by
    numbers = np.concatenate(parts)
    if len(numbers) != count:
        raise ValueError("the word index does not list all of its entries")
    return numbers


def _entries_without_terms(connection: SqliteConnection, words: _Words, nums: IntArray) -> Iterator[str]:
    """Yield the ids of the entries whose terms are not all in the word index."""
    for num in nums.tolist():
        try:
            entry = records.by_num(connection, [num])[num]
        except (StoreDamaged, sqlite3.DatabaseError):
            continue  # the check of the entries reports this damage
        if not _has_terms(words, AnalyzedEntry.of(num, entry, around=neighbor_texts(connection, entry))):
            yield entry.id


def _has_terms(words: _Words, entry: AnalyzedEntry) -> bool:
    """Return whether the word index has all terms of the entry. `entry` must be analyzed without optional analyzers. If
    it has no language, but an optional analyzer has detected one for its document in the index, the terms that depend
    on the language are not compared."""
    if words.searcher.search(_all_terms(words, entry), limit=1).count == 1:
        return True
    if entry.language:
        return False
    any_language = tuple(term for term in entry.terms["stems"] if "~" not in term)
    unknown = tantivy.Query.term_query(words.schema, "language", UNKNOWN_LANGUAGE, "basic")
    terms = _all_terms(words, replace(entry, terms={"stems": any_language}))
    query = tantivy.Query.boolean_query([(tantivy.Occur.Must, terms), (tantivy.Occur.MustNot, unknown)])
    return int(words.searcher.search(query, limit=1).count) == 1


def _all_terms(words: _Words, entry: AnalyzedEntry) -> Any:
    """Return a query that tests whether the index has all terms of the entry. The query finds the document of the entry
    only if the document has every term in the right field."""
    terms = [("num", entry.num), *(("places", place) for place in entry.places)]
    terms += [(name, term) for name, all_terms in entry.terms.items() for term in dict.fromkeys(all_terms)]
    queries = (tantivy.Query.term_query(words.schema, name, value, "basic") for name, value in terms)
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query) for query in queries])


def _read_snapshot(folder: Path, findings: Findings) -> tuple[dict[str, Any], Image | None] | None:
    """Return the description and the index of the snapshot. Return None if there is no snapshot. If the snapshot is
    damaged, add a finding and return None."""
    problem: Exception | None = None
    for _ in range(_TRIES):
        try:
            return snapshots.read(folder)
        except snapshots.READ_ERRORS as error:
            problem = error
    if problem is not None:
        _add_failure(findings, "the saved vector index", problem)
    return None


def _compare_snapshot(
    connection: SqliteConnection,
    meta: dict[str, Any],
    image: Image,
    findings: Findings,
    damaged: Collection[int],
    damaged_vectors: Collection[int],
) -> None:
    """Compare the windows, and if these are equal, the vectors. Entries changed after the snapshot are left out."""
    active = active_space(connection)
    same_history = change_feed.token_at(connection, meta["seq"]) == meta["point"]
    if active is None or active[0] != meta["space"] or not same_history:
        findings.note(
            "the saved vector index was made for another embedding space, or from another history of the records; "
            "the next search rebuilds it"
        )
        return
    dimension, rows = active[1].dimension, image.rows
    if dimension != meta["dimension"] or int(image.index.d) != dimension:
        findings.add(
            f"the saved vector index has {meta['dimension']} dimensions, but its embedding space has {dimension}"
        )
        return
    changed = np.array([*change_feed.entries_since(connection, meta["seq"]), *damaged], np.int64)
    live = np.flatnonzero((rows.entries >= 0) & ~np.isin(rows.entries, changed))
    findings.looked_at = len(live)
    saved = _sorted_windows(np.stack([rows.windows[live], rows.entries[live], rows.vectors[live]], axis=1))
    expected = _read_windows(connection, meta["space"], changed)
    if not np.array_equal(saved, expected):
        common = len(np.intersect1d(saved[:, 0], expected[:, 0]))
        findings.add(
            f"the saved vector index contains {len(saved)} windows, and the records contain {len(expected)} windows; "
            f"{common} windows are in both, but they may differ in their entries or vectors"
        )
        return
    compared = np.zeros(rows.size, np.bool_)
    compared[live] = ~np.isin(rows.vectors[live], np.array([*damaged_vectors], np.int64))
    for positions, decoded in _decoded_rows(image, compared):
        if wrong := _count_different(connection, rows.vectors[positions], decoded, dimension):
            findings.add(f"the saved vector index contains {wrong} vectors that differ from the vectors of the records")
            return


def _read_windows(connection: SqliteConnection, space: int, changed: IntArray) -> IntArray:
    """Return the windows of an embedding space. Each row of the result has three numbers: of the window, of its entry,
    and of its vector. The rows are sorted by the number of the window. Windows of the entries in `changed` are left
    out."""
    rows = connection.execute("SELECT id, entry, vector FROM windows WHERE space = ?", [space])
    windows = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, 3)
    return _sorted_windows(windows[~np.isin(windows[:, 1], changed)])


def _sorted_windows(windows: IntArray) -> IntArray:
    return windows[np.argsort(windows[:, 0], kind="stable")]


def _count_different(connection: SqliteConnection, vectors: IntArray, decoded: Matrix, dimension: int) -> int:
    """Return how many rows of `decoded` differ from the stored vectors with the numbers `vectors`."""
    numbers, rows = read_stored_vectors(connection, np.unique(vectors), dimension)
    present = np.isin(vectors, numbers)
    expected, actual = rows[np.searchsorted(numbers, vectors[present])], decoded[present]
    lengths = np.maximum(np.linalg.norm(expected, axis=1) * np.linalg.norm(actual, axis=1), 1e-12)
    return int(np.count_nonzero(np.einsum("ij,ij->i", expected, actual) < _MIN_COSINE * lengths))


def _decoded_rows(image: Image, positions: Mask) -> Iterator[tuple[IntArray, Matrix]]:
    """Decode the rows at the positions that are True in `positions`. Yield batches of positions and vectors."""
    if image.lists is None:
        selected = np.flatnonzero(positions)
        for start in range(0, len(selected), _ROWS):
            batch = selected[start : start + _ROWS]
            yield batch, image.index.reconstruct_batch(batch)
        return
    outliers = image.outliers.positions if image.outliers is not None else np.zeros(0, np.int64)
    if image.outliers is not None and len(outliers):
        mask = positions[outliers]
        yield outliers[mask], image.outliers.halves[mask].view("<f2").astype(np.float32)
    inside = positions.copy()
    inside[outliers] = False
    lists = Lists(image.index, mapped=True)
    for number in range(lists.lists):
        in_list, codes = lists.read(number)
        mask = inside[in_list]
        if mask.any():
            yield in_list[mask], image.index.sq.decode(codes)[mask]


def _add_failure(findings: Findings, name: str, error: BaseException) -> None:
    """Add a finding about an index that cannot be read. If the error may pass, the index must not be deleted."""
    if is_passing(error):
        findings.incomplete, findings.advice = True, "nothing was changed; try again"
        findings.add(f"{name} cannot be read now: {_one_line(error)}")
    else:
        findings.add(f"{name} is damaged: {_one_line(error)}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
