"""Embedders, which turn texts into vectors. Each provider of embedding models has its own module. The rest of the
package calls an embedder only through the class `GuardedEmbedder` of this module. `token_counter` counts tokens, also
while the model is unavailable."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

from agentformer.embedders.batching import Batcher
from agentformer.errors import AgentFormerError, EmbedderUnavailable
from agentformer.http import tracing
from agentformer.http.circuit_breaker import Breaker, Guarded
from agentformer.types import (
    Embedder,
    EmbeddingSpace,
    Matrix,
    Span,
    TokenCounter,
    TokenEmbedder,
    TokenVectors,
    Vector,
    spans_of,
)

_UNIT = 1e-3  # largest allowed distance of a row's length from 1
_MOST_QUERIES = 16  # queries of several threads in one call
_LOCAL_TEXTS = 64  # texts per call of an embedder that runs in this process
# A subword vocabulary of another language needs about one token per three letters.
_TOKEN = re.compile(r"\w{1,3}|[^\w\s]")


@runtime_checkable
class Served(Protocol):
    """An embedder whose model runs on a server. Such an embedder checks in its own calls that the server still runs the
    same model, so the embedder need not be loaded again after a failure."""

    @property
    def tokens_read(self) -> int:
        """The number of tokens that the server has reported in all calls until now."""
        ...

    @property
    def request_texts(self) -> int:
        """The number of texts that the next request to the server contains."""
        ...


@runtime_checkable
class BatchedQueries(Protocol):
    """An embedder that embeds several queries faster in one call than one after another."""

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of the queries: an array with one row for each text. Each row is the vector that
        `embed_query` returns for the text."""
        ...


# These checks replace `isinstance`, which takes as long for these protocols as reading ten vectors.
def _is_served(embedder: object) -> TypeGuard[Served]:
    return hasattr(embedder, "tokens_read") and hasattr(embedder, "request_texts")


def _is_batched(embedder: object) -> TypeGuard[BatchedQueries]:
    return hasattr(embedder, "embed_queries")


