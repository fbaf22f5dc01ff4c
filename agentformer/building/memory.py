"""The memory over a backend, and what cleans it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from agentformer.building.counting import token_counter
from agentformer.errors import AgentFormerError
from agentformer.memory.core import CoreMemory
from agentformer.memory.hierarchical import HierarchicalMemory
from agentformer.memory.memory_cleaner import MemoryCleaner
from agentformer.memory.memory_manager import MemoryManager
from agentformer.memory.usage import UsageCounter
from agentformer.registry import late
from agentformer.settings import Settings
from agentformer.types import Embedder, LanguageModel, MemoryBackend, MemoryEntry

if TYPE_CHECKING:
    from agentformer.memory.context.builder import ContextBuilder
    from agentformer.memory.summaries.summarizer import Summarizer, Summary
else:
    ContextBuilder, Summarizer = late("ContextBuilder"), late("Summarizer")


log = logging.getLogger("agentformer")


class _SummarizerLater:
    """A `Summarizer` that is made when there is something to summarise, and that does without a model which cannot be
    made: nobody who adds a message can do anything about that, and messages are summarised all the same."""

    def __init__(
        self,
        make: Callable[[LanguageModel | None], Summarizer],
        model: Callable[[], LanguageModel | None],
        *,
        instant: bool,
    ) -> None:
        self._make = make
        self._model = model
        self._told = ""
        self.instant = instant

    def summarize(self, originals: Sequence[MemoryEntry]) -> Summary:
        try:
            model = self._model()
        except Exception as error:  # noqa: BLE001 - a plugin's model can raise anything
            problem = str(error) if isinstance(error, AgentFormerError) else f"{type(error).__name__}: {error}"[:200]
            self._tell(problem)
            summary = self._make(None).summarize(originals)
            return dataclasses.replace(summary, outcome="extractive_unavailable", problems=(problem,))
        return self._make(model).summarize(originals)

    def _tell(self, problem: str) -> None:
        """Once, and not with every session."""
        if problem != self._told:
            self._told = problem
            log.warning("summaries are made without the language model: %s", problem)


def build_cleaner(
    settings: Settings, backend: MemoryBackend, embedder: Embedder, model: Callable[[], LanguageModel | None]
) -> MemoryCleaner:
    """The cleaner, with a language model where there is one."""

    def summarizer(model: LanguageModel | None) -> Summarizer:
        return Summarizer(
            model,
            token_counter(embedder),
            max_tokens=settings.summary_tokens,
            temperature=settings.temperature,
        )

    return MemoryCleaner(
        backend,
        _SummarizerLater(summarizer, model, instant=not settings.llm_model),
        every=settings.clean_every,
        keep_recent=settings.clean_keep_recent,
        batch=settings.clean_batch,
        interval=settings.cleanup_interval,
        lease_seconds=settings.lease_seconds,
        ready=model,
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
        lambda: ContextBuilder(backend, count_tokens),
        usage,
        decay_rates=settings.decay_rates,
        context_tokens=settings.context_tokens,
        noise_floor=settings.noise_floor,
        count_tokens=count_tokens,
        released=released,
    )
