"""The only place that builds concrete parts from `Settings`: `connect()` and what it hands out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from agentformer.embedders.lazy import LazyEmbedder
from agentformer.embedders.sbert import why_unavailable
from agentformer.errors import EmbedderUnavailable
from agentformer.memory.context import ContextBuilder
from agentformer.memory.core import CoreMemory
from agentformer.memory.hierarchical import HierarchicalMemory
from agentformer.memory.memory_cleaner import MemoryCleaner
from agentformer.memory.memory_manager import MemoryManager
from agentformer.memory.routing import RoutedBackend
from agentformer.memory.summaries.summarizer import Summarizer
from agentformer.memory.usage import UsageCounter
from agentformer.rag.answer import Answerer
from agentformer.rag.ingest import Ingest
from agentformer.rag.originals import Originals
from agentformer.readers import ReadLimits
from agentformer.registry import lookup, names
from agentformer.settings import Settings, load_settings
from agentformer.text.tokens import estimated_spans
from agentformer.tools.rag_tool import RAGTool
from agentformer.types import Embedder, LanguageModel, MemoryBackend

log = logging.getLogger("agentformer")


class AgentFormer:
    """One opened memory: `.memory` remembers and recalls, `.rag` takes documents and answers from them.

    Use it as a context manager, or call `close()`. Any number of them, in any number of processes, may
    have the same folders open.
    """

    def __init__(self, settings: Settings) -> None:
        self._closed = False
        self.settings = settings
        self.embedder = build_embedder(settings)
        self.backend = build_backend(settings, self.embedder)
        usage = UsageCounter(self.backend)
        self.rag = build_rag(settings, self.backend, self.embedder, usage)
        self.cleaner = build_cleaner(settings, self.backend, self.embedder)
        self.memory = build_memory(settings, self.backend, self.embedder, self.cleaner, usage, self.rag.released)
        self.cleaner.start()

    def close(self) -> None:
        """Finish the cleaning that was begun, write counts and snapshots, release files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.cleaner.close()
        self.memory.close()
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
    """The configured backend, or those that the routes name, as one. Raises `InvalidInput` for an unknown name."""
    builders = {name: lookup("backends", name) for name in _backend_names(settings)}
    built: dict[str, MemoryBackend] = {
        name: build(settings.index_dir, embedder, fanout=settings.fanout, rrf_k=settings.rrf_k)
        for name, build in builders.items()
    }
    for name in names("present"):
        if name not in built and lookup("present", name)(settings.index_dir):
            log.warning(
                "%s also holds a store of the backend %s, which these settings (backend, routes) do not read or change",
                settings.index_dir,
                name,
            )
    if len(built) == 1:
        return built[settings.backend]
    targets = {**built, "hierarchical": built[settings.hierarchical_backend or settings.backend]}
    return RoutedBackend(settings.routes, targets, settings.backend, rrf_k=settings.rrf_k)


def _backend_names(settings: Settings) -> list[str]:
    """Every backend that the settings name, the default one first."""
    routed = [route.target for route in settings.routes]
    own = settings.hierarchical_backend or settings.backend
    return list(dict.fromkeys([settings.backend, *(own if name == "hierarchical" else name for name in routed)]))


def build_cleaner(settings: Settings, backend: MemoryBackend, embedder: Embedder) -> MemoryCleaner:
    """The cleaner, with the configured language model where there is one."""
    summarizer = Summarizer(
        build_model(settings),
        token_counter(embedder),
        max_tokens=settings.summary_tokens,
        temperature=settings.temperature,
    )
    return MemoryCleaner(
        backend,
        summarizer,
        every=settings.clean_every,
        keep_recent=settings.clean_keep_recent,
        batch=settings.clean_batch,
        interval=settings.cleanup_interval,
        lease_seconds=settings.lease_seconds,
    )


def build_memory(
    settings: Settings,
    backend: MemoryBackend,
    embedder: Embedder,
    cleaner: MemoryCleaner,
    usage: UsageCounter,
    released: Callable[[Iterable[str]], None],
) -> MemoryManager:
    """The memory over a backend. `released` is told of uploaded files whose documents were forgotten."""
    count_tokens = token_counter(embedder)
    core = CoreMemory(backend, count_tokens, block_tokens=settings.core_block_tokens)
    return MemoryManager(
        backend,
        HierarchicalMemory(backend, core, working_messages=settings.working_messages),
        cleaner,
        ContextBuilder(backend, count_tokens),
        usage,
        decay_rates=settings.decay_rates,
        context_tokens=settings.context_tokens,
        noise_floor=settings.noise_floor,
        count_tokens=count_tokens,
        released=released,
    )


def token_counter(embedder: Embedder) -> Callable[[str], int]:
    """How many tokens a text has for the embedder's model; a cautious estimate while it cannot be loaded."""

    def count(text: str) -> int:
        try:
            return len(embedder.token_spans(text))
        except EmbedderUnavailable:
            return len(estimated_spans(text))

    return count


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


def build_rag(settings: Settings, backend: MemoryBackend, embedder: Embedder, usage: UsageCounter) -> RAGTool:
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
        usage,
        top_k=settings.top_k,
        max_file_bytes=settings.max_file_bytes,
        max_question_chars=settings.max_question_chars,
    )


def _automatic(settings: Settings) -> Embedder:
    """The store's own embedder if it has vectors; else the multilingual model; else the packaged one."""
    known = [name for name in _backend_names(settings) if name in names("stored_spaces")]
    spaces = (lookup("stored_spaces", name)(settings.index_dir) for name in known)
    space = next((space for space in spaces if space is not None), None)
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
