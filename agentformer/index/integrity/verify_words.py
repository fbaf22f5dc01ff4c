"""Does the word index hold what the records held at the change that it names, and the terms of their texts?

The index on disk is read under its lock, which is kept for as long as its files take to be read; what was opened stays
as it is, whatever is written meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tantivy
from filelock import FileLock, Timeout

from agentformer.errors import StoreDamaged
from agentformer.index.vectors.rows import IntArray
from agentformer.index.words.fields import ANALYSIS, UNKNOWN_LANGUAGE, AnalyzedEntry, schema
from agentformer.index.words.writer import Unfinished, broken, read_manifest
from agentformer.records import entries as records
from agentformer.records.integrity.findings import Findings
from agentformer.records.neighbours import said_around
from agentformer.types import UNSEARCHED_KINDS

_BUSY_SECONDS = 120.0  # a commit takes seconds; an index that is built anew is looked at the next time
_SAMPLE = 1_000  # entries of which each term is looked for
_SLICE = 50_000  # numbers asked for at a time
_GROUP = 100  # entries read at a time


class OpenedWords(NamedTuple):
    """One commit of the index, as it was on disk."""

    searcher: Any
    schema: Any
    seq: int
    point: str


def begin() -> Findings:
    return Findings("words", "the word index holds the terms of all entries", "it is made anew from the records")


def opened_words(folder: Path, store_id: str, found: Findings) -> OpenedWords | None:
    """The index of a folder, where there is one to be compared; else what is wrong with it is in `found`."""
    if not folder.exists():
        return None
    try:
        with _alone(folder):
            return _opened(folder, store_id, found)
    except Timeout:
        found.note("the word index is being written, and was not looked at")
    except Unfinished:
        found.note("the last commit of the word index was cut off: it is made anew by the next search")
    except BaseException as error:
        if not broken(error):
            raise
        if not folder.exists():  # somebody has just discarded it: a removal takes it along
            return None
        found.add(f"the word index is damaged: {' '.join(str(error).split())[:200]}")
    return None


def _alone(folder: Path) -> AbstractContextManager[object]:
    try:
        return FileLock(str(folder) + ".lock", timeout=_BUSY_SECONDS).acquire()
    except Timeout:
        raise
    except OSError:
        return nullcontext()  # nobody writes where no lock can be written


def _opened(folder: Path, store_id: str, found: Findings) -> OpenedWords | None:
    state = read_manifest(folder, verify=True)
    if not state:
        return None
    if state.get("store") != store_id:
        found.add("the word index is of another store")
        return None
    if state.get("analysis") != ANALYSIS:
        found.note("the word index is of another version: it is made anew by the next search")
        return None
    index = tantivy.Index(schema(), path=str(folder))
    index.reload()
    return OpenedWords(index.searcher(), index.schema, int(state["seq"]), str(state["point"]))


def compare_words(
    connection: sqlite3.Connection, words: OpenedWords, found: Findings, damaged: Collection[int]
) -> None:
    """Hold what was opened against the records, but for `damaged` entries; the transaction began after it was."""
    if records.point(connection, words.seq) != words.point:
        found.note("the word index is of another history of the records: it is made anew by the next search")
        return
    later = np.array([*records.changed_since(connection, words.seq), *damaged], np.int64)
    wanted = np.setdiff1d(_searched(connection), later)
    try:
        held = _held(words)
        found.looked_at = len(held)
        there = np.setdiff1d(held, later)
        if len(there) != int(np.count_nonzero(~np.isin(held, later))):
            found.add("the word index holds some entries twice")
        if len(missing := np.setdiff1d(wanted, there)):
            found.add(f"the word index lacks {len(missing)} entries, such as number {missing[0]}")
        if len(strange := np.setdiff1d(there, wanted)):
            found.add(f"the word index holds {len(strange)} entries that are not there, such as number {strange[0]}")
        both = np.intersect1d(wanted, there)
        for name in _wrong_terms(connection, words, both[:: max(1, len(both) // _SAMPLE)]):
            found.add(f"the word index lacks terms of entry {name}")
    except BaseException as error:
        if not broken(error):
            raise
        found.add(f"the word index cannot be read: {' '.join(str(error).split())[:200]}")


def _searched(connection: sqlite3.Connection) -> IntArray:
    """The numbers of all entries that are searched, as SQLite writes them: no object for each."""
    marks = ", ".join("?" * len(UNSEARCHED_KINDS))
    query = f"SELECT group_concat(num) FROM entries WHERE kind NOT IN ({marks})"
    told = connection.execute(query, sorted(UNSEARCHED_KINDS)).fetchone()[0]
    return np.fromstring(told or "", dtype=np.int64, sep=",")


def _held(words: OpenedWords) -> IntArray:
    """The numbers of all entries of the index, as often as they are there."""
    parts = [np.zeros(0, np.int64)]
    first, left = 0, int(words.searcher.num_docs)
    while left > 0:
        inside = tantivy.Query.range_query(
            words.schema, "num", tantivy.FieldType.Unsigned, first, first + _SLICE, include_upper=False
        )
        hits = words.searcher.search(inside, limit=2 * _SLICE, order_by_field="num").hits
        parts.append(np.array([number for number, _ in hits], np.int64))
        left -= len(hits)
        first += _SLICE
        if not hits:
            first = _next(words, first)
    return np.concatenate(parts)


def _next(words: OpenedWords, first: int) -> int:
    """The first number of the index from `first` on. There is one: not all were counted yet."""
    beyond = tantivy.Query.range_query(words.schema, "num", tantivy.FieldType.Unsigned, first, None)
    hits = words.searcher.search(beyond, limit=1, order_by_field="num", order=tantivy.Order.Asc).hits
    if not hits:
        raise ValueError("it holds other entries than it counts")
    return int(hits[0][0])


def _wrong_terms(connection: sqlite3.Connection, words: OpenedWords, nums: IntArray) -> Iterator[str]:
    """The ids of those entries that the index does not find by each of their terms."""
    for start in range(0, len(nums), _GROUP):
        for num in nums[start : start + _GROUP].tolist():
            try:
                entry = records.by_num(connection, [num])[num]
            except (StoreDamaged, sqlite3.DatabaseError):
                continue  # told by the check of the entries
            analysed = AnalyzedEntry.of(num, entry, around=said_around(connection, entry))
            if not _holds(words, analysed):
                yield entry.id


def _holds(words: OpenedWords, analysed: AnalyzedEntry) -> bool:
    """Has the index the entry's terms? What an analyzer adds to them is not looked for; where one told the language,
    which is not known without it, only terms that no language changes are."""
    if words.searcher.search(_exactly(words, analysed), limit=1).count == 1:
        return True
    if analysed.language:
        return False
    codes = tuple(term for term in analysed.terms["stems"] if "~" not in term)
    told = replace(analysed, terms={"stems": codes})
    unknown = tantivy.Query.term_query(words.schema, "language", UNKNOWN_LANGUAGE, "basic")
    some = tantivy.Query.boolean_query([(tantivy.Occur.Must, _exactly(words, told)), (tantivy.Occur.MustNot, unknown)])
    return int(words.searcher.search(some, limit=1).count) == 1


def _exactly(words: OpenedWords, analysed: AnalyzedEntry) -> Any:
    """What only an entry with this number, these places and these terms fits."""
    asked = [("num", analysed.num), *(("places", place) for place in analysed.places)]
    asked += [(name, term) for name, terms in analysed.terms.items() for term in dict.fromkeys(terms)]
    terms = (tantivy.Query.term_query(words.schema, name, value, "basic") for name, value in asked)
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, term) for term in terms])
