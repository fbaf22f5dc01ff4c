"""The local mode of Qdrant, on disk, with sentence-transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, VectorParams
from sentence_transformers import SentenceTransformer

from bench.speed.driving import drive
from bench.speed.timing import LIMIT, Ask

_NAME = "passages"
_DIMENSION = 384


class Qdrant:
    def __init__(self, model: str) -> None:
        self._model = SentenceTransformer(model, device="cpu")

    def warm(self, text: str) -> None:
        self.embed(text)

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        with closing(QdrantClient(path=str(folder))) as client:
            client.create_collection(_NAME, vectors_config=VectorParams(size=_DIMENSION, distance=Distance.COSINE))
            texts = ({"text": text} for text in passages)
            client.upload_collection(_NAME, vectors=self.encode(passages), payload=texts, ids=range(len(passages)))

    def open(self, folder: Path) -> Ask:
        client = QdrantClient(path=str(folder))
        return lambda text: client.query_points(_NAME, query=self.embed(text), limit=LIMIT).points

    def encode(self, passages: Sequence[str]) -> Any:
        return self._model.encode(list(passages), normalize_embeddings=True)

    def embed(self, text: str) -> Any:
        return self._model.encode(text, normalize_embeddings=True)


if __name__ == "__main__":
    drive(lambda: Qdrant(sys.argv[4]), sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
