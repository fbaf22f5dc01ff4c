"""Sentences of passages, ranked by how well they answer the question, and the confidence that the passages contain the
answer.

The score of a sentence has three parts. The first part is the share of the question's terms that the sentence contains;
rare terms count more. The second part is the cosine of sentence and question, if there is an embedder. The third part
is the rank of the passage. The terms of the neighboring sentences count a little, because a sentence often has a
pronoun instead of a name.

Confidence is the probability that the hits contain the answer. It is estimated before an answer is generated. A
logistic function computes the confidence from two values: the share of the question's terms that one passage contains,
and the cosine of the passage that is nearest to the question. The function assumes that half of all questions have an
answer (Platt 1999). Questions with a confidence below a bound are declined; the bound follows from the cost of wrong
answers (El-Yaniv and Wiener 2010; Kamath et al. 2020, "Selective Question Answering").

The cosine of unrelated texts is different for each model. A cosine is therefore measured from this baseline
(`CosineBaselines`). A passage with the topic of the question but without the answer looks like a passage with the
answer (docs/BENCHMARKS.md). `Hit.score` is not used, because scores can be compared only within one list of hits.
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
_MAX_BASELINE = 0.98  # with a higher baseline, the cosines of a space do not separate similar and unrelated texts
_LONG = 60  # code points of a question's stems, some ten words: no passage need hold the same share of a longer one


class Passage:
    """A hit with its language, its sentences and their terms. Each of these values is computed at its first use and
    then kept."""

    def __init__(self, hit: Hit, languages: EntryLanguages) -> None:
        self.hit = hit
        self._languages = languages

    @property
    def content(self) -> str:
        """The text of the passage."""
        return self.hit.entry.content

    @cached_property
    def language(self) -> str:
        """The ISO 639-1 code of the language of the passage, or "" if the language is unknown."""
        return self._languages.of(self.hit.entry)

    @cached_property
    def sentences(self) -> list[Span]:
        """The spans of all sentences in the content of the passage."""
        return sentence_spans(self.content)

    @cached_property
    def sentence_terms(self) -> list[Terms]:
        """The terms of each sentence, in the order of `sentences`."""
        return [text_terms(self.content[span.start : span.end], self.language) for span in self.sentences]

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of all words in the content of the passage."""
        return frozenset().union(*(terms.stems for terms in self.sentence_terms))

    @cached_property
    def context_terms(self) -> Terms:
        """The terms of the context line of the passage. The context line consists of the title of the document and the
        headings above the passage."""
        return text_terms(self.hit.entry.context, self.language)


def read_passages(hits: Iterable[Hit]) -> list[Passage]:
    """Return a `Passage` for each hit."""
    languages = EntryLanguages()
    return [Passage(hit, languages) for hit in hits]


@dataclass(frozen=True, slots=True)
class RankedSentence:
    """A sentence of a hit with its score. `span` is the position of the sentence in the content of the hit. `score` and
    `cosine` are in 0..1; higher is better. Scores can be compared only for the same question. Cosines can also be
    compared between questions. `cosine` is None if no cosine was computed."""

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
    """Return all sentences of the passages, best first. If there is no `embedder`, or if the embedder is unavailable,
    the score depends only on terms and on the ranks of the passages. Raises `EmbedderError` if the embedder fails in
    another way."""
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
    """Return the sentences of the passages without headings. If the passages consist only of headings, return the
    headings."""
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
    """Return a score for each sentence: the share of the question's terms that the sentence contains. Rare terms count
    more. A small part of the score of the better neighboring sentence is added."""
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
    """Return a dictionary: index of a sentence -> cosine of the sentence and the question, 0..1. Only the sentences
    with the best `scores` are embedded. The dictionary is empty if the embedder is unavailable."""
    best = sorted(range(len(sentences)), key=lambda n: -scores[n])[:_EMBEDDED]
    try:
        texts = [_fitting(embedder, sentences[n].text) for n in best]
        cosines = embedder.embed_documents(texts) @ embedder.embed_query(query.text)
    except EmbedderUnavailable:
        return {}
    return {n: max(0.0, float(cosine)) for n, cosine in zip(best, cosines, strict=True)}


