"""Joining ranked lists: weighted reciprocal rank fusion (Cormack, Clarke, Buettcher, SIGIR 2009), and our own search's
form of it, which also looks at how near an item comes to the first of its list."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeVar

from agentformer.errors import InvalidInput

Key = TypeVar("Key", bound=Hashable)

# Chosen on development halves (docs/BENCHMARKS.md); the neighbourhood of both is flat.
_K = 8
_CLOSENESS = 0.7  # of what a list says that goes by scores; the rest goes by ranks
_COMPARED = 100  # places of a list that are compared with its first, however many are asked for


class FusionOptions(NamedTuple):
    """How the sides are joined."""

    kind: str = "adaptive"  # or "rrf": reciprocal ranks with fixed weights, and nothing else
    dense_weight: float = 1.0  # of the vectors; `adaptive` multiplies it
    rrf_k: int = 60  # of "rrf"


class Side(NamedTuple):
    """A ranked list of entries, best first. `scores` fall from place to place, in any unit; without them ranks alone
    count."""

    name: str
    items: Sequence[int]
    weight: float
    scores: Sequence[float] = ()


def merge(
    ranked_lists: Sequence[Sequence[Key]], *, weights: Sequence[float] | None = None, k: int = 60
) -> list[tuple[Key, float]]:
    """Items with a score in 0..1, best first; 1 is an item that leads every list with a weight.

    Each list is best first, with ranks from 1; an item that it repeats counts where it first stands. An item counts
    `weight / (k + rank)` in each list that holds it, so a larger `k` lets first places decide less. Equal scores
    keep the order in which their items are first met. Scores of the lists themselves are never added:
    cosine and BM25 have no common unit.

    Raises `InvalidInput` for weights that are not one finite number of at least 0 for each list, for a `k` below 0, and
    for a text in the place of a list.
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
    # `reverse` keeps the order of equals, too.
    return sorted([(item, score / most) for item, score in scores.items()], key=itemgetter(1), reverse=True)


def fused(sides: Sequence[Side]) -> list[tuple[int, float]]:
    """Entries with a score in 0..1, best first; 1 is one that leads every list.

    What a list says of an entry is in part its reciprocal rank, in part its closeness: where its score lies between
    the list's hundredth (0) and its first (1). So a list whose first stands out says much for that one and little for
    all others, and one that cannot tell its entries apart says the same for all. Min-max normalised scores: Bruch,
    Gai, Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval" (TOIS 2023).
    """
    most = sum(side.weight for side in sides if side.items)
    if not most:
        return []
    scores: dict[int, float] = {}
    for side in sides:
        for item, said in zip(side.items, _said(side), strict=True) if side.weight else ():
            scores[item] = scores.get(item, 0.0) + side.weight * said
    return sorted([(item, score / most) for item, score in scores.items()], key=itemgetter(1), reverse=True)


def _said(side: Side) -> list[float]:
    """What a list says of each of its entries, 0..1."""
    ranks = [(_K + 1) / (_K + rank) for rank in range(1, len(side.items) + 1)]
    if not side.scores:
        return ranks
    first, last = side.scores[0], side.scores[:_COMPARED][-1]
    span = first - last
    near = [max(0.0, (score - last) / span) if span > 0 else 1.0 for score in side.scores]
    return [(1 - _CLOSENESS) * by_rank + _CLOSENESS * by_score for by_rank, by_score in zip(ranks, near, strict=True)]


def _check(ranked_lists: Sequence[Sequence[Key]], weights: Sequence[float], k: int) -> None:
    for items in ranked_lists:
        if isinstance(items, (str, bytes)):  # whose letters would be taken for items
            raise InvalidInput("ranked_lists", "must be lists of items, and one of them is a text")
    if len(weights) != len(ranked_lists) or not all(0 <= weight < math.inf for weight in weights):
        wanted = "must be one weight of at least 0 for each list"
        raise InvalidInput("weights", f"{wanted}, got {len(weights)} for {len(ranked_lists)}")
    if k < 0:
        raise InvalidInput("k", f"must be at least 0, got {k}")
