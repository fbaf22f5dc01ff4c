"""The only place that builds concrete parts from `Settings`: `connect()` and what it hands out."""

from __future__ import annotations

import logging
import os
from types import TracebackType
from typing import Any, Self

from agentformer.embedders.lazy import LazyEmbedder
from agentformer.embedders.sbert import why_unavailable
from agentformer.errors import EmbedderUnavailable
from agentformer.memory.memory_manager import MemoryManager
from agentformer.rag.answer import Answerer
from agentformer.rag.ingest import Ingest
from agentformer.rag.originals import Originals
from agentformer.readers import ReadLimits
from agentformer.registry import lookup, names
from agentformer.settings import Settings, load_settings
from agentformer.tools.rag_tool import RAGTool
from agentformer.types import Embedder, LanguageModel, MemoryBackend

log = logging.getLogger("agentformer")


class AgentFormer:
    """One opened memory: `.memory` remembers and recalls, `.rag` takes documents and answers from them.

    Use it as a context manager, or call `close()`. Any number of them, in any number of processes, may
    have the same folders open.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.embedder = build_embedder(settings)
        self.backend = build_backend(settings, self.embedder)
        self.memory = MemoryManager(self.backend)
        self.rag = build_rag(settings, self.backend, self.embedder)

    def close(self) -> None:
        """Write snapshots and release files. Idempotent."""
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    *,
    index_dir: str | os.PathLike[str] | None = None,
    upload_dir: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> AgentFormer:
    """Open a memory, making its folders where they are missing.

    Every field of `Settings` may be given by name; what is not given comes from the environment
    (`AGENTFORMER_...`) or from the default. Raises `InvalidInput`, `StoreFull` or `StoreDamaged`.
    """
    return AgentFormer(load_settings({"index_dir": index_dir, "upload_dir": upload_dir, **settings}))


def build_backend(settings: Settings, embedder: Embedder) -> MemoryBackend:
    """The configured backend. Raises `InvalidInput` for an unknown name."""
    build = lookup("backends", settings.backend)
    backend: MemoryBackend = build(settings.index_dir, embedder, fanout=settings.fanout, rrf_k=settings.rrf_k)
    return backend


def build_embedder(settings: Settings) -> LazyEmbedder:
    """The configured embedder, loaded at its first use. Raises `InvalidInput` for an unknown provider."""
    if settings.embedder != "auto":
        provider, _, model = settings.embedder.partition(":")
        build = lookup("embedders", provider)
        return LazyEmbedder(lambda: build(model, settings))
    return LazyEmbedder(lambda: _automatic(settings))


def build_model(settings: Settings) -> LanguageModel | None:
    """The configured language model; None when none is, and then answers are extractive.

    `provider:model` for a registered provider; any other name, colons and all, is one that an
    OpenAI-compatible server knows.
    """
    if not settings.llm_model:
        return None
    provider, _, model = settings.llm_model.partition(":")
    if provider not in names("llms"):
        provider, model = "openai", settings.llm_model
    llm: LanguageModel = lookup("llms", provider)(model, settings)
    return llm


def build_rag(settings: Settings, backend: MemoryBackend, embedder: Embedder) -> RAGTool:
    """The document tool over a backend."""
    originals = Originals(settings.upload_dir)
    ingest = Ingest(
        backend,
        originals,
        embedder,
        chunk_tokens=settings.chunk_tokens,
        chunk_overlap=settings.chunk_overlap,
        limits=ReadLimits(
            max_bytes=settings.max_file_bytes, max_pages=settings.max_pages, wall_seconds=settings.read_seconds
        ),
    )
    answerer = Answerer(
        build_model(settings), embedder, temperature=settings.temperature, max_tokens=settings.answer_tokens
    )
    return RAGTool(
        backend,
        ingest,
        answerer,
        originals,
        top_k=settings.top_k,
        max_file_bytes=settings.max_file_bytes,
        max_question_chars=settings.max_question_chars,
    )


def _automatic(settings: Settings) -> Embedder:
    """The store's own embedder if it has vectors; else the multilingual model; else the packaged one."""
    known = settings.backend in names("stored_spaces")
    space = lookup("stored_spaces", settings.backend)(settings.index_dir) if known else None
    if space is not None:
        return _load(space.provider, space.model, settings)
    name = settings.multilingual_model
    reason = why_unavailable(name)
    if not reason:
        log.info("embedder: %s", name)
        return _load("sbert", name, settings)
    embedder = _load("minilm", "", settings)
    log.warning("embedder: the packaged all-MiniLM-L6-v2 (English), because %s: %s", name, reason)
    return embedder


def _load(provider: str, model: str, settings: Settings) -> Embedder:
    try:
        embedder: Embedder = lookup("embedders", provider)(model, settings)
    except EmbedderUnavailable as error:
        raise EmbedderUnavailable(f"{error}. Until then, everything is kept and found by its words") from error
    return embedder