class GuardedEmbedder(Guarded[Embedder]):
    """An embedder that `load` creates at the first use, so that listing and deleting entries never wait for a model.
    Thread-safe.

    After a failed call, the next calls raise `EmbedderUnavailable` for `seconds` seconds, and longer after each further
    failure. Then the embedder is loaded again, unless it has the type `Served`. If a later load returns another model
    under the same name, all calls raise `EmbedderUnavailable`, because the vectors of two models cannot be compared. A
    call also raises this error if a vector has a wrong shape, a number that is not finite, or a length other than 1.
    Queries of several threads that wait for a model of the type `BatchedQueries` are embedded in one call."""

    unavailable = EmbedderUnavailable

    def __init__(self, load: Callable[[], Embedder], *, seconds: float = 30.0) -> None:
        super().__init__(load, Breaker(seconds))
        self._queries = Batcher[str, Vector](self._embed_queries, most=_MOST_QUERIES)
        self._tokens = 0  # number of tokens of the loaded embedder that `usage` has counted
        self.known_space: EmbeddingSpace | None = None  # set by the first load; stays while the model is unavailable

    @property
    def name(self) -> str:
        return self.known_space.spec if self.known_space else "the embedder"

    @property
    def space(self) -> EmbeddingSpace:
        return self.provider().space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of the texts, as `Embedder.embed_documents` describes."""
        import numpy as np

        if not texts:
            return np.zeros((0, self.space.dimension), dtype=np.float32)
        with self.call() as embedder, self._span(embedder, len(texts)):
            rows = embedder.embed_documents(texts)
            _check_rows(rows, (len(texts), embedder.space.dimension), embedder.space)
        self._count_tokens(embedder)
        return rows

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query, as `Embedder.embed_query` describes."""
        return self._queries(text) if _is_batched(self.provider()) else self._embed_queries([text])[0]

    def _embed_queries(self, texts: Sequence[str]) -> Sequence[Vector]:
        with self.call() as embedder, self._span(embedder, len(texts)):
            if len(texts) > 1 and _is_batched(embedder):
                rows: Sequence[Vector] = list(embedder.embed_queries(texts))
            else:
                rows = [embedder.embed_query(text) for text in texts]
            for row in rows:
                _check_rows(row, (embedder.space.dimension,), embedder.space)
        self._count_tokens(embedder)
        return rows

    def _span(self, embedder: Embedder, texts: int) -> tracing.Span:
        space = self.known_space or embedder.space
        counts = {"gen_ai.embeddings.dimension.count": space.dimension, "agentformer.embeddings.texts": texts}
        return tracing.model_span("embeddings", space.provider, space.model, counts)

    def embed_tokens(self, texts: Sequence[str], *, query: bool = False) -> list[TokenVectors] | None:
        """Return the vectors of the texts and of their tokens, as `TokenEmbedder.embed_tokens` describes. Return None
        if the embedder has no vectors of tokens."""
        with self.call() as embedder:
            return embedder.embed_tokens(texts, query=query) if isinstance(embedder, TokenEmbedder) else None

    def token_spans(self, text: str) -> list[Span]:
        """Return the positions of the tokens in the text, as `Embedder.token_spans` describes. This method also works
        while the model's server is down."""
        return self.provider().token_spans(text)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, in one call of the embedder if it is a `TokenCounter`."""
        return token_counts(self.provider(), texts)

    @property
    def request_texts(self) -> int:
        """The number of texts that a caller should pass in one call of `embed_documents`. If the process is
        interrupted, at most the work of one call is lost."""
        with self._lock:
            return self._loaded.request_texts if _is_served(self._loaded) else _LOCAL_TEXTS

    def _check_loaded(self, provider: Embedder) -> None:
        space = provider.space
        if self.known_space and self.known_space.difference(space):
            raise EmbedderUnavailable(
                f"{self.known_space.spec} is the name of a different model now ({space.dimension} dimensions, revision "
                f"{space.revision or 'unknown'}); restore the former model, or compute all vectors with this model: "
                f"agentformer reembed --to {space.spec}"
            )
        self.known_space = self.known_space or space
        self._tokens = 0  # a new provider counts its tokens from 0

    def _failed(self, provider: Embedder, error: AgentFormerError) -> None:
        super()._failed(provider, error)
        stays = _is_served(provider)
        with self._lock:
            if self._loaded is provider and not stays:
                self._loaded = None

    def _count_tokens(self, embedder: Embedder) -> None:
        served: object = embedder
        if not _is_served(served):
            return
        with self._lock:
            if self._loaded is embedder:
                self.usage.tokens(served.tokens_read - self._tokens)
                self._tokens = served.tokens_read


def _check_rows(rows: Any, shape: tuple[int, ...], space: EmbeddingSpace) -> None:
    """Raise `EmbedderUnavailable` unless `rows` has the shape `shape`, and each row has only finite numbers and the
    Euclidean norm 1."""
    import numpy as np

    actual = getattr(rows, "shape", None)
    if actual != shape:
        raise EmbedderUnavailable(f"{space.spec} returned vectors of shape {actual}, not {shape}; use another model")
    if not np.isfinite(rows).all() or np.abs(np.linalg.norm(rows, axis=-1) - 1.0).max() > _UNIT:
        raise EmbedderUnavailable(
            f"{space.spec} returned a vector that is not finite or not of unit length; use another model"
        )


def estimated_spans(text: str) -> list[Span]:
    """Return the spans of estimated tokens: one to three letters or digits, or one other character. A text rarely has
    more true tokens than estimated tokens."""
    return spans_of(match.span() for match in _TOKEN.finditer(text))


def token_spans(embedder: Embedder) -> Callable[[str], list[Span]]:
    """Return a function that returns the spans of the tokens of a text, as the model of the embedder splits it. If the
    embedder cannot be used, the function returns estimated spans."""

    def spans(text: str) -> list[Span]:
        try:
            return embedder.token_spans(text)
        except EmbedderUnavailable:
            return estimated_spans(text)

    return spans


def token_counts(embedder: Embedder, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text, in one call of the embedder if it is a `TokenCounter`."""
    if isinstance(embedder, TokenCounter):
        return embedder.token_counts(texts)
    return [len(embedder.token_spans(text)) for text in texts]


def token_counter(embedder: Embedder) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text with the model of the embedder. If the embedder cannot be
    used, the function returns an estimate."""
    spans = token_spans(embedder)
    return lambda text: len(spans(text))
