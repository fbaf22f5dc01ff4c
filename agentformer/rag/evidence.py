"""Which sentences of the passages found carry the answer: ranked, with exact offsets, without a model's help.

A sentence is judged by the question's terms that it holds (each worth its rarity among the sentences at
hand), by its nearness to the question where the embedder knows the language, and by the rank of its
passage. Terms of the neighbouring sentences count a little: a pronoun often stands where the name was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentformer.errors import EmbedderUnavailable
from agentformer.text.analysis import query_terms, text_terms
from agentformer.text.languages import detect_language
from agentformer.text.sentences import sentence_spans
from agentformer.types import Embedder, Hit, Span

# Weights of the three judgements; chosen on a development half, see docs/BENCHMARKS.md.
_WORDS = 1.0
_NEARNESS = 1.0
_PASSAGE = 0.35
_NEIGHBOUR = 0.25  # of a neighbouring sentence's terms
_LONGEST = 600  # code points of a quote; a longer sentence is shown from its first term on


@dataclass(frozen=True, slots=True)
class Evidence:
    """A sentence of a hit. `span` is in the hit's entry content; `score` is in 0..1, higher is better."""

    hit: Hit
    span: Span
    score: float

    @property
    def quote(self) -> str:
        return self.hit.entry.content[self.span.start : self.span.end]


def rank_evidence(question: str, hits: Sequence[Hit], embedder: Embedder | None = None) -> list[Evidence]:
    """All sentences of the hits, best first. With no `embedder`, words and passage rank decide."""
    sentences = [(hit, span) for hit in hits for span in sentence_spans(hit.entry.content)]
    if not sentences:
        return []
    words = _word_scores(question, sentences)
    near = _nearness(question, sentences, embedder)
    best = max(hit.score for hit in hits) or 1.0
    total = _WORDS + (_NEARNESS if near is not None else 0.0) + _PASSAGE
    scored = []
    for i, (hit, span) in enumerate(sentences):
        score = _WORDS * words[i] + _PASSAGE * hit.score / best
        if near is not None:
            score += _NEARNESS * near[i]
        scored.append(Evidence(hit, _shortened(hit.entry.content, span), score / total))
    return sorted(scored, key=lambda evidence: -evidence.score)


def _word_scores(question: str, sentences: Sequence[tuple[Hit, Span]]) -> list[float]:
    """Per sentence, the share of the question's terms that it holds, by rarity; 0..1."""
    terms, wanted = [], set()
    for hit, span in sentences:
        prior = hit.entry.metadata.get("language")
        language = detect_language(hit.entry.content, prior if isinstance(prior, str) else "")
        terms.append(set(text_terms(hit.entry.content[span.start : span.end], language).stems))
        wanted |= set(query_terms(question, [language]).stems)
    seen = Counter(term for found in terms for term in found)
    rarity = {term: math.log(1 + len(sentences) / (0.5 + seen[term])) for term in wanted if seen[term]}
    most = sum(rarity.values()) or 1.0
    own = [sum(rarity.get(term, 0.0) for term in found) / most for found in terms]
    return [score + _NEIGHBOUR * _around(sentences, own, i) for i, score in enumerate(own)]


def _around(sentences: Sequence[tuple[Hit, Span]], own: Sequence[float], i: int) -> float:
    near = [own[j] for j in (i - 1, i + 1) if 0 <= j < len(own) and sentences[j][0] is sentences[i][0]]
    return max(near, default=0.0)


def _nearness(question: str, sentences: Sequence[tuple[Hit, Span]], embedder: Embedder | None) -> list[float] | None:
    """Per sentence, cosine to the question, 0..1; None without an embedder at hand."""
    if embedder is None:
        return None
    try:
        limit = embedder.space.max_tokens
        texts = []
        for hit, span in sentences:
            text = hit.entry.content[span.start : span.end]
            tokens = embedder.token_spans(text)
            texts.append(text[: tokens[limit - 1].start] if len(tokens) > limit else text)
        rows = embedder.embed_documents(texts)
        query = embedder.embed_query(question)
    except EmbedderUnavailable:
        return None
    return [max(0.0, float(score)) for score in np.asarray(rows @ query)]


def _shortened(content: str, span: Span) -> Span:
    """A quote of bounded length, cut at a word."""
    if span.end - span.start <= _LONGEST:
        return span
    end = content.rfind(" ", span.start, span.start + _LONGEST)
    return Span(span.start, end if end > span.start else span.start + _LONGEST)
