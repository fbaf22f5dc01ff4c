"""mem0 with its FAISS store and sentence-transformers, without a language model (`infer=False`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["MEM0_TELEMETRY"] = "False"

from mem0 import Memory

from bench.speed.driving import drive
from bench.speed.timing import LIMIT, Ask

_USER = "bench"
_DIMENSION = 384


class Mem0:
    def __init__(self, model: str, folder: Path) -> None:
        os.environ["MEM0_DIR"] = str(folder / "home")
        store: dict[str, Any] = {"path": str(folder / "faiss"), "embedding_model_dims": _DIMENSION}
        parts = {
            "vector_store": {"provider": "faiss", "config": {**store, "distance_strategy": "cosine"}},
            "embedder": {"provider": "huggingface", "config": {"model": model, "embedding_dims": _DIMENSION}},
            "llm": {"provider": "openai", "config": {"api_key": "none"}},  # it is built, and never called
            "history_db_path": str(folder / "history.db"),
        }
        folder.mkdir(parents=True, exist_ok=True)
        self._memory = Memory.from_config(parts)

    def warm(self, text: str) -> None:
        self.embed(text)

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        for text in passages:
            self._memory.add(text, user_id=_USER, infer=False)

    def open(self, folder: Path) -> Ask:
        return lambda text: self._memory.search(text, filters={"user_id": _USER}, top_k=LIMIT)

    def encode(self, passages: Sequence[str]) -> object:
        return [self._memory.embedding_model.embed(text, "add") for text in passages]

    def embed(self, text: str) -> object:
        return self._memory.embedding_model.embed(text, "search")


if __name__ == "__main__":
    at = Path(sys.argv[3])
    drive(lambda: Mem0(sys.argv[4], at), sys.argv[1], Path(sys.argv[2]), at)
