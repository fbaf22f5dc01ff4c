"""Joining ranked lists: weighted reciprocal rank fusion (Cormack, Clarke, Buettcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def merge(
    ranked: Sequence[Sequence[Key]], *, weights: Sequence[float] | None = None, k: int = 60
) -> list[tuple[Key, float]]:
    """Items with a score in 0..1, best first; 1 is an item that leads every list with a weight.

    Each list is best first. An item counts `weight / (k + rank)` in each list that holds it. Equal scores
    keep the order in which their items are first met. Scores of the lists themselves are never added:
    cosine and BM25 have no common unit.
    """
    weights = [1.0] * len(ranked) if weights is None else weights
    if len(weights) != len(ranked) or any(weight < 0 for weight in weights):
        raise ValueError(f"one weight of at least 0 for each list, got {len(weights)} for {len(ranked)}")
    most = sum(weights) / (k + 1)
    if most == 0:
        return []
    scores: dict[Key, float] = {}
    for items, weight in zip(ranked, weights, strict=True):
        if weight:
            for place, item in enumerate(items, k + 1):
                scores[item] = scores.get(item, 0.0) + weight / place
    # `reverse` keeps the order of equals, too.
    return sorted([(item, score / most) for item, score in scores.items()], key=itemgetter(1), reverse=True)
