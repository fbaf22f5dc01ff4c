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

from agentformer.errors import EmbedderUnavailable
from agentformer.rag.chunks import CARRIED, SEPARATOR
from agentformer.text.analysis import query_terms, text_terms
from agentformer.text.languages import detect_language, language_code
from agentformer.text.sentences import sentence_spans
from agentformer.types import Embedder, Hit, Span

# Weights of the three judgements. Questions over one half of the development passages chose them; the
# neighbourhood is flat, so the values are round ones (docs/BENCHMARKS.md).
_WORDS = 1.0
_NEARNESS = 1.0
_PASSAGE = 0.5
_NEIGHBOUR = 0.15  # of a neighbouring sentence's terms
_LONGEST = 600  # code points of a quote; a longer sentence is cut at a word
_EMBEDDED = 24  # sentences that are embedded for one question: the best by words and passage
_FLAT = 60  # ranks of passages say little beside each other: the sentence decides
_MARKUP = " \t#*_>-=|"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A sentence of a hit. `span` is in the hit's entry content; scores are in 0..1, higher is better.

    `score` ranks within one question; `nearness` (cosine to the question; None where no embedder judged) can be
    compared between questions.
    """

    hit: Hit
    span: Span
    score: float
    nearness: float | None = None

    @property
    def quote(self) -> str:
        return self.hit.entry.content[self.span.start : self.span.end]


def rank_evidence(question: str, hits: Sequence[Hit], embedder: Embedder | None = None) -> list[Evidence]:
    """All sentences of the hits, best first. With no `embedder`, words and passage rank decide."""
    sentences = _sentences(hits)
    if not sentences:
        return []
    worth = {id(hit): (_FLAT + 1) / (_FLAT + rank) for rank, hit in enumerate(hits, 1)}
    words = _word_scores(question, sentences)
    plain = [_WORDS * score + _PASSAGE * worth[id(hit)] for score, (hit, _) in zip(words, sentences, strict=True)]
    near = _nearness(question, sentences, plain, embedder)
    total = _WORDS * (1 + _NEIGHBOUR) + _PASSAGE + (_NEARNESS if near else 0.0)
    scored = [
        Evidence(
            hit,
            _shortened(hit.entry.content, span),
            (plain[i] + _NEARNESS * near.get(i, 0.0)) / total,
            near.get(i),
        )
        for i, (hit, span) in enumerate(sentences)
    ]
    return sorted(scored, key=lambda evidence: -evidence.score)


def _sentences(hits: Sequence[Hit]) -> list[tuple[Hit, Span]]:
    """The hits' sentences; a heading says what follows and is no evidence itself, unless there is nothing else."""
    found = [(hit, span) for hit in hits for span in sentence_spans(hit.entry.content)]
    return [(hit, span) for hit, span in found if not _is_heading(hit, span)] or found


def _is_heading(hit: Hit, span: Span) -> bool:
    text = hit.entry.content[span.start : span.end].strip(_MARKUP)
    return not text or text in hit.entry.context.split(CARRIED)[0].split(SEPARATOR)


def _word_scores(question: str, sentences: Sequence[tuple[Hit, Span]]) -> list[float]:
    """Per sentence, the share of the question's terms that it holds: by rarity among those that any holds, with
    something for its neighbours."""
    terms, wanted = [], set()
    for hit, span in sentences:
        prior = hit.entry.metadata.get("language")
        language = detect_language(hit.entry.content, language_code(prior))
        found = set(text_terms(hit.entry.content[span.start : span.end], language).stems)
        terms.append(found)
        wanted |= set(query_terms(question, [language]).stems)
    seen = Counter(term for found in terms for term in found)
    rarity = {term: math.log(1 + len(sentences) / (0.5 + seen[term])) for term in wanted if seen[term]}
    most = sum(rarity.values()) or 1.0
    own = [sum(rarity.get(term, 0.0) for term in found) / most for found in terms]
    return [score + _NEIGHBOUR * _around(sentences, own, i) for i, score in enumerate(own)]


def _around(sentences: Sequence[tuple[Hit, Span]], own: Sequence[float], i: int) -> float:
    near = [own[j] for j in (i - 1, i + 1) if 0 <= j < len(own) and sentences[j][0] is sentences[i][0]]
    return max(near, default=0.0)


def _nearness(
    question: str, sentences: Sequence[tuple[Hit, Span]], plain: Sequence[float], embedder: Embedder | None
) -> dict[int, float]:
    """Cosine to the question, 0..1, of the most promising sentences; empty without an embedder at hand."""
    if embedder is None:
        return {}
    chosen = sorted(range(len(sentences)), key=lambda i: -plain[i])[:_EMBEDDED]
    try:
        texts = [_fitting(embedder, sentences[i][0].entry.content[slice(*sentences[i][1])]) for i in chosen]
        scores = embedder.embed_documents(texts) @ embedder.embed_query(question)
    except EmbedderUnavailable:
        return {}
    return {i: max(0.0, float(score)) for i, score in zip(chosen, scores, strict=True)}


def _fitting(embedder: Embedder, text: str) -> str:
    """The beginning of a sentence that is too long for the model."""
    tokens = embedder.token_spans(text)
    limit = embedder.space.max_tokens * 9 // 10  # tokens of a beginning may be counted differently by a few
    return text if len(tokens) <= limit else text[: tokens[limit - 1].end]


def _shortened(content: str, span: Span) -> Span:
    """A quote of bounded length, cut at a word."""
    if span.end - span.start <= _LONGEST:
        return span
    end = content.rfind(" ", span.start, span.start + _LONGEST)
    return Span(span.start, end if end > span.start else span.start + _LONGEST)
