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

from agentformer.embedders.calibration import IDENTITY, Scale
from agentformer.rag.answer.candidates import asks_number, defines, has_candidate, has_other_polarity
from agentformer.rag.answer.passages import Passage, Sentence
from agentformer.text.analysis import QueryTerms, text_terms
from agentformer.text.facts.claims import CAPITAL_NOUNS
from agentformer.text.facts.numbers import names_another, numbered_things
from agentformer.text.languages import stem
from agentformer.text.questions import Question, classify, question_words
from agentformer.text.row_values import asked_value, label_share, period_fit, selected_rows
from agentformer.text.word_forms import WeightedTerms, similar_forms
from agentformer.types import Span

_CAPITAL_WORD = re.compile(r"(?<!\w)[^\W\d_a-zåäöæøüß][^\W_]+")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_FIRST = 3  # a pronoun among the first words refers to the previous sentence
_NEEDED = 0.2  # the previous sentence is quoted, too, if it adds this share of the question's terms
_AROUND = 2  # sentences on each side
_FADING = 0.9  # of the terms of a sentence, this share counts for the next sentence
_SHORT, _LONG, _VERY_LONG = 6, 25, 75  # terms of a sentence
_NAMES_ONLY = 0.7  # value of the field `other`
_UNKNOWN = 0.5  # value of the field if `has_candidate` returns None
_FIELD = {"who": "person", "where": "place", "when": "time", "why": "reason", "how": "means"}


class Features(NamedTuple):
    """The features of a sentence for a question. Most are shares or degrees of about 0..1.

    The question's terms: `words` is the share that the sentence contains, `similar` is the share that it contains only
    in another form, and `pieces` is the share of the parts of compounds. `phrase` is the share of the question's pairs
    of neighboring words that are neighbors in the sentence, too. `before`, `after` and `heading` are the shares that
    the previous sentence, the next sentence and the headings add. `topic` is the share that the first sentence of the
    passage adds, and `carried` the share that all earlier sentences add, where a distant sentence counts less. If the
    quote includes the previous sentence, its share is in `quoted_before` and not in `before`, and `quoted_pieces` is
    its share of the parts of compounds. `around` is the share in the sentence and in two sentences on each side.

    The passage: `passage` is its score divided by the best score, `rank` is 1 divided by its rank, and `nearness` is
    its cosine minus the best cosine (at most 0). The form of the sentence: `short`, `long`, `stale` (few words that are
    not in the question) and `asks` (it is a question that the passage does not answer).

    The type of the question: `defines` says how surely the sentence explains the subject of a question such as "What is
    a comet?". The fields from `number` to `means` say how surely the sentence contains what the question asks for; only
    the field of the question's type is set. `label` and `selected` are for rows of tables: how many words of the row's
    label are in the question, and whether the row is one of those for which the question asks (-1 if it is not).
    `period` is 1 if the sentence is about a period of the asked length, and -1 if about another length. `other` is 1 if
    the question asks about a numbered thing, such as berth 30, and the sentence names another, such as berth 12, or if
    the question and the sentence differ in a negation; it is less if the sentence has only names of the question.

    The vectors: `cosine` is the cosine of the sentence, and the last four fields are its `Likeness`. All five are 0
    until the sentence is embedded."""

    words: float = 0.0
    similar: float = 0.0
    pieces: float = 0.0
    phrase: float = 0.0
    before: float = 0.0
    quoted_before: float = 0.0
    quoted_pieces: float = 0.0
    after: float = 0.0
    heading: float = 0.0
    topic: float = 0.0
    carried: float = 0.0
    around: float = 0.0
    passage: float = 0.0
    rank: float = 0.0
    nearness: float = 0.0
    short: float = 0.0
    long: float = 0.0
    stale: float = 0.0
    asks: float = 0.0
    defines: float = 0.0
    number: float = 0.0
    time: float = 0.0
    person: float = 0.0
    place: float = 0.0
    reason: float = 0.0
    means: float = 0.0
    label: float = 0.0
    selected: float = 0.0
    period: float = 0.0
    other: float = 0.0
    cosine: float = 0.0
    alike: float = 0.0
    telling: float = 0.0
    least: float = 0.0
    asked: float = 0.0


