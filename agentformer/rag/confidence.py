"""How far the hits can be trusted to hold the answer, before anything is said.

Two things are looked at: the share of the question's words that one passage holds, and the cosine of the nearest
passage where the embedder took part, which it does only for languages that it knows. A logistic curve makes of them
the chance that the answer is there, when half of all questions have one (Platt 1999; to decline below a bound that is
chosen for what it costs: El-Yaniv and Wiener 2010, Kamath et al. 2020, "Selective Question Answering").

Of a question on the topic of a passage that lacks the answer neither tells anything (docs/BENCHMARKS.md): that is for
a language model, or a person, to see. Only terms and cosines are read, never `Hit.score`, which is comparable within
its own list alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentformer.text.analysis import query_terms, text_terms
from agentformer.text.languages import detect_language
from agentformer.types import Hit

# Chosen by `python -m bench.abstaining --fit`, which fits them to questions of even number: over passages that hold the
# answer, over the same hits without them, over other articles, and questions of other sets; all sets and kinds weigh
# the same. Words alone: eight sets in six languages. With cosines: those that the packaged MiniLM knows.
_WORDS = (-4.41, 7.89, 0.0)  # of 1, of the share, of the cosine
_BOTH = (-6.54, 5.73, 6.39)
_COSINE = (-5.55, 0.0, 11.14)  # where question and passages are of different languages, whose words seldom meet
_LONG = 60  # code points of a question's stems, some ten words: of a longer one no passage need hold the same share


@dataclass(frozen=True, slots=True)
class Grounds:
    """What is judged. `share` is in 0..1, `cosine` in -1..1 (None where no embedder judged); higher is better."""

    share: float
    cosine: float | None = None
    foreign: bool = False  # is the question in another language than the passages, as far as can be told?

    @property
    def confidence(self) -> float:
        """0..1: the chance that the hits hold the answer."""
        if self.cosine is None:
            return _logistic(_WORDS, self.share, 0.0)
        return _logistic(_COSINE if self.foreign else _BOTH, self.share, self.cosine)


def grounds(question: str, hits: Sequence[Hit], *, meaning: bool = True) -> Grounds:
    """What the hits, of which there must be one, have to do with the question. Without `meaning` their cosines do not
    count. Costs an analysis of each hit, and no embedding."""
    languages = [_language(hit) for hit in hits]
    share = max(_share(question, hit, language) for hit, language in zip(hits, languages, strict=True))
    cosines = [hit.dense_score for hit in hits if hit.dense_score is not None and hit.dense_rank is not None]
    spoken = detect_language(question)
    foreign = bool(spoken) and any(languages) and spoken not in languages
    return Grounds(share, max(cosines) if meaning and cosines else None, foreign)


def _language(hit: Hit) -> str:
    prior = hit.entry.metadata.get("language")
    return detect_language(hit.entry.content, prior if isinstance(prior, str) else "")


def _share(question: str, hit: Hit, language: str) -> float:
    """The share of the question's terms that the hit holds, each worth its length: long words are rare ones. Pieces
    of words count beside whole ones, so that a compound or an inflection is held in part. 1.0 for a question without
    terms, and for a long one of which enough is held."""
    asked = query_terms(question, [language])
    held = text_terms(f"{hit.entry.context}\n{hit.entry.content}", language)
    worth = {term: _length(term) for term in (*asked.stems, *asked.parts)}
    said = sum(_length(term) for term in set(asked.stems))
    enough = sum(worth.values()) * min(1.0, _LONG / said) if said else 0.0
    found = sum(worth[term] for term in worth.keys() & {*held.stems, *held.parts})
    return min(1.0, found / enough) if enough else 1.0


def _length(term: str) -> int:
    """Code points of "fi~talo" without its language."""
    return len(term.partition("~")[2] or term)


def _logistic(weights: tuple[float, float, float], share: float, cosine: float) -> float:
    constant, of_share, of_cosine = weights
    return 1 / (1 + math.exp(-(constant + of_share * share + of_cosine * cosine)))
