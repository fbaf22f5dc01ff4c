"""Queries of the word index. They see one commit on disk, and the changes in memory since then, the memtable.

A commit needs a dozen synced writes. So the newest changes are kept in memory and written in batches. They get the same
scores as in the index.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tantivy
from numpy.typing import NDArray

from agentformer.index.scope_masks import ScopeMask
from agentformer.index.words.fields import (
    BOOSTS,
    UNKNOWN_LANGUAGE,
    AnalyzedEntry,
    WeightedTerm,
    in_language,
    required_places,
    weighted_terms,
)
from agentformer.text.analysis import QueryTerms
from agentformer.text.analyzers import PLAIN, Analyzers
from agentformer.types import Scope

_MAX_TIES = 50  # times the limit that are read to order equal scores; beyond that, nothing orders equals
_DIGITS = 4  # of a score: sums of the same terms differ in the seventh digit by the order of adding
_SPARE = 1.3  # factor for the number of requested entries in a scope, so that usually one search is enough
_WIDE = 0.5  # a scope with this share of the index needs no place terms; scoring alone is faster
_MAX_PLACES = 2  # place terms in a query; the rarest exclude nearly everything
_LARGE = 10_000  # in an index with more entries, common terms are left out because they are slow and contribute little
_LANGUAGE_SHARE = 0.001  # in a large index, queries are stemmed in languages with at least this share of the entries
_COMMON = 0.3  # the share of entries that makes a term common
_MIN_RARE = 2  # rarer terms that a query must have before common ones are left out
_MORE = 25  # additional entries that are requested, so that usually no entry with an equal score is cut off
_MAX_FREQUENCIES = 50_000  # terms with a cached number of entries

# BM25 as tantivy computes it.
_K1 = 1.2  # saturation of repeated terms
_B = 0.75  # how much a long text lowers the weight of each word


class WordHits(NamedTuple):
    """Entries by number, best first, with BM25 scores. Scores are unbounded, and a higher score is better. Both lists
    have the same length."""

    entries: list[int]
    scores: list[float]
    ideal: float = 0.0  # about the score of an entry of mean length with each stem of the query once


class Scored(NamedTuple):
    """Entries and their scores as arrays, in any order."""

    entries: NDArray[np.int64]
    scores: NDArray[np.float64]  # rounded, so that sums of the same terms are equal

    @classmethod
    def of(cls, entries: Sequence[int], scores: Sequence[float]) -> Scored:
        return cls(np.array(entries, np.int64), np.array(scores, np.float64).round(_DIGITS))

    def where(self, kept: NDArray[np.bool_]) -> Scored:
        """Return the entries that a mask selects."""
        return Scored(self.entries[kept], self.scores[kept])

    def inside(self, allowed: ScopeMask) -> Scored:
        """Return only the allowed entries."""
        inside = self.where(self.entries < len(allowed.mask))
        return inside.where(allowed.mask[inside.entries])

    def with_others(self, others: Scored) -> Scored:
        """Return these entries together with the other entries."""
        return Scored(np.concatenate((self.entries, others.entries)), np.concatenate((self.scores, others.scores)))


_NONE = Scored.of([], [])


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
        self,
        terms: Sequence[WeightedTerm],
        frequencies: Mapping[tuple[str, str], int],
        statistics: tuple[int, Mapping[str, float]],
    ) -> dict[int, float]:
        """Return the BM25 score of each entry that has at least one of the terms. `frequencies` gives the number of
        entries in the index for each term. `statistics` are those of `CommittedIndex`."""
        entries, lengths = statistics
        scores: dict[int, float] = {}
        for name, term, weight in terms:
            postings = self.postings.get((name, term), ())
            matching = [entry for entry in postings if self.entries.get(entry.analyzed.num) is entry]
            if not matching:
                continue
            # If the index does not have a term, its frequency is the number of entries here.
            frequency = frequencies.get((name, term)) or len(matching)
            rarity = math.log(1 + (max(entries, frequency) - frequency + 0.5) / (frequency + 0.5))
            # If the index has none of the query's terms in a field, the entries here give the mean length.
            mean = lengths.get(name) or sum(_stored_length(e, name) for e in matching) / len(matching)
            for entry in matching:
                count, num = entry.counts[name][term], entry.analyzed.num
                length = _K1 * (1 - _B + _B * _stored_length(entry, name) / mean)
                scores[num] = scores.get(num, 0.0) + weight * rarity * (1 + _K1) * count / (count + length)
        return scores


class CommittedIndex:
    """One commit of the index. Thread-safe. Its answers do not change when newer commits are written."""

    def __init__(self, searcher: Any, schema: Any, analyzers: Analyzers = PLAIN) -> None:
        self._searcher = searcher
        self._analyzers = analyzers
        self._schema = schema
        self._lock = threading.Lock()
        self._frequencies: dict[tuple[str, str], int] = {}
        self._lengths: dict[str, float] = {}
        self._document_count = 0  # with deleted entries not merged away yet, as BM25 counts
        self.entries = int(searcher.num_docs)
        counts = {
            name: int(searcher.doc_freq("language", name)) for name, _ in searcher.terms_with_prefix("language", "")
        }
        self.languages = {"" if name == UNKNOWN_LANGUAGE else name: count for name, count in counts.items()}
        self._main_languages = {
            name for name, count in self.languages.items() if count >= self.entries * _LANGUAGE_SHARE
        }
        self.language = max(self.languages, key=lambda name: self.languages[name], default="")  # of most entries

    def query_terms(
        self, query: QueryTerms, more_languages: Collection[str], dates: Sequence[str] = ()
    ) -> list[WeightedTerm]:
        """Return the terms of a query for the index and for texts in `more_languages`, and the date terms `dates`. Of a
        thousand short texts, a few get the wrong language. So in a large index, stems are searched only for the main
        languages of the index and for the language of the query. Unstemmed words are always searched."""
        languages = {*self.languages, *more_languages}
        if self.entries >= _LARGE and len(self._main_languages) < len(self.languages):
            languages = {*self._main_languages, *more_languages, *(languages & {query.language})}
        return weighted_terms(query.terms(languages, self._analyzers), dates)

    def frequency(self, field: str, term: str) -> int:
        """Return how many entries have the term."""
        frequency = self._frequencies.get((field, term))
        if frequency is None:
            frequency = int(self._searcher.doc_freq(field, term))
            if len(self._frequencies) >= _MAX_FREQUENCIES:
                self._frequencies = {}
            self._frequencies[field, term] = frequency
        return frequency

    def statistics(self, terms: Sequence[WeightedTerm]) -> tuple[int, Mapping[str, float]]:
        """Return the number of entries, and the mean number of terms of each field that these terms belong to."""
        with self._lock:
            for name in BOOSTS:
                if name not in self._lengths:
                    self._read_statistics(name, [term for term in terms if term.field == name])
            return self._document_count or self.entries, dict(self._lengths)

    def _read_statistics(self, name: str, terms: Sequence[WeightedTerm]) -> None:
        """Read the statistics of a field from tantivy's explanation of a score. Tantivy shows them nowhere else."""
        for _, term, _ in terms:
            if self.frequency(name, term):
                query = tantivy.Query.term_query(self._schema, name, term, "freq")
                hits = self._searcher.search(query, limit=1, count=False).hits
                if hits:
                    values = _explained_values(json.loads(query.explain(self._searcher, hits[0][1]).to_json()))
                    self._document_count, self._lengths[name] = int(values["N"]), values["avgdl"]
                    return

    def best(
        self, terms: Sequence[WeightedTerm], scope: Scope, limit: int, allowed: ScopeMask, hidden: Collection[int]
    ) -> Scored:
        """Return at least the best `limit` allowed entries, without `hidden` entries. All entries with the same score
        as the last one are included."""
        if not terms:
            return _NONE
        query, share = self._query(terms, scope, allowed)
        count = min(math.ceil((limit + _MORE) / share * (_SPARE if share < 1 else 1)), max(1, self.entries))
        while True:
            hits = self._searcher.search(query, limit=count, count=False).hits
            nums = self._searcher.fast_field_values("num", [address for _, address in hits])
            scored = Scored.of(nums, [score for score, _ in hits]).inside(allowed)
            if hidden:
                scored = scored.where(~np.isin(scored.entries, list(hidden)))
            # Entries outside the scope may have filled the list, and equals may have been cut from its end:
            # tantivy orders equals by segment, which differs between two stores of the same entries.
            scores = scored.scores
            complete = len(scores) > limit and (scores[-1] < scores[limit - 1] or count > limit * _MAX_TIES)
            if complete or len(hits) < count:
                return scored
            count *= 4

    def _query(self, terms: Sequence[WeightedTerm], scope: Scope, allowed: ScopeMask) -> tuple[Any, float]:
        """Return the query, and the share of its results that is allowed, above 0 and at most 1."""
        must, should = tantivy.Occur.Must, tantivy.Occur.Should
        weighted = (tantivy.Query.boost_query(self._term(field, term, "freq"), weight) for field, term, weight in terms)
        scoring = tantivy.Query.boolean_query([(should, query) for query in weighted])
        entries = max(self.entries, allowed.count, 1)
        if allowed.count >= entries * _WIDE:
            return scoring, allowed.count / entries
        places = sorted((self.frequency("places", place), place) for place in required_places(scope))
        narrow = [(count, place) for count, place in places[:_MAX_PLACES] if count < entries * _WIDE]
        if not narrow:
            return scoring, allowed.count / entries
        inside = (tantivy.Query.const_score_query(self._term("places", place, "basic"), 0.0) for _, place in narrow)
        share = min(1.0, allowed.count / max(1, narrow[0][0]))
        return tantivy.Query.boolean_query([(must, query) for query in (scoring, *inside)]), share

    def _term(self, field: str, term: str, option: str) -> Any:
        return tantivy.Query.term_query(self._schema, field, term, option)


