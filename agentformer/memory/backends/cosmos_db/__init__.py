"""The address of a container of the backend `cosmos_db`, and functions that read the local copy of the container
without opening the backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from agentformer.memory.backends import faiss
from agentformer.types import EmbeddingSpace

CACHE_FOLDER = "cosmos"  # inside `Settings.index_dir`
SEARCHED_FOLDER = "cosmos-server"  # the folder of the local copy in the mode `server`


@dataclass(frozen=True, slots=True)
class CosmosAddress:
    """The address of a container in Cosmos DB, and the key of its account. `repr` does not show the key."""

    endpoint: str
    key: str = field(default="", repr=False)
    database: str = "agentformer"
    container: str = "memory"
    discover: bool = True  # ask the account for the addresses of its regions; False for an emulator
    searched: bool = False  # the mode `server`: Cosmos DB ranks the entries of a separate container
    patience: float = 30.0  # seconds for which a throttled request is repeated


def stored_space(index_dir: Path) -> EmbeddingSpace | None:
    """Return the embedding space of the vectors in the local copy. Return None if there is no copy yet, or if the store
    has no vectors."""
    spaces = (faiss.stored_space(index_dir / folder) for folder in (CACHE_FOLDER, SEARCHED_FOLDER))
    return next(filter(None, spaces), None)


def wanted_embedder(index_dir: Path) -> str:
    """Return the name of the embedder that was requested for a store without vectors, or "" if no embedder was
    requested; see `faiss.wanted_embedder`."""
    names = (faiss.wanted_embedder(index_dir / folder) for folder in (CACHE_FOLDER, SEARCHED_FOLDER))
    return next(filter(None, names), "")
