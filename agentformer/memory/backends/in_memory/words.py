"""The search by words in memory: the terms of the word index, with the same scores."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from agentformer.index.words.fields import (
    BOOSTS,
    AnalyzedEntry,
    rarity,
    saturation,
    stored_length,
    weighted_terms,
    with_shared_rarity,
)
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.text.analysis import QueryTerms
from agentformer.types import UNSEARCHED_KINDS


class _Terms(NamedTuple):
    """The terms of an entry: for each field, how often each term occurs, and the number of all terms."""

    id: str
    namespace: str
    language: str
    counts: dict[str, Counter[str]]
    lengths: dict[str, int]


class Words:
    """The terms of all entries. Not thread-safe: the caller holds the lock of the store."""

    def __init__(self) -> None:
        self._seq = 0  # the last change that was applied
        self._terms: dict[int, _Terms] = {}  # by number of the entry

    def scores(self, connection: SqliteConnection, namespace: str, text: str) -> dict[int, float]:
        """Return entry number -> BM25 score for the entries of a namespace that contain a word of `text`. All entries
        of the namespace are counted, so that a score does not depend on the scope of a search."""
        self._follow(connection)
        entries = {num: terms for num, terms in self._terms.items() if terms.namespace == namespace}
        terms = weighted_terms(QueryTerms.of(text).terms(sorted({entry.language for entry in entries.values()})))
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        for name, term, _ in terms:
            wanted[name].add(term)
            if term.startswith("~"):  # a stem of unknown language; `with_shared_rarity` also counts the written word
                wanted["surface"].add(term[1:])
        postings: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for num, entry in entries.items():
            for name, some in wanted.items():
                for term in some & entry.counts[name].keys():
                    postings[name, term].append(num)
        frequencies = Counter({key: len(nums) for key, nums in postings.items()})
        means = {name: sum(entry.lengths[name] for entry in entries.values()) / max(1, len(entries)) for name in BOOSTS}
        scores: defaultdict[int, float] = defaultdict(float)
        for name, term, weight in with_shared_rarity(terms, frequencies, len(entries)):
            rare = rarity(frequencies[name, term], len(entries))
            for num in postings[name, term]:
                times, length = entries[num].counts[name][term], stored_length(entries[num].lengths[name])
                scores[num] += weight * rare * saturation(times, length, means[name])
        return scores

    def id_of(self, num: int) -> str:
        """Return the id of an entry that `scores` has returned."""
        return self._terms[num].id

    def _follow(self, connection: SqliteConnection) -> None:
        """Apply the changes since the last search."""
        changes = change_feed.since(connection, self._seq)
        entries = records.by_num(connection, [num for _, num in changes])
        for seq, num in changes:
            self._seq = seq
            self._terms.pop(num, None)
            if (entry := entries.get(num)) and entry.kind not in UNSEARCHED_KINDS:
                analyzed = AnalyzedEntry.of(num, entry)
                counts = {name: Counter(terms) for name, terms in analyzed.terms.items()}
                lengths = {name: len(terms) for name, terms in analyzed.terms.items()}
                self._terms[num] = _Terms(entry.id, entry.namespace, analyzed.language, counts, lengths)
