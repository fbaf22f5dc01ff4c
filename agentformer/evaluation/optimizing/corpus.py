"""What an optimisation works on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from agentformer.evaluation.dataset import Dataset
from agentformer.evaluation.optimizing.vectors import RememberingEmbedder
from agentformer.evaluation.trial import Trial
from agentformer.settings import Settings

OpensIn = Callable[[Settings, Path], AbstractContextManager[Trial]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Passages with questions, the present settings, and how to open a memory with others in a folder; its embedder has
    to be this one."""

    dataset: Dataset
    settings: Settings
    embedder: RememberingEmbedder
    opens: OpensIn
