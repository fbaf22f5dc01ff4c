"""What a snapshot of the vector index says of itself, read without loading anything of the index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

INDEX_FILE = "rag_faiss_index.bin"
META_FILE = "rag_faiss_meta.json"


def described(folder: Path) -> dict[str, Any]:
    """The state of the index when its snapshot was written, unchecked, as JSON values; empty where there is none."""
    try:
        return {**json.loads((folder / META_FILE).read_bytes())["about"], "in_memory": False}
    except (OSError, ValueError, LookupError, TypeError):
        return {"in_memory": False}
