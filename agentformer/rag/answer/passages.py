"""Passages: their sentences, ranked by how well they answer the question, and the confidence that they hold the answer.

The score of a sentence has three parts: its terms of the question, weighted by their rarity among the sentences; its
cosine with the question, if the embedder knows the language; and the rank of its passage. Terms of the neighboring
sentences have a small weight, because a pronoun often replaces a name.

Confidence is the chance that the hits hold the answer, before an answer is generated: a logistic function of the share
of the question's words that one passage holds and of the cosine of the nearest passage, if half of all questions have
an answer (Platt 1999; declining below a bound chosen by its cost: El-Yaniv and Wiener 2010, Kamath et al. 2020,
"Selective Question Answering"). Models differ in the cosine of unrelated texts, so a cosine is measured from this
baseline (`CosineBaselines`). A passage on the topic of the question that lacks the answer looks like one that has it
(docs/BENCHMARKS.md). `Hit.score` is not read, because it is comparable within its own list only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from agentformer.errors import EmbedderUnavailable
from agentformer.rag.chunks import CARRIED, SEPARATOR
from agentformer.rag.documents import KeyedLock
from agentformer.search.relevance import EntryLanguages
from agentformer.text.analysis import QueryTerms, Terms, text_terms
from agentformer.text.sentences import sentence_spans
from agentformer.types import Embedder, EmbeddingSpace, Hit, Span

# Weights of the three scores, chosen with the questions over one half of the development passages. Nearby values give
# about the same, so the values are round (docs/BENCHMARKS.md).
_WORDS = 1.0
_COSINE = 1.0
_PASSAGE = 0.5
_NEIGHBOR = 0.15  # of a neighbouring sentence's terms
_MAX_QUOTE = 600  # code points of a quote; a longer sentence is cut at a word
_EMBEDDED = 24  # sentences that are embedded for one question: the best by words and passage
_RANK_OFFSET = 60  # added to the rank of a passage, so that the sentence decides more than the passage
_MARKUP = " \t#*_>-=|"

# Coefficients of 1, of the share and of the cosine. Fitted by `python -m bench.abstaining --fit` to questions of even
# number: over passages that hold the answer, over the same hits without them, over other articles, and questions of
# other sets; all sets and kinds have the same weight. Words alone: eight sets in six languages. With cosines: the sets
# that the packaged MiniLM knows.
_LOGIT_WORDS = (-4.41, 7.89, 0.0)
_LOGIT_BOTH = (-6.54, 5.73, 6.39)
_LOGIT_COSINE = (-5.55, 0.0, 11.14)  # for a question in another language than the passages, which share few words
# Questions, and passages unrelated to each of them. Texts of two languages are often further apart, so the baseline is
# measured within each language.
_DIFFERENT = {
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


class Passage:
    """A hit with its language, sentences and terms. Each of these is computed once, at its first use."""

    def __init__(self, hit: Hit, languages: EntryLanguages) -> None:
        self.hit = hit
        self._languages = languages

    @property
    def content(self) -> str:
        """The text of the passage."""
        return self.hit.entry.content

    @cached_property
    def language(self) -> str:
        """ISO 639-1, "" if unknown."""
        return self._languages.of(self.hit.entry)

    @cached_property
    def sentences(self) -> list[Span]:
        """The spans of all sentences in the content."""
        return sentence_spans(self.content)

    @cached_property
    def sentence_terms(self) -> list[Terms]:
        """The terms of each sentence."""
        return [text_terms(self.content[span.start : span.end], self.language) for span in self.sentences]

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of the content."""
        return frozenset().union(*(terms.stems for terms in self.sentence_terms))

    @cached_property
    def context_terms(self) -> Terms:
        """The terms of the context line, which has the title and the headings."""
        return text_terms(self.hit.entry.context, self.language)


def read_passages(hits: Iterable[Hit]) -> list[Passage]:
    """Return the hits as passages."""
    languages = EntryLanguages()
    return [Passage(hit, languages) for hit in hits]


@dataclass(frozen=True, slots=True)
class RankedSentence:
    """A sentence of a hit. `span` refers to the content of the hit's entry. Scores are in 0..1; higher is better.
    `score` can be compared only for the same question, but `cosine` between questions. It is None without an
    embedder."""

    hit: Hit
    span: Span
    score: float
    cosine: float | None = None

    @property
    def quote(self) -> str:
        """The text of the sentence."""
        return self.hit.entry.content[self.span.start : self.span.end]


