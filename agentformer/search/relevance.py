"""The filter for relevant hits. A search always returns its best hits, and this module removes the hits that do not
answer the query.

A hit is relevant for one of three reasons. First, the query names the hit: the query contains all words of the title or
of an alias of the entry (`metadata["aliases"]`). Second, the hit contains enough terms of the query. A term that is
rare among the hits counts more (inverse document frequency, Spärck Jones 1972). Third, the vector of the hit is near
the query: the cosine is high, and it is not much lower than the best cosine. Cosines are compared on the scale of
`embedders.calibration`.

If the query names a hit, every other hit must contain terms of the query that the named hit does not contain. So "What
is Redis for?" returns the entry with the title Redis, and not all entries that mention Redis. Terms are normalized
words, as in the word index. Words with typing errors and inflected forms are found too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from types import MappingProxyType

from agentformer.embedders.calibration import CALIBRATIONS, IDENTITY, Scale
from agentformer.errors import EmbedderError
from agentformer.index.embedding.active import current_embedder
from agentformer.index.entry_properties import entry_language
from agentformer.text.analysis import COMPOUNDING, QueryTerms, analyze_query, text_terms
from agentformer.types import Analyzed, Embedder, Hit, Hits, MemoryEntry

# Chosen on nine development sets in six languages, where they keep 96% or more of the right passages among the first
# ten hits; nearby values give about the same (bench/log/search.md).
_SHARE = 0.12  # minimum share of the query's terms, by weight
_SHARE_OF_BEST = 0.35  # minimum relative to the best hit's share, or to its BM25 score
_LONG = 10  # number of query terms that count; a short memory cannot contain more terms of a long query
_MOST_OF_QUERY = 0.6  # minimum share if a hit contains only one term
_RARE = 6.0  # or minimum BM25 score; a score so high means that few entries of a large store contain the term
_RARE_OF_BEST = 0.6
_CONFIRMING_COSINE = 0.35  # or minimum cosine that confirms a single term
_NEAR = 0.5  # cosine that is enough without words; for SBERT models, unrelated sentences stay below .4
_NEAR_OF_BEST = 0.75
_SHORT_QUERY = 2  # in a query with at most so many terms, one term is enough if no other hit contains it
_SHORT_HIT = 12  # and if the hit has at most so many terms
_COMMON_NAME = 4  # a name is ignored if more than a quarter of the hits have it
_FEW_NAMED = 2  # but a name that only so few hits have is never ignored

_MAX_TEXT = 20_000  # code points of the content that are read, in addition to the best-matching part
_MAX_TEXTS = 200_000  # code points that are read of all hits of a search together; each hit has an equal share
_MAX_NAMES = 50  # number of names of an entry
_MAX_TYPOS = 10  # maximum number of query words that are treated as typing errors

# Weight of a term that a hit contains in another form than the query.
_INSIDE = 0.8  # in a compound: "kone" in "pesukone"
_BEGINNING = 0.6  # the stems differ only in their last letters
_TYPO = 0.8
_STEM_END = 2  # number of letters that may differ in such stems
_LONG_STEM = 6  # number of letters that must be equal


class EntryLanguages:
    """A cache of the languages of entries, for one search request. `known` contains stored results of text analysis, by
    entry id. The language of an entry that is not in `known` is detected when it is first needed."""

    def __init__(self, known: Mapping[str, Analyzed] = MappingProxyType({})) -> None:
        self.known = known
        self._languages = {entry_id: analyzed.language for entry_id, analyzed in known.items()}

    def of(self, entry: MemoryEntry) -> str:
        """Return the language code of an entry; see `index.entry_properties.entry_language`."""
        if entry.id not in self._languages:
            self._languages[entry.id] = entry_language(entry)
        return self._languages[entry.id]


class Nearness:
    """The cosines of hits on the scale of `embedders.calibration`, and the languages of their entries, for one search
    request. `hits` are all hits of the request. `embedder` is the embedder of the store; it is calibrated when the
    first cosine is needed. Without an embedder, the cosines stay the same."""

    def __init__(self, hits: Hits, embedder: Embedder | None = None) -> None:
        self.hits = hits
        self.languages = EntryLanguages(hits.analyzed)
        self._embedder = embedder

    def of(self, hit: Hit) -> float:
        """Return the mapped cosine (-1..1) of a hit. Return 0 if no cosine was computed, or if the cosines of the
        embedder cannot be used."""
        if hit.dense_score is None or self._scale is None:
            return 0.0
        return self._scale.of(hit.dense_score, self.languages.of(hit.entry))

    @cached_property
    def _scale(self) -> Scale | None:
        if self._embedder is None:
            return IDENTITY
        try:
            return CALIBRATIONS.of(current_embedder(self._embedder)).texts
        except EmbedderError:
            return None


def relevant_hits(query: str, hits: Hits, nearness: Nearness | None = None) -> Hits:
    """Return the hits that answer the query, in the same order. The result has the same warnings as `hits`. Return no
    hits for a blank query. Each hit is judged by comparison with the other hits. Therefore pass about 30 hits, and
    apply a smaller limit to the result. Without `nearness`, the cosines of the hits are compared as they are."""
    if not query.strip() or not hits:
        return hits.with_hits(())
    nearness = nearness or Nearness(hits)
    matches = _matches(analyze_query(query.replace("_", " ")), hits, nearness)
    # A hit that the query names is relevant, unless many hits have the name: then the name does not say which is meant.
    owners = Counter(match.named_by_query for match in matches if match.named_by_query)
    most_owners = max(_FEW_NAMED, len(matches) // _COMMON_NAME)
    named = {id(m) for m in matches if m.named_by_query and owners[m.named_by_query] <= most_owners}
    judge = _Judge(matches, named)
    relevant = [m.hit for m in matches if id(m) in named or judge.is_near(m) or judge.holds_enough(m)]
    return hits.with_hits(relevant)


@dataclass(slots=True)
class _LanguageQuery:
    """The terms of a query, analyzed in one of the languages of the hits, without function words such as "the"."""

    language: str
    terms: tuple[str, ...]
    words: dict[str, str]  # term -> the word as written
    corrections: dict[str, frozenset[str]] = field(default_factory=dict)  # mistyped term -> terms of the hits


@dataclass(slots=True)
class _Match:
    """A hit that is compared with the query: the terms of the hit, and the terms of the query that the hit contains."""

    hit: Hit
    query: _LanguageQuery
    stems: frozenset[str]
    joined: str  # all stems without language, each after a space, to search for parts and beginnings of stems
    words: frozenset[str]
    names: list[tuple[frozenset[str], tuple[str, ...]]]  # the terms of each name of the entry, and its words
    cosine: float = 0.0  # on the common scale; 0 if the vectors had no influence on the ranking
    # term of the query -> certainty that the hit contains it, 0..1
    terms: dict[str, float] = field(default_factory=dict)
    named_by_query: frozenset[str] | None = None  # the terms of a name that the query contains completely


def _matches(query: QueryTerms, hits: Sequence[Hit], nearness: Nearness) -> list[_Match]:
    """Compare each hit with the query in the language of the hit. Typing errors are found in all hits together."""
    queries: dict[str, _LanguageQuery] = {}
    matches = []
    for hit in hits:
        language = nearness.languages.of(hit.entry)
        if language not in queries:
            queries[language] = _language_query(query, language)
        match = _read(hit, queries[language], min(_MAX_TEXT, _MAX_TEXTS // len(hits)))
        match.cosine = nearness.of(hit) if hit.dense_rank is not None else 0.0
        matches.append(match)
    for one in queries.values():
        one.corrections = _corrections(one, [match for match in matches if match.query is one])
    for match in matches:
        match.terms = {term: certainty for term in match.query.terms if (certainty := _certainty(match, term))}
        query_terms = set(match.query.terms).union(*match.query.corrections.values())
        match.named_by_query = next((terms for terms, _ in match.names if terms and terms <= query_terms), None)
    return matches


def _language_query(query: QueryTerms, language: str) -> _LanguageQuery:
    terms = _content_terms(query, language)
    words: dict[str, str] = {}
    for word in dict.fromkeys(query.as_text(language).words):
        words.setdefault(_stem(word, language), word)
    return _LanguageQuery(language, terms, {term: words[term] for term in terms if term in words})


def _content_terms(query: QueryTerms, language: str) -> tuple[str, ...]:
    """Return the terms of a query without function words, and without parts of names (`type` in `TypeScript`)."""
    whole = set(query.as_text(language).stems)
    return tuple(term for term in dict.fromkeys(query.terms([language]).stems) if term in whole)


def _read(hit: Hit, query: _LanguageQuery, most: int) -> _Match:
    """Return a `_Match` with the terms of a hit. The first `most` code points of the content, the best-matching part
    and the names of the hit are read. The caller later sets the fields `cosine`, `terms` and `named_by_query`, which
    compare the hit with the query."""
    entry, language = hit.entry, query.language
    beyond = entry.content[max(hit.span.start, most) : hit.span.end] if hit.span else ""
    text = "\n".join((entry.title, entry.context, entry.content[:most], beyond))
    terms = text_terms(text.replace("_", " "), language)  # "error_handling" as two words
    names = []
    for name in _names(entry):
        analyzed = analyze_query(name.replace("_", " "))
        names.append((frozenset(_content_terms(analyzed, language)), analyzed.as_text(language).words))
    joined = "".join(" " + stem.rpartition("~")[2] for stem in dict.fromkeys(terms.stems))  # "fi~talo" as " talo"
    ideographs = frozenset(part for part in terms.parts if len(part) == 1)  # a query may be a single ideograph
    return _Match(hit, query, ideographs.union(terms.stems), joined, frozenset(terms.words), names)


def _names(entry: MemoryEntry) -> list[str]:
    """Return the title and the aliases of an entry. The title of a passage of a document is left out, because it is the
    title of the whole document."""
    aliases = entry.metadata.get("aliases")
    title = [] if entry.source else [entry.title]
    given = aliases if isinstance(aliases, (list, tuple)) else []
    return [name for name in (*title, *given) if isinstance(name, str) and name.strip()][:_MAX_NAMES]


def _stem(word: str, language: str) -> str:
    return next(iter(text_terms(word, language).stems), "")


def _certainty(match: _Match, term: str) -> float:
    """Return the certainty (0..1) that a hit has a term: exactly, mistyped, in a compound or with another ending."""
    if term in match.stems:
        return 1.0
    if match.query.corrections.get(term, frozenset()) & match.stems:
        return _TYPO
    language, marked, stem = term.partition("~")  # "fi~talo"; a code has no mark
    if not marked or len(stem) < _LONG_STEM or not stem.isalpha():
        return 0.0
    if language in COMPOUNDING and stem in match.joined:
        return _INSIDE
    beginning = stem[: max(_LONG_STEM, len(stem) - _STEM_END)]
    if f" {beginning}" in match.joined:
        return _BEGINNING
    return _INSIDE * _BEGINNING if language in COMPOUNDING and beginning in match.joined else 0.0


def _corrections(query: _LanguageQuery, matches: Sequence[_Match]) -> dict[str, frozenset[str]]:
    """Find typing errors in the query. Return for each misspelled term the terms of the hits that may be meant. The
    words of titles and aliases are tried first. If a term occurs in no hit and resembles no title or alias, all words
    of the hits are tried."""
    in_names = frozenset(chain.from_iterable(terms for match in matches for terms, _ in match.names))
    known = in_names.union(*(match.stems for match in matches))
    long_words = ((term, word) for term, word in query.words.items() if len(word) >= 4 and word.isalpha())
    doubtful = [(term, word) for term, word in long_words if term not in in_names]
    names = chain.from_iterable(words for match in matches for _, words in match.names)
    corrections = _similar(doubtful, names, query.language)
    unknown = [(term, word) for term, word in doubtful if term not in corrections and term not in known]
    words = chain.from_iterable(match.words for match in matches) if unknown else ()
    return corrections | _similar(unknown, words, query.language)


def _similar(wanted: Sequence[tuple[str, str]], words: Iterable[str], language: str) -> dict[str, frozenset[str]]:
    by_initial: dict[str, list[str]] = {}
    for word in dict.fromkeys(words):
        by_initial.setdefault(word[0], []).append(word)
    similar = {
        term: frozenset(_stem(other, language) for other in by_initial.get(word[0], ()) if is_typo(word, other))
        for term, word in wanted[:_MAX_TYPOS]
    }
    return {term: stems for term, stems in similar.items() if stems}


def is_typo(written: str, meant: str) -> bool:
    """Return whether the word `written` is probably a typing error of the word `meant`. The first letter must be equal,
    and the two words must consist of letters.

    In words of at least five letters, one letter may be added or missing, or two neighboring letters may be swapped. A
    replaced letter is accepted only in words of at least seven letters, because a replaced letter in a short word
    usually makes another word ("mango", "mongo"). In words of at least nine letters, two errors are accepted.
    """
    longer, shorter = max(len(written), len(meant)), min(len(written), len(meant))
    if longer < 5 or shorter < 4 or written == meant or written[0] != meant[0] or not (written + meant).isalpha():
        return False
    allowed = 2 if longer >= 9 else 1
    if longer - shorter > allowed or len(set(written) ^ set(meant)) > 2 * allowed:
        return False
    if longer == shorter < 7 and sorted(written) != sorted(meant):
        return False
    return _distance(written, meant) <= allowed


def _distance(one: str, other: str) -> int:
    """Return the number of typing errors between two words: the smallest number of letters to add, remove, replace or
    swap with a neighbor, so that one word becomes the other (optimal string alignment; Damerau 1964)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        above, row = row, [i]
        for j, b in enumerate(other, 1):
            best = min(row[-1] + 1, above[j] + 1, above[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before = above
    return row[-1]


class _Judge:
    def __init__(self, matches: Sequence[_Match], named: set[int]) -> None:
        self._size = len(matches)
        self._holders = Counter(term for match in matches for term in match.terms)
        self._in_named = {term for match in matches if id(match) in named for term in match.terms}
        self._best_share = max(self._share(match, match.terms) for match in matches)
        self._best_bm25 = max(_bm25(match.hit) for match in matches)
        self._best_cosine = max(match.cosine for match in matches)

    def is_near(self, match: _Match) -> bool:
        return match.cosine >= max(_NEAR, _NEAR_OF_BEST * self._best_cosine)

    def holds_enough(self, match: _Match) -> bool:
        """Return whether a hit contains enough terms of the query. If the query names another hit (by its title or an
        alias), the terms that this other hit contains are not counted."""
        rest = [term for term in match.terms if term not in self._in_named]
        share = self._share(match, rest)
        if len(rest) == 1:
            return self._one_is_enough(match, share)
        share_of_best = self._share(match, match.terms) / self._best_share if self._best_share else 0.0
        of_best = max(share_of_best, self._of_best_bm25(match))
        return len(rest) > 1 and share >= _SHARE and of_best >= _SHARE_OF_BEST

    def _one_is_enough(self, match: _Match, share: float) -> bool:
        """Return whether one term of the query is enough. `share` is the share of its weight in the query, 0..1."""
        if share >= _MOST_OF_QUERY:
            return True
        short = len(match.query.terms) <= _SHORT_QUERY and len(match.stems) <= _SHORT_HIT
        if short and any(self._holders[term] == 1 for term in match.terms):
            return True  # no other hit contains the term, so it is rare, even if there are few hits
        if len(match.terms) == 1 and self._of_best_bm25(match) >= _RARE_OF_BEST and _bm25(match.hit) >= _RARE:
            return True
        confirmed = match.cosine >= max(_CONFIRMING_COSINE, _NEAR_OF_BEST * self._best_cosine)
        return confirmed and share >= _SHARE

    def _of_best_bm25(self, match: _Match) -> float:
        return _bm25(match.hit) / self._best_bm25 if self._best_bm25 else 0.0

    def _share(self, match: _Match, terms: Iterable[str]) -> float:
        """Return the weight of `terms` as a share of the weight of all terms of the query, 0..1. A rare term has a high
        weight. In a long query, only the rarest terms count for the weight of the query."""
        rarities = {term: math.log(1 + self._size / (0.5 + self._holders[term])) for term in match.query.terms}
        whole = sum(sorted(rarities.values())[-_LONG:])
        return min(1.0, sum(rarities[term] * match.terms[term] for term in terms) / whole) if whole else 0.0


def _bm25(hit: Hit) -> float:
    return hit.lexical_score or 0.0
