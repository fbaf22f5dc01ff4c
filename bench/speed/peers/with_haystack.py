"""Haystack with its store in memory, written to a file, and sentence-transformers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import ComponentDevice
from haystack_integrations.components.embedders.sentence_transformers import (
    SentenceTransformersDocumentEmbedder,
    SentenceTransformersTextEmbedder,
)

from bench.speed.driving import drive
from bench.speed.timing import LIMIT, Ask

_FILE = "documents.json"


class Haystack:
    def __init__(self, model: str) -> None:
        cpu = ComponentDevice.from_str("cpu")
        self._documents = SentenceTransformersDocumentEmbedder(model=model, device=cpu, progress_bar=False)
        self._questions = SentenceTransformersTextEmbedder(model=model, device=cpu, progress_bar=False)
        self._documents.warm_up()
        self._questions.warm_up()

    def warm(self, text: str) -> None:
        self.embed(text)

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        store = InMemoryDocumentStore(embedding_similarity_function="cosine")
        store.write_documents(self._embedded(passages))
        folder.mkdir(parents=True, exist_ok=True)
        store.save_to_disk(str(folder / _FILE))

    def open(self, folder: Path) -> Ask:
        store = InMemoryDocumentStore.load_from_disk(str(folder / _FILE))
        pipeline = Pipeline()
        pipeline.add_component("question", self._questions)
        pipeline.add_component("search", InMemoryEmbeddingRetriever(store, top_k=LIMIT))
        pipeline.connect("question.embedding", "search.query_embedding")
        return lambda text: pipeline.run({"question": {"text": text}})

    def encode(self, passages: Sequence[str]) -> object:
        return self._embedded(passages)

    def embed(self, text: str) -> object:
        return self._questions.run(text=text)

    def _embedded(self, passages: Sequence[str]) -> list[Document]:
        documents: list[Document] = self._documents.run([Document(content=text) for text in passages])["documents"]
        return documents


if __name__ == "__main__":
    drive(lambda: Haystack(sys.argv[4]), sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
