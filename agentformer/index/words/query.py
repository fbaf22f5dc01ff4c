"""Queries of the word index. A query reads one commit on disk, and the newer changes in memory, which are called the
memtable.

A commit needs about a dozen synced writes. Therefore new changes are first kept in memory, and many changes are written
together. An entry in memory gets the same score that it would get on disk.
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
    query_languages,
    rarity,
    required_places,
    saturation,
    stored_length,
    weighted_terms,
    without_common_terms,
)
from agentformer.text.analysis import QueryTerms
from agentformer.text.language_extras import PLAIN, Analyzers
from agentformer.types import Scope

_MAX_TIES = 50  # factor: at most so many times `limit` entries are read to find all entries with an equal score
_DIGITS = 4  # digits of a rounded score; the order of addition changes the seventh digit of a sum
_SPARE = 1.3  # factor for the number of requested entries in a scope, so that usually one search is enough
_WIDE = 0.5  # a scope with at least this share of the index is searched without place terms, which is faster
_MAX_PLACES = 2  # maximum place terms in a query; the rarest ones already exclude nearly all other entries
_MORE = 25  # additional entries that are requested, so that usually no entry with an equal score is cut off
_HEAD = 3  # number of first entries of a result for which `covered` is computed
_MAX_FREQUENCIES = 50_000  # maximum number of terms whose number of entries is cached


class WordHits(NamedTuple):
    """The result of a search by words: entry numbers, best first, and the BM25 score of each entry. A higher score is
    better, and scores have no upper limit. `covered` (0..1) is the largest share of the query's stems that one of the
    first three entries contains. Rare stems count more than common ones. If the query has no stems, or names a day,
    `covered` is 1. `missing` is the `missing` of the view."""

    entries: list[int]
    scores: list[float]
    covered: float = 1.0
    missing: int = 0


class Scored(NamedTuple):
    """Entry numbers (`entries`), and the score of each of these entries (`scores`). The entries are not sorted."""

    entries: NDArray[np.int64]
    scores: NDArray[np.float64]  # rounded, so that sums of the same terms are equal

    @classmethod
    def of(cls, entries: Sequence[int], scores: Sequence[float]) -> Scored:
        return cls(np.array(entries, np.int64), np.array(scores, np.float64).round(_DIGITS))

    def where(self, selected: NDArray[np.bool_]) -> Scored:
        """Return the entries at the indices that are True in `selected`."""
        return Scored(self.entries[selected], self.scores[selected])

    def inside(self, allowed: ScopeMask) -> Scored:
        """Return only the entries that the scope mask allows."""
        inside = self.where(self.entries < len(allowed.mask))
        return inside.where(allowed.mask[inside.entries])


_NONE = Scored.of([], [])


class Change(NamedTuple):
    seq: int
    num: int


@dataclass(frozen=True, slots=True)
class MemtableEntry:
    """A changed entry with its terms. `seq` is the number of the change. `counts` contains for each field how often
    each term occurs."""

    seq: int
    analyzed: AnalyzedEntry
    counts: Mapping[str, Counter[str]]


@dataclass(frozen=True, slots=True)
class Memtable:
    """The entries that changed after the last commit of the index, by entry number. A removed entry has the value None.
    A memtable is never modified: each change creates a new memtable, and only one thread at a time creates one. All
    memtables share `postings` (field and term -> entries), to which entries are only added. A memtable ignores each
    entry in `postings` that does not belong to this memtable."""

    entries: Mapping[int, MemtableEntry | None] = field(default_factory=dict)  # by number
    seqs: Mapping[int, int] = field(default_factory=dict)  # the number of each entry's change
    postings: dict[tuple[str, str], list[MemtableEntry]] = field(default_factory=dict)  # by field and term
    languages: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.entries)

    def with_changes(self, changes: Iterable[Change], analyzed: Mapping[int, AnalyzedEntry]) -> Memtable:
        """Return a new memtable that contains these changes too. `analyzed` contains the terms of the changed entries
        by number. A changed entry that is missing there was removed or is never searched."""
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
        """Return a memtable with only the changes after the change `seq`. Call only after the other changes are on
        disk."""
        changes = [Change(own, num) for num, own in self.seqs.items() if own > seq]
        analyzed = {num: entry.analyzed for _, num in changes if (entry := self.entries[num])}
        return Memtable().with_changes(changes, analyzed)

    def analyzed(self, change: Change) -> AnalyzedEntry | None:
        """Return the terms of the entry after this change, or None if the memtable does not contain the change."""
        entry = self.entries.get(change.num)
        return entry.analyzed if entry and entry.seq == change.seq else None

    def scores(
        self,
        terms: Sequence[WeightedTerm],
        frequencies: Mapping[tuple[str, str], int],
        statistics: tuple[int, Mapping[str, float]],
    ) -> dict[int, float]:
        """Return the BM25 scores of the entries in memory that have at least one of the terms. `frequencies` contains
        for each field and term the number of entries on disk with this term. `statistics` is the result of
        `CommittedIndex.statistics`."""
        entries, lengths = statistics
        entries = entries or len(self)  # nothing is on disk yet
        scores: dict[int, float] = {}
        for name, term, weight in terms:
            postings = self.postings.get((name, term), ())
            matching = [entry for entry in postings if self.entries.get(entry.analyzed.num) is entry]
            if not matching:
                continue
            # If the index on disk does not have a term, its frequency is the number of entries in memory.
            frequency = frequencies.get((name, term)) or len(matching)
            rare = rarity(frequency, entries)
            # If a field on disk has none of the query's terms, the mean length is that of the entries in memory.
            stored = [stored_length(len(entry.analyzed.terms[name])) for entry in matching]
            mean = lengths.get(name) or sum(stored) / len(stored)
            for entry, length in zip(matching, stored, strict=True):
                count, num = entry.counts[name][term], entry.analyzed.num
                scores[num] = scores.get(num, 0.0) + weight * rare * saturation(count, length, mean)
        return scores


class CommittedIndex:
    """The index as it was at one commit. Later commits do not change its results. Thread-safe."""

    def __init__(self, searcher: Any, schema: Any, analyzers: Analyzers = PLAIN) -> None:
        self._searcher = searcher
        self._analyzers = analyzers
        self._schema = schema
        self._lock = threading.Lock()
        self._frequencies: dict[tuple[str, str], int] = {}  # field and term -> number of entries
        self._lengths: dict[str, float] = {}  # field -> mean number of terms of an entry
        self._document_count = 0  # includes deleted entries that tantivy has not merged away yet, as BM25 does
        self.entries = int(searcher.num_docs)
        counts = {
            name: int(searcher.doc_freq("language", name)) for name, _ in searcher.terms_with_prefix("language", "")
        }
        self.languages = {"" if name == UNKNOWN_LANGUAGE else name: count for name, count in counts.items()}
        self.language = max(self.languages, key=lambda name: self.languages[name], default="")  # most frequent

    def query_terms(
        self, query: QueryTerms, more_languages: Collection[str], dates: Sequence[str] = ()
    ) -> list[WeightedTerm]:
        """Return the terms of a query with their weights. Words are stemmed for the languages of the index and for
        `more_languages`. `dates` contains additional terms for the days that the query names."""
        languages = {*query_languages(self.languages, self.entries, query.language), *more_languages}
        return weighted_terms(query.terms(languages, self._analyzers), dates)

    def frequency(self, field: str, term: str) -> int:
        """Return how many entries have this term in this field."""
        frequency = self._frequencies.get((field, term))
        if frequency is None:
            frequency = int(self._searcher.doc_freq(field, term))
            if len(self._frequencies) >= _MAX_FREQUENCIES:
                self._frequencies = {}
            self._frequencies[field, term] = frequency
        return frequency

    def frequencies(self, terms: Sequence[WeightedTerm]) -> dict[tuple[str, str], int]:
        """Return a dictionary: (field, text of the term) -> number of entries that have the term in this field."""
        known, keys = self._frequencies, [(name, term) for name, term, _ in terms]
        return {key: known[key] if key in known else self.frequency(*key) for key in keys}

    def statistics(self, terms: Sequence[WeightedTerm]) -> tuple[int, Mapping[str, float]]:
        """Return the number of entries, and for each field the mean number of terms per entry. The result has no item
        for a field if its mean is not known yet and none of the `terms` occurs in it."""
        with self._lock:
            for name in BOOSTS:
                if name not in self._lengths:
                    self._read_statistics(name, [term for term in terms if term.field == name])
            return self._document_count or self.entries, dict(self._lengths)

    def _read_statistics(self, name: str, terms: Sequence[WeightedTerm]) -> None:
        """Read the number of entries and the mean length of a field. These values are read from tantivy's explanation
        of a score, because tantivy offers no other function for them."""
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
        """Return the best entries of the scope mask `allowed` that are not in `hidden`. At least `limit` entries are
        returned if there are so many. All entries with the same score as the last of these are returned, too."""
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
            # Entries outside of the scope may have filled the list, or equal scores may have been cut off at its end.
            # Tantivy orders equal scores by segment, which differs between two stores with the same entries.
            scores = scored.scores
            complete = len(scores) > limit and (scores[-1] < scores[limit - 1] or count > limit * _MAX_TIES)
            if complete or len(hits) < count:
                return scored
            count *= 4

    def stem_sums(self, nums: Sequence[int], rarities: Mapping[str, float]) -> list[float]:
        """Return one sum for each entry: the weights (`rarities`) of the query's stems that the entry contains, added
        up. The highest sum comes first; the sums do not have the order of `nums`. Return [] if no stem has a weight
        above 0."""
        must, should = tantivy.Occur.Must, tantivy.Occur.Should
        stems = [(self._term("stems", term, "basic"), weight) for term, weight in rarities.items()]
        stems = [(query, weight) for query, weight in stems if weight > 0]
        if not nums or not stems:
            return []
        selected = tantivy.Query.boolean_query([(should, self._term("num", num, "basic")) for num in nums])
        sums = [(should, tantivy.Query.const_score_query(query, weight)) for query, weight in stems]
        query = tantivy.Query.boolean_query([(must, tantivy.Query.const_score_query(selected, 0.0)), *sums])
        hits = self._searcher.search(query, limit=len(nums), count=False).hits
        return [score for score, _ in hits]

    def _query(self, terms: Sequence[WeightedTerm], scope: Scope, allowed: ScopeMask) -> tuple[Any, float]:
        """Return the tantivy query, and the estimated share (at most 1) of its results that the scope allows."""
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

    def _term(self, field: str, term: str | int, option: str) -> Any:
        return tantivy.Query.term_query(self._schema, field, term, option)


@dataclass(frozen=True, slots=True)
class View:
    """The state of the index that one search reads: a commit on disk, and the newer changes in memory. `missing` is the
    number of changes that are in neither, because the index is being updated."""

    committed: CommittedIndex
    memtable: Memtable
    missing: int = 0

    def search(
        self, query: QueryTerms, scope: Scope, limit: int, allowed: ScopeMask, dates: Sequence[str] = ()
    ) -> WordHits:
        """Return the best `limit` entries that the scope mask `allowed` contains, best first. Entries with equal scores
        are sorted by number. `dates` contains terms for the days that the query names."""
        committed, memtable = self.committed, self.memtable
        terms = committed.query_terms(query, memtable.languages, dates)
        frequencies = committed.frequencies(terms)
        terms = without_common_terms(terms, frequencies, committed.entries, committed.language)
        limit = min(limit, allowed.count)
        indexed = [term for term in terms if frequencies[term.field, term.term]]
        scored = committed.best(indexed, scope, limit, allowed, memtable.entries)
        if len(memtable) and terms:
            scores = memtable.scores(terms, frequencies, committed.statistics(terms))
            recent = Scored.of(list(scores), list(scores.values())).inside(allowed)
            numbers = np.concatenate((scored.entries, recent.entries))
            scored = Scored(numbers, np.concatenate((scored.scores, recent.scores)))
        best = np.lexsort((scored.entries, -scored.scores))[:limit]
        entries = scored.entries[best].tolist()
        if dates:  # words match the days of a query and vectors do not, so `covered` is 1
            return WordHits(entries, scored.scores[best].tolist(), missing=self.missing)
        rarities = stem_rarities(terms, frequencies, committed.entries + len(memtable))
        covered = self._covered(entries[:_HEAD], rarities)
        return WordHits(entries, scored.scores[best].tolist(), covered, self.missing)

    def _covered(self, nums: Sequence[int], rarities: Mapping[str, float]) -> float:
        """Return `WordHits.covered` for these entries; `rarities` is the weight of each stem of the query."""
        shares = self.committed.stem_sums([num for num in nums if num not in self.memtable.entries], rarities)
        for num in nums:
            if entry := self.memtable.entries.get(num):
                shares.append(sum(rarities[term] for term in rarities if term in entry.counts["stems"]))
        return covered_share(shares, rarities, {*self.committed.languages, *self.memtable.languages})


def stem_rarities(
    terms: Sequence[WeightedTerm], frequencies: Mapping[tuple[str, str], int], entries: int
) -> dict[str, float]:
    """Return a dictionary: stem of a query -> its weight in BM25, which is higher if fewer entries have the stem."""
    stems = (term for term in terms if term.field == "stems")
    return {term: weight * rarity(frequencies[name, term], entries) for name, term, weight in stems}


def covered_share(stem_sums: Sequence[float], rarities: Mapping[str, float], languages: Iterable[str]) -> float:
    """Return the largest share (0..1) of a query that one entry contains. `stem_sums` contains for each entry the sum
    of the weights (`rarities`) of the query's stems in the entry. The share is this sum, divided by the sum for all
    stems of the query. Each of the `languages` has its own stems and therefore its own sum; the smallest sum above 0 is
    used."""
    sums = dict.fromkeys(languages, 0.0)
    for term, rare in rarities.items():
        head, mark, _ = term.partition("~")
        for language in (head,) if mark else (*sums,):  # terms without a language mark belong to every language
            if language in sums:
                sums[language] += rare
    whole = min((total for total in sums.values() if total), default=0.0)
    return min(1.0, max(stem_sums, default=0.0) / whole) if whole else 1.0


def _explained_values(explained: Mapping[str, Any]) -> dict[str, float]:
    """Return the values in tantivy's explanation of a score. The key of a value is its description up to the first
    comma."""
    values = {str(explained["description"]).partition(",")[0]: float(explained["value"])}
    for detail in explained.get("details", ()):
        values |= _explained_values(detail)
    return values
