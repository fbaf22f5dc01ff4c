"""Rerankers, and the guard through which the rest of the package uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentformer.errors import RerankerUnavailable
from agentformer.http.guarded import Breaker, Guarded
from agentformer.registry import lookup, ours
from agentformer.settings import Settings
from agentformer.types import BoundedReranker, Reranker, Vector


class GuardedReranker(Guarded[Reranker]):
    """A reranker that `load` creates at the first use. After a failure, calls are refused for `seconds`, and for longer
    after each further failure, so that a broken model does not slow down every search. Every error is raised as
    `RerankerUnavailable`. The methods return one finite score per text. Thread-safe if the reranker is thread-safe."""

    unavailable = RerankerUnavailable
    expected = (RerankerUnavailable,)

    def __init__(self, name: str, load: Callable[[], Reranker], *, seconds: float = 30.0) -> None:
        super().__init__(load, Breaker(seconds))
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        """See `Reranker.scores`."""
        return self.judged(query, texts)[0]

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        """See `BoundedReranker.judged`. If the reranker is not a `BoundedReranker`, there are no warnings."""
        import numpy as np

        if not texts:
            return np.zeros(0, dtype=np.float32), ()
        with self.call() as reranker:
            warnings: tuple[str, ...] = ()
            if isinstance(reranker, BoundedReranker):
                values, warnings = reranker.judged(query, texts)
            else:
                values = reranker.scores(query, texts)
            scores = np.asarray(values, dtype=np.float32)
            if scores.shape != (len(texts),):
                raise RerankerUnavailable(f"{self.name} returned scores of shape {scores.shape}, not ({len(texts)},)")
            if not np.isfinite(scores).all():
                raise RerankerUnavailable(f"{self.name} returned scores that are not finite")
        return scores, tuple(warnings)


def named_reranker(settings: Settings) -> GuardedReranker | None:
    """Return the configured reranker, or None. The reranker is loaded at its first use. Raise `InvalidInput` for an
    unknown provider."""
    if not settings.reranker:
        return None
    provider, _, model = settings.reranker.partition(":")
    if provider not in ours("rerankers"):
        lookup("rerankers", provider)  # raises `InvalidInput` if no plugin has this name, or if it cannot be imported
    return GuardedReranker(
        settings.reranker, lambda: lookup("rerankers", provider)(model, settings), seconds=settings.breaker_seconds
    )
