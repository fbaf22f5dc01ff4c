"""Confidence: the chance that the hits hold the answer, before an answer is generated.

Two features decide: the share of the question's words that one passage holds, and the cosine of the nearest passage if
the embedder took part (it does so only for languages that it knows). A logistic curve turns them into the chance that
the answer is there, if half of all questions have one (Platt 1999; declining below a bound chosen by its cost: El-Yaniv
and Wiener 2010, Kamath et al. 2020, "Selective Question Answering").

Models differ in the cosine of unrelated texts: MiniLM .02, E5 far more. A cosine is therefore measured from the mean
cosine of unrelated sentences in its space (`CosineBaselines`).

A passage on the topic of the question that lacks the answer looks like one that has it (docs/BENCHMARKS.md); only a
language model or a person sees the difference. `Hit.score` is not read: it is comparable within its own list only.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from agentformer.rag.answer.sentences import Passage
from agentformer.text.analysis import QueryTerms
from agentformer.types import Embedder, EmbeddingSpace

# Coefficients of 1, of the share and of the cosine. Fitted by `python -m bench.abstaining --fit` to questions of even
# number: over passages that hold the answer, over the same hits without them, over other articles, and questions of
# other sets; all sets and kinds have the same weight. Words alone: eight sets in six languages. With cosines: the sets
# that the packaged MiniLM knows.
_WORDS = (-4.41, 7.89, 0.0)
_BOTH = (-6.54, 5.73, 6.39)
_COSINE = (-5.55, 0.0, 11.14)  # for a question in another language than the passages, which share few words
# Questions, and passages unrelated to each of them. Texts of two languages are often further apart, so the baseline is
# measured within each language.
_UNRELATED = {
    "en": (
        ("Which gas do plants take from the air?", "Who won the chess tournament last summer?"),
        (
            "The tax office sends its letters in March.",
            "Boil the noodles for nine minutes and add some salt.",
            "Her grandfather repaired shoes in a small shop near the station.",
            "The program reads the file line by line and counts the errors.",
        ),
    ),
    "de": (
        ("Welches Gas nehmen Pflanzen aus der Luft auf?", "Wer hat letzten Sommer das Schachturnier gewonnen?"),
        (
            "Das Finanzamt verschickt seine Briefe im März.",
            "Die Nudeln neun Minuten kochen und etwas Salz dazugeben.",
            "Ihr Großvater besserte in einem kleinen Laden am Bahnhof Schuhe aus.",
            "Das Programm liest die Datei Zeile für Zeile und zählt die Fehler.",
        ),
    ),
    "fi": (
        ("Mitä kaasua kasvit ottavat ilmasta?", "Kuka voitti viime kesän shakkiturnauksen?"),
        (
            "Verotoimisto lähettää kirjeensä maaliskuussa.",
            "Keitä nuudeleita yhdeksän minuuttia ja lisää hieman suolaa.",
            "Hänen isoisänsä korjasi kenkiä pienessä liikkeessä aseman lähellä.",
            "Ohjelma lukee tiedoston rivi riviltä ja laskee virheet.",
        ),
    ),
    "ja": (
        ("植物は空気からどの気体を取り込みますか。", "昨年の夏、将棋の大会で優勝したのは誰ですか。"),
        (
            "税務署は三月に手紙を送ります。",
            "麺を九分ゆでて、塩を少し加えます。",
            "彼女の祖父は駅の近くの小さな店で靴を直していました。",
            "プログラムはファイルを一行ずつ読み、誤りを数えます。",
        ),
    ),
}
REFERENCE = 0.0206  # the packaged MiniLM's baseline; the coefficients above are of its cosines
_MAX_BASELINE = 0.98  # a space in which unrelated texts are nearer than this says nothing by its cosines
_LONG = 60  # code points of a question's stems, some ten words: no passage need hold the same share of a longer one


@dataclass(frozen=True, slots=True)
class ConfidenceFeatures:
    """`share` is in 0..1. `cosine` is in -1..1, or None without an embedder. Higher values are better."""

    share: float
    cosine: float | None = None
    foreign: bool = False  # whether the question is in another language than the passages, as far as is known

    @property
    def confidence(self) -> float:
        """Return the probability that the hits contain the answer, 0..1."""
        if self.cosine is None:
            return _logistic(_WORDS, self.share, 0.0)
        return _logistic(_COSINE if self.foreign else _BOTH, self.share, self.cosine)


class CosineBaselines:
    """The mean cosine of unrelated texts, measured once per embedding space. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # never held while a text is embedded
        self._measured: dict[EmbeddingSpace, float] = {}
        self._measuring: dict[EmbeddingSpace, threading.Lock] = {}

    def of(self, embedder: Embedder) -> float:
        """Return the baseline, -1..1.

        The first call embeds two questions and four passages. They are in English, or in each language above that the
        space declares. Raises the errors of the embedder; in this case, the next call measures again.
        """
        space = embedder.space
        with self._lock:
            measuring = self._measuring.setdefault(space, threading.Lock())
        with measuring:
            if space not in self._measured:
                self._measured[space] = _measure(embedder, space)
            return self._measured[space]