class _Sentence(NamedTuple):
    passage: Passage
    span: Span
    stems: frozenset[str]

    @property
    def text(self) -> str:
        return self.passage.content[self.span.start : self.span.end]


def rank_sentences(
    query: QueryTerms, passages: Sequence[Passage], embedder: Embedder | None = None
) -> list[RankedSentence]:
    """Return all sentences of the passages, best first. Without an `embedder`, only words and passage ranks are used.
    Raises `EmbedderError`, except `EmbedderUnavailable`."""
    sentences = _sentences(passages)
    if not sentences:
        return []
    by_rank = {id(passage): (_RANK_OFFSET + 1) / (_RANK_OFFSET + rank) for rank, passage in enumerate(passages, 1)}
    words = _word_scores(query, sentences)
    plain = [_WORDS * words[n] + _PASSAGE * by_rank[id(sentence.passage)] for n, sentence in enumerate(sentences)]
    cosines = _cosines(query, sentences, plain, embedder) if embedder else {}
    most = _WORDS * (1 + _NEIGHBOR) + _PASSAGE + (_COSINE if cosines else 0.0)
    ranked = [
        RankedSentence(
            sentence.passage.hit,
            _shortened(sentence.passage.content, sentence.span),
            (plain[n] + _COSINE * cosines.get(n, 0.0)) / most,
            cosines.get(n),
        )
        for n, sentence in enumerate(sentences)
    ]
    return sorted(ranked, key=lambda sentence: -sentence.score)


def _sentences(passages: Sequence[Passage]) -> list[_Sentence]:
    """Return the sentences without headings. If there are only headings, return the headings."""
    sentences = [
        _Sentence(passage, span, frozenset(terms.stems))
        for passage in passages
        for span, terms in zip(passage.sentences, passage.sentence_terms, strict=True)
    ]
    return [sentence for sentence in sentences if not _is_heading(sentence)] or sentences


def _is_heading(sentence: _Sentence) -> bool:
    text = sentence.text.strip(_MARKUP)
    return not text or text in sentence.passage.hit.entry.context.split(CARRIED)[0].split(SEPARATOR)


def _word_scores(query: QueryTerms, sentences: Sequence[_Sentence]) -> list[float]:
    """Return for each sentence its share of the question's terms, weighted by rarity, with a share of its neighbors."""
    wanted = {term for sentence in sentences for term in query.terms([sentence.passage.language]).stems}
    holders = Counter(term for sentence in sentences for term in sentence.stems)
    rarity = {term: math.log(1 + len(sentences) / (0.5 + holders[term])) for term in wanted if holders[term]}
    most = sum(rarity.values()) or 1.0
    own = [sum(rarity.get(term, 0.0) for term in sentence.stems) / most for sentence in sentences]
    return [score + _NEIGHBOR * _best_neighbor(sentences, own, n) for n, score in enumerate(own)]


def _best_neighbor(sentences: Sequence[_Sentence], own: Sequence[float], n: int) -> float:
    neighbors = [m for m in (n - 1, n + 1) if 0 <= m < len(own) and sentences[m].passage is sentences[n].passage]
    return max((own[m] for m in neighbors), default=0.0)


def _cosines(
    query: QueryTerms, sentences: Sequence[_Sentence], scores: Sequence[float], embedder: Embedder
) -> dict[int, float]:
    """Return by position the cosine with the question, 0..1, of the sentences with the best `scores`."""
    best = sorted(range(len(sentences)), key=lambda n: -scores[n])[:_EMBEDDED]
    try:
        texts = [_fitting(embedder, sentences[n].text) for n in best]
        cosines = embedder.embed_documents(texts) @ embedder.embed_query(query.text)
    except EmbedderUnavailable:
        return {}
    return {n: max(0.0, float(cosine)) for n, cosine in zip(best, cosines, strict=True)}


def _fitting(embedder: Embedder, text: str) -> str:
    """Return the sentence. If it is too long for the model, return its beginning."""
    tokens = embedder.token_spans(text)
    limit = embedder.space.max_tokens * 9 // 10  # a beginning may have a few more tokens than it had as a part
    return text if len(tokens) <= limit else text[: tokens[limit - 1].end]


