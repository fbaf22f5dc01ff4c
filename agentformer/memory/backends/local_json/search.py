"""Word search and scope filter over entries in memory. The search uses BM25 (Robertson and Zaragoza 2009) with the same
formula, terms and weights as the word index of the backend `faiss`, so that the scores of the two backends are
equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from agentformer.index.words.fields import BOOSTS, rarity
from agentformer.records.codec import now
from agentformer.records.filters import json_equal, matches, parse
from agentformer.records.scopes import OWNERS, effective_salience, is_visible
from agentformer.text.analysis import query_terms, stored_terms, text_terms
from agentformer.text.languages import language_code
from agentformer.types import Decay, MemoryEntry, Scope

_K1 = 1.2  # saturation of repeated words
_B = 0.75  # how much a long text lowers the score
_EQUAL = ("session_id", "agent_id", "user_id", "project", "parent_id", "source_type", "source_id")


@dataclass(frozen=True, slots=True)
class EntryTerms:
    """The search terms of an entry. `counts` contains the frequency of each term, for each field of the word index.
    `lengths` contains the number of all terms of each field. `language` is the language of the entry."""

    language: str
    counts: dict[str, Counter[str]]
    lengths: dict[str, int]


def indexed_text(entry: MemoryEntry) -> tuple[str, str, str, str]:
    """Return all values of an entry on which its search terms depend: content, title, context and language."""
    return entry.content, entry.title, entry.context, language_code(entry.metadata.get("language"))


def analyze(entry: MemoryEntry) -> EntryTerms:
    """Return the search terms that the backend `faiss` would index for this entry. A term in title and context counts
    once, no matter how often it occurs there."""
    content, title, context, known_language = indexed_text(entry)
    language, terms = stored_terms(content, known_language, of_code=entry.kind == "chunk" and "code" in entry.metadata)
    around = text_terms(f"{title} {context}", language)
    counts = {
        "stems": Counter((*terms.stems, *dict.fromkeys(around.stems))),
        "surface": Counter(terms.surface),
        "parts": Counter(terms.parts),
    }
    return EntryTerms(language, counts, {name: count.total() for name, count in counts.items()})


def bm25_scores(terms: Sequence[EntryTerms], text: str) -> dict[int, float]:
    """Return the BM25 scores of the entries that contain a word of `text`. `terms` are the search terms of all entries.
    A key of the result is the index of an entry in `terms`."""
    query = query_terms(text, sorted({entry.language for entry in terms}))
    scores: dict[int, float] = defaultdict(float)
    for field, boost in BOOSTS.items():
        _add_field(scores, terms, field, Counter(getattr(query, field)), boost)
    return scores


def _add_field(
    scores: dict[int, float], terms: Sequence[EntryTerms], field: str, query: Counter[str], boost: float
) -> None:
    """Add the scores of one field of the word index to `scores`. `boost` is the weight of the field. The terms are
    added in a fixed order, so that equal texts get exactly equal sums."""
    average = sum(entry.lengths[field] for entry in terms) / max(1, len(terms))
    postings: dict[str, list[tuple[int, int]]] = {term: [] for term in query}
    for number, entry in enumerate(terms):
        counts = entry.counts[field]
        for term in query.keys() & counts.keys():
            postings[term].append((number, counts[term]))
    for term, posting in postings.items():
        frequency = len(posting)
        if field == "stems" and term.startswith("~"):  # unknown language: the word is counted in all languages
            frequency = max(frequency, sum(term[1:] in entry.counts["surface"] for entry in terms))
        rare = rarity(frequency, len(terms))
        for number, count in posting:
            length = _K1 * (1 - _B + _B * terms[number].lengths[field] / average)
            scores[number] += boost * query[term] * rare * count * (_K1 + 1) / (count + length)


def scope_filter(scope: Scope) -> Callable[[MemoryEntry], bool]:
    """Return a function that tests whether an entry is in the scope. Validity and the decay of salience (importance)
    are computed for the same moment in all tests."""
    moment = now()
    optional = OWNERS if scope.or_nobody else ()
    equal = {
        name: (value, None) if name in optional else (value,)
        for name in _EQUAL
        if (value := getattr(scope, name)) is not None
    }
    decay = Decay(scope.decay.rates, scope.decay.at or moment)
    tree = parse(scope.where)

    def admits(entry: MemoryEntry) -> bool:
        return (
            entry.namespace == scope.namespace
            and is_visible(entry, scope, moment)
            and (not scope.tiers or entry.tier in scope.tiers)
            and (not scope.kinds or entry.kind in scope.kinds)
            and entry.kind not in scope.except_kinds
            and (not scope.categories or entry.category in scope.categories)
            and all(getattr(entry, name) in values for name, values in equal.items())
            and (scope.document_id is None or (entry.source and entry.source.document_id) == scope.document_id)
            and (not scope.pages or (entry.source and entry.source.page) in scope.pages)
            and _in_time(entry.occurred_at, scope.occurred_from, scope.occurred_to)
            and _in_time(entry.occurred_at or entry.created_at, scope.since, scope.until)
            and all(
                key in entry.metadata and json_equal(entry.metadata[key], value)
                for key, value in scope.metadata.items()
            )
            and (tree is None or matches(tree, entry))
            and (scope.min_salience <= 0 or effective_salience(entry, decay) >= scope.min_salience)
        )

    return admits


def _in_time(at: datetime | None, start: datetime | None, end: datetime | None) -> bool:
    if at is None:
        return start is None and end is None
    return (start is None or at >= start) and (end is None or at < end)