def _fitting(embedder: Embedder, text: str) -> str:
    """Return the text of a sentence. If the text is too long for the embedding model, return only the beginning of the
    text."""
    tokens = embedder.token_spans(text)
    limit = embedder.space.max_tokens * 9 // 10  # a beginning may have a few more tokens than it had as a part
    return text if len(tokens) <= limit else text[: tokens[limit - 1].end]


def _shortened(content: str, span: Span) -> Span:
    """Return the span of a sentence. If the sentence is longer than `_MAX_QUOTE`, the span ends earlier, if possible
    between two words."""
    if span.end - span.start <= _MAX_QUOTE:
        return span
    end = content.rfind(" ", span.start, span.start + _MAX_QUOTE)
    return Span(span.start, end if end > span.start else span.start + _MAX_QUOTE)


@dataclass(frozen=True, slots=True)
class ConfidenceFeatures:
    """The values from which the confidence is computed. `share` (0..1) is the share of the question's terms that one
    passage contains. `cosine` (-1..1) is the cosine of the passage that is nearest to the question, or None if no
    cosine is known."""

    share: float
    cosine: float | None = None
    foreign: bool = False  # the question is in another language than the passages; False if a language is unknown

    @property
    def confidence(self) -> float:
        """The probability (0..1) that the hits contain the answer."""
        weights = _LOGIT_WORDS if self.cosine is None else _LOGIT_COSINE if self.foreign else _LOGIT_BOTH
        constant, of_share, of_cosine = weights
        return 1 / (1 + math.exp(-(constant + of_share * self.share + of_cosine * (self.cosine or 0.0))))


class CosineBaselines:
    """Measures the mean cosine of unrelated texts, once for each embedding space. Thread-safe."""

    def __init__(self) -> None:
        self._measured: dict[EmbeddingSpace, float] = {}
        self._locks = KeyedLock()

    def of(self, embedder: Embedder) -> float:
        """Return the mean cosine (-1..1) that the embedder gives to unrelated texts. The first call for an embedding
        space embeds sample texts: two questions and four passages in each language of the space for which this module
        has samples, or else in English. If the embedder fails, its error is raised, and the next call measures
        again."""
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
    """Return a cosine (-1..1) on the scale of the model MiniLM, so that cosines of different models can be compared.
    `baseline` is the mean cosine of unrelated texts. The value 1 stays 1, and the baseline becomes the baseline of
    MiniLM. Return None if the baseline is unknown, or if it is too high to separate similar texts from unrelated
    texts."""
    if baseline is None or not baseline < _MAX_BASELINE:
        return None
    return max(-1.0, REFERENCE + (cosine - baseline) / (1 - baseline) * (1 - REFERENCE))


def confidence_features(
    query: QueryTerms, passages: Sequence[Passage], *, baseline: float | None = REFERENCE
) -> ConfidenceFeatures:
    """Return the values from which the confidence is computed. At least one passage is needed. `baseline` is the mean
    cosine of unrelated texts in the embedding space of the hits. If `baseline` is None, the cosines of the hits are not
    used. No text is embedded."""
    share = max(_share(query, passage) for passage in passages)
    hits = [passage.hit for passage in passages]
    cosines = [hit.dense_score for hit in hits if hit.dense_score is not None and hit.dense_rank is not None]
    languages = [passage.language for passage in passages]
    foreign = bool(query.language) and any(languages) and query.language not in languages
    return ConfidenceFeatures(share, normalized_cosine(max(cosines), baseline) if cosines else None, foreign)


def _share(query: QueryTerms, passage: Passage) -> float:
    """Return the share (0..1) of the question's terms that the passage contains. Parts of compound words count as
    terms, and long terms count more, because long words are rare. A passage needs only some of the terms of a long
    question for the share 1. A question without terms has the share 1."""
    terms = query.terms([passage.language])
    weights = {term: _length(term) for term in (*terms.stems, *terms.parts)}
    length = sum(_length(term) for term in set(terms.stems))
    enough = sum(weights.values()) * min(1.0, _LONG / length) if length else 0.0
    held = {term for part in (passage.context_terms, *passage.sentence_terms) for term in (*part.stems, *part.parts)}
    return min(1.0, sum(weights[term] for term in weights.keys() & held) / enough) if enough else 1.0


def _length(term: str) -> int:
    return len(term.partition("~")[2] or term)  # "fi~talo" without its language
