"""What a snapshot of the vector index says of itself, read without loading anything of the index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentformer.errors import StoreDamaged
from agentformer.records.files import file_bytes

INDEX_FILE = "rag_faiss_index.bin"
META_FILE = "rag_faiss_meta.json"
WORDS_FOLDER = "words"


def described(folder: Path) -> dict[str, Any]:
    """The state of the index when its snapshot was written, unchecked, as JSON values; empty where there is none."""
    try:
        return {**json.loads(file_bytes(folder / META_FILE))["about"], "in_memory": False}
    except (OSError, ValueError, LookupError, TypeError):
        return {"in_memory": False}


def check_records(records: Path) -> None:
    """Raises `StoreDamaged` where the records are gone though what was made from them is here: a memory that is begun
    anew beside it would look as if nothing had ever been kept."""
    try:
        if records.stat().st_size:
            return
        what = "is empty"
    except FileNotFoundError:
        what = "is missing"
    except OSError:
        return  # which opening it tells
    made = [name for name in (INDEX_FILE, META_FILE, WORDS_FOLDER) if (records.parent / name).exists()]
    if made:
        raise StoreDamaged(
            f"{records} {what}, though what was made from it is there ({', '.join(made)}); put it back from a backup, "
            "or remove these too to begin anew"
        )
