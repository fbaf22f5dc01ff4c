"""Fields of the word index. This module computes the terms of an entry and the terms of a query, and records which
analyzers made the terms.

The module `text.analysis` makes the terms; tantivy only splits them at spaces and computes scores. The field `places`
contains properties of an entry, such as namespace, session and user. With these place terms, a search in a small scope
reads few entries outside of the scope.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from operator import attrgetter
from typing import Any, NamedTuple

import tantivy

from agentformer.index.entry_properties import Derived
from agentformer.records.scopes import OWNERS
from agentformer.text.analysis import Terms, stored_terms, text_terms
from agentformer.text.dates.expressions import date_terms, day_terms
from agentformer.text.language_extras import ANALYZED_LANGUAGES, PLAIN, Analyzers
from agentformer.text.languages.detection import detect_language, language_code
from agentformer.types import MemoryEntry, Scope

log = logging.getLogger("agentformer")

ANALYSIS = 4  # version of the analysis, increased whenever the terms change; another index is then built
ANALYZERS_FIELD = "analysers"  # the spelling on disk
UNKNOWN_LANGUAGE = "und"  # ISO 639's code for an unknown language
# Weight of a match in each field; chosen on development questions, see bench/log/search.md.
BOOSTS = {"stems": 1.0, "surface": 0.1, "parts": 0.6}
# BM25 as tantivy computes it: saturation of repeated terms, and how much a long text lowers the weight of each term.
K1, B = 1.2, 0.75
_PLACES = ("session_id", "agent_id", "user_id", "project", "parent_id", "source_type", "source_id")
# Field of an entry, and the field of a scope with the wanted values.
_KINDS = (("tier", "tiers"), ("kind", "kinds"), ("category", "categories"))
_PLACED = ("namespace", *_PLACES, *(name for name, _ in _KINDS))
_placed: Callable[[MemoryEntry], tuple[str | None, ...]] = attrgetter(*_PLACED)
_LARGE = 10_000  # entries; for a larger index, common terms and rare languages are left out of a query
_LANGUAGE_SHARE = 0.001  # a smaller share of the entries makes a language rare
_COMMON = 0.3  # the share of entries that makes a term common
_MIN_RARE = 2  # minimum number of rarer terms in a query from which common ones are left out
_OWN_WEIGHT = 2  # weight of a message's own words; the words of its neighbors have weight 1
_MAX_NEIGHBOR = 2_000  # code points of each neighboring text
_MAX_TAG = 64  # a longer metadata string is a text and does not become a term
_MAX_EXACT = 2**53  # smaller integers are equal to their float, as in a comparison by SQLite


class WeightedTerm(NamedTuple):
    """A term of a query, the field of the index in which it is searched, and its weight."""

    field: str
    term: str
    weight: float  # boost of the field, times the number of occurrences in the query


@dataclass(frozen=True, slots=True)
class AnalyzedEntry:
    """The fields of one entry in the word index. `places` contains properties such as namespace and user."""

    num: int
    language: str  # "" when unknown
    places: tuple[str, ...]
    terms: Mapping[str, tuple[str, ...]]  # field -> its terms, repeated as often as in the text
    analyzers: tuple[str, ...] = ()  # names of the optional analyzers used

    @classmethod
    def of(
        cls,
        num: int,
        entry: MemoryEntry,
        analyzers: Analyzers = PLAIN,
        around: Sequence[str] = (),
        derived: Derived | None = None,
    ) -> AnalyzedEntry:
        """Return the terms of an entry for each field of the word index. `around` contains the texts of neighboring
        messages, whose terms get a lower weight. `num` is the row number of the entry in the store. `derived` is the
        derived row of the entry, which has the language of the text, if it exists."""
        # The language of an entry whose text does not show it: that of its document, or of the messages around it.
        prior = language_code(entry.metadata.get("language")) or (detect_language("\n".join(around)) if around else "")
        detected = derived.language if derived and not around else None  # the row does not depend on other messages
        of_code = entry.kind == "chunk" and "code" in entry.metadata
        language, terms = stored_terms(entry.content, prior, analyzers, detected=detected, of_code=of_code)
        context = text_terms(f"{entry.title} {entry.context}", language).stems if entry.title or entry.context else ()
        stems = (*terms.stems, *dict.fromkeys((*context, *entry_date_terms(entry, language))))
        nearby = [term for text in around for term in text_terms(text[:_MAX_NEIGHBOR], language, analyzers).stems]
        weighted = (*stems * _OWN_WEIGHT, *nearby) if nearby else stems
        fields = {"stems": weighted, "surface": terms.surface, "parts": terms.parts}
        return cls(num, language, tuple(_filter_terms(entry)), fields, analyzers.names(language))

    def document(self) -> Any:
        """Return the entry as a document of tantivy."""
        document = tantivy.Document()
        document.add_unsigned("num", self.num)
        for place in self.places:
            document.add_text("places", place)
        document.add_text("language", self.language or UNKNOWN_LANGUAGE)
        for name in self.analyzers:
            document.add_text(ANALYZERS_FIELD, name)
        for name, terms in self.terms.items():
            document.add_text(name, " ".join(terms))
        return document


def schema() -> Any:
    """Return the tantivy schema with the fields of the word index."""
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("num", indexed=True, fast=True)
    for name in ("places", "language", ANALYZERS_FIELD):
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    for name in BOOSTS:
        builder.add_text_field(name, tokenizer_name="whitespace", index_option="freq")
    return builder.build()


def in_language(term: str, language: str) -> bool:
    """Return whether a term belongs to this language. The code before "~" is the language of a term. A term without "~"
    belongs to every language."""
    head, mark, _ = term.partition("~")
    return not mark or head == language


def weighted_terms(terms: Terms, dates: Sequence[str] = ()) -> list[WeightedTerm]:
    """Return each distinct term of a query with its weight. `dates` are terms for the days that the query names."""
    counts = Counter((field, term) for field in BOOSTS for term in getattr(terms, field))
    counts.update(("stems", term) for term in dates if term not in terms.stems)
    return [WeightedTerm(field, term, BOOSTS[field] * times) for (field, term), times in counts.items()]


def rarity(frequency: int, entries: int) -> float:
    """Return the weight that BM25 gives to a term. `frequency` is the number of entries with the term, and `entries` is
    the number of all entries. Rare terms have higher weights."""
    return math.log(1 + (max(entries, frequency) - frequency + 0.5) / (frequency + 0.5))


def saturation(count: int, length: int, mean: float) -> float:
    """Return the factor that BM25 gives to a term which occurs `count` times. `length` is the number of terms in the
    field of the entry, and `mean` is the mean of all entries."""
    return (1 + K1) * count / (count + K1 * (1 - B + B * length / mean))


def stored_length(length: int) -> int:
    """Return the number of terms in a field, rounded as tantivy rounds it, so that all word indexes give the same
    scores. Tantivy stores the number in one byte: it is exact below 40, and larger numbers keep four binary digits."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24 >> shift) << shift)


