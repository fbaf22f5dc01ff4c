"""txtai, hybrid: its own BM25 with FAISS, and the texts in SQLite."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from txtai import Embeddings

from bench.speed.driving import drive
from bench.speed.timing import LIMIT, Ask


class Txtai:
    def __init__(self, model: str) -> None:
        self._model = model

    @functools.cached_property
    def _embeddings(self) -> Embeddings:
        return Embeddings(path=self._model, hybrid=True, content=True, gpu=False)

    def warm(self, text: str) -> None:
        self._embeddings.transform(text)

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        self._embeddings.index(passages)
        self._embeddings.save(str(folder))

    def open(self, folder: Path) -> Ask:
        embeddings = Embeddings()  # which loads the model that the index names
        embeddings.load(str(folder))
        return lambda text: embeddings.search(text, LIMIT)


if __name__ == "__main__":
    drive(lambda: Txtai(sys.argv[4]), sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
