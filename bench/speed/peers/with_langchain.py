"""LangChain with its FAISS store and sentence-transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from langchain_community.vectorstores import FAISS
from langchain_huggingface import HuggingFaceEmbeddings

from bench.speed.driving import drive
from bench.speed.timing import LIMIT, Ask


class LangChain:
    def __init__(self, model: str) -> None:
        self._embeddings = HuggingFaceEmbeddings(model_name=model, model_kwargs={"device": "cpu"})

    def warm(self, text: str) -> None:
        self._embeddings.embed_query(text)

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        FAISS.from_texts(list(passages), self._embeddings).save_local(str(folder))

    def open(self, folder: Path) -> Ask:
        store = FAISS.load_local(str(folder), self._embeddings, allow_dangerous_deserialization=True)
        return lambda text: store.similarity_search(text, k=LIMIT)


if __name__ == "__main__":
    drive(lambda: LangChain(sys.argv[4]), sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
