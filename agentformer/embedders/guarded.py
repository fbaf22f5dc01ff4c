"""An embedder that is loaded when it is first needed, trusted only as far as its rows are right, and left alone for a
while after it failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from agentformer.errors import EmbedderUnavailable
from agentformer.net.breaker import Breaker
from agentformer.net.usage import Usage
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Span, Vector

_UNIT = 1e-3  # how far from 1 the length of a row may be


@runtime_checkable
class CountsTokens(Protocol):
    """An embedder whose provider says how many tokens it has read."""

    @property
    def tokens_read(self) -> int: ...


class GuardedEmbedder:
    """Another embedder, made by `load` at its first use, so that listing or removing never waits for a model.

    After an `EmbedderUnavailable` calls are refused for `seconds`, so that a dead server costs one timeout and not one
    for each call; then it is made anew. A server that comes back with another model stays refused: this object's space
    never changes. Thread-safe.
    """

    def __init__(self, load: Callable[[], Embedder], *, seconds: float = 30.0) -> None:
        self._load = load
        self._breaker = Breaker(seconds)
        self._lock = threading.Lock()
        self._loaded: Embedder | None = None
        self._tokens = 0
        self.usage = Usage()
        self.known_space: EmbeddingSpace | None = None  # of the model, once it was loaded; also while it is away

    @property
    def space(self) -> EmbeddingSpace:
        return self._get().space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return np.zeros((0, self.space.dimension), dtype=np.float32)
        with self._calling() as embedder:
            rows = embedder.embed_documents(texts)
            self._check(rows, (len(texts), embedder.space.dimension), embedder.space)
        return rows

    def embed_query(self, text: str) -> Vector:
        with self._calling() as embedder:
            row = embedder.embed_query(text)
            self._check(row, (embedder.space.dimension,), embedder.space)
        return row

    def token_spans(self, text: str) -> list[Span]:
        return self._get().token_spans(text)

    def retry_now(self) -> None:
        """Do not wait any longer: somebody asks for it."""
        self._breaker.reset()

    def _get(self) -> Embedder:
        with self._lock:
            if self._loaded is not None:
                return self._loaded
            if reason := self._breaker.blocked():
                raise EmbedderUnavailable(reason)
            try:
                loaded = self._load()
                self._recognise(loaded.space)
            except EmbedderUnavailable as failure:
                self._breaker.failed(str(failure))
                raise
            self._loaded, self._tokens = loaded, 0
            self._breaker.succeeded()
            return loaded

    def _recognise(self, space: EmbeddingSpace) -> None:
        if self.known_space and self.known_space.difference(space):
            raise EmbedderUnavailable(
                f"{self.known_space.spec} came back as another model ({space.dimension} dimensions, revision "
                f"{space.revision or 'unknown'}); put the former one back, or move the store to it: "
                f"agentformer reembed --to {space.spec}"
            )
        self.known_space = self.known_space or space

    @contextmanager
    def _calling(self) -> Iterator[Embedder]:
        embedder = self._get()
        try:
            with self.usage.call():
                yield embedder
        except EmbedderUnavailable as failure:
            with self._lock:
                if self._loaded is embedder:  # else another thread has seen it before
                    self._loaded = None
                    self._breaker.failed(str(failure))
            raise
        self._count(embedder)

    def _count(self, embedder: Embedder) -> None:
        if not isinstance(embedder, CountsTokens):
            return
        with self._lock:
            if self._loaded is embedder:
                self.usage.tokens(embedder.tokens_read - self._tokens)
                self._tokens = embedder.tokens_read

    @staticmethod
    def _check(rows: Any, shape: tuple[int, ...], space: EmbeddingSpace) -> None:
        """Nothing but finite rows of unit length and the right shape comes from here, whatever the plugin."""
        found = getattr(rows, "shape", None)
        if found != shape:
            raise EmbedderUnavailable(f"{space.spec} returned vectors of shape {found}, not {shape}; check the model")
        if not np.isfinite(rows).all() or np.abs(np.linalg.norm(rows, axis=-1) - 1.0).max() > _UNIT:
            raise EmbedderUnavailable(f"{space.spec} returned vectors that are not finite and of unit length")
