"""A reranker that is loaded when it is first needed, trusted only as far as its scores are right, and left alone for a
while after it failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentformer.errors import AgentFormerError, RerankerUnavailable
from agentformer.http.breaker import Breaker
from agentformer.later import Later
from agentformer.registry import promised
from agentformer.settings import Settings
from agentformer.types import BoundedReranker, Reranker, Vector

if TYPE_CHECKING:
    import numpy as np
else:
    np = Later("numpy")


class GuardedReranker:
    """Another reranker, made by `load` at its first use. After a failure calls are refused for `seconds`, then longer,
    so that a search does not wait for a broken model each time. Whatever it raises is a `RerankerUnavailable`.
    Thread-safe if the other one is."""

    def __init__(self, name: str, load: Callable[[], Reranker], *, seconds: float = 30.0) -> None:
        self._name = name
        self._load = load
        self._breaker = Breaker(seconds)
        self._lock = threading.Lock()
        self._loaded: Reranker | None = None

    @property
    def name(self) -> str:
        return self._name

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        return self.judged(query, texts)[0]

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        if not texts:
            return np.zeros(0, dtype=np.float32), ()
        if reason := self._breaker.blocked():
            raise RerankerUnavailable(reason)
        try:
            made = self._made()
            warnings: tuple[str, ...] = ()
            if isinstance(made, BoundedReranker):
                told, warnings = made.judged(query, texts)
            else:
                told = made.scores(query, texts)
            scores = np.asarray(told, dtype=np.float32)
            self._check(scores, len(texts))
        except Exception as error:  # libraries of models raise their own kinds
            failure = self._told(error)
            self._breaker.failed(str(failure))
            raise failure from error
        self._breaker.succeeded()
        return scores, tuple(warnings)

    def _made(self) -> Reranker:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _check(self, scores: Vector, wanted: int) -> None:
        if scores.shape != (wanted,):
            raise RerankerUnavailable(f"{self._name} returned scores of shape {scores.shape}, not ({wanted},)")
        if not np.isfinite(scores).all():
            raise RerankerUnavailable(f"{self._name} returned scores that are not finite")

    def _told(self, error: Exception) -> RerankerUnavailable:
        if isinstance(error, RerankerUnavailable):
            return error
        if isinstance(error, AgentFormerError):
            return RerankerUnavailable(str(error))
        reason = " ".join(str(error).split())[:200]
        return RerankerUnavailable(f"{self._name} failed ({type(error).__name__}: {reason})")


def named_reranker(settings: Settings) -> GuardedReranker | None:
    """The configured reranker, loaded at its first use; None where none is. Raises `InvalidInput` for an unknown
    provider."""
    if not settings.reranker:
        return None
    provider, _, model = settings.reranker.partition(":")
    build = promised("rerankers", provider)
    return GuardedReranker(settings.reranker, lambda: build(model, settings), seconds=settings.breaker_seconds)
