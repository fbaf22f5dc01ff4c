"""The confidence of an answer: the probability that its first quote answers the question.

Two logistic functions estimate it (Platt 1999). The first estimates whether the hits are about the question, from two
values: the share of the question's terms that one passage contains, and the cosine of the passage that is nearest to
the question (`ConfidenceFeatures`). The second uses this probability and the features of the first quote
(`QuoteFeatures`). If the confidence of an extractive answer is below a limit (`Answerer.abstain`), the answer only says
that nothing was found. The limit follows from the cost of wrong answers (El-Yaniv and Wiener 2010; Kamath et al. 2020,
"Selective Question Answering").

Cosines are used on the scale of `embedders.calibration`. The confidence can hardly distinguish a passage about the
topic of the question from a passage with the answer (docs/BENCHMARKS.md). `Hit.score` is not used, because scores can
be compared only within one list of hits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentformer.embedders.calibration import FOREIGN, IDENTITY, Scale
from agentformer.rag.answer.features import asked_stems
from agentformer.rag.answer.passages import Passage
from agentformer.text.analysis import COMPOUNDING, QueryTerms, pieces_of_stem, text_terms
from agentformer.text.questions import classify
from agentformer.text.word_forms import similar_forms

# The constant, and the coefficients of the share and of the cosine. Fitted by `python -m bench.abstaining --fit` to
# questions with even numbers. Each question is asked of passages with the answer, of the same hits without these
# passages, and of other articles; questions of other sets are added. All sets and kinds have the same weight. The
# coefficients for words alone are fitted to eight sets in six languages. The coefficients with cosines are fitted to
# the sets in languages that the packaged MiniLM knows.
_LOGIT_WORDS = (-4.41, 7.89, 0.0)
_LOGIT_BOTH = (-6.54, 5.73, 6.39)
_LOGIT_COSINE = (-5.55, 0.0, 11.14)  # for a question in another language than the passages, which share few words
# Coefficients of `QuoteFeatures.values`. Fitted by `python -m bench.answers --fit` to questions with even numbers.
# Every tenth question is also asked of hits without the answer.
_QUOTE = (-0.45, 0.23, 0.71, 0.53, 2.84, -0.27, 1.29, -1.14)
_MOST_LOGIT = 2.0  # upper limit of the logit of `hits`; a higher logit does not make the quote more probable
_MOST_SCORE = 4.0  # upper limit of the logit of `score`
_HOPELESS = 0.1  # if `hits` is lower, the confidence is at most `hits`
_UNKNOWN = 0.1  # factor if the question contains a number or a name that no hit contains
_OTHER_PERIOD = 0.6  # factor if the quote has a monthly amount and the question asks for a yearly one
_MISSING = 0.3  # if `missing` is at least this high, or if `lacks` is true, the confidence is at most `_NOT_SURE`
_NOT_SURE = 0.78
_EDGE = 1e-4  # the smallest distance of a probability from 0 and from 1
_LEAST_OF_COMPOUND = 4  # minimum code points of a word that is searched in compounds
_LONG = 60  # code points of a question's stems (about ten words); a passage needs a smaller share of a longer question


@dataclass(frozen=True, slots=True)
class ConfidenceFeatures:
    """The values from which the confidence is computed. `share` (0..1) is the share of the question's terms that one
    passage contains. `cosine` (-1..1) is the cosine of the passage that is nearest to the question, or None if
    unknown."""

    share: float
    cosine: float | None = None
    foreign: bool = False  # the question is in another language than the passages; False if a language is unknown
    missing: float = 0.0  # share (0..1) of the question's terms that no passage contains in any form

    @property
    def confidence(self) -> float:
        """The probability (0..1) that the hits contain the answer."""
        weights = _LOGIT_WORDS if self.cosine is None else _LOGIT_COSINE if self.foreign else _LOGIT_BOTH
        constant, of_share, of_cosine = weights
        return 1 / (1 + math.exp(-(constant + of_share * self.share + of_cosine * (self.cosine or 0.0))))


class QuoteFeatures(NamedTuple):
    """The values from which the confidence of an answer is computed. `hits` is the probability that the hits contain
    the answer (`ConfidenceFeatures.confidence`). `score` is the probability that the first quote is the answer, given
    that one of the sentences is. `covered` is the share of the question's terms that the quote and the headings above
    it contain. `quotes` is the number of quotes; there are several if they are about equally probable. `cosine` is the
    cosine of the first quote (None if it was not embedded). `unknown` is true if the question contains a number or a
    name that no hit contains, or if the quote certainly is about something else. `other_period` is true if the question
    asks for an amount per year or in a year, and the quote states one for another period. `telling` is the mean cosine
    of the question's tokens with the nearest tokens of the quote, in which distinctive tokens have more weight (see
    `Likeness`), or 0 if no tokens were compared. `missing` is the share of the question's terms that no hit contains.
    `lacks` is true in three cases: the question asks for a time, a number or a reason, and the quote contains none; the
    quote lacks a name of the question; or the quote has the opposite of the question's verb."""

    hits: float
    score: float
    covered: float
    quotes: int
    cosine: float | None = None
    unknown: bool = False
    other_period: bool = False
    telling: float = 0.0
    missing: float = 0.0
    lacks: bool = False

    @property
    def values(self) -> tuple[float, ...]:
        """The inputs of the logistic function: a constant 1, and one number for each field that is not a bool."""
        distance = 0.0 if self.cosine is None else self.cosine - 0.5
        hits = min(_logit(self.hits), _MOST_LOGIT)
        score = min(_logit(self.score), _MOST_SCORE)
        return 1.0, hits, score, self.covered, distance, self.quotes - 1.0, self.telling, self.missing

    @property
    def is_judged(self) -> bool:
        """True if the coefficients of the logistic function can be fitted to this example. This is the case if the hits
        may contain the answer, and if neither `unknown` nor `other_period` is true. Otherwise, fixed rules lower the
        confidence. The upper limit that `lacks` and `missing` set is not considered here."""
        return self.hits >= _HOPELESS and not (self.unknown or self.other_period)

    @property
    def confidence(self) -> float:
        """The probability (0..1) that the first quote answers the question."""
        return self.confidence_by(_QUOTE)

    def confidence_by(self, weights: Sequence[float]) -> float:
        """Return the confidence (0..1) for other coefficients of the logistic function, to find the best coefficients.
        `weights` has one coefficient for each number in `values`."""
        logit = sum(weight * value for weight, value in zip(weights, self.values, strict=True))
        probability = 1 / (1 + math.exp(-logit))
        probability = min(probability, self.hits) if self.hits < _HOPELESS else probability
        if self.lacks or self.missing >= _MISSING:
            probability = min(probability, _NOT_SURE)
        factor = _UNKNOWN if self.unknown else _OTHER_PERIOD if self.other_period else 1.0
        return probability * factor