def with_shared_rarity(
    terms: Sequence[WeightedTerm], frequencies: Mapping[tuple[str, str], int], entries: int
) -> list[WeightedTerm]:
    """Return the terms with corrected weights for the stems of entries whose language is unknown. Such a stem begins
    with "~" ("~aino"). If the language of most entries is known, these stems are rare even if the word is common.
    Therefore a stem gets at most the weight of the written word, whose frequency does not depend on the language."""
    shared = []
    for term in terms:
        if term.field == "stems" and term.term.startswith("~"):
            own, written = max(1, frequencies[term.field, term.term]), frequencies.get(("surface", term.term[1:]), 0)
            term = term._replace(weight=term.weight * rarity(max(own, written), entries) / rarity(own, entries))
        shared.append(term)
    return shared


def without_common_terms(
    terms: Sequence[WeightedTerm], frequencies: Mapping[tuple[str, str], int], entries: int, language: str
) -> list[WeightedTerm]:
    """Return the terms with the weights of `with_shared_rarity`. Terms that very many entries have are left out,
    because they make a search in a large index slow. If the index is small, or if too few rarer terms remain, all terms
    are returned. Only stems of the main language of the index count as rarer terms: in other languages, a common word
    can have a stem that is rare in this index."""
    terms = with_shared_rarity(terms, frequencies, entries)
    if entries < _LARGE:
        return terms
    rare = [term for term in terms if frequencies[term.field, term.term] <= entries * _COMMON]
    stems = [term for term in rare if term.field == "stems" and in_language(term.term, language)]
    enough = sum(1 for term in stems if frequencies[term.field, term.term]) >= _MIN_RARE
    return rare if enough else terms


def query_languages(counts: Mapping[str, int], entries: int, language: str) -> set[str]:
    """Return the languages in which the words of a query are stemmed. `counts` is the number of entries of each
    language in the index, and `entries` is their sum. In a large index, rare languages are left out, because for a few
    short texts a wrong language is always detected. `language`, that of the query, is kept if the index has it."""
    if entries < _LARGE:
        return set(counts)
    main = {name for name, count in counts.items() if count >= entries * _LANGUAGE_SHARE}
    return main | ({language} & counts.keys())


