"""Fusion: several ranked lists of entries are combined into one ranked list.

`merge` combines lists by ranks only (weighted reciprocal rank fusion; Cormack, Clarke, Buettcher, SIGIR 2009).
`Ranking` also combines lists by scores, which is the default of hybrid search.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from agentformer.errors import InvalidInput
from agentformer.types import Vote

if TYPE_CHECKING:
    from agentformer.settings import Settings

Key = TypeVar("Key", bound=Hashable)

_K = 8  # the parameter `k` of a list without scores
_COMPARED = 100  # scores are normalized between the first rank and this rank


class FusionOptions(NamedTuple):
    """The method of fusion and its weights."""

    kind: str = "adaptive"  # or "rrf": reciprocal ranks with fixed weights, without boosts
    dense_weight: float = 1.0  # weight of the vectors; "adaptive" multiplies it by other factors
    rrf_k: int = 60  # the parameter `k` of `merge`; only for "rrf"

    @classmethod
    def from_settings(cls, settings: Settings) -> FusionOptions:
        """Return the options in the settings."""
        return cls(settings.fusion, settings.dense_weight, settings.rrf_k)


_ADAPTIVE = FusionOptions()


class RankedList(NamedTuple):
    """A ranked list of entry numbers, best first. `name` says which search or boost made the list, and `weight` says
    how much the list counts. `scores` contains the score of each entry in descending order, in any unit. If `scores` is
    empty, the fusion uses only the ranks."""

    name: str
    items: Sequence[int]
    weight: float
    scores: Sequence[float] = ()


class Ranking:
    """The fusion of several ranked lists. `order` contains entry numbers with scores in 0..1, best first. An entry has
    the score 1 if it is first in every list. With the kind "rrf", the lists are combined by ranks (see `merge`).

    With the kind "adaptive", they are combined by scores. The score of an entry in one list is normalized: 1 for the
    first score of the list, 0 for a score one mean step below the hundredth or last score, and linear between these two
    (Bruch, Gai, Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS 2023). So an entry whose score in
    a list is much higher than the following scores is also far ahead after the fusion. In a list without scores, the
    score decreases with the rank.
    """

    def __init__(self, lists: Sequence[RankedList], options: FusionOptions = _ADAPTIVE) -> None:
        self.order: list[tuple[int, float]] = []
        self._lists: list[RankedList] = []
        self._ranks: list[dict[int, int]] = []  # for each list: item -> rank, from 1
        self._scores: dict[int, float] = {}  # item -> sum of its weighted scores
        self._total_weight = 0.0
        if options.kind == "rrf":
            self._show(lists)
            self.order = merge([ranked.items for ranked in lists], weights=[r.weight for r in lists], k=options.rrf_k)
        else:
            self.add(lists)

    def add(self, lists: Sequence[RankedList]) -> None:
        """Add lists to a fusion by scores, such as boosts, which are computed from the order of the first lists."""
        self._show(lists)
        scores = self._scores
        for ranked in lists:
            weight = ranked.weight
            if not ranked.items or not weight:
                continue
            self._total_weight += weight
            known = scores.get
            for item, score in zip(ranked.items, _list_scores(ranked), strict=True):
                scores[item] = known(item, 0.0) + weight * score
        self.order = _best_first(scores, self._total_weight) if self._total_weight else []

    def reordered(self, order: list[tuple[int, float]], by: RankedList) -> None:
        """Replace the order by an order that was not computed by fusion. `by` is the list that caused the change. This
        list is shown in `votes`, but it is not fused."""
        self.order = order
        if by.items:
            self._show([by])

    def ranks(self, name: str) -> Mapping[int, int]:
        """Return the ranks in the list with this name, by item. It is empty if no such list is part of the fusion."""
        return next((ranks for ranked, ranks in zip(self._lists, self._ranks, strict=True) if ranked.name == name), {})

    def votes(self, num: int) -> tuple[Vote, ...]:
        """Return a vote for each list that contains the entry: the name of the list, the rank of the entry in the list,
        and the weight of the list."""
        pairs = zip(self._lists, self._ranks, strict=True)
        return tuple([Vote(ranked.name, ranks[num], ranked.weight) for ranked, ranks in pairs if num in ranks])

    def _show(self, lists: Sequence[RankedList]) -> None:
        """Keep lists for `votes`."""
        self._lists += lists
        self._ranks += [dict(zip(ranked.items, count(1), strict=False)) for ranked in lists]


def merge(
    ranked_lists: Sequence[Sequence[Key]], *, weights: Sequence[float] | None = None, k: int = 60
) -> list[tuple[Key, float]]:
    """Combine ranked lists by ranks. Return the items of all lists with a score in 0..1, best first. An item has the
    score 1 if it is first in every list with a weight above 0.

    The items of each list are sorted, best first, and the first rank is 1. Each list that contains an item adds `weight
    / (k + rank)` to the score of the item. So with a larger `k`, first ranks count less. If a list contains an item
    twice, only its first rank counts. Items with equal scores keep the order in which they first occur. Original scores
    are not used, because cosine and BM25 scores have different units.

    Raises `InvalidInput` if `weights` does not contain one finite number of at least 0 for each list, if `k` is
    negative, or if an element of `ranked_lists` is a string.
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


def _best_first(scores: dict[Key, float], most: float) -> list[tuple[Key, float]]:
    # `reverse` keeps the order of equal scores.
    return sorted([(item, score / most) for item, score in scores.items()], key=itemgetter(1), reverse=True)


def _list_scores(ranked: RankedList) -> list[float]:
    if not ranked.scores:
        return _rank_values(len(ranked.items))
    compared = ranked.scores[:_COMPARED]
    first, last = compared[0], compared[-1]
    if first <= last:
        return [1.0] * len(ranked.scores)
    least = last - (first - last) / (len(compared) - 1)
    return [value if (value := (score - least) / (first - least)) > 0.0 else 0.0 for score in ranked.scores]


@lru_cache(maxsize=64)
def _rank_values(count: int) -> list[float]:
    return [(_K + 1) / (_K + rank) for rank in range(1, count + 1)]


def _check(ranked_lists: Sequence[Sequence[Key]], weights: Sequence[float], k: int) -> None:
    if any(isinstance(items, (str, bytes)) for items in ranked_lists):  # the letters would be treated as items
        raise InvalidInput("ranked_lists", "must be lists of items, but one of the lists is a text")
    if len(weights) != len(ranked_lists) or not all(0 <= weight < math.inf for weight in weights):
        wanted = "must be one weight of at least 0 for each list"
        raise InvalidInput("weights", f"{wanted}, got {len(weights)} weights for {len(ranked_lists)} lists")
    if k < 0:
        raise InvalidInput("k", f"must be at least 0, got {k}")