BASELINES = CosineBaselines()


def _measure(embedder: Embedder, space: EmbeddingSpace) -> float:
    codes = _UNRELATED if space.languages == "*" else [code for code in space.languages.split() if code in _UNRELATED]
    means = []
    for code in codes or ("en",):
        questions, passages = _UNRELATED[code]
        rows = embedder.embed_documents(passages)
        means += [float((rows @ embedder.embed_query(question)).mean()) for question in questions]
    return sum(means) / len(means)


def normalized_cosine(cosine: float, baseline: float | None) -> float | None:
    """Return a cosine on the scale of MiniLM, -1..1. The value 1 stays 1, and the baseline becomes the baseline of
    MiniLM. Return None if the baseline is unknown, or if cosines of the space cannot separate similar texts from
    unrelated texts."""
    if baseline is None or not baseline < _MAX_BASELINE:
        return None
    return max(-1.0, REFERENCE + (cosine - baseline) / (1 - baseline) * (1 - REFERENCE))


def confidence_features(
    query: QueryTerms, passages: Sequence[Passage], *, baseline: float | None = REFERENCE
) -> ConfidenceFeatures:
    """Return the features of one or more passages. `baseline` belongs to the space of the cosines of the hits. If it is
    None, cosines are not used. Nothing is embedded."""
    share = max(_share(query, passage) for passage in passages)
    hits = [passage.hit for passage in passages]
    cosines = [hit.dense_score for hit in hits if hit.dense_score is not None and hit.dense_rank is not None]
    languages = [passage.language for passage in passages]
    foreign = bool(query.language) and any(languages) and query.language not in languages
    return ConfidenceFeatures(share, normalized_cosine(max(cosines), baseline) if cosines else None, foreign)


def _share(query: QueryTerms, passage: Passage) -> float:
    """Return the share of the question's terms that the passage contains. Terms are weighted by their length, because
    long words are rare.

    Parts of words count too. So a compound or an inflected word can be counted in part. Return 1.0 for a question
    without terms, and for a long question if the passage contains enough of its terms.
    """
    terms = query.terms([passage.language])
    weights = {term: _length(term) for term in (*terms.stems, *terms.parts)}
    length = sum(_length(term) for term in set(terms.stems))
    enough = sum(weights.values()) * min(1.0, _LONG / length) if length else 0.0
    held = {term for part in (passage.context_terms, *passage.sentence_terms) for term in (*part.stems, *part.parts)}
    return min(1.0, sum(weights[term] for term in weights.keys() & held) / enough) if enough else 1.0


def _length(term: str) -> int:
    """Return the number of code points of "fi~talo" without its language."""
    return len(term.partition("~")[2] or term)


def _logistic(weights: tuple[float, float, float], share: float, cosine: float) -> float:
    constant, of_share, of_cosine = weights
    return 1 / (1 + math.exp(-(constant + of_share * share + of_cosine * cosine)))
