"""An embedder that is loaded when it is first needed, and asked again after a while when it could not be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from agentformer.errors import EmbedderUnavailable
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Span, Vector

RETRY_SECONDS = 30.0  # a model that failed to load is not loaded anew for every call


class LazyEmbedder:
    """Defers `load` to the first use, so that listing or removing never waits for a model."""

    def __init__(self, load: Callable[[], Embedder]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._loaded: Embedder | None = None
        self._failure: EmbedderUnavailable | None = None
        self._retry_at = 0.0

    @property
    def space(self) -> EmbeddingSpace:
        return self._get().space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        return self._get().embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        return self._get().embed_query(text)

    def token_spans(self, text: str) -> list[Span]:
        return self._get().token_spans(text)

    def _get(self) -> Embedder:
        with self._lock:
            if self._loaded is not None:
                return self._loaded
            if self._failure is not None and time.monotonic() < self._retry_at:
                raise EmbedderUnavailable(str(self._failure))
            try:
                self._loaded = self._load()
            except EmbedderUnavailable as failure:
                self._failure = failure
                self._retry_at = time.monotonic() + RETRY_SECONDS
                raise
            return self._loaded