@dataclass(frozen=True, slots=True)
class View:
    """The state that a search sees: a commit, and the changes after the commit."""

    committed: CommittedIndex
    memtable: Memtable

    def search(
        self, query: QueryTerms, scope: Scope, limit: int, allowed: ScopeMask, dates: Sequence[str] = ()
    ) -> WordHits:
        """Return the best `limit` allowed entries of the scope, best first. Entries with equal scores are in order of
        number. `dates` are the terms of the days that the query names."""
        committed, memtable = self.committed, self.memtable
        terms = committed.query_terms(query, memtable.languages, dates)
        frequencies = {(field, term): committed.frequency(field, term) for field, term, _ in terms}
        terms = without_common_terms(terms, frequencies, committed.entries, committed.language)
        limit = min(limit, allowed.count)
        indexed = [term for term in terms if frequencies[term.field, term.term]]
        scored = committed.best(indexed, scope, limit, allowed, memtable.entries)
        if len(memtable) and terms:
            scores = memtable.scores(terms, frequencies, committed.statistics(terms))
            scored = scored.with_others(Scored.of(list(scores), list(scores.values())).inside(allowed))
        best = np.lexsort((scored.entries, -scored.scores))[:limit]
        ideal = ideal_score(terms, frequencies, committed.entries + len(memtable), committed.languages)
        return WordHits(scored.entries[best].tolist(), scored.scores[best].tolist(), ideal)


