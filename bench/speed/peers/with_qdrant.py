"""The local mode of Qdrant, on disk, with sentence-transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, VectorParams

from bench.speed.driving import drive
from bench.speed.peers.encoder import Encoder
from bench.speed.timing import LIMIT, Ask

_NAME = "passages"
_DIMENSION = 384


class Qdrant(Encoder):
    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        with closing(QdrantClient(path=str(folder))) as client:
            client.create_collection(_NAME, vectors_config=VectorParams(size=_DIMENSION, distance=Distance.COSINE))
            texts = ({"text": text} for text in passages)
            client.upload_collection(_NAME, vectors=self.encode(passages), payload=texts, ids=range(len(passages)))

    def open(self, folder: Path) -> Ask:
        client = QdrantClient(path=str(folder))
        return lambda text: client.query_points(_NAME, query=self.embed(text), limit=LIMIT).points


if __name__ == "__main__":
    drive(lambda: Qdrant(sys.argv[4]), sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
