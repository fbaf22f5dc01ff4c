"""What a folder's store of the backend `faiss` tells before it is opened."""

from __future__ import annotations

import os
from pathlib import Path

from agentformer.records import spaces
from agentformer.records.database import Database
from agentformer.records.integrity.quarantine import Quarantine
from agentformer.records.integrity.recover import Recovered, recover_file
from agentformer.types import EmbeddingSpace

DATABASE_FILE = "memory.sqlite3"


def present(folder: Path) -> bool:
    """Does the folder hold a store of this kind?"""
    try:
        return (folder / DATABASE_FILE).stat().st_size > 0
    except OSError:
        return False


def wanted_embedder(folder: Path) -> str:
    """The embedder that was asked for when what waits in the folder's store was stored; "" for none."""
    if not present(folder):
        return ""
    database = Database(folder / DATABASE_FILE)
    try:
        with database.reading() as connection:
            return spaces.wanted_embedder(connection)
    finally:
        database.close()


def stored_space(folder: Path) -> EmbeddingSpace | None:
    """The space of the vectors that the folder's store holds; None where there is no store or no vector yet."""
    if not present(folder):
        return None
    database = Database(folder / DATABASE_FILE)
    try:
        with database.reading() as connection:
            known = spaces.active_space(connection)
    finally:
        database.close()
    return known[1] if known else None


def salvage_folder(folder: Path) -> Recovered | None:
    """Put a new database in the place of one that cannot be opened; None where there is none. Raises `StoreError`."""
    path = folder / DATABASE_FILE
    if not path.exists():
        return None
    return recover_file(path, Quarantine(Path(os.path.realpath(path)).parent))
