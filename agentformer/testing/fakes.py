"""Fakes for tests: an embedder that records its texts, an embedder that can be switched off, and a reranker."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable, RerankerUnavailable
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Span, Vector


class CountingEmbedder:
    """An embedder that passes texts to another embedder and records them."""

    def __init__(self, inner: Embedder | None = None) -> None:
        self.inner: Embedder = inner or HashingEmbedder()
        self.documents: list[str] = []
        self.queries: list[str] = []

    @property
    def space(self) -> EmbeddingSpace:
        return self.inner.space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return unit rows and record the texts."""
        rows = self.inner.embed_documents(texts)
        self.documents += texts
        return rows

    def embed_query(self, text: str) -> Vector:
        """Return a unit vector and record the query."""
        vector = self.inner.embed_query(text)
        self.queries.append(text)
        return vector

    def token_spans(self, text: str) -> list[Span]:
        return self.inner.token_spans(text)


class FlakyEmbedder(CountingEmbedder):
    """An embedder that can be switched off: while `down` is set, every call raises `EmbedderUnavailable`."""

    def __init__(self, inner: Embedder | None = None, *, down: bool = False) -> None:
        super().__init__(inner)
        self.down = down

    @property
    def space(self) -> EmbeddingSpace:
        self._check()
        return super().space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        self._check()
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        self._check()
        return super().embed_query(text)

    def token_spans(self, text: str) -> list[Span]:
        self._check()
        return super().token_spans(text)

    def _check(self) -> None:
        if self.down:
            raise EmbedderUnavailable("the embedder was switched off by a test")


class OverlapReranker:
    """A reranker that scores a text by the share of the question's words that the text contains.

    A longer text gets a slightly lower score. The reranker records its calls. While `down` is set, every call raises
    `RerankerUnavailable`.
    """

    name = "overlap"

    def __init__(self, *, down: bool = False) -> None:
        self.down = down
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        """Return one score for each text and record the call."""
        self.asked.append((query, tuple(texts)))
        if self.down:
            raise RerankerUnavailable("the reranker was switched off by a test")
        query_words = _words(query)
        shares = [
            len(query_words & (words := _words(text))) / (len(query_words) + 0.01 * len(words) + 1) for text in texts
        ]
        return np.array(shares, dtype=np.float32)


def _words(text: str) -> set[str]:
    return {*re.findall(r"\w+", text.casefold())}
