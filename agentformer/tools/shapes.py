"""How answers, hits and documents look as JSON: one shape for the command line, HTTP and tools."""

from __future__ import annotations

import dataclasses
from typing import Any

from agentformer.rag.ingest import Document
from agentformer.types import Answer, Citation, Hit


def answer_json(answer: Answer) -> dict[str, Any]:
    return {
        "answer": answer.text,
        "mode": answer.mode,
        "citations": [citation_json(citation) for citation in answer.citations],
        "hits": [hit_json(hit) for hit in answer.hits],
        "timings": dict(answer.timings),
        "warnings": list(answer.warnings),
    }


def citation_json(citation: Citation) -> dict[str, Any]:
    values = dataclasses.asdict(citation)
    values["score"] = round(citation.score, 4)
    return values


def hit_json(hit: Hit) -> dict[str, Any]:
    source = hit.entry.source
    return {
        "id": hit.entry.id,
        "document": source.name if source else None,
        "document_id": source.document_id if source else None,
        "page": source.page if source else None,
        "label": source.label if source else None,
        "start": source.start if source else 0,
        "end": source.end if source else len(hit.entry.content),
        "content": hit.entry.content,
        "kind": hit.entry.kind,
        "tier": hit.entry.tier,
        "metadata": dict(hit.entry.metadata),
        "score": round(hit.score, 6),
        "dense_score": _rounded(hit.dense_score),
        "lexical_score": _rounded(hit.lexical_score),
        "dense_rank": hit.dense_rank,
        "lexical_rank": hit.lexical_rank,
        "span": list(hit.span) if hit.span else None,
    }


def document_json(document: Document) -> dict[str, Any]:
    values = dataclasses.asdict(document)
    values["metadata"] = dict(document.metadata)
    return values


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(score, 6)
