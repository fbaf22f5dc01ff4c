"""Other forms of the terms of a question: words that begin alike ("partner" and "partnership"), compounds ("sauna" and
"saunavuoro"), and words of about the same meaning ("founded" and "established"). `WeightedTerms` gives each term of a
question a weight."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set

from agentformer.text.analysis import COMPOUNDING
from agentformer.text.question_types import same_meaning

_SIMILAR = 0.6  # minimum share of letters that two forms of a word have in common at the beginning
_BEGINNING = 5  # minimum number of these common letters
_LEAST_OF_COMPOUND = 4  # minimum letters of a word that is searched in compounds
_COMPARED = 50  # terms of a question whose other forms are searched; no usual question has so many
_COMPOUND, _SYNONYM = 0.7, 0.7  # similarity of a compound to its part, and of two words of about the same meaning


def similar_forms(terms: Collection[str], vocabulary: Collection[str]) -> dict[str, dict[str, float]]:
    """Return a dictionary: each term -> the other forms of the term in the vocabulary, with their similarity (0..1). A
    term is a stem with its language ("en~build"). Terms with digits have no other forms. Of many terms, only the
    longest are compared."""
    words = {term: term.partition("~")[::2] for term in terms}
    words = {term: each for term, each in words.items() if each[1] and not any(map(str.isdigit, each[1]))}
    if len(words) > _COMPARED:
        words = dict(sorted(words.items(), key=lambda item: (-len(item[0]), item[0]))[:_COMPARED])
    near = _near(words.values(), vocabulary) if words else []
    forms: dict[str, dict[str, float]] = {}
    for term, (language, word) in words.items():
        found = dict(_inflected(language, word, near))
        for other in _compounds(language, word, near):
            found[other] = max(found.get(other, 0.0), _COMPOUND)
        for other in same_meaning(language).get(term, frozenset()):
            found[other] = max(found.get(other, 0.0), _SYNONYM)
        found.pop(term, None)
        if found := {other: similarity for other, similarity in found.items() if other in vocabulary}:
            forms[term] = found
    return forms


def _near(words: Collection[tuple[str, str]], vocabulary: Iterable[str]) -> list[str]:
    """Return the terms of the vocabulary that may be forms or compounds of `words`, which are (language, word)."""
    least = min(_BEGINNING, _LEAST_OF_COMPOUND)
    starts = tuple(f"{language}~{word[:_BEGINNING]}" for language, word in words if len(word) >= least)
    ends = tuple(word for language, word in words if language in COMPOUNDING and len(word) >= least)
    if not ends:
        return [other for other in vocabulary if other.startswith(starts)]
    return [other for other in vocabulary if other.startswith(starts) or other.endswith(ends)]


def _inflected(language: str, word: str, others: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Yield the terms that begin like a word, with their similarity."""
    start = f"{language}~{word[:_BEGINNING]}"
    for other in others if len(word) >= _BEGINNING else ():
        if other.startswith(start) and (similarity := _similarity(word, other.partition("~")[2])) >= _SIMILAR:
            yield other, similarity


def _compounds(language: str, word: str, others: Iterable[str]) -> Iterator[str]:
    """Yield the compounds that begin or end with a word."""
    if language not in COMPOUNDING or len(word) < _LEAST_OF_COMPOUND:
        return
    start = f"{language}~{word}"
    for other in others:
        if other.startswith(start) or (other.endswith(word) and other.startswith(f"{language}~")):
            yield other


def _similarity(word: str, other: str) -> float:
    common = next((n for n, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), min(len(word), len(other)))
    return common / max(len(word), len(other))


class WeightedTerms:
    """Terms of a question with weights that add up to 1. A term that is rare in the texts has a higher weight, and a
    term that no text contains has no weight. `forms` finds other forms of the terms in the texts. `names` contains for
    each text the terms in the name of its document. Such a term counts as a term of each text of the document. So it is
    less rare and gets a lower weight: the name of a company shows which report has the answer, but not which
    sentence."""

    def __init__(
        self,
        terms: Collection[str],
        texts: Sequence[Collection[str]],
        forms: Callable[[Collection[str], Collection[str]], Mapping[str, Mapping[str, float]]] | None = None,
        names: Sequence[Collection[str]] = (),
    ) -> None:
        self._forms = forms(terms, frozenset[str]().union(*texts)) if forms else {}
        self.known = frozenset(terms).union(*self._forms.values())  # the terms and their other forms
        holders = Counter(term for text in texts for term in self.known.intersection(text))
        rarity = {}
        for term in terms:
            times = holders[term] + sum(holders[form] for form in self._forms.get(term, ()))
            if times:
                times += sum(term in name and term not in text for text, name in zip(texts, names, strict=False))
                rarity[term] = math.log(1 + len(texts) / (0.5 + times))
        total = sum(rarity.values()) or 1.0
        self.weights = {term: weight / total for term, weight in rarity.items()}  # of the terms that a text contains
        self._weighted = frozenset(self.weights)
        self._other = frozenset[str]().union(*self._forms.values())

    def held(self, text: Iterable[str]) -> frozenset[str]:
        """Return the terms of the question that a text contains."""
        return self._weighted.intersection(text)

    def share(self, terms: Iterable[str]) -> float:
        """Return the sum of the weights of these terms, 0..1."""
        return sum(map(self.weights.__getitem__, terms))

    def similar_share(self, text: Set[str]) -> float:
        """Return the share of the question that a text has only in other forms, 0..1. A term counts by its weight and
        by the similarity of the form."""
        total = 0.0
        if self._other.isdisjoint(text):  # true for most texts
            return total
        for term, forms in self._forms.items():
            if term not in text and term in self.weights:
                total += self.weights[term] * max(map(forms.__getitem__, forms.keys() & text), default=0.0)
        return total
