"""Chroma in this process, on disk, with sentence-transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import chromadb
from chromadb.config import Settings
from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction

from bench.speed.driving import drive
from bench.speed.timing import LIMIT, Ask

_NAME = "passages"


class Chroma:
    def __init__(self, model: str) -> None:
        self._embeddings = SentenceTransformerEmbeddingFunction(model_name=model, device="cpu")

    def warm(self, text: str) -> None:
        self._embeddings([text])

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        collection = self._client(folder).create_collection(_NAME, embedding_function=self._embeddings)
        collection.add(ids=[str(number) for number in range(len(passages))], documents=list(passages))

    def open(self, folder: Path) -> Ask:
        collection = self._client(folder).get_collection(_NAME, embedding_function=self._embeddings)
        return lambda text: collection.query(query_texts=[text], n_results=LIMIT)

    def _client(self, folder: Path) -> chromadb.ClientAPI:
        return chromadb.PersistentClient(path=str(folder), settings=Settings(anonymized_telemetry=False))


if __name__ == "__main__":
    drive(lambda: Chroma(sys.argv[4]), sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
