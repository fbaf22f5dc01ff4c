"""What can be saved of a store that cannot be opened any more."""

from __future__ import annotations

import os
from pathlib import Path

from agentformer.memory.backends.faiss.stored import DATABASE_FILE
from agentformer.records.integrity.quarantine import Aside
from agentformer.records.integrity.recover import Salvaged, salvage


def faiss(folder: Path) -> Salvaged | None:
    """Put a new database in the place of one that cannot be opened; None where there is none. Raises `StoreError`."""
    path = folder / DATABASE_FILE
    if not path.exists():
        return None
    return salvage(path, Aside(Path(os.path.realpath(path)).parent))
