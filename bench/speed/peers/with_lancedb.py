"""LanceDB in this process, on disk, with sentence-transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lancedb
from sentence_transformers import SentenceTransformer

from bench.speed.driving import drive
from bench.speed.timing import LIMIT, Ask

_NAME = "passages"


class LanceDB:
    def __init__(self, model: str) -> None:
        self._model = SentenceTransformer(model, device="cpu")

    def warm(self, text: str) -> None:
        self.embed(text)

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        rows = zip(self.encode(passages), passages, strict=True)
        lancedb.connect(folder).create_table(_NAME, data=[{"vector": row, "text": text} for row, text in rows])

    def open(self, folder: Path) -> Ask:
        table = lancedb.connect(folder).open_table(_NAME)
        return lambda text: table.search(self.embed(text)).limit(LIMIT).to_list()

    def encode(self, passages: Sequence[str]) -> Any:
        return self._model.encode(list(passages), normalize_embeddings=True)

    def embed(self, text: str) -> Any:
        return self._model.encode(text, normalize_embeddings=True)


if __name__ == "__main__":
    drive(lambda: LanceDB(sys.argv[4]), sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
