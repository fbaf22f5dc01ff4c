"""The sentences of the passages, ranked by how well they answer the question, with exact offsets.

The score of a sentence has three parts. The first part is its terms of the question, weighted by their rarity among the
sentences. The second part is its cosine with the question, if the embedder knows the language. The third part is the
rank of its passage. Terms of the neighboring sentences have a small weight, because a pronoun often replaces a name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from agentformer.errors import EmbedderUnavailable
from agentformer.rag.chunks import CARRIED, SEPARATOR
from agentformer.search.relevance import EntryLanguages
from agentformer.text.analysis import QueryTerms, Terms, text_terms
from agentformer.text.sentences import sentence_spans
from agentformer.types import Embedder, Hit, Span

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

    `score` can be compared only for the same question. `cosine` is the cosine with the question, or None without an
    embedder. It can be compared between questions.
    """

    hit: Hit
    span: Span
    score: float
    cosine: float | None = None

    @property
    def quote(self) -> str:
        """The text of the sentence."""
        return self.hit.entry.content[self.span.start : self.span.end]


@dataclass(frozen=True, slots=True)
class _Sentence:
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
    plain = [
        _WORDS * score + _PASSAGE * by_rank[id(sentence.passage)]
        for score, sentence in zip(words, sentences, strict=True)
    ]
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
    """Return for each sentence its share of the question's terms, weighted by rarity. Terms of neighboring sentences
    are added with a smaller weight."""
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
    """Return the cosine with the question, 0..1, for the sentences with the best `scores`. The keys are positions of
    the sentences."""
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
