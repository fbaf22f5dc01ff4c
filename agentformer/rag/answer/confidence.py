"""How far the hits can be trusted to hold the answer, before anything is said.

Two things are looked at: the share of the question's words that one passage holds, and the cosine of the nearest
passage where the embedder took part, which it does only for languages that it knows. A logistic curve makes of them
the chance that the answer is there, when half of all questions have one (Platt 1999; to decline below a bound that is
chosen for what it costs: El-Yaniv and Wiener 2010, Kamath et al. 2020, "Selective Question Answering").

Models differ in what cosine they give to texts that have nothing to do with each other: MiniLM .02, E5 far more. A
cosine is therefore judged by how far it is above that of unrelated sentences, which each space is asked for once
(`CosineBaselines`).

Of a question on the topic of a passage that lacks the answer neither tells anything (docs/BENCHMARKS.md): that is for
a language model, or a person, to see. Only terms and cosines are read, never `Hit.score`, which is comparable within
its own list alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from agentformer.text.analysis import query_terms, text_terms
from agentformer.text.languages import detect_language, language_code
from agentformer.types import Embedder, EmbeddingSpace, Hit

# Chosen by `python -m bench.abstaining --fit`, which fits them to questions of even number: over passages that hold the
# answer, over the same hits without them, over other articles, and questions of other sets; all sets and kinds weigh
# the same. Words alone: eight sets in six languages. With cosines: those that the packaged MiniLM knows.
_WORDS = (-4.41, 7.89, 0.0)  # of 1, of the share, of the cosine
_BOTH = (-6.54, 5.73, 6.39)
_COSINE = (-5.55, 0.0, 11.14)  # where question and passages are of different languages, whose words seldom meet
# Questions, and passages that have to do with none of them. Of each language apart: two are often further away.
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
REFERENCE = 0.0206  # the packaged MiniLM's own baseline, whose cosines the coefficients above are of
_MOST = 0.98  # a space in which unrelated texts are nearer than this tells nothing by its cosines

_LONG = 60  # code points of a question's stems, some ten words: of a longer one no passage need hold the same share


@dataclass(frozen=True, slots=True)
class ConfidenceFeatures:
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


class CosineBaselines:
    """The mean cosine of unrelated texts in each embedding space that was asked for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # never held while anything is embedded
        self._known: dict[EmbeddingSpace, float] = {}
        self._asking: dict[EmbeddingSpace, threading.Lock] = {}

    def of(self, embedder: Embedder) -> float:
        """-1..1. Embeds once for each space: two questions and four passages in English, or in each of the languages
        here that the space says it knows. Raises what the embedder raises, and asks again the next time."""
        space = embedder.space
        with self._lock:
            asking = self._asking.setdefault(space, threading.Lock())
        with asking:
            if space not in self._known:
                self._known[space] = _measured(embedder, space)
            return self._known[space]


BASELINES = CosineBaselines()


def _measured(embedder: Embedder, space: EmbeddingSpace) -> float:
    named = _UNRELATED if space.languages == "*" else [code for code in space.languages.split() if code in _UNRELATED]
    means = []
    for code in named or ("en",):
        questions, passages = _UNRELATED[code]
        rows = embedder.embed_documents(passages)
        means += [float((rows @ embedder.embed_query(question)).mean()) for question in questions]
    return sum(means) / len(means)


def normalized_cosine(cosine: float, baseline: float | None) -> float | None:
    """What a cosine of a space with that baseline would be in MiniLM's, -1..1: 1 stays 1, the baseline becomes
    MiniLM's. None where the space cannot tell near texts from others, or its baseline is not known."""
    if baseline is None or not baseline < _MOST:
        return None
    return max(-1.0, REFERENCE + (cosine - baseline) / (1 - baseline) * (1 - REFERENCE))


def confidence_features(
    question: str, hits: Sequence[Hit], *, baseline: float | None = REFERENCE
) -> ConfidenceFeatures:
    """What the hits, of which there must be one, have to do with the question. `baseline` is that of the space of their
    cosines; without one they do not count. Costs an analysis of each hit, and no embedding."""
    languages = [_language(hit) for hit in hits]
    share = max(_share(question, hit, language) for hit, language in zip(hits, languages, strict=True))
    cosines = [hit.dense_score for hit in hits if hit.dense_score is not None and hit.dense_rank is not None]
    spoken = detect_language(question)
    foreign = bool(spoken) and any(languages) and spoken not in languages
    return ConfidenceFeatures(share, normalized_cosine(max(cosines), baseline) if cosines else None, foreign)


def _language(hit: Hit) -> str:
    prior = hit.entry.metadata.get("language")
    return detect_language(hit.entry.content, language_code(prior))


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
