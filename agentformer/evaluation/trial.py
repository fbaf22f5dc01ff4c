"""A memory that is there to be measured: filled with a corpus, asked its questions, and closed again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from agentformer.evaluation.dataset import Dataset
from agentformer.evaluation.loading import Loader, Progress
from agentformer.evaluation.outcomes import Evaluation
from agentformer.evaluation.run import evaluate
from agentformer.memory.memory_manager import MemoryManager
from agentformer.settings import Settings
from agentformer.types import Embedder, MemoryBackend


@dataclass(frozen=True, slots=True)
class Trial:
    """The parts of a memory that a measurement needs. `factory.trial` opens one."""

    backend: MemoryBackend
    memory: MemoryManager
    embedder: Embedder
    settings: Settings

    def load(self, dataset: Dataset, progress: Progress | None = None) -> None:
        """Store the corpus, as `Loader` does. Raises `InvalidInput`."""
        chunks = {"chunk_tokens": self.settings.chunk_tokens, "chunk_overlap": self.settings.chunk_overlap}
        Loader(self.memory, self.backend, self.embedder, **chunks)(dataset, progress)

    def evaluate(self, dataset: Dataset, **options: Any) -> Evaluation:
        """Ask the questions of a corpus that was loaded; `options` are `run.evaluate`'s."""
        return evaluate(self.backend.search, dataset, **options)


OpensTrial = Callable[[Settings], AbstractContextManager[Trial]]
