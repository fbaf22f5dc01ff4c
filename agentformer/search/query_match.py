"""Which of a query's terms each hit holds: as they are, in another form, or mistyped.

Terms are those of the word index (`text.analysis`), so that what a search finds and what is judged here agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from agentformer.text.analysis import COMPOUNDING, MAX_QUERY, query_terms, text_terms
from agentformer.text.languages import detect_language, language_code
from agentformer.types import Hit, MemoryEntry

_READ = 20_000  # code points of an entry's content that are looked at, beside the part that matched best
_NAMES = 50  # names of an entry that are looked at
_MISTYPED = 10  # words of a query that are looked up as typing errors: prose has few, noise has many

# How much a term counts that is held in another form than the query's.
_INSIDE = 0.8  # of a compound: "kone" in "pesukone"
_BEGINNING = 0.6  # the stems differ in their last letters only, as stemmers leave them
_TYPO = 0.8
_STEM_END = 2  # letters in which such stems may differ
_LONG_STEM = 6  # letters that must agree


@dataclass(slots=True)
class Held:
    """What a hit holds. `terms` maps a term of the query to how surely it is held, 0..1."""

    hit: Hit
    asked: Asked
    stems: frozenset[str]
    joined: str  # the stems with a space before each: what is inside or at the beginning of one is found at once
    words: frozenset[str]
    names: list[frozenset[str]]  # the terms of each of the entry's names
    terms: dict[str, float] = field(default_factory=dict)
    named: frozenset[str] | None = None  # the terms of a name of it that the query holds wholly


@dataclass(slots=True)
class Asked:
    """A query's terms in one language, without function words. `meant` are the terms that a mistyped one may stand
    for."""

    language: str
    terms: tuple[str, ...]
    words: dict[str, str]  # term -> the word as written
    meant: dict[str, frozenset[str]] = field(default_factory=dict)


def holdings(query: str, hits: Sequence[Hit]) -> list[Held]:
    """What each hit holds of the query, in the order of the hits."""
    languages = [_language(hit.entry) for hit in hits]
    asked = {language: _asked(query[:MAX_QUERY], language) for language in set(languages)}
    rows = [_read(hit, asked[language]) for hit, language in zip(hits, languages, strict=True)]
    for one in asked.values():
        one.meant = _meant(one, [row for row in rows if row.asked is one])
    for row in rows:
        row.terms = {term: sure for term in row.asked.terms if (sure := _sureness(row, term))}
        said = set(row.asked.terms).union(*row.asked.meant.values())
        row.named = next((name for name in row.names if name <= said), None)
    return rows


def _language(entry: MemoryEntry) -> str:
    prior = entry.metadata.get("language")
    return detect_language(entry.content, language_code(prior))


def _asked(query: str, language: str) -> Asked:
    terms = _content_terms(query, language)
    words: dict[str, str] = {}
    for word in dict.fromkeys(text_terms(_spaced(query), language).words):
        words.setdefault(_stem(word, language), word)
    return Asked(language, terms, {term: words[term] for term in terms if term in words})


def _content_terms(text: str, language: str) -> tuple[str, ...]:
    """The terms of a short text without function words, and without the words inside names like `TypeScript`."""
    whole = set(text_terms(_spaced(text), language).stems)
    return tuple(term for term in dict.fromkeys(query_terms(_spaced(text), [language]).stems) if term in whole)


def _read(hit: Hit, asked: Asked) -> Held:
    entry = hit.entry
    beyond = entry.content[max(hit.span.start, _READ) : hit.span.end] if hit.span else ""
    text = "\n".join((entry.title, entry.context, entry.content[:_READ], beyond))
    terms = text_terms(_spaced(text), asked.language)
    names = [frozenset(_content_terms(name, asked.language)) for name in _names(entry)]
    joined = "".join(" " + stem.rpartition("~")[2] for stem in dict.fromkeys(terms.stems))
    single = frozenset(part for part in terms.parts if len(part) == 1)  # ideographs, of which a query may be one
    return Held(hit, asked, single.union(terms.stems), joined, frozenset(terms.words), [name for name in names if name])


def _names(entry: MemoryEntry) -> list[str]:
    """What the entry is called. The title of a document's part is its document's, and names no part of it."""
    aliases = entry.metadata.get("aliases")
    own = [] if entry.source else [entry.title]
    given = aliases if isinstance(aliases, (list, tuple)) else []
    return [name for name in (*own, *given) if isinstance(name, str) and name.strip()][:_NAMES]


def _spaced(text: str) -> str:
    """Names of settings and the like as words: "error_handling"."""
    return text.replace("_", " ")


def _stem(word: str, language: str) -> str:
    return next(iter(text_terms(word, language).stems), "")


def _sureness(row: Held, term: str) -> float:
    """How surely the hit holds the term, 0..1."""
    if term in row.stems:
        return 1.0
    if row.asked.meant.get(term, frozenset()) & row.stems:
        return _TYPO
    language, marked, stem = term.partition("~")
    if not marked or len(stem) < _LONG_STEM or not stem.isalpha():
        return 0.0
    if language in COMPOUNDING and stem in row.joined:
        return _INSIDE
    beginning = stem[: max(_LONG_STEM, len(stem) - _STEM_END)]
    if f" {beginning}" in row.joined:
        return _BEGINNING
    return _INSIDE * _BEGINNING if language in COMPOUNDING and beginning in row.joined else 0.0


def _meant(asked: Asked, rows: Sequence[Held]) -> dict[str, frozenset[str]]:
    """Terms that words of the query may be mistyped for: names first, since those are asked for; then any word of
    the hits, for a word that none of them has."""
    named = frozenset(chain.from_iterable(chain.from_iterable(row.names for row in rows)))
    seen = named.union(*(row.stems for row in rows))
    unnamed = [(term, word) for term, word in asked.words.items() if term not in named and _may_be_mistyped(word)]
    found = _alike(unnamed, _name_words(rows), asked.language)
    unknown = [(term, word) for term, word in unnamed if term not in found and term not in seen]
    words = chain.from_iterable(row.words for row in rows) if unknown else ()
    return found | _alike(unknown, words, asked.language)


def _name_words(rows: Sequence[Held]) -> Iterable[str]:
    for row in rows:
        for name in _names(row.hit.entry):
            yield from text_terms(_spaced(name), row.asked.language).words


def _alike(wanted: Sequence[tuple[str, str]], words: Iterable[str], language: str) -> dict[str, frozenset[str]]:
    by_initial: dict[str, list[str]] = {}
    for word in dict.fromkeys(words):
        by_initial.setdefault(word[0], []).append(word)
    found: Mapping[str, frozenset[str]] = {
        term: frozenset(_stem(other, language) for other in by_initial.get(word[0], ()) if is_typo(word, other))
        for term, word in wanted[:_MISTYPED]
    }
    return {term: stems for term, stems in found.items() if stems}


def _may_be_mistyped(word: str) -> bool:
    return len(word) >= 4 and word.isalpha()


def is_typo(written: str, meant: str) -> bool:
    """Is `written` a slip of `meant`? The first letter agrees, and no digit is involved.

    One letter more, fewer, or two changed over, in words of five letters; another letter only in words of seven,
    since a short word with another letter is mostly another word ("mango", "mongo"); two slips in words of nine.
    """
    longer, shorter = max(len(written), len(meant)), min(len(written), len(meant))
    if longer < 5 or shorter < 4 or written == meant or written[0] != meant[0]:
        return False
    if not (written.isalpha() and meant.isalpha()):
        return False
    allowed = 2 if longer >= 9 else 1
    if longer - shorter > allowed or len(set(written) ^ set(meant)) > 2 * allowed:
        return False
    if longer == shorter < 7 and sorted(written) != sorted(meant):
        return False
    return _distance(written, meant) <= allowed


def _distance(one: str, other: str) -> int:
    """Letters to add, drop, change, or swap with their neighbour (optimal string alignment; Damerau 1964)."""
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
