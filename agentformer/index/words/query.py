"""Asking the word index: one state of it, on disk and in memory, and the order of what is found."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tantivy
from numpy.typing import NDArray

from agentformer.index.scope_masks import ScopeMask
from agentformer.index.words.fields import BOOSTS, Asked, asked_terms, in_language, languages_of, required_places
from agentformer.index.words.memtable import Memtable, Statistics
from agentformer.text.analysis import QueryTerms
from agentformer.text.analyzers import PLAIN, Analyzers
from agentformer.types import Scope

_TIES = 50  # times the limit that are looked at to put equals in order; more equals say nothing to order them by
_DIGITS = 4  # of a score: sums of the same terms differ in the seventh digit by the order of adding
_SPARE = 1.3  # times as many as a scope's share would leave are asked for, so that one search mostly suffices
_WIDE = 0.5  # a scope of this share of the index needs no term to narrow the search; scoring alone is faster
_NARROWING = 2  # place terms in a query at most: the rarest tell nearly all
_LARGE = 10_000  # entries of an index from which on common terms cost more than they tell
_SPOKEN = 0.001  # the share of its entries in a language from which on each query is stemmed in it
_COMMON = 0.3  # the share of entries that makes a term common,
_TELLING = 2  # and how many rarer terms must be there, so that it may be left out
_MORE = 25  # beyond the limit: mostly the last of these scores less than the last asked for, so no equal is cut off
_KNOWN = 50_000  # terms of which the number of holders is remembered


class WordHits(NamedTuple):
    """Entries by number, best first, with BM25 scores: unbounded, higher is better. Lists of one length."""

    entries: list[int]
    scores: list[float]
    ideal: float = 0.0  # about the score of an entry of mean length that has each stem of the query once


class Scored(NamedTuple):
    """The same as arrays, in any order."""

    entries: NDArray[np.int64]
    scores: NDArray[np.float64]  # rounded, so that sums of the same terms are equal

    @classmethod
    def of(cls, entries: Sequence[int], scores: Sequence[float]) -> Scored:
        return cls(np.array(entries, np.int64), np.array(scores, np.float64).round(_DIGITS))

    def where(self, kept: NDArray[np.bool_]) -> Scored:
        return Scored(self.entries[kept], self.scores[kept])

    def with_others(self, others: Scored) -> Scored:
        return Scored(np.concatenate((self.entries, others.entries)), np.concatenate((self.scores, others.scores)))


_NONE = Scored.of([], [])


class Stored:
    """One commit of the index. Thread-safe; answers the same for as long as it is kept, whatever is written."""

    def __init__(self, searcher: Any, schema: Any, analyzers: Analyzers = PLAIN) -> None:
        self._searcher = searcher
        self._analysers = analyzers
        self._schema = schema
        self._lock = threading.Lock()
        self._holders: dict[tuple[str, str], int] = {}
        self._lengths: dict[str, float] = {}
        self._counted = 0  # entries with those that are deleted and not yet merged away, as BM25 counts them
        self.entries = int(searcher.num_docs)
        self.languages = languages_of(searcher)  # each with its entries
        self._spoken = [name for name, held in self.languages.items() if held >= self.entries * _SPOKEN]
        self.language = max(self.languages, key=lambda name: self.languages[name], default="")  # of the most

    def asked(self, query: QueryTerms, more: Collection[str], dates: Sequence[str] = ()) -> list[Asked]:
        """Return the terms of a query against the index and texts in the languages `more`, and the terms `dates`.

        Of short texts a few in a thousand are taken for one of a dozen other languages; a large index is not asked for
        the stems of all of those, unless the query is in one. Words as they are written are found in any case.
        """
        languages = {*self.languages, *more}
        if self.entries >= _LARGE and len(self._spoken) < len(self.languages):
            languages = {*self._spoken, *more, *(languages & {query.language})}
        return asked_terms(query.terms(languages, self._analysers), dates)

    def holders(self, field: str, term: str) -> int:
        """How many entries have the term."""
        known = self._holders.get((field, term))
        if known is None:
            known = int(self._searcher.doc_freq(field, term))
            if len(self._holders) >= _KNOWN:
                self._holders = {}
            self._holders[field, term] = known
        return known

    def statistics(self, asked: Sequence[Asked]) -> Statistics:
        """What BM25 knows of the index, as far as the scores of these terms need it."""
        with self._lock:
            for name in BOOSTS:
                if name not in self._lengths:
                    self._learn(name, [each for each in asked if each.field == name])
            return Statistics(self._counted or self.entries, dict(self._lengths))

    def _learn(self, name: str, asked: Sequence[Asked]) -> None:
        """From tantivy's explanation of a term's score, as nothing else tells what it counts with."""
        for _, term, _ in asked:
            if self.holders(name, term):
                query = tantivy.Query.term_query(self._schema, name, term, "freq")
                hits = self._searcher.search(query, limit=1, count=False).hits
                if hits:
                    told = _numbers(json.loads(query.explain(self._searcher, hits[0][1]).to_json()))
                    self._counted, self._lengths[name] = int(told["N"]), told["avgdl"]
                    return

    def best(
        self, asked: Sequence[Asked], scope: Scope, limit: int, allowed: ScopeMask, hidden: Collection[int]
    ) -> Scored:
        """At least the best `limit` of `allowed` without `hidden`, and what equals the last, as far as there are."""
        if not asked:
            return _NONE
        query, share = self._query(asked, scope, allowed)
        wanted = min(math.ceil((limit + _MORE) / share * (_SPARE if share < 1 else 1)), max(1, self.entries))
        while True:
            hits = self._searcher.search(query, limit=wanted, count=False).hits
            nums = self._searcher.fast_field_values("num", [address for _, address in hits])
            found = _inside(Scored.of(nums, [score for score, _ in hits]), allowed)
            if hidden:
                found = found.where(~np.isin(found.entries, list(hidden)))
            # Entries outside the scope may have filled the list, and equals may have been cut from its end:
            # tantivy orders equals by segment, which differs between two stores of the same entries.
            scores = found.scores
            complete = len(scores) > limit and (scores[-1] < scores[limit - 1] or wanted > limit * _TIES)
            if complete or len(hits) < wanted:
                return found
            wanted *= 4

    def _query(self, asked: Sequence[Asked], scope: Scope, allowed: ScopeMask) -> tuple[Any, float]:
        """The query, and the share of what it reads that is allowed, above 0 and at most 1."""
        must, should = tantivy.Occur.Must, tantivy.Occur.Should
        terms = tantivy.Query.boolean_query(
            [
                (should, tantivy.Query.boost_query(self._term(field, term, "freq"), weight))
                for field, term, weight in asked
            ]
        )
        entries = max(self.entries, allowed.count, 1)
        if allowed.count >= entries * _WIDE:
            return terms, allowed.count / entries
        places = sorted((self.holders("places", place), place) for place in required_places(scope))
        narrow = [(held, place) for held, place in places[:_NARROWING] if held < entries * _WIDE]
        if not narrow:
            return terms, allowed.count / entries
        inside = [
            (must, tantivy.Query.const_score_query(self._term("places", place, "basic"), 0.0)) for _, place in narrow
        ]
        return tantivy.Query.boolean_query([(must, terms), *inside]), min(1.0, allowed.count / max(1, narrow[0][0]))

    def _term(self, field: str, term: str, option: str) -> Any:
        return tantivy.Query.term_query(self._schema, field, term, option)


@dataclass(frozen=True, slots=True)
class View:
    """What a search sees: a commit, and the changes since."""

    stored: Stored
    recent: Memtable

    def search(
        self, query: QueryTerms, scope: Scope, limit: int, allowed: ScopeMask, dates: Sequence[str] = ()
    ) -> WordHits:
        """Return the best `limit` entries of `scope` among `allowed`, best first, equal ones by number. `dates` are
        the terms of the dates that the query names."""
        asked = self.stored.asked(query, self.recent.languages, dates)
        held = {(field, term): self.stored.holders(field, term) for field, term, _ in asked}
        asked = telling(asked, held, self.stored.entries, self.stored.language)
        limit = min(limit, allowed.count)
        known = [each for each in asked if held[each.field, each.term]]
        found = self.stored.best(known, scope, limit, allowed, self.recent.held)
        if len(self.recent) and asked:
            scores = self.recent.scores(asked, held, self.stored.statistics(asked))
            newest = _inside(Scored.of(list(scores), list(scores.values())), allowed)
            found = found.with_others(newest)
        best = np.lexsort((found.entries, -found.scores))[:limit]
        ideal = ideal_score(asked, held, self.stored.entries + len(self.recent), self.stored.languages)
        return WordHits(found.entries[best].tolist(), found.scores[best].tolist(), ideal)


def ideal_score(
    asked: Sequence[Asked], holders: Mapping[tuple[str, str], int], entries: int, languages: Collection[str]
) -> float:
    """What BM25 gives for all stems of a query, each once in a text of mean length. A query is asked in each language
    of the store, so it is that of the language whose stems are held most."""
    stems = [each for each in asked if each.field == "stems"]
    rarity = {
        each.term: each.weight * math.log(1 + (max(entries, held) - held + 0.5) / (held + 0.5))
        for each in stems
        for held in [holders[each.field, each.term]]
    }
    sums = (sum(rarity[term] for term in rarity if in_language(term, language)) for language in languages)
    return min((one for one in sums if one), default=0.0)


def _inside(found: Scored, allowed: ScopeMask) -> Scored:
    """Those that a search may return."""
    known = found.where(found.entries < len(allowed.mask))
    return known.where(allowed.mask[known.entries])


def telling(asked: Sequence[Asked], holders: Mapping[tuple[str, str], int], entries: int, language: str) -> list[Asked]:
    """The terms without those that a large index has nearly everywhere, where enough rarer ones are there.

    A word that is common in the index's `language` has rare stems in all others, so only that one's count as rarer.
    """
    if entries < _LARGE:
        return [*asked]
    rare = [each for each in asked if holders[each.field, each.term] <= entries * _COMMON]
    tell = [each for each in rare if each.field == "stems" and in_language(each.term, language)]
    return rare if sum(1 for each in tell if holders[each.field, each.term]) >= _TELLING else [*asked]


def _numbers(explained: Mapping[str, Any]) -> dict[str, float]:
    """The values of an explanation, by what stands before the comma of their descriptions."""
    found = {str(explained["description"]).partition(",")[0]: float(explained["value"])}
    for detail in explained.get("details", ()):
        found |= _numbers(detail)
    return found
