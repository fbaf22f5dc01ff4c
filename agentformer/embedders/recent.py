"""A cache of the vectors of recent texts. To find an answer, sentences are compared with the question, and many
questions need the same sentences."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agentformer.types import Embedder, EmbeddingSpace, Matrix, TokenEmbedder, TokenVectors, Vector

_VALUES = 8_000_000  # numbers in all cached vectors; the vectors of tokens are float16, so 16 MB


class _Key(NamedTuple):
    space: EmbeddingSpace
    text: str
    query: bool
    tokens: bool


class RecentVectors:
    """A cache of the vectors of recent texts, queries and their tokens. The least recently used vectors are dropped. If
    a text is too long for the model, only its beginning is embedded. Thread-safe."""

    def __init__(self, values: int = _VALUES) -> None:
        self._cached: OrderedDict[_Key, TokenVectors] = OrderedDict()
        self._values = values
        self._size = 0
        self._lock = threading.Lock()

    def of(self, texts: Sequence[str], embedder: Embedder) -> Matrix:
        """Return the vectors of the texts, one row each. Texts that are not cached are embedded in one call. Raises
        `EmbedderError` if the embedder fails."""
        keys = [_Key(embedder.space, text, False, False) for text in texts]
        found = self._found(keys)
        if missing := [key for key in dict.fromkeys(keys) if key not in found]:
            rows = embedder.embed_documents([_fitting(embedder, key.text) for key in missing])
            found |= {key: self._keep(key, _whole(row)) for key, row in zip(missing, rows, strict=True)}
        return np.stack([found[key].vector for key in keys])

    def of_query(self, text: str, embedder: Embedder) -> Vector:
        """Return the vector of a query. Raises `EmbedderError` if the embedder fails."""
        key = _Key(embedder.space, text, True, False)
        found = self._found([key])
        return (found.get(key) or self._keep(key, _whole(embedder.embed_query(text)))).vector

    def tokens(self, texts: Sequence[str], embedder: Embedder, *, query: bool = False) -> list[TokenVectors] | None:
        """Return the vectors of the texts and of their tokens, or None if the embedder has no vectors of tokens. Texts
        that are not cached are embedded in one call. Raises `EmbedderError` if the embedder fails."""
        if not isinstance(embedder, TokenEmbedder):
            return None
        keys = [_Key(embedder.space, text, query, True) for text in texts]
        found = self._found(keys)
        if missing := [key for key in dict.fromkeys(keys) if key not in found]:
            read = embedder.embed_tokens([_fitting(embedder, key.text) for key in missing], query=query)
            if read is None:
                return None
            small = (each._replace(rows=each.rows.astype(np.float16)) for each in read)
            found |= {key: self._keep(key, each) for key, each in zip(missing, small, strict=True)}
        return [found[key]._replace(rows=found[key].rows.astype(np.float32)) for key in keys]

    def _found(self, keys: Sequence[_Key]) -> dict[_Key, TokenVectors]:
        with self._lock:
            found = {key: self._cached[key] for key in keys if key in self._cached}
            for key in found:
                self._cached.move_to_end(key)
            return found

    def _keep(self, key: _Key, vectors: TokenVectors) -> TokenVectors:
        with self._lock:
            if key not in self._cached:
                self._size += _size(vectors)
            self._cached[key] = vectors
            while self._size > self._values and self._cached:
                self._size -= _size(self._cached.popitem(last=False)[1])
        return vectors


def _whole(vector: Vector) -> TokenVectors:
    return TokenVectors(vector, (), np.zeros((0, len(vector)), dtype=np.float32))


def _size(vectors: TokenVectors) -> int:
    return int(vectors.rows.size) + len(vectors.vector)


def _fitting(embedder: Embedder, text: str) -> str:
    """Return the text. If it is too long for the embedding model, return only its beginning."""
    limit = embedder.space.max_tokens * 9 // 10  # alone, a beginning may have a few more tokens than inside the text
    if len(text.encode()) <= limit:
        return text
    tokens = embedder.token_spans(text)
    return text if len(tokens) <= limit else text[: tokens[limit - 1].end]
