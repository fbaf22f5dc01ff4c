"""What the word index keeps of an entry, and how a query asks for it.

Terms come analysed from `text.analysis`; tantivy only splits at spaces and scores. What places an entry (its
namespace, session, user and so on) is kept as terms too, so that a search in a small scope reads the small scope.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import tantivy

from agentformer.text.analysis import Terms, language_of, text_terms
from agentformer.text.analyzers import PLAIN, Analyzers
from agentformer.text.dates.terms import date_terms, day_terms
from agentformer.text.languages import detect_language, language_code
from agentformer.types import MemoryEntry, Scope

ANALYSIS = 3  # raised whenever the terms change: an index of other terms is rebuilt
UNKNOWN_LANGUAGE = "und"  # ISO 639's code for a language not known
# How much a match counts in each field; chosen on development halves, see docs/BENCHMARKS.md.
BOOSTS = {"stems": 1.0, "surface": 0.1, "parts": 0.6}
_PLACES = ("session_id", "agent_id", "user_id", "project", "parent_id", "source_type", "source_id")
_KINDS = (("tier", "tiers"), ("kind", "kinds"), ("category", "categories"))  # of an entry, and of a scope
_OWNERS = ("user_id", "project")
_OWN = 2  # times that a message's own words count beside those around it
_AROUND = 2_000  # code points of each of the texts around
_TAG = 64  # code points of a metadata string that is kept as a term: names and ids, not texts
_EXACT = 2**53  # integers below it equal their float, as SQLite compares them


class Asked(NamedTuple):
    """A term of a query, in its field."""

    field: str
    term: str
    weight: float  # the field's boost, times how often the query has the term


@dataclass(frozen=True, slots=True)
class AnalyzedEntry:
    """An entry as the word index sees it."""

    num: int
    language: str  # "" when unknown
    places: tuple[str, ...]
    terms: Mapping[str, tuple[str, ...]]  # by field, repeated as in the text
    analyzers: tuple[str, ...] = ()  # by name, that took part beside what is always there

    @classmethod
    def of(
        cls, num: int, entry: MemoryEntry, analyzers: Analyzers = PLAIN, around: Sequence[str] = ()
    ) -> AnalyzedEntry:
        """An entry with the texts `around` it, whose words count beside its own."""
        prior = language_code(entry.metadata.get("language")) or (detect_language("\n".join(around)) if around else "")
        language = language_of(entry.content, prior, analyzers)
        terms = text_terms(entry.content, language, analyzers)
        context = text_terms(f"{entry.title} {entry.context}", language).stems if entry.title or entry.context else ()
        stems = (*terms.stems, *dict.fromkeys((*context, *entry_date_terms(entry, language))))
        beside = [term for text in around for term in text_terms(text[:_AROUND], language, analyzers).stems]
        fields = {
            "stems": (*stems * _OWN, *beside) if beside else stems,
            "surface": terms.surface,
            "parts": terms.parts,
        }
        return cls(num, language, tuple(_places(entry)), fields, analyzers.names(language))

    def document(self) -> Any:
        """As tantivy takes it."""
        document = tantivy.Document()
        document.add_unsigned("num", self.num)
        for place in self.places:
            document.add_text("places", place)
        document.add_text("language", self.language or UNKNOWN_LANGUAGE)
        for name in self.analyzers:
            document.add_text("analyzers", name)
        for name, terms in self.terms.items():
            document.add_text(name, " ".join(terms))
        return document


def schema() -> Any:
    """The fields of a tantivy index."""
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("num", indexed=True, fast=True)
    for name in ("places", "language", "analyzers"):
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    for name in BOOSTS:
        builder.add_text_field(name, tokenizer_name="whitespace", index_option="freq")
    return builder.build()


def languages_of(searcher: Any) -> dict[str, int]:
    """How many of an index's texts are in each language, "" where it is not known."""
    names = [name for name, _ in searcher.terms_with_prefix("language", "")]
    return {"" if name == UNKNOWN_LANGUAGE else name: int(searcher.doc_freq("language", name)) for name in names}


def in_language(term: str, language: str) -> bool:
    """Is it a stem of this language, or a term that no language changes?"""
    head, mark, _ = term.partition("~")
    return not mark or head == language


def asked_terms(terms: Terms, dates: Sequence[str] = ()) -> list[Asked]:
    """Return the terms of a query, each once with its weight, and the terms of the dates that the query names."""
    counts = Counter(
        [
            *(("stems", term) for term in terms.stems),
            *(("surface", term) for term in terms.surface),
            *(("parts", term) for term in terms.parts),
            *(("stems", term) for term in dates if term not in terms.stems),
        ]
    )
    return [Asked(field, term, BOOSTS[field] * times) for (field, term), times in counts.items()]


def required_places(scope: Scope) -> list[str]:
    """Terms that every entry of the scope has. The scope may ask for more than terms can tell."""
    terms = [_place("namespace", scope.namespace)]
    for name in (*_PLACES, "document_id"):
        value = getattr(scope, name)
        if value is not None and not (scope.or_nobody and name in _OWNERS):
            terms.append(_place(name, value))
    for name, plural in _KINDS:
        values = getattr(scope, plural)
        if len(values) == 1:
            terms.append(_place(name, values[0]))
    return [*terms, *_tags(scope.metadata)]


def _places(entry: MemoryEntry) -> list[str]:
    values = {name: getattr(entry, name) for name in ("namespace", *_PLACES, *(name for name, _ in _KINDS))}
    values["document_id"] = entry.source.document_id if entry.source else None
    return [*(_place(name, value) for name, value in values.items() if value is not None), *_tags(entry.metadata)]


def _tags(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Terms of the values that are equal in SQL only where these terms are equal."""
    for key, value in metadata.items():
        if not isinstance(key, str) or len(key) > _TAG:
            continue
        if isinstance(value, str) and len(value) <= _TAG:
            yield _place(f"metadata.{key}", value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _EXACT:
            yield _place(f"metadata.{key}", repr(float(value) + 0.0))  # -0.0 equals 0.0


def _place(name: str, value: str) -> str:
    return f"{name}={value}"


def entry_date_terms(entry: MemoryEntry, language: str) -> tuple[str, ...]:
    """The terms of the day of an entry, and of the days that its title and text name. "Yesterday" is the day before it
    happened; in a text of which it is not known when, only whole dates count."""
    on = day_of(entry.occurred_at)
    own = day_terms(on) if on else ()
    return tuple(dict.fromkeys((*own, *date_terms(f"{entry.title}\n{entry.content}", on, language))))


def day_of(moment: datetime | None) -> date | None:
    return moment.astimezone(UTC).date() if moment else None
