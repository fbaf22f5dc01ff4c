"""Fusion of several ranked lists into one list, and the weight of the vectors for one query.

`merge` is weighted reciprocal rank fusion (Cormack, Clarke, Buettcher, SIGIR 2009). `fuse` is the default of hybrid
search. In addition to ranks, it uses how close the score of an item is to the first score of its list.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeVar

from agentformer.errors import InvalidInput
from agentformer.types import Vote

Key = TypeVar("Key", bound=Hashable)

# Both values were chosen on development halves (docs/BENCHMARKS.md). Nearby values give similar results.
_K = 8
_CLOSENESS = 0.7  # share of a list's score that depends on scores; the remaining share depends on ranks
_COMPARED = 100  # number of places that are compared with the first, whatever the limit


class FusionOptions(NamedTuple):
    """The kind of fusion and its weights."""

    kind: str = "adaptive"  # or "rrf": reciprocal ranks with fixed weights, without boosts
    dense_weight: float = 1.0  # of the vectors; "adaptive" multiplies it
    rrf_k: int = 60  # of "rrf"


class RankedList(NamedTuple):
    """A named list of entry numbers, best first. `scores` have any unit and never increase from place to place. Without
    `scores`, only ranks are used."""

    name: str
    items: Sequence[int]
    weight: float
    scores: Sequence[float] = ()


class Ranking:
    """The fused order of several lists, and the votes of each list."""

    def __init__(self, lists: Sequence[RankedList], options: FusionOptions) -> None:
        self.order = (  # entry numbers with scores in 0..1, best first
            merge([ranked.items for ranked in lists], weights=[ranked.weight for ranked in lists], k=options.rrf_k)
            if options.kind == "rrf"
            else fuse(lists)
        )
        self._lists = lists
        self._ranks = [{item: rank for rank, item in enumerate(ranked.items, 1)} for ranked in lists]

    def has(self, name: str) -> bool:
        """Return whether a list with this name has votes."""
        return any(ranked.name == name for ranked in self._lists)

    def votes(self, num: int) -> tuple[Vote, ...]:
        """Return a vote for each list that contains the entry: its rank in the list, and the weight of the list."""
        return tuple(
            Vote(ranked.name, ranks[num], ranked.weight)
            for ranked, ranks in zip(self._lists, self._ranks, strict=True)
            if num in ranks
        )


def merge(
    ranked_lists: Sequence[Sequence[Key]], *, weights: Sequence[float] | None = None, k: int = 60
) -> list[tuple[Key, float]]:
    """Return the items of all lists with a score in 0..1, best first. The score 1 means that the item is first in every
    list with a weight above 0.

    Each list is best first, and ranks start at 1. If a list repeats an item, only its first place counts. Each list
    that contains an item adds `weight / (k + rank)` to its score. So with a larger `k`, first places count less. Items
    with equal scores keep the order in which they first occur. The scores of the lists are not added, because cosine
    and BM25 have different units.

    Raises `InvalidInput` if `weights` does not have one finite number of at least 0 per list, if `k` is below 0, or if
    a text is passed as a list.
    """
    weights = [1.0] * len(ranked_lists) if weights is None else weights
    _check(ranked_lists, weights, k)
    most = sum(weights) / (k + 1)
    if most == 0:
        return []
    scores: dict[Key, float] = {}
    for items, weight in zip(ranked_lists, weights, strict=True):
        if weight:
            for place, item in enumerate(dict.fromkeys(items), k + 1):
                scores[item] = scores.get(item, 0.0) + weight / place
    return _best_first(scores, most)


def fuse(lists: Sequence[RankedList]) -> list[tuple[int, float]]:
    """Return the entries of all lists with a score in 0..1, best first. The score 1 means that the entry is first in
    every list.

    Each list gives an entry a score with two parts. One part is the reciprocal rank. The other part is the closeness: 1
    for the first score of the list, 0 for the hundredth score, and proportional between them. If the first score of a
    list is far above the others, the list raises its first entry more and its other entries less. Min-max normalised
    scores: Bruch, Gai, Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval" (TOIS 2023).
    """
    most = sum(ranked.weight for ranked in lists if ranked.items)
    if not most:
        return []
    scores: dict[int, float] = {}
    for ranked in lists:
        for item, score in zip(ranked.items, _list_scores(ranked), strict=True) if ranked.weight else ():
            scores[item] = scores.get(item, 0.0) + ranked.weight * score
    return _best_first(scores, most)


def _best_first(scores: dict[Key, float], most: float) -> list[tuple[Key, float]]:
    # `reverse` keeps the order of equal scores.
    return sorted([(item, score / most) for item, score in scores.items()], key=itemgetter(1), reverse=True)


def _list_scores(ranked: RankedList) -> list[float]:
    by_rank = [(_K + 1) / (_K + rank) for rank in range(1, len(ranked.items) + 1)]
    if not ranked.scores:
        return by_rank
    first, last = ranked.scores[0], ranked.scores[:_COMPARED][-1]
    span = first - last
    closeness = [max(0.0, (score - last) / span) if span > 0 else 1.0 for score in ranked.scores]
    return [(1 - _CLOSENESS) * rank + _CLOSENESS * close for rank, close in zip(by_rank, closeness, strict=True)]


def _check(ranked_lists: Sequence[Sequence[Key]], weights: Sequence[float], k: int) -> None:
    if any(isinstance(items, (str, bytes)) for items in ranked_lists):  # the letters would be treated as items
        raise InvalidInput("ranked_lists", "must be lists of items, and one of them is a text")
    if len(weights) != len(ranked_lists) or not all(0 <= weight < math.inf for weight in weights):
        wanted = "must be one weight of at least 0 for each list"
        raise InvalidInput("weights", f"{wanted}, got {len(weights)} for {len(ranked_lists)}")
    if k < 0:
        raise InvalidInput("k", f"must be at least 0, got {k}")
