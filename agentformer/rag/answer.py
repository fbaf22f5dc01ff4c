"""Answers that stand on citations: by a language model where there is one, else by quotation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from agentformer.errors import LanguageModelUnavailable
from agentformer.rag.evidence import Evidence, rank_evidence
from agentformer.rag.prompts import NOTHING_FOUND, messages
from agentformer.text.languages import detect_language
from agentformer.types import Answer, Citation, Embedder, Hit, LanguageModel

_CITED = re.compile(r"\[(\d{1,3})\]")
_MOST_QUOTES = 3
# Below both, a question is not answered. Of 1,190 English questions this loses 0.3%, and it declines 28% of
# them when their passage is taken out of the hits (docs/BENCHMARKS.md).
_COVERED = 0.34
_NEAR = 0.40
_CLOSE = 0.75  # of the best sentence's score: a further sentence is quoted only if it is nearly as good


class Answerer:
    """Answers from hits. `model` is None where none is configured; then every answer is extractive."""

    def __init__(
        self, model: LanguageModel | None, embedder: Embedder | None, *, temperature: float = 0.3, max_tokens: int = 512
    ) -> None:
        self._model = model
        self._embedder = embedder
        self._temperature = temperature
        self._max_tokens = max_tokens

    def answer(self, question: str, hits: Sequence[Hit]) -> Answer:
        """An answer with its citations; mode `none` when there are no hits to answer from."""
        if not hits:
            return _nothing(question)
        if self._model is None:
            return self._extractive(question, hits)
        try:
            reply = self._model.complete(
                messages(question, hits), temperature=self._temperature, max_tokens=self._max_tokens
            )
        except LanguageModelUnavailable as error:
            return self._extractive(question, hits, (f"no language model answered, so the answer is quoted: {error}",))
        return self._checked(reply.text, hits)

    def _extractive(self, question: str, hits: Sequence[Hit], warnings: tuple[str, ...] = ()) -> Answer:
        """The best sentences, word for word."""
        ranked = rank_evidence(question, hits, self._knowing(hits))
        if not _bears(ranked):
            return dataclasses.replace(_nothing(question), hits=tuple(hits), warnings=warnings)
        chosen = [e for e in ranked[:_MOST_QUOTES] if e.score >= _CLOSE * ranked[0].score]
        citations = tuple(_citation(n, evidence) for n, evidence in enumerate(chosen, 1))
        text = "\n".join(f"“{' '.join(c.quote.split())}” [{c.number}]" for c in citations)
        return Answer(text, "extractive", citations, tuple(hits), warnings)

    def _knowing(self, hits: Sequence[Hit]) -> Embedder | None:
        """The embedder, if it took part in finding these hits: otherwise it does not know their language."""
        return self._embedder if any(hit.dense_rank for hit in hits) else None

    def _checked(self, text: str, hits: Sequence[Hit]) -> Answer:
        """The model's text with citations that exist; those that point nowhere are taken out and reported."""
        warnings = []
        wrong = sorted({n for n in map(int, _CITED.findall(text)) if not 1 <= n <= len(hits)})
        if wrong:
            warnings.append(f"the model cited passages that it was not given: {', '.join(map(str, wrong))}")
            text = _CITED.sub(lambda m: m.group() if int(m.group(1)) not in wrong else "", text)
        citations = []
        for number in dict.fromkeys(int(n) for n in _CITED.findall(text)):
            claim = " ".join(part for part in re.split(r"(?<=[.!?。])\s+", text) if f"[{number}]" in part)
            best = rank_evidence(_CITED.sub("", claim), [hits[number - 1]])
            if best:
                citations.append(_citation(number, best[0]))
        if not citations:
            warnings.append("the model cited nothing; check its answer against the hits")
        return Answer(text.strip(), "llm", tuple(citations), tuple(hits), tuple(warnings))


def _nothing(question: str) -> Answer:
    return Answer(NOTHING_FOUND.get(detect_language(question), NOTHING_FOUND["en"]), "none")


def _bears(evidence: Sequence[Evidence]) -> bool:
    """Is any sentence good enough to quote? Without an embedder's judgement, one shared term is."""
    coverage = max((e.coverage for e in evidence), default=0.0)
    near = [e.nearness for e in evidence if e.nearness is not None]
    if not near:
        return coverage > 0
    return coverage >= _COVERED or max(near) >= _NEAR


def _citation(number: int, evidence: Evidence) -> Citation:
    entry = evidence.hit.entry
    offset = entry.source.start if entry.source else 0
    return Citation(
        number=number,
        document=entry.source.name if entry.source else "",
        document_id=entry.source.document_id if entry.source else "",
        page=entry.source.page if entry.source else None,
        label=entry.source.label if entry.source else "",
        start=offset + evidence.span.start,
        end=offset + evidence.span.end,
        quote=evidence.quote,
        score=evidence.score,
        entry_id=entry.id,
    )