class SentenceFeatures:
    """Computes the features of sentences for one question. Also sets the attributes `leads`, `refers` and `naming` of
    each `Sentence`. `scale` is the scale of the cosines of the hits."""

    def __init__(
        self, query: QueryTerms, passages: Sequence[Passage], sentences: Sequence[Sentence], scale: Scale = IDENTITY
    ) -> None:
        self.question = classify(query.text, passages[0].language if passages else "")
        self._text = query.text
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
        self._names = _name_stems(query.text, languages)
        self._pairs = set(pairwise(self._words))
        self._rank = {id(passage): 1 / rank for rank, passage in enumerate(passages, 1)}
        self._best = max((passage.hit.score for passage in passages), default=0.0) or 1.0
        cosines = [(each, each.hit.dense_score) for each in passages]
        self._nearness = {id(each): 0.0 if c is None else scale.of(c, each.language) for each, c in cosines}
        self._nearest = max(self._nearness.values(), default=0.0)
        language = passages[0].language if passages else ""
        self._said = frozenset(text_terms(query.text, language).stems) | self._stems.known
        self._things = numbered_things(query.text, query.language)
        self._value = asked_value(self.question, query.text.casefold(), language)
        self._selected = self._selections(passages)
        self._held = [self._stems.held(sentence.stems) for sentence in sentences]
        self._held_by = {id(sentence): held for sentence, held in zip(sentences, self._held, strict=True)}
        self._first = {id(s.passage): held for s, held in reversed([*zip(sentences, self._held, strict=True)])}
        self._carried = list(self._carried_shares())
        for sentence in sentences:
            before = sentence.naming = sentence.before
            if before and before.text == sentence.text:
                continue  # a repeated sentence is quoted only once
            if before and before.answer is sentence:
                sentence.leads = True  # an answer is quoted with its question
            elif before and "\n\n" not in sentence.passage.content[before.span.end : sentence.span.start]:
                first = _words(sentence.text[:80])[:_FIRST]
                sentence.refers = not _backward(sentence.passage.language).isdisjoint(first)
                sentence.leads = sentence.refers or self._adds(sentence, before)
                if sentence.refers and before.refers and before.before:
                    sentence.naming = before.naming

    def of_words(self) -> list[Features]:
        """Return, for all sentences, the features that follow from words and ranks. The fields from `defines` to
        `means` and from `other` to `asked` are not set yet."""
        return [self._of_words(n, sentence) for n, sentence in enumerate(self._sentences)]

    def with_candidate(self, features: Features, sentence: Sentence) -> Features:
        """Return the features, with `defines`, `other` and the field of the question's type set."""
        said = f"{sentence.text} {sentence.answer.text}" if sentence.answer else sentence.text
        other = float(names_another(self._things, said, sentence.passage.language))
        if not sentence.row:
            other = max(other, has_other_polarity(self._text, said, sentence.passage.language))
            other = max(other, _NAMES_ONLY if self._has_names_only(sentence) else 0.0)
        features = features._replace(defines=defines(self.question, said), other=other)
        field = "number" if asks_number(self.question) else _FIELD.get(self.question.type)
        if field is None:
            return features
        text = sentence.row.text if sentence.row and field == "number" else said
        found = has_candidate(self.question, text, sentence.passage.language, self._words)
        return features._replace(**{field: _UNKNOWN if found is None else found})

    def _has_names_only(self, sentence: Sentence) -> bool:
        """Return whether a quote of the sentence has names of the question and none of its other words: "Mira Hakala,
        born in 1991" for "What is Mira Hakala's salary?"."""
        if not self._names or not self._stems.known - self._names:
            return False
        held = self._held_by[id(sentence)]
        held |= self._held_by[id(sentence.naming)] if sentence.leads and sentence.naming else frozenset()
        return bool(held) and held <= self._names and not self._stems.similar_share(sentence.stems)

    def _of_words(self, n: int, sentence: Sentence) -> Features:
        own = self._held[n]
        naming = sentence.naming
        before = self._held_by[id(naming)] if naming else frozenset()
        after = frozenset[str]()
        if n + 1 < len(self._sentences) and self._sentences[n + 1].before is sentence:
            after = self._held[n + 1]
        added = self._stems.share(before - own)
        pieces = self._pieces.held(sentence.terms.parts)
        led = frozenset[str]()
        if sentence.leads and naming:
            led = self._pieces.held(naming.terms.parts) - pieces
        size, passage = len(sentence.terms.stems), sentence.passage
        return Features(
            words=self._stems.share(own),
            similar=self._stems.similar_share(sentence.stems),
            pieces=self._pieces.share(pieces),
            phrase=self._phrase(sentence.text) if own else 0.0,
            before=0.0 if sentence.leads else added,
            quoted_before=added if sentence.leads else 0.0,
            quoted_pieces=self._pieces.share(led),
            after=self._stems.share(after - own - before),
            heading=self._stems.share(self._stems.held(sentence.headings) - own - before),
            topic=self._stems.share(self._first[id(passage)] - own),
            carried=self._carried[n],
            around=self._stems.share(self._around(n)),
            passage=passage.hit.score / self._best,
            rank=self._rank[id(passage)],
            nearness=self._nearness[id(passage)] - self._nearest,
            short=max(0.0, 1 - size / _SHORT),
            long=min(1.0, max(0.0, (size - _LONG) / (_VERY_LONG - _LONG))),
            stale=1 / (1 + len(sentence.stems - self._asked)),
            asks=float(sentence.asks and sentence.answer is None),
            label=self._label(sentence),
            selected=self._selected.get((id(passage), sentence.span), 0.0),
            period=self._period(sentence),
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


def _name_stems(question: str, languages: Iterable[str]) -> frozenset[str]:
    """Return the stems of the words with a capital letter inside a question. Return an empty set for languages in which
    capitals do not show names."""
    names = " ".join(word for word in _CAPITAL_WORD.findall(question.partition(" ")[2]))
    if not names or any(language in CAPITAL_NOUNS for language in languages):
        return frozenset()
    return frozenset(stem for language in languages for stem in text_terms(names, language).stems)


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
