"""An embedder that is loaded when it is first needed, trusted only as far as its rows are right, and left alone for a
while after it failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentformer.errors import AgentFormerError, EmbedderUnavailable, MissingExtra
from agentformer.http.breaker import Breaker
from agentformer.http.usage import Usage
from agentformer.later import Later
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Span, Vector

if TYPE_CHECKING:
    import numpy as np
else:
    np = Later("numpy")

_UNIT = 1e-3  # how far from 1 the length of a row may be


_WHOLE = 64  # texts at a time for an embedder that does not send them anywhere


@runtime_checkable
class Served(Protocol):
    """An embedder behind a server. It makes sure by itself that the same model still answers there."""

    @property
    def tokens_read(self) -> int:
        """Tokens that the server says it has read, over all calls."""
        ...

    @property
    def request_texts(self) -> int:
        """How many texts one request holds now."""
        ...


class GuardedEmbedder:
    """Another embedder, made by `load` at its first use, so that listing or removing never waits for a model.

    After a failure calls are refused for `seconds`, so that a dead server costs one timeout and not one for each call;
    then one that is not `Served` is made anew. A model that comes back as another one stays refused: this object's
    space never changes. Whatever else a plugin raises is an `EmbedderUnavailable` too. Thread-safe.
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

    @property
    def request_texts(self) -> int:
        """How many texts are asked for at a time: what an interruption can cost."""
        with self._lock:
            return self._loaded.request_texts if isinstance(self._loaded, Served) else _WHOLE

    def retry_now(self) -> None:
        """Do not wait any longer: somebody asks for it."""
        self._breaker.reset()

    def _get(self) -> Embedder:
        """The embedder. One that is there tells its space and its tokens also while its server is away."""
        with self._lock:
            if self._loaded is not None:
                return self._loaded
            self._pass_breaker()
            try:
                loaded = _loaded(self._load)
                self._recognise(loaded.space)
            except EmbedderUnavailable as failure:
                self._breaker.failed(str(failure))
                self.usage.failed(failure)
                raise
            self._loaded, self._tokens = loaded, 0
            self._breaker.succeeded()
            return loaded

    def _pass_breaker(self) -> None:
        if reason := self._breaker.blocked():
            raise EmbedderUnavailable(reason)

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
        self._pass_breaker()
        try:
            with self.usage.call(), _translated(embedder.space.spec):
                yield embedder
        except EmbedderUnavailable as failure:
            self._breaker.failed(str(failure))
            with self._lock:
                if self._loaded is embedder and not isinstance(embedder, Served):
                    self._loaded = None
            raise
        except AgentFormerError:  # a text that it does not take: it is there
            self._breaker.succeeded()
            raise
        self._breaker.succeeded()
        self._count(embedder)

    def _count(self, embedder: Embedder) -> None:
        if not isinstance(embedder, Served):
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


def _loaded(load: Callable[[], Embedder]) -> Embedder:
    """What `load` makes. A missing package is no reason to lose a text, so it is told as an `EmbedderUnavailable`."""
    try:
        with _translated("the embedder"):
            return load()
    except MissingExtra as missing:
        raise EmbedderUnavailable(str(missing)) from missing


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Errors of a plugin's own kinds are `EmbedderUnavailable` to its callers."""
    try:
        yield
    except AgentFormerError:
        raise
    except Exception as error:
        raise EmbedderUnavailable(f"{name} failed ({type(error).__name__}: {str(error)[:200]})") from error