def required_places(scope: Scope) -> list[str]:
    """Return terms for a search in `scope`. Every entry of the scope has all these terms in its field `places`. Some
    entries outside the scope have them too, because the field does not contain every property of an entry."""
    terms = [_place("namespace", scope.namespace)]
    for name in (*_PLACES, "document_id"):
        value = getattr(scope, name)
        if value is not None and not (scope.or_nobody and name in OWNERS):
            terms.append(_place(name, value))
    for name, plural in _KINDS:
        values = getattr(scope, plural)
        if len(values) == 1:
            terms.append(_place(name, values[0]))
    return [*terms, *_tags(scope.metadata)]


def entry_date_terms(entry: MemoryEntry, language: str) -> tuple[str, ...]:
    """Return terms for the day of the entry (`occurred_at`), and for the days that are named in its title and content.
    "Yesterday" in the text means the day before the day of the entry. If the day of the entry is unknown, only complete
    dates in the text are used."""
    day = day_of(entry.occurred_at)
    own = day_terms(day) if day else ()
    return tuple(dict.fromkeys((*own, *date_terms(f"{entry.title}\n{entry.content}", day, language))))


def day_of(moment: datetime | None) -> date | None:
    """Return the date of a moment in UTC, or None for None."""
    return moment.astimezone(UTC).date() if moment else None


class SharedAnalyzers:
    """Finds the entries that must be analyzed again, because processes with different optional analyzers use the same
    index. Not thread-safe.

    Each document of the index contains the names of the analyzers that made its terms. A process analyzes an entry
    again if the document of the entry lacks one of the analyzers of this process. The entry is not analyzed again if
    its document names an analyzer that this process does not have. Without this exception, two processes could replace
    the same document forever. A process that lacks an analyzer uses the document as it is, and logs one warning.
    """

    def __init__(self, analyzers: Analyzers) -> None:
        self._analyzers = analyzers
        self._warned: set[str] = set()

    def outdated(self, searcher: Any, schema: Any) -> list[int]:
        """Return the numbers of the entries that must be analyzed again. Raises `MissingExtra` if a required analyzer
        cannot be loaded."""
        own = [(tantivy.Query.all_query(), analyzer) for analyzer in self._analyzers.of_any]
        for language in ANALYZED_LANGUAGES:
            texts = _raw_term(schema, "language", language)
            own += ((texts, analyzer) for analyzer in self._analyzers.of(language))
        used = {name for name, _ in searcher.terms_with_prefix(ANALYZERS_FIELD, "")}
        foreign = used - {analyzer.name for _, analyzer in own}
        if new := foreign - self._warned:
            self._warned |= new
            message = (
                "The word index was made with the analyzer %s, which this process cannot use; searches may miss words"
            )
            log.warning(message, ", ".join(sorted(new)))
        entries: set[int] = set()
        for texts, analyzer in own:
            must_not = (_raw_term(schema, ANALYZERS_FIELD, name) for name in (analyzer.name, *foreign))
            clauses = [(tantivy.Occur.Must, texts), *((tantivy.Occur.MustNot, term) for term in must_not)]
            query = tantivy.Query.boolean_query(clauses)
            count = searcher.search(query, limit=1).count
            if count and analyzer.ready():
                hits = searcher.search(query, limit=count, count=False).hits
                entries.update(searcher.fast_field_values("num", [address for _, address in hits]))
        return sorted(entries)


def _raw_term(schema: Any, field: str, value: str) -> Any:
    return tantivy.Query.term_query(schema, field, value, "basic")


def _filter_terms(entry: MemoryEntry) -> list[str]:
    """Return the terms of the field `places`; see `required_places`."""
    places = [_place(name, value) for name, value in zip(_PLACED, _placed(entry), strict=True) if value is not None]
    if entry.source:
        places.append(_place("document_id", entry.source.document_id))
    return [*places, *_tags(entry.metadata)]


def _tags(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield a term for each metadata value that is a short string or a number. Two values get the same term if and only
    if SQLite compares them as equal."""
    for key, value in metadata.items():
        if not isinstance(key, str) or len(key) > _MAX_TAG:
            continue
        if isinstance(value, str) and len(value) <= _MAX_TAG:
            yield _place(f"metadata.{key}", value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MAX_EXACT:
            yield _place(f"metadata.{key}", repr(float(value) + 0.0))  # -0.0 equals 0.0


def _place(name: str, value: str) -> str:
    return f"{name}={value}"