def _logit(probability: float) -> float:
    bounded = min(max(probability, _EDGE), 1 - _EDGE)
    return math.log(bounded / (1 - bounded))


def confidence_features(
    query: QueryTerms, passages: Sequence[Passage], *, scale: Scale | None = IDENTITY
) -> ConfidenceFeatures:
    """Return the values from which the confidence is computed. `passages` must not be empty. `scale` is the scale
    of the embedding space of the hits. If `scale` is None, the cosines of the hits are not used. No text is
    embedded."""
    share = max(_share(query, passage) for passage in passages)
    foreign = is_foreign(query.language, passages)
    ranked = [(each.hit.dense_score, each.language) for each in passages if each.hit.dense_rank is not None]
    cosines = [
        scale.of(cosine, FOREIGN if foreign else language)
        for cosine, language in ranked
        if scale and cosine is not None
    ]
    return ConfidenceFeatures(share, max(cosines, default=None), foreign, _missing_share(query, passages))


def is_foreign(language: str, passages: Iterable[Passage]) -> bool:
    """Return whether the language of a question is known, and is not the language of any passage."""
    languages = {passage.language for passage in passages}
    return bool(language) and any(languages) and language not in languages


def covered_share(query: QueryTerms, passage: Passage, quote: str) -> float:
    """Return the share (0..1) of the question's terms that occur in a quote of the passage or in the headings above it.
    If only another form of a term occurs there, the similarity of the two forms counts. A term that no passage contains
    is counted as missing, so the share is low for a question about another subject. It is 1 for a question without
    terms."""
    terms = asked_stems(query, classify(query.text, passage.language), [passage.language])
    held = {*text_terms(quote, passage.language).stems, *passage.context_terms.stems}
    return held_share(terms, held)


def _missing_share(query: QueryTerms, passages: Sequence[Passage]) -> float:
    language = passages[0].language
    terms = asked_stems(query, classify(query.text, language), [language])
    stems = (each.stems.union(each.context_terms.stems) for each in passages)
    return 1 - held_share(terms, frozenset[str]().union(*stems))


def held_share(terms: Collection[str], held: Collection[str]) -> float:
    """Return the share (0..1) of the terms that are in `held`. Long terms have more weight. If only another form of a
    term is in `held`, the similarity of the two forms counts. The share is 1 if there are no terms."""
    others = [term for term in terms if term not in held]
    forms = similar_forms(others, held)
    shares = {term: 1.0 if term in held else max(forms.get(term, {}).values(), default=0.0) for term in terms}
    length = sum(_length(term) for term in terms)
    return sum(_length(term) * share for term, share in shares.items()) / length if length else 1.0


def _share(query: QueryTerms, passage: Passage) -> float:
    """Return the share (0..1) of the question's terms that the passage contains. A word also counts as contained if a
    compound in the passage begins or ends with it. Parts of compound words count as terms. Long terms count more,
    because long words are rare. For a long question, the share is 1 if the passage contains enough of its terms. A
    question without terms has the share 1."""
    terms = query.terms([passage.language])
    weights = {term: _length(term) for term in (*terms.stems, *terms.parts)}
    length = sum(_length(term) for term in set(terms.stems))
    enough = sum(weights.values()) * min(1.0, _LONG / length) if length else 0.0
    held = {*passage.stems, *passage.context_terms.stems, *passage.context_terms.parts}
    held.update(*(part.parts for part in passage.sentence_terms))
    if passage.language in COMPOUNDING:
        lines = "\n".join(("", *held, ""))
        compounds = [stem for stem in terms.stems if stem not in held and _is_in_compound(stem, lines)]
        held |= {part for stem in compounds for part in (stem, *pieces_of_stem(stem))}
    return min(1.0, sum(weights[term] for term in weights.keys() & held) / enough) if enough else 1.0


def _is_in_compound(stem: str, lines: str) -> bool:
    """Return whether one of the terms is a compound that begins or ends with `stem`: "saunavuoro" for "sauna". `lines`
    contains the terms, each between two line breaks; one long text is searched faster than many terms."""
    language, _, word = stem.partition("~")
    if len(word) < _LEAST_OF_COMPOUND:
        return False
    if f"\n{stem}" in lines:
        return True
    end = lines.find(f"{word}\n")
    while end >= 0 and not lines.startswith(f"{language}~", lines.rfind("\n", 0, end) + 1):
        end = lines.find(f"{word}\n", end + 1)
    return end >= 0


def _length(term: str) -> int:
    return len(term.partition("~")[2] or term)  # "fi~talo" without its language