def ideal_score(
    terms: Sequence[WeightedTerm], frequencies: Mapping[tuple[str, str], int], entries: int, languages: Iterable[str]
) -> float:
    """Return the BM25 score of a text of mean length that contains each stem of the query once. The language with the
    most frequent stems is used."""
    rarity = {}
    for name, term, weight in terms:
        if name == "stems":
            frequency = frequencies[name, term]
            rarity[term] = weight * math.log(1 + (max(entries, frequency) - frequency + 0.5) / (frequency + 0.5))
    sums = (sum(rarity[term] for term in rarity if in_language(term, language)) for language in languages)
    return min((total for total in sums if total), default=0.0)


def without_common_terms(
    terms: Sequence[WeightedTerm], frequencies: Mapping[tuple[str, str], int], entries: int, language: str
) -> list[WeightedTerm]:
    """In a large index, leave out the terms that nearly every entry has, if enough rarer terms remain. A common word
    has rare stems in all other languages. So only rare stems of the index's `language` are counted as rarer terms."""
    if entries < _LARGE:
        return [*terms]
    rare = [term for term in terms if frequencies[term.field, term.term] <= entries * _COMMON]
    stems = [term for term in rare if term.field == "stems" and in_language(term.term, language)]
    enough = sum(1 for term in stems if frequencies[term.field, term.term]) >= _MIN_RARE
    return rare if enough else [*terms]


def _explained_values(explained: Mapping[str, Any]) -> dict[str, float]:
    """Return values by the part of their description before the comma."""
    values = {str(explained["description"]).partition(",")[0]: float(explained["value"])}
    for detail in explained.get("details", ()):
        values |= _explained_values(detail)
    return values


def _stored_length(entry: MemtableEntry, name: str) -> int:
    """Return the length of a field as the index stores it in one byte. It is exact up to 40 terms. Larger lengths are
    rounded to four binary digits."""
    length = len(entry.analyzed.terms[name])
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24 >> shift) << shift)
