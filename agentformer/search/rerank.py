"""The best hits of a search, ordered anew by a model that reads each of them beside the question (Nogueira and Cho,
"Passage Re-ranking with BERT", 2019)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from agentformer.errors import RerankerUnavailable
from agentformer.types import BoundedReranker, Hit, Hits, MemoryEntry, Query, Reranker, Span, Vote

NAME = "reranker"
NOT_RERANKED = "not reranked"  # what the warning begins with where the reranker could not be used
_DECIDES = 1.0  # the weight that is told: among the hits that it has read, nothing else counts
_MOST = 20_000  # code points of an entry that are read: some ten pages
_STEP = 1e-9  # share of a score; equal ones would be put in the order of their ids by whoever sorts again


class Reranking:
    """A reranker, and how many hits it reads of a search."""

    def __init__(self, reranker: Reranker, hits: int = 30) -> None:
        self._reranker = reranker
        self._hits = hits

    def search(self, search: Callable[[Query], Hits], query: Query) -> Hits:
        """What `search` finds, the best of it in the reranker's order. A search by vectors or words alone stays what it
        is, so that each side can be looked at by itself."""
        if query.mode != "hybrid" or query.limit < 1:
            return search(query)
        found = search(dataclasses.replace(query, limit=max(query.limit, self._hits)))
        hits, warnings = rerank(self._reranker, query.text, found, self._hits)
        return Hits(hits[: query.limit], (*found.warnings, *warnings))


def rerank(reranker: Reranker, query: str, hits: Sequence[Hit], n: int) -> tuple[list[Hit], tuple[str, ...]]:
    """All `hits`, which are best first: the first `n` in the reranker's order, the others behind them as they were; and
    warnings.

    A hit takes over the score of its new place, so scores stay in 0..1 and fall from hit to hit. Each of the first `n`
    gets the vote of the reranker. Equals keep their order. Where the reranker cannot be used, everything stays as it
    is, and a warning says why; another one says where it did not read all of a hit or of the query.
    """
    first = hits[:n]
    if len(first) < 2:
        return list(hits), ()
    texts = [passage(hit.entry, hit.span) for hit in first]
    warnings: tuple[str, ...] = ()
    try:
        if isinstance(reranker, BoundedReranker):
            scores, warnings = reranker.judged(query, texts)
        else:
            scores = reranker.scores(query, texts)
    except RerankerUnavailable as error:
        return list(hits), (f"{NOT_RERANKED}: {error}",)
    if long := sum(len(hit.entry.content) > _MOST for hit in first):
        around = f"of {long} long entries the reranker was given {_MOST:,} characters around what was found"
        warnings = (around, *warnings)
    order = sorted(range(len(first)), key=lambda place: -float(scores[place]))
    voted = [_voted(first[place], rank) for rank, place in enumerate(order, 1)]
    falling = _falling(hit.score for hit in hits)
    ranked = (*voted, *hits[n:])
    return [dataclasses.replace(hit, score=score) for hit, score in zip(ranked, falling, strict=True)], warnings


def passage(entry: MemoryEntry, found: Span | None = None) -> str:
    """What a reranker reads of an entry: a line that tells where it belongs, and its content. Of a long one the part
    around what was `found` in it, else its beginning."""
    context = " ".join((entry.context or entry.title).split())[:_MOST]
    middle = (found.start + found.end) // 2 if found else 0
    start = max(0, min(middle - _MOST // 2, len(entry.content) - _MOST))
    content = entry.content[start : start + _MOST]
    return f"{context}\n{content}" if context else content


def _voted(hit: Hit, rank: int) -> Hit:
    return dataclasses.replace(hit, votes=(*hit.votes, Vote(NAME, rank, _DECIDES)))


def _falling(scores: Iterable[float]) -> Iterator[float]:
    """The same scores, each a hair below the one before it where it would not be below it by itself."""
    last = math.inf
    for score in scores:
        last = min(score, last * (1 - _STEP))
        yield last
