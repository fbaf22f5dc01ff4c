"""The document tool over a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentformer.memory.usage import UsageCounter
from agentformer.rag.documents import Originals
from agentformer.registry import late
from agentformer.settings import Settings
from agentformer.tools.rag_tool import RAGTool
from agentformer.types import Embedder, LanguageModel, MemoryBackend

if TYPE_CHECKING:
    from agentformer.rag.answer.answerer import Answerer
    from agentformer.rag.ingest import IngestPipeline
    from agentformer.readers import ReadLimits
else:
    Answerer, IngestPipeline, ReadLimits = late("Answerer"), late("IngestPipeline"), late("ReadLimits")


def build_rag(
    settings: Settings,
    backend: MemoryBackend,
    embedder: Embedder,
    model: Callable[[], LanguageModel | None],
    usage: UsageCounter,
) -> RAGTool:
    """The document tool; what reads files, and what answers, is made when it is first needed."""
    originals = Originals(settings.upload_dir)

    def ingest() -> IngestPipeline:
        limits = ReadLimits(
            max_bytes=settings.max_file_bytes, max_pages=settings.max_pages, wall_seconds=settings.read_seconds
        )
        return IngestPipeline(
            backend,
            originals,
            embedder,
            chunk_tokens=settings.chunk_tokens,
            chunk_overlap=settings.chunk_overlap,
            limits=limits,
        )

    return RAGTool(
        backend,
        ingest,
        lambda: Answerer(
            model(),
            embedder,
            temperature=settings.temperature,
            max_tokens=settings.answer_tokens,
            abstain=settings.abstain,
        ),
        originals,
        usage,
        top_k=settings.top_k,
        max_file_bytes=settings.max_file_bytes,
        max_question_chars=settings.max_question_chars,
    )
