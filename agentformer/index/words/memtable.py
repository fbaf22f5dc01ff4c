"""Changes in memory that are not in the word index on disk yet. They get the same scores as in the index.

A commit of the index needs a dozen synced writes, and the analysis of an entry takes a millisecond. So the newest
changes are kept in memory and written in batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentformer.index.words.fields import AnalyzedEntry, WeightedTerm

# BM25 as tantivy computes it.
_K1 = 1.2  # saturation of repeated terms
_B = 0.75  # how much a long text lowers the weight of each word


class Change(NamedTuple):
    seq: int
    num: int


@dataclass(frozen=True, slots=True)
class MemtableEntry:
    """A changed entry with its terms, counted by field."""

    seq: int
    analyzed: AnalyzedEntry
    counts: Mapping[str, Counter[str]]


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of the index for BM25: the number of entries, and the mean number of terms of each field."""

    entries: int
    lengths: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Memtable:
    """Entries that changed after the last commit of the index. The value of a removed entry is None. One thread at a
    time makes a new memtable for each change. All memtables share `postings`, which only grows. Each memtable uses only
    its own entries in `postings`."""

    entries: Mapping[int, MemtableEntry | None] = field(default_factory=dict)  # by number
    seqs: Mapping[int, int] = field(default_factory=dict)  # the change of each
    postings: dict[tuple[str, str], list[MemtableEntry]] = field(default_factory=dict)  # by field and term
    languages: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.entries)

    def with_changes(self, changes: Iterable[Change], analyzed: Mapping[int, AnalyzedEntry]) -> Memtable:
        """Return a memtable that also has these changes. `analyzed` contains the changed entries that exist and are
        searched."""
        entries, seqs, languages = dict(self.entries), dict(self.seqs), set(self.languages)
        for seq, num in changes:
            seqs[num], entries[num] = seq, None
            if num in analyzed:
                counts = {name: Counter(terms) for name, terms in analyzed[num].terms.items()}
                entry = entries[num] = MemtableEntry(seq, analyzed[num], counts)
                languages.add(entry.analyzed.language)
                for name, terms in counts.items():
                    for term in terms:
                        self.postings.setdefault((name, term), []).append(entry)
        return Memtable(entries, seqs, self.postings, frozenset(languages))

    def after(self, seq: int) -> Memtable:
        """Return a memtable with only the changes after `seq`. The index already has the other changes."""
        changes = [Change(own, num) for num, own in self.seqs.items() if own > seq]
        analyzed = {num: entry.analyzed for _, num in changes if (entry := self.entries[num])}
        return Memtable().with_changes(changes, analyzed)

    def analyzed(self, change: Change) -> AnalyzedEntry | None:
        """Return the entry as this change left it, or None if the memtable does not have this change."""
        entry = self.entries.get(change.num)
        return entry.analyzed if entry and entry.seq == change.seq else None

    def scores(
        self, terms: Sequence[WeightedTerm], frequencies: Mapping[tuple[str, str], int], statistics: Statistics
    ) -> dict[int, float]:
        """Return the BM25 score of each entry that has at least one of the terms. `frequencies` gives the number of
        entries in the index for each term."""
        scores: dict[int, float] = {}
        for name, term, weight in terms:
            postings = self.postings.get((name, term), ())
            matching = [entry for entry in postings if self.entries.get(entry.analyzed.num) is entry]
            if not matching:
                continue
            # If the index does not have a term, its frequency is the number of entries here.
            frequency = frequencies.get((name, term)) or len(matching)
            rarity = math.log(1 + (max(statistics.entries, frequency) - frequency + 0.5) / (frequency + 0.5))
            # If the index has none of the query's terms in a field, the entries here give the mean length.
            mean = statistics.lengths.get(name) or sum(_stored_length(e, name) for e in matching) / len(matching)
            for entry in matching:
                count, num = entry.counts[name][term], entry.analyzed.num
                length = _K1 * (1 - _B + _B * _stored_length(entry, name) / mean)
                scores[num] = scores.get(num, 0.0) + weight * rarity * (1 + _K1) * count / (count + length)
        return scores


def _stored_length(entry: MemtableEntry, name: str) -> int:
    """Return the length of a field as the index stores it in one byte. It is exact up to 40 terms. Larger lengths are
    rounded to four binary digits."""
    length = len(entry.analyzed.terms[name])
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24 >> shift) << shift)
