"""Embedders, one provider per module, and the guard through which the rest of the package uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from agentformer.errors import AgentFormerError, EmbedderUnavailable
from agentformer.http.guarded import Breaker, Guarded
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Span, Vector

_UNIT = 1e-3  # largest allowed distance of a row's length from 1
_LOCAL_TEXTS = 64  # texts per call of an embedder that runs in this process


@runtime_checkable
class Served(Protocol):
    """An embedder behind a server. The embedder checks that the server still runs the same model."""

    @property
    def tokens_read(self) -> int:
        """The number of tokens that the server has reported in all calls."""
        ...

    @property
    def request_texts(self) -> int:
        """The number of texts in the next request."""
        ...


class GuardedEmbedder(Guarded[Embedder]):
    """An embedder that `load` creates at the first use. So listing and deleting entries never waits for a model. After
    a failure, calls are refused for `seconds`, and for longer after each further failure. Then an embedder that is not
    `Served` is loaded again. If the name now has another model, calls fail: `space` never changes. The methods return
    finite unit rows of the right shape, or raise. Thread-safe."""

    unavailable = EmbedderUnavailable

    def __init__(self, load: Callable[[], Embedder], *, seconds: float = 30.0) -> None:
        super().__init__(load, Breaker(seconds))
        self._tokens = 0  # of the loaded embedder that `usage` has counted
        self.known_space: EmbeddingSpace | None = None  # set by the first load; stays while the model is unavailable

    @property
    def name(self) -> str:
        return self.known_space.spec if self.known_space else "the embedder"

    @property
    def space(self) -> EmbeddingSpace:
        return self.provider().space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """See `Embedder.embed_documents`."""
        import numpy as np

        if not texts:
            return np.zeros((0, self.space.dimension), dtype=np.float32)
        with self.call() as embedder:
            rows = embedder.embed_documents(texts)
            _check_rows(rows, (len(texts), embedder.space.dimension), embedder.space)
        self._count_tokens(embedder)
        return rows

    def embed_query(self, text: str) -> Vector:
        """See `Embedder.embed_query`."""
        with self.call() as embedder:
            row = embedder.embed_query(text)
            _check_rows(row, (embedder.space.dimension,), embedder.space)
        self._count_tokens(embedder)
        return row

    def token_spans(self, text: str) -> list[Span]:
        """See `Embedder.token_spans`. This method also works while the server is down."""
        return self.provider().token_spans(text)

    @property
    def request_texts(self) -> int:
        """The number of texts per call. An interruption can lose the work of one call."""
        with self._lock:
            return self._loaded.request_texts if isinstance(self._loaded, Served) else _LOCAL_TEXTS

    def _check_loaded(self, provider: Embedder) -> None:
        space = provider.space
        if self.known_space and self.known_space.difference(space):
            raise EmbedderUnavailable(
                f"{self.known_space.spec} is a different model now ({space.dimension} dimensions, revision "
                f"{space.revision or 'unknown'}); restore the former model, or move the store to this one: "
                f"agentformer reembed --to {space.spec}"
            )
        self.known_space = self.known_space or space
        self._tokens = 0

    def _failed(self, provider: Embedder, error: AgentFormerError) -> None:
        super()._failed(provider, error)
        with self._lock:
            if self._loaded is provider and not isinstance(provider, Served):
                self._loaded = None

    def _count_tokens(self, embedder: Embedder) -> None:
        if not isinstance(embedder, Served):
            return
        with self._lock:
            if self._loaded is embedder:
                self.usage.tokens(embedder.tokens_read - self._tokens)
                self._tokens = embedder.tokens_read


def _check_rows(rows: Any, shape: tuple[int, ...], space: EmbeddingSpace) -> None:
    """Raise `EmbedderUnavailable` unless `rows` are finite unit rows of this shape."""
    import numpy as np

    actual = getattr(rows, "shape", None)
    if actual != shape:
        raise EmbedderUnavailable(f"{space.spec} returned vectors of shape {actual}, not {shape}; check the model")
    if not np.isfinite(rows).all() or np.abs(np.linalg.norm(rows, axis=-1) - 1.0).max() > _UNIT:
        raise EmbedderUnavailable(f"{space.spec} returned vectors that are not finite and of unit length")
