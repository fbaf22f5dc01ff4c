"""Rerankers: models that score how well a passage answers a question. `GuardedReranker` protects searches against a
broken model. `Reranking` sorts the best hits of a search by the scores of a reranker.

The method is described in Nogueira and Cho, "Passage Re-ranking with BERT", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from agentformer.errors import RerankerUnavailable
from agentformer.http import tracing
from agentformer.http.circuit_breaker import Breaker, Guarded
from agentformer.registry import built_in_names, lookup
from agentformer.settings import Settings
from agentformer.types import BoundedReranker, Hit, Hits, MemoryEntry, Query, Reranker, Span, Vector, Vote

NOT_RERANKED = "not reranked"  # beginning of the warning if the reranker is unavailable
_VOTE_WEIGHT = 1.0  # the order of the hits that the reranker has read depends on this vote alone
_MAX_TEXT = 20_000  # code points of an entry that the reranker reads; about ten pages
_STEP = 1e-9  # a score that equals the score before it is lowered by this share, so that a later sort keeps the order


class GuardedReranker(Guarded[Reranker]):
    """A reranker that `load` creates at the first use. Thread-safe if the created reranker is thread-safe. After a
    failed call, the next calls raise `RerankerUnavailable` for `seconds` seconds, and longer after each further
    failure, so that a broken model does not slow down every search. Every error becomes `RerankerUnavailable`. The
    reranker must return one finite number for each text."""

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
        `BoundedReranker.judged` describes. A reranker without the method `judged` gives no warnings."""
        import numpy as np

        if not texts:
            return np.zeros(0, dtype=np.float32), ()
        with self.call() as reranker, tracing.span("rerank", {"agentformer.rerank.texts": len(texts)}):
            values, warnings = _judged(reranker, query, texts)
            scores = np.asarray(values, dtype=np.float32)
            if scores.shape != (len(texts),):
                raise RerankerUnavailable(
                    f"{self.name} returned scores of shape {scores.shape}, not ({len(texts)},); use another reranker"
                )
            if not np.isfinite(scores).all():
                raise RerankerUnavailable(f"{self.name} returned scores that are not finite; use another reranker")
        return scores, tuple(warnings)


def _judged(reranker: Reranker, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
    if isinstance(reranker, BoundedReranker):
        return reranker.judged(query, texts)
    return reranker.scores(query, texts), ()


def named_reranker(settings: Settings) -> GuardedReranker | None:
    """Return the reranker that the settings name, or None if they name no reranker. The model is loaded at the first
    use. Raise `InvalidInput` if the settings name an unknown provider."""
    if not settings.reranker:
        return None
    provider, _, model = settings.reranker.partition(":")
    if provider not in built_in_names("rerankers"):
        lookup("rerankers", provider)  # raises `InvalidInput` if no plugin has this name, or if it cannot be imported
    return GuardedReranker(
        settings.reranker, lambda: lookup("rerankers", provider)(model, settings), seconds=settings.breaker_seconds
    )


class Reranking:
    """Runs searches and reranks their results. `hits` is the number of hits that the reranker reads in each search."""

    def __init__(self, reranker: Reranker, hits: int) -> None:
        self._reranker = reranker
        self._hits = hits

    def search(self, search: Callable[[Query], Hits], query: Query) -> Hits:
        """Call `search` and rerank its best hits, unless the search uses only vectors or only words."""
        if query.mode != "hybrid" or query.limit < 1:
            return search(query)
        found = search(replace(query, limit=max(query.limit, self._hits)))
        hits, warnings = rerank(self._reranker, query.text, found, self._hits)
        return found.with_hits(hits[: query.limit], *warnings)


def rerank(reranker: Reranker, query: str, hits: Sequence[Hit], n: int) -> tuple[list[Hit], tuple[str, ...]]:
    """Sort the first `n` hits by the scores of the reranker. Return all hits, and warnings.

    The scores of the search stay at their ranks: a hit that moves to another rank gets the score of this rank. Scores
    stay in 0..1, and each score is lower than the score before it. A `Vote` with its rank by the reranker is added to
    each of the first `n` hits. Hits with equal scores of the reranker keep their order. If the reranker is unavailable,
    the order does not change, and a warning gives the reason. Another warning reports hits or queries that were too
    long to be read completely.
    """
    head = hits[:n]
    if len(head) < 2:
        return list(hits), ()
    texts = [passage(hit.entry, hit.span) for hit in head]
    try:
        scores, warnings = _judged(reranker, query, texts)
    except RerankerUnavailable as error:
        return list(hits), (f"{NOT_RERANKED}: {error}",)
    if long := sum(len(hit.entry.content) > _MAX_TEXT for hit in head):
        warnings = (f"the reranker read only {_MAX_TEXT:,} characters of each of {long} long entries", *warnings)
    order = sorted(range(len(head)), key=lambda place: -float(scores[place]))
    votes = (Vote("reranker", rank, _VOTE_WEIGHT) for rank in range(1, len(head) + 1))
    voted = (replace(head[place], votes=(*head[place].votes, vote)) for place, vote in zip(order, votes, strict=True))
    # A score that is not lower than the score before it is lowered slightly.
    falling = accumulate((hit.score for hit in hits), lambda last, score: min(score, last * (1 - _STEP)))
    places = zip((*voted, *hits[n:]), falling, strict=True)
    return [replace(hit, score=score) for hit, score in places], warnings


def passage(entry: MemoryEntry, match: Span | None = None) -> str:
    """Return the text that the reranker reads for an entry: the context line and the content. If the content is too
    long, only a part of it is returned: the text around `match`, or the beginning if `match` is None."""
    context = " ".join((entry.context or entry.title).split())[:_MAX_TEXT]
    middle = (match.start + match.end) // 2 if match else 0
    start = max(0, min(middle - _MAX_TEXT // 2, len(entry.content) - _MAX_TEXT))
    content = entry.content[start : start + _MAX_TEXT]
    return f"{context}\n{content}" if context else content
