"""The confidence of an answer: the probability that its first quote answers the question.

It is a logistic function (Platt 1999) of three values: how clearly the first quote is the best of all sentences,
whether the hits are about the question, and whether the quote is certainly about something else. If the confidence of
an extractive answer is below a limit (`Answerer.abstain`), the answer only says that nothing was found. The limit
follows from the cost of wrong answers (El-Yaniv and Wiener 2010; Kamath et al. 2020, "Selective Question Answering").

A question in other words than the passage that answers it shares few words with this passage, but their vectors are
near to each other. A question with a rare name shares this word, but the vector of the passage may be far. Therefore,
the larger of the two values counts. Cosines are used on the scale of `embedders.calibration`. The confidence can hardly
distinguish a passage about the topic of the question from a passage with the answer (docs/BENCHMARKS.md). `Hit.score`
is not used, because scores can be compared only within one list of hits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentformer.embedders.calibration import FOREIGN, IDENTITY, Scale
from agentformer.rag.answer.passages import Passage
from agentformer.text.analysis import COMPOUNDING, QueryTerms, pieces_of_stem

# The constant, and the coefficients of `QuoteFeatures.values`. The first three were fitted to questions of five
# families of sets, which were also asked of hits without the answer, with both packaged embedders. The sets contain few
# quotes that are about something else than the question, so the last one was set by hand.
_WEIGHTS = (0.3, 0.61, 1.93, -5.5)
_MOST_SCORE = 4.0  # upper limit of the logit of `score`
_LEAST_ABOUT = 0.05  # lower limit of `about`
_FAR, _NEAR = 0.2, 0.9  # cosines of a passage that is hardly and certainly about the question
_EDGE = 1e-4  # the smallest distance of a probability from 0 and from 1
_LEAST_OF_COMPOUND = 4  # minimum code points of a word that is searched in compounds
_LONG = 60  # code points of a question's stems (about ten words); a passage needs a smaller share of a longer question


class QuoteFeatures(NamedTuple):
    """The values from which the confidence of an answer is computed. `score` is the probability that the first quote is
    the answer, given that one of the sentences is. `about` (0..1) says whether the hits are about the question.
    `elsewhere` is true if the quote is certainly about something else: the question names a number, a name or a thing
    that no hit contains, or the quote names another one."""

    score: float
    about: float
    elsewhere: bool = False

    @property
    def values(self) -> tuple[float, ...]:
        """The inputs of the logistic function, beginning with a constant 1."""
        score = min(max(self.score, _EDGE), 1 - _EDGE)
        logit = min(math.log(score / (1 - score)), _MOST_SCORE)
        return 1.0, logit, math.log(max(self.about, _LEAST_ABOUT)), float(self.elsewhere)

    @property
    def confidence(self) -> float:
        """The probability (0..1) that the first quote answers the question."""
        return self.confidence_by(_WEIGHTS)

    def confidence_by(self, weights: Sequence[float]) -> float:
        """Return the confidence (0..1) for other coefficients of the logistic function, to find the best coefficients.
        `weights` has one coefficient for each number in `values`."""
        return 1 / (1 + math.exp(-sum(weight * value for weight, value in zip(weights, self.values, strict=True))))


def about_question(query: QueryTerms, passages: Sequence[Passage], scale: Scale | None = IDENTITY) -> float:
    """Return how surely (0..1) one of the passages is about the question: the largest share of the question's terms
    that a passage contains, or, if this is larger, the cosine of the nearest passage, of which `_FAR` is 0 and `_NEAR`
    is 1. `passages` must not be empty. `scale` is the scale of the embedding space of the hits. If `scale` is None, the
    cosines of the hits are not used. No text is embedded."""
    share = max(_share(query, passage) for passage in passages)
    foreign = is_foreign(query.language, passages)
    cosines = [
        scale.of(passage.hit.dense_score, FOREIGN if foreign else passage.language)
        for passage in passages
        if scale and passage.hit.dense_rank is not None and passage.hit.dense_score is not None
    ]
    return max(share, min(1.0, (max(cosines, default=0.0) - _FAR) / (_NEAR - _FAR)))


def is_foreign(language: str, passages: Iterable[Passage]) -> bool:
    """Return whether the language of a question is known, and is not the language of any passage."""
    languages = {passage.language for passage in passages}
    return bool(language) and any(languages) and language not in languages


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
