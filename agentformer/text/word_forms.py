"""Other forms of the terms of a question: words that begin alike ("partner" and "partnership"), compounds ("sauna" and
"saunavuoro"), and words of about the same meaning ("founded" and "established")."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from agentformer.text.analysis import COMPOUNDING
from agentformer.text.questions import same_meaning

_SIMILAR = 0.6  # minimum share of letters that two forms of a word have in common at the beginning
_BEGINNING = 5  # minimum number of these common letters
_LEAST_OF_COMPOUND = 4  # minimum letters of a word that is searched in compounds
_COMPOUND, _SYNONYM = 0.7, 0.7  # similarity of a compound to its part, and of two words of about the same meaning
_COMPOUNDING = COMPOUNDING | {"de"}


def similar_forms(terms: Collection[str], vocabulary: Collection[str]) -> dict[str, dict[str, float]]:
    """Return a dictionary: each term -> the other forms of the term in the vocabulary, with their similarity (0..1). A
    term is a stem with its language ("en~build"). Terms with digits have no other forms."""
    beginnings: dict[str, list[str]] = {}
    for other in vocabulary:
        beginnings.setdefault(_beginning(other), []).append(other)
    forms: dict[str, dict[str, float]] = {}
    for term in terms:
        language, _, word = term.partition("~")
        if not word or any(letter.isdigit() for letter in word):
            continue
        found = dict(_inflected(term, beginnings.get(_beginning(term), ())))
        for other in _compounds(language, word, vocabulary):
            found[other] = max(found.get(other, 0.0), _COMPOUND)
        for other in same_meaning(language).get(term, frozenset()):
            found[other] = max(found.get(other, 0.0), _SYNONYM)
        found.pop(term, None)
        if found := {other: similarity for other, similarity in found.items() if other in vocabulary}:
            forms[term] = found
    return forms


def _inflected(term: str, others: Collection[str]) -> Iterator[tuple[str, float]]:
    word = term.partition("~")[2]
    for other in others if len(word) >= _BEGINNING else ():
        if (similarity := _similarity(word, other.partition("~")[2])) >= _SIMILAR:
            yield other, similarity


def _compounds(language: str, word: str, vocabulary: Collection[str]) -> Iterator[str]:
    """Yield the compounds that begin or end with a word."""
    if language not in _COMPOUNDING or len(word) < _LEAST_OF_COMPOUND:
        return
    start = f"{language}~{word}"
    for other in vocabulary:
        if other.startswith(start) or (other.endswith(word) and other.startswith(f"{language}~")):
            yield other


def _beginning(term: str) -> str:
    language, _, word = term.partition("~")
    return f"{language}~{word[:_BEGINNING]}"


def _similarity(word: str, other: str) -> float:
    common = next((n for n, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), min(len(word), len(other)))
    return common / max(len(word), len(other))