def _shortened(content: str, span: Span) -> Span:
    """Return a span of limited length that ends at a word."""
    if span.end - span.start <= _MAX_QUOTE:
        return span
    end = content.rfind(" ", span.start, span.start + _MAX_QUOTE)
    return Span(span.start, end if end > span.start else span.start + _MAX_QUOTE)


@dataclass(frozen=True, slots=True)
class ConfidenceFeatures:
    """`share` is in 0..1. `cosine` is in -1..1, or None without an embedder. Higher values are better."""

    share: float
    cosine: float | None = None
    foreign: bool = False  # whether the question is in another language than the passages, as far as is known

    @property
    def confidence(self) -> float:
        """The probability that the hits contain the answer, 0..1."""
        weights = _LOGIT_WORDS if self.cosine is None else _LOGIT_COSINE if self.foreign else _LOGIT_BOTH
        constant, of_share, of_cosine = weights
        return 1 / (1 + math.exp(-(constant + of_share * self.share + of_cosine * (self.cosine or 0.0))))


class CosineBaselines:
    """The mean cosine of unrelated texts, measured once per embedding space. Thread-safe."""

    def __init__(self) -> None:
        self._measured: dict[EmbeddingSpace, float] = {}
        self._locks = KeyedLock()

    def of(self, embedder: Embedder) -> float:
        """Return the baseline, -1..1. The first call embeds two questions and four passages in English, or in each
        language above that the space declares. Raises the errors of the embedder; then the next call measures again."""
        space = embedder.space
        with self._locks.hold(space):
            if space not in self._measured:
                self._measured[space] = _measure(embedder, space)
            return self._measured[space]


BASELINES = CosineBaselines()


def _measure(embedder: Embedder, space: EmbeddingSpace) -> float:
    codes = [code for code in _DIFFERENT if space.languages == "*" or code in space.languages.split()]
    means = []
    for code in codes or ("en",):
        questions, passages = _DIFFERENT[code]
        rows = embedder.embed_documents(passages)
        means += [float((rows @ embedder.embed_query(question)).mean()) for question in questions]
    return sum(means) / len(means)


def normalized_cosine(cosine: float, baseline: float | None) -> float | None:
    """Return a cosine on the scale of MiniLM, -1..1: 1 stays 1, and the baseline becomes the baseline of MiniLM. Return
    None if the baseline is unknown, or too high to separate similar texts from unrelated texts."""
    if baseline is None or not baseline < _MAX_BASELINE:
        return None
    return max(-1.0, REFERENCE + (cosine - baseline) / (1 - baseline) * (1 - REFERENCE))


def confidence_features(
    query: QueryTerms, passages: Sequence[Passage], *, baseline: float | None = REFERENCE
) -> ConfidenceFeatures:
    """Return the features of one or more passages. `baseline` is of the space of the hits' cosines. If it is None,
    cosines are not used. Nothing is embedded."""
    share = max(_share(query, passage) for passage in passages)
    hits = [passage.hit for passage in passages]
    cosines = [hit.dense_score for hit in hits if hit.dense_score is not None and hit.dense_rank is not None]
    languages = [passage.language for passage in passages]
    foreign = bool(query.language) and any(languages) and query.language not in languages
    return ConfidenceFeatures(share, normalized_cosine(max(cosines), baseline) if cosines else None, foreign)


def _share(query: QueryTerms, passage: Passage) -> float:
    """Return the share of the question's terms and of their parts that the passage contains, weighted by their length,
    because long words are rare. Return 1.0 for a question without terms, and for a long question if the passage
    contains enough of its terms."""
    terms = query.terms([passage.language])
    weights = {term: _length(term) for term in (*terms.stems, *terms.parts)}
    length = sum(_length(term) for term in set(terms.stems))
    enough = sum(weights.values()) * min(1.0, _LONG / length) if length else 0.0
    held = {term for part in (passage.context_terms, *passage.sentence_terms) for term in (*part.stems, *part.parts)}
    return min(1.0, sum(weights[term] for term in weights.keys() & held) / enough) if enough else 1.0


def _length(term: str) -> int:
    return len(term.partition("~")[2] or term)  # "fi~talo" without its language
