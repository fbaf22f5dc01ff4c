"""A store that offers no more than `MemoryBackend`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentformer.memory.backends.local_json.backend import JsonFileStore

DOOR = (
    *("store", "get", "list", "latest", "count", "search", "history", "namespaces"),
    *("update", "touch", "remove", "consolidate", "restore", "close"),
)


class NarrowStore:
    """A `MemoryBackend` without any other protocol."""

    def __init__(self, folder: Path) -> None:
        backend = JsonFileStore(folder)
        for name in DOOR:
            setattr(self, name, getattr(backend, name))


def narrow(folder: Path) -> Any:
    return NarrowStore(folder)
