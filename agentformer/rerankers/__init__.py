"""Rerankers: models that score how well a passage answers a question. The rest of the package calls a reranker only
through the class `GuardedReranker` of this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentformer.errors import RerankerUnavailable
from agentformer.http.guarded import Breaker, Guarded
from agentformer.registry import lookup, ours
from agentformer.settings import Settings
from agentformer.types import BoundedReranker, Reranker, Vector


class GuardedReranker(Guarded[Reranker]):
    """A reranker that `load` creates at the first use. Thread-safe if the created reranker is thread-safe. After a
    failed call, the next calls raise `RerankerUnavailable` for `seconds` seconds, and longer after each further
    failure, so that a broken model does not slow down every search. Every error becomes `RerankerUnavailable`. The
    scores are checked: one finite number for each text."""

    unavailable = RerankerUnavailable
    expected = (RerankerUnavailable,)

    def __init__(self, name: str, load: Callable[[], Reranker], *, seconds: float = 30.0) -> None:
        super().__init__(load, Breaker(seconds))
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        """Return one score for each text, as `Reranker.scores` describes."""
        return self.judged(query, texts)[0]

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        """Return one score for each text, and warnings about texts that were not read completely, as
        `BoundedReranker.judged` describes. There are no warnings if the reranker does not have the method `judged`."""
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
                raise RerankerUnavailable(
                    f"{self.name} returned scores of shape {scores.shape}, not ({len(texts)},); use another reranker"
                )
            if not np.isfinite(scores).all():
                raise RerankerUnavailable(f"{self.name} returned scores that are not finite; use another reranker")
        return scores, tuple(warnings)


def named_reranker(settings: Settings) -> GuardedReranker | None:
    """Return the reranker that the settings name, or None if they name no reranker. The model is loaded at the first
    use. Raise `InvalidInput` if the settings name an unknown provider."""
    if not settings.reranker:
        return None
    provider, _, model = settings.reranker.partition(":")
    if provider not in ours("rerankers"):
        lookup("rerankers", provider)  # raises `InvalidInput` if no plugin has this name, or if it cannot be imported
    return GuardedReranker(
        settings.reranker, lambda: lookup("rerankers", provider)(model, settings), seconds=settings.breaker_seconds
    )
