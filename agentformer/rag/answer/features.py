"""Features of sentences. The probability that a sentence answers a question is computed from its features.

The question's terms that are rare among the sentences have more weight. The terms of the previous sentence and of the
headings above are features of a sentence, too, because the sentence may not repeat them ("It opens at nine.").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from agentformer.rag.answer.answer_types import asks_number, defines, has_candidate
from agentformer.rag.answer.passages import Passage, Sentence
from agentformer.text.analysis import QueryTerms, text_terms
from agentformer.text.facts.quantities import names_another, numbered_things
from agentformer.text.languages.detection import stem
from agentformer.text.question_types import Question, classify, question_words
from agentformer.text.row_values import asked_value, label_share, period_fit, selected_rows
from agentformer.text.word_forms import WeightedTerms, similar_forms
from agentformer.types import Span

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_FIRST = 3  # a pronoun among the first words refers to the previous sentence
_NEEDED = 0.2  # the previous sentence is quoted, too, if it adds this share of the question's terms
_AROUND = 2  # sentences on each side
_FADING = 0.9  # of the terms of a sentence, this share counts for the next sentence
_SIMILAR = 0.65  # value of a term that a sentence contains only in another form
_OF_WORDS = 0.35  # likeness of a quote with all words of the question that is not embedded
_FIRST_ADDS = 0.45  # value of a term of the first sentence of a passage
_RANK = 0.48  # value of the first rank
_PERIOD = 0.75  # value of the asked period, relative to a label
_UNKNOWN = 0.5  # value of an answer's type if `has_candidate` returns None
_DEFINITION = 1.1  # value of a definition of what the question asks about
# How much a text of the asked type tells. Almost every sentence has a name, and few have a number with a unit.
_TYPES = {"number": 1.0, "when": 0.75, "who": 0.65, "where": 0.3, "why": 0.9}


class Features(NamedTuple):
    """The features of a sentence for a question. Most are shares or degrees of about 0..1.

    The question's terms: `words` is the share that the sentence contains, where another form of a term counts less, and
    `pieces` is the share of the parts of compounds. `phrase` is the share of the question's pairs of neighboring words
    that are neighbors in the sentence, too. `before` and `heading` are the shares that the previous sentence and the
    headings add. `carried` is the share that all earlier sentences add, where a distant sentence counts less, and the
    first one more. `around` is the share in the sentence and in two sentences on each side.

    `passage` is the score of the passage divided by the best score, and a part of 1 divided by its rank. `asks` is 1 if
    the sentence is a question that the passage does not answer. `typed` says how surely the sentence contains what the
    question asks for, such as a number, a date or the definition of its subject. `label` and `selected` are for rows of
    tables: how many words of the row's label are in the question and whether the period fits, and whether the row is
    one of those for which the question asks (-1 if it is not). `other` is 1 if the question asks about a numbered
    thing, such as berth 30, and the sentence names another, such as berth 12.

    The last two fields are the `Likeness` of the sentence. Until the sentence is embedded, the words stand for it."""

    words: float = 0.0
    pieces: float = 0.0
    phrase: float = 0.0
    before: float = 0.0
    heading: float = 0.0
    carried: float = 0.0
    around: float = 0.0
    passage: float = 0.0
    asks: float = 0.0
    typed: float = 0.0
    label: float = 0.0
    selected: float = 0.0
    other: float = 0.0
    likeness: float = 0.0
    asked: float = 0.0


class Link(NamedTuple):
    """The relation of a sentence to the sentence before it in the passage. `leads` is True if a quote of the sentence
    also includes the one before. `refers` is True if the reason is a word at the beginning of the sentence that refers
    to the one before ("It was built ..."). `naming` is the earlier sentence that names the subject of the sentence; a
    quote can begin with it. This is the one before; if several sentences in a row refer back ("Eva began. She moved.
    She sold."), it is the sentence before all of them."""

    leads: bool = False
    refers: bool = False
    naming: Sentence | None = None


class SentenceFeatures:
    """Computes the features of sentences for one question. `links` has the `Link` of each sentence."""

    def __init__(self, query: QueryTerms, passages: Sequence[Passage], sentences: Sequence[Sentence]) -> None:
        language = passages[0].language if passages else ""
        self.question = classify(query.text, language)
        self._sentences = sentences
        languages = sorted({passage.language for passage in passages})
        self._asked = asked_stems(query, self.question, languages)
        self._stems = WeightedTerms(
            self._asked,
            [sentence.stems for sentence in sentences],
            similar_forms,
            [sentence.passage.name_stems for sentence in sentences],
        )
        pieces = {part for language in languages for part in query.terms([language]).parts}
        self._pieces = WeightedTerms(pieces, [sentence.terms.parts for sentence in sentences])
        self._words = _words(query.text)
        self._pairs = set(pairwise(self._words))
        self._inverse_rank = {id(passage): 1 / rank for rank, passage in enumerate(passages, 1)}
        self._best_score = max((passage.hit.score for passage in passages), default=0.0) or 1.0
        self._said = frozenset(text_terms(query.text, language).stems) | self._stems.known
        self._things = numbered_things(query.text, query.language)
        self._value = asked_value(self.question, query.text.casefold(), language)
        self._selected = self._selections(passages)
        self._held = [self._stems.held(sentence.stems) for sentence in sentences]  # the asked stems of each sentence
        self._held_by = {id(sentence): held for sentence, held in zip(sentences, self._held, strict=True)}
        self._first_held = {id(s.passage): held for s, held in reversed([*zip(sentences, self._held, strict=True)])}
        self._carried = list(self._carried_shares())
        self.links: dict[Sentence, Link] = {}
        for sentence in sentences:  # each after the one before it
            self.links[sentence] = self._link(sentence)

    def of_words(self) -> list[Features]:
        """Return, for all sentences, the features that follow from words and ranks. The fields `typed`, `other`
        and `asked` are not set yet."""
        return [self._of_words(n, sentence) for n, sentence in enumerate(self._sentences)]

    def with_candidate(self, features: Features, sentence: Sentence) -> Features:
        """Return the features, with `typed` and `other` set."""
        said = f"{sentence.text} {sentence.answer.text}" if sentence.answer else sentence.text
        other = float(names_another(self._things, said, sentence.passage.language))
        kind = "number" if asks_number(self.question) else self.question.type
        text = sentence.row.text if sentence.row and kind == "number" else said
        found = has_candidate(self.question, text, sentence.passage.language, self._words) if kind in _TYPES else 0.0
        typed = _TYPES.get(kind, 0.0) * (_UNKNOWN if found is None else found)
        return features._replace(typed=max(typed, _DEFINITION * defines(self.question, said)), other=other)

    def _link(self, sentence: Sentence) -> Link:
        before = sentence.before
        if before is None or before.text == sentence.text:  # a repeated sentence is quoted only once
            return Link(naming=before)
        if before.answer is sentence:  # an answer is quoted with its question
            return Link(leads=True, naming=before)
        if "\n\n" in sentence.passage.content[before.span.end : sentence.span.start]:
            return Link(naming=before)
        first = _words(sentence.text[:80])[:_FIRST]
        refers = not _backward(sentence.passage.language).isdisjoint(first)
        former = self.links[before]
        naming = former.naming if refers and former.refers else before
        return Link(refers or self._adds(sentence, before), refers, naming)

    def _of_words(self, n: int, sentence: Sentence) -> Features:
        own, passage = self._held[n], sentence.passage  # own and before: the asked stems of this and an earlier one
        leads, _, naming = self.links[sentence]
        before = self._held_by[id(naming)] if naming else frozenset()
        pieces = self._pieces.held(sentence.terms.parts)
        led = self._pieces.held(naming.terms.parts) - pieces if leads and naming else frozenset()
        added = self._stems.share(before - own)
        words = self._stems.share(own) + _SIMILAR * self._stems.similar_share(sentence.stems)
        return Features(
            words=words,
            pieces=self._pieces.share(pieces | led),
            phrase=self._phrase(sentence.text) if own else 0.0,
            before=added,
            heading=self._stems.share(self._stems.held(sentence.headings) - own - before),
            carried=self._carried[n] + _FIRST_ADDS * self._stems.share(self._first_held[id(passage)] - own),
            around=self._stems.share(self._around(n)),
            passage=passage.hit.score / self._best_score + _RANK * self._inverse_rank[id(passage)],
            asks=float(sentence.asks and sentence.answer is None),
            label=self._label(sentence) + _PERIOD * self._period(sentence),
            selected=self._selected.get((id(passage), sentence.span), 0.0),
            likeness=_OF_WORDS * (words + (added if leads else 0.0)),
        )

    def _label(self, sentence: Sentence) -> float:
        """Return the share of the words of a row's label that are in the question. Words of the document's name do not
        count. Return 0 for a sentence that is not a row, or if the question asks for a highest or lowest value."""
        if sentence.row is None or self._value.direction:
            return 0.0
        passage, stems = sentence.passage, sentence.stems - sentence.passage.name_stems
        return label_share(sentence.row, stems, passage.language, passage.name_letters, self._said)

    def _selections(self, passages: Sequence[Passage]) -> dict[tuple[int, Span], float]:
        """Return the values of `selected_rows` for all passages, as a dictionary: (id of the passage object, span of
        the row) -> value. Each value is multiplied by a number from 0 to 1 that says how well the table fits the
        question: the number of the question's terms above the table, divided by this number for the best table."""
        found = {
            (id(passage), span): sign
            for passage in passages
            for span, sign in selected_rows(self._value, passage.tables, passage.language, self._said).items()
        }
        fits = dict.fromkeys(found, 0)
        for sentence in self._sentences:
            if (key := (id(sentence.passage), sentence.span)) in found:
                above = sentence.headings.union(sentence.passage.context_terms.stems)
                fits[key] = len(self._stems.known & above)
        most = max(fits.values(), default=0)
        return {key: sign * (fits[key] / most if most else 1.0) for key, sign in found.items()}

    def _period(self, sentence: Sentence) -> float:
        if not self._value.lengths:
            return 0.0
        text = f"{sentence.row.above} {sentence.row.text}" if sentence.row else sentence.text
        return period_fit(self._value, text, sentence.passage.language)

    def _carried_shares(self) -> Iterator[float]:
        """Yield for each sentence the share of the question's terms that it lacks and that earlier sentences of the
        passage contain. A more distant sentence counts less."""
        passage: Passage | None = None
        weights, kept = self._stems.weights, dict[str, float]()
        for sentence, own in zip(self._sentences, self._held, strict=True):
            if sentence.passage is not passage:
                passage, kept = sentence.passage, {}
            kept = {term: share * _FADING for term, share in kept.items()}
            yield sum(weights[term] * share for term, share in kept.items() if term not in own)
            kept |= dict.fromkeys(own, 1.0)

    def _around(self, n: int) -> frozenset[str]:
        near, passage = range(max(0, n - _AROUND), n + _AROUND + 1), self._sentences[n].passage
        sentences = zip(near, self._sentences[near.start : near.stop], strict=False)
        return frozenset().union(*(self._held[k] for k, each in sentences if each.passage is passage))

    def _phrase(self, text: str) -> float:
        folded = text.casefold()
        if not any(one in folded and other in folded for one, other in self._pairs):  # a quick test
            return 0.0
        words = _words(text)
        return len(self._pairs.intersection(pairwise(words))) / max(1, len(self._pairs))

    def _adds(self, sentence: Sentence, before: Sentence) -> bool:
        """Return whether a quote of the sentence must include the previous sentence `before`: the sentence contains
        some terms of the question, and `before` contains more, among them enough terms that the sentence lacks."""
        own, former = self._held_by[id(sentence)], self._held_by[id(before)]
        share = self._stems.share
        return 0 < share(own) < share(former) and share(former - own) >= _NEEDED


@cache
def _backward(language: str) -> frozenset[str]:
    """Return the words that refer to the previous sentence, such as pronouns. If `language` is "", return the words of
    all languages."""
    lists = question_words("backward")
    return lists.get(language, frozenset()) if language else frozenset[str]().union(*lists.values())


def asked_stems(query: QueryTerms, question: Question, languages: Iterable[str]) -> set[str]:
    """Return the stems of the question in these languages. Question words are left out, unless the question has no
    other words in a language."""
    stems: set[str] = set()
    for language in languages:
        own = set(query.terms([language]).stems)
        asking = {f"{language}~{stem(word, language)}" for word in question.asking}
        stems |= own - asking or own
    return stems


def _words(text: str) -> list[str]:
    if text.isascii():
        return _WORD.findall(text.lower())
    return [word.casefold() for word in _WORD.findall(text)]
