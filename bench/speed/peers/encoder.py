"""An encoder of a peer that only stores vectors: sentence-transformers, with rows of unit length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentence_transformers import SentenceTransformer


class Encoder:
    def __init__(self, model: str) -> None:
        self._model = SentenceTransformer(model, device="cpu")

    def warm(self, text: str) -> None:
        self.embed(text)

    def encode(self, passages: Sequence[str]) -> Any:
        return self._model.encode(list(passages), normalize_embeddings=True)

    def embed(self, text: str) -> Any:
        return self._model.encode(text, normalize_embeddings=True)
