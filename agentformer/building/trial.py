"""A memory of its own for a measurement, in a folder that goes with it."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentformer.building.memory import build_cleaner, build_memory
from agentformer.evaluation.trial import Trial
from agentformer.memory.usage import UsageCounter
from agentformer.settings import Settings
from agentformer.types import Embedder, MemoryBackend


@contextmanager
def open_trial(
    settings: Settings,
    embedder: Embedder,
    build_backend: Callable[[Settings, Embedder], MemoryBackend],
    folder: Path | None = None,
) -> Iterator[Trial]:
    """A memory with these settings in `folder`, which stays, or in a temporary folder that is gone at the end, also
    where that is Ctrl-C. No messages are summarised in it."""
    with tempfile.TemporaryDirectory(prefix="agentformer-eval-") as temporary:
        index_dir = folder or Path(temporary) / "index"
        own = dataclasses.replace(settings, index_dir=index_dir, clean_every=0, cleanup_interval=0.0)
        backend = build_backend(own, embedder)
        try:
            cleaner = build_cleaner(own, backend, embedder, lambda: None)
            memory = build_memory(own, backend, embedder, cleaner, UsageCounter(backend), lambda digests: None)
            yield Trial(backend, memory, embedder, own)
        finally:
            backend.close()
