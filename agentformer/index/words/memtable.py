"""The newest changes, found by words before the word index on disk has them.

A commit of the index costs a dozen writes that must reach the disk; reading an entry's words costs a millisecond.
So what has just changed is kept in memory, scored as the index would score it, and written in batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentformer.index.words.fields import AnalyzedEntry, Asked

# BM25 as tantivy has it.
_K1 = 1.2  # how soon more of the same word stops to matter
_B = 0.75  # how much a long text is held to say less by each word


class Change(NamedTuple):
    seq: int
    num: int


@dataclass(frozen=True, slots=True)
class Held:
    """A changed entry, with its terms counted."""

    seq: int
    analysed: AnalyzedEntry
    counts: Mapping[str, Counter[str]]

    @classmethod
    def of(cls, seq: int, analysed: AnalyzedEntry) -> Held:
        return cls(seq, analysed, {name: Counter(terms) for name, terms in analysed.terms.items()})


@dataclass(frozen=True, slots=True)
class Statistics:
    """What BM25 knows of a whole index: entries, and the mean number of terms of its fields."""

    entries: int
    lengths: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Memtable:
    """Entries changed since the index's last commit; None for one that is gone. A new one is made for each change, by
    one thread at a time; they share `holders`, which only grows, and in which each looks for its own entries."""

    held: Mapping[int, Held | None] = field(default_factory=dict)  # by number
    seqs: Mapping[int, int] = field(default_factory=dict)  # the change that each is of
    holders: dict[tuple[str, str], list[Held]] = field(default_factory=dict)  # by field and term
    languages: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.held)

    def with_changes(self, changes: Iterable[Change], found: Mapping[int, AnalyzedEntry]) -> Memtable:
        """And these changes, of which `found` has the entries that are to be searched."""
        held, seqs, languages = dict(self.held), dict(self.seqs), set(self.languages)
        for seq, num in changes:
            seqs[num], held[num] = seq, None
            if num in found:
                new = held[num] = Held.of(seq, found[num])
                languages.add(new.analysed.language)
                for name, counts in new.counts.items():
                    for term in counts:
                        self.holders.setdefault((name, term), []).append(new)
        return Memtable(held, seqs, self.holders, frozenset(languages))

    def after(self, seq: int) -> Memtable:
        """Without what the index has followed by now."""
        rest = [Change(known, num) for num, known in self.seqs.items() if known > seq]
        found = {num: held.analysed for _, num in rest if (held := self.held[num])}
        return Memtable().with_changes(rest, found)

    def analysed(self, change: Change) -> AnalyzedEntry | None:
        """The entry as this very change left it, where it is at hand."""
        held = self.held.get(change.num)
        return held.analysed if held and held.seq == change.seq else None

    def scores(
        self, asked: Sequence[Asked], holders: Mapping[tuple[str, str], int], statistics: Statistics
    ) -> dict[int, float]:
        """BM25 of each entry that has one of the terms. `holders`: how many entries of the index have a term."""
        scores: dict[int, float] = {}
        for name, term, weight in asked:
            having = [each for each in self.holders.get((name, term), ()) if self._has(each)]
            if not having:
                continue
            # A term that the index does not have yet is as rare as it is here.
            number = holders.get((name, term)) or len(having)
            rarity = math.log(1 + (max(statistics.entries, number) - number + 0.5) / (number + 0.5))
            # Where the index has none of the terms asked for in a field, only these are compared with each other.
            mean = statistics.lengths.get(name) or sum(_kept_length(each, name) for each in having) / len(having)
            for each in having:
                count, num = each.counts[name][term], each.analysed.num
                length = _K1 * (1 - _B + _B * _kept_length(each, name) / mean)
                scores[num] = scores.get(num, 0.0) + weight * rarity * (1 + _K1) * count / (count + length)
        return scores

    def _has(self, held: Held) -> bool:
        return self.held.get(held.analysed.num) is held


def _kept_length(held: Held, name: str) -> int:
    """The length of a field as the index keeps it, in one byte: exact up to 40 terms, then with four binary digits."""
    length = len(held.analysed.terms[name])
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24 >> shift) << shift)
