"""Reranking: a cross-encoder reads each of the best hits together with the query.

See Nogueira and Cho, "Passage Re-ranking with BERT", 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from agentformer.errors import RerankerUnavailable
from agentformer.types import BoundedReranker, Hit, Hits, MemoryEntry, Query, Reranker, Span, Vote

NOT_RERANKED = "not reranked"  # beginning of the warning if the reranker is unavailable
_VOTE_WEIGHT = 1.0  # other votes do not count for the hits that the reranker has read
_MAX_TEXT = 20_000  # code points of an entry that the reranker reads; about ten pages
_STEP = 1e-9  # equal scores are separated by this share, so that a later sort keeps the order


class Reranking:
    """A reranker and the number of hits that it reads per search."""

    def __init__(self, reranker: Reranker, hits: int = 30) -> None:
        self._reranker = reranker
        self._hits = hits

    def search(self, search: Callable[[Query], Hits], query: Query) -> Hits:
        """Run `search` and rerank its best hits. A search that uses only vectors or only words is not reranked."""
        if query.mode != "hybrid" or query.limit < 1:
            return search(query)
        found = search(replace(query, limit=max(query.limit, self._hits)))
        hits, warnings = rerank(self._reranker, query.text, found, self._hits)
        return Hits(hits[: query.limit], (*found.warnings, *warnings))


def rerank(reranker: Reranker, query: str, hits: Sequence[Hit], n: int) -> tuple[list[Hit], tuple[str, ...]]:
    """Return `hits` with the first `n` hits in the reranker's order, and warnings.

    Each hit gets the score of its new place. So scores stay in 0..1 and decrease from hit to hit. Each of the first `n`
    hits gets a vote of the reranker. Hits with equal reranker scores keep their order. If the reranker is unavailable,
    the order does not change, and a warning gives the reason. Another warning reports hits or queries that were too
    long for the reranker to read completely.
    """
    head = hits[:n]
    if len(head) < 2:
        return list(hits), ()
    texts = [passage(hit.entry, hit.span) for hit in head]
    warnings: tuple[str, ...] = ()
    try:
        if isinstance(reranker, BoundedReranker):
            scores, warnings = reranker.judged(query, texts)
        else:
            scores = reranker.scores(query, texts)
    except RerankerUnavailable as error:
        return list(hits), (f"{NOT_RERANKED}: {error}",)
    if long := sum(len(hit.entry.content) > _MAX_TEXT for hit in head):
        warnings = (f"the reranker read {_MAX_TEXT:,} characters around the match of {long} long entries", *warnings)
    order = sorted(range(len(head)), key=lambda place: -float(scores[place]))
    votes = (Vote("reranker", rank, _VOTE_WEIGHT) for rank in range(1, len(head) + 1))
    voted = (replace(head[place], votes=(*head[place].votes, vote)) for place, vote in zip(order, votes, strict=True))
    places = zip((*voted, *hits[n:]), _falling(hit.score for hit in hits), strict=True)
    return [replace(hit, score=score) for hit, score in places], warnings


def passage(entry: MemoryEntry, match: Span | None = None) -> str:
    """Return the text that a reranker reads: the entry's context line and its content. If the content is long, only the
    part around `match` is used, or the beginning without a `match`."""
    context = " ".join((entry.context or entry.title).split())[:_MAX_TEXT]
    middle = (match.start + match.end) // 2 if match else 0
    start = max(0, min(middle - _MAX_TEXT // 2, len(entry.content) - _MAX_TEXT))
    content = entry.content[start : start + _MAX_TEXT]
    return f"{context}\n{content}" if context else content


def _falling(scores: Iterable[float]) -> Iterator[float]:
    """Yield the same scores, but each score is at least slightly below the score before it."""
    last = math.inf
    for score in scores:
        last = min(score, last * (1 - _STEP))
        yield last
