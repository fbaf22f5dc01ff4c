"""Reranking: a reranking model (cross-encoder) reads the query together with each of the best hits, and sorts these
hits again.

The method is described in Nogueira and Cho, "Passage Re-ranking with BERT", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from agentformer.errors import RerankerUnavailable
from agentformer.types import BoundedReranker, Hit, Hits, MemoryEntry, Query, Reranker, Span, Vote

NOT_RERANKED = "not reranked"  # beginning of the warning if the reranker is unavailable
_VOTE_WEIGHT = 1.0  # the order of the hits that the reranker has read depends on this vote alone
_MAX_TEXT = 20_000  # code points of an entry that the reranker reads; about ten pages
_STEP = 1e-9  # a score that equals the score before it is lowered by this share, so that a later sort keeps the order


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

    Each rank keeps its score, so a hit that gets a new rank gets the score of this rank. Scores stay in 0..1, and each
    score is lower than the score before it. Each of the first `n` hits gets a vote of the reranker. Hits with equal
    scores of the reranker keep their order. If the reranker is unavailable, the order does not change, and a warning
    gives the reason. Another warning reports hits or queries that were too long to be read completely.
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
        warnings = (f"the reranker read only {_MAX_TEXT:,} characters of each of {long} long entries", *warnings)
    order = sorted(range(len(head)), key=lambda place: -float(scores[place]))
    votes = (Vote("reranker", rank, _VOTE_WEIGHT) for rank in range(1, len(head) + 1))
    voted = (replace(head[place], votes=(*head[place].votes, vote)) for place, vote in zip(order, votes, strict=True))
    # A score that is not lower than the score before it is lowered slightly.
    falling = accumulate((hit.score for hit in hits), lambda last, score: min(score, last * (1 - _STEP)))
    places = zip((*voted, *hits[n:]), falling, strict=True)
    return [replace(hit, score=score) for hit, score in places], warnings


def passage(entry: MemoryEntry, match: Span | None = None) -> str:
    """Return the text of an entry that the reranker reads: the context line and the content. If the content is too
    long, only a part of it is returned: the text around `match`, or the beginning if `match` is None."""
    context = " ".join((entry.context or entry.title).split())[:_MAX_TEXT]
    middle = (match.start + match.end) // 2 if match else 0
    start = max(0, min(middle - _MAX_TEXT // 2, len(entry.content) - _MAX_TEXT))
    content = entry.content[start : start + _MAX_TEXT]
    return f"{context}\n{content}" if context else content
