"""LlamaIndex with its FAISS store and sentence-transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import faiss
from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.schema import TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.vector_stores.faiss import FaissVectorStore

from bench.speed.driving import drive
from bench.speed.timing import LIMIT, Ask

_DIMENSION = 384


class LlamaIndex:
    def __init__(self, model: str) -> None:
        self._embeddings = HuggingFaceEmbedding(model_name=model, device="cpu")

    def warm(self, text: str) -> None:
        self._embeddings.get_query_embedding(text)

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(_DIMENSION))
        context = StorageContext.from_defaults(vector_store=store)
        nodes = [TextNode(text=text) for text in passages]
        index = VectorStoreIndex(nodes, storage_context=context, embed_model=self._embeddings)
        index.storage_context.persist(str(folder))

    def open(self, folder: Path) -> Ask:
        store = FaissVectorStore.from_persist_dir(str(folder))
        context = StorageContext.from_defaults(vector_store=store, persist_dir=str(folder))
        index = load_index_from_storage(context, embed_model=self._embeddings)
        return index.as_retriever(similarity_top_k=LIMIT).retrieve


if __name__ == "__main__":
    drive(lambda: LlamaIndex(sys.argv[4]), sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
