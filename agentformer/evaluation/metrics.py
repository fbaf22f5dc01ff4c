"""What a ranking is worth, from the ranks of its relevant passages: higher is better, and each lies in 0..1.

Ranks count from 1; None is a relevant passage that is not in the list. Every measure is of binary relevance and goes by
its usual definition: recall by share of the relevant ones (`recall`), by one of them (`recall_any`, also called success
or hit rate) and by all of them (`recall_all`), precision, the reciprocal rank of the first, and nDCG (Järvelin &
Kekäläinen, TOIS 2002) with the discount 1 / log2(rank + 1). `tests/evaluation` holds them against ir-measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from agentformer.errors import InvalidInput

Ranks = Sequence[int | None]  # of each relevant passage

CUTS = (1, 3, 5, 10)
DEPTH = 10  # of MRR and nDCG


def recall(ranks: Ranks, k: int) -> float:
    """The share of the relevant passages that are among the first `k`."""
    return _within(ranks, k) / len(ranks)


def recall_any(ranks: Ranks, k: int) -> float:
    """1 where a relevant passage is among the first `k`."""
    return float(_within(ranks, k) > 0)


def recall_all(ranks: Ranks, k: int) -> float:
    """1 where all relevant passages are among the first `k`."""
    return float(_within(ranks, k) == len(ranks))


def precision(ranks: Ranks, k: int) -> float:
    """The share of the first `k` places that relevant passages take; a shorter list has wrong ones at its end."""
    return _within(ranks, k) / k


def reciprocal_rank(ranks: Ranks, k: int) -> float:
    """1 / rank of the first relevant passage, 0 where none is among the first `k`."""
    return 1 / min((rank for rank in ranks if rank is not None and rank <= k), default=math.inf)


def ndcg(ranks: Ranks, k: int) -> float:
    """The discounted gain of the first `k` places, as a share of what the best order would gain."""
    gained = sum(1 / math.log2(rank + 1) for rank in ranks if rank is not None and rank <= k)
    return gained / sum(1 / math.log2(rank + 1) for rank in range(1, min(len(ranks), k) + 1))


Measure = Callable[[Ranks, int], float]

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "recall": recall,
        "recall_any": recall_any,
        "recall_all": recall_all,
        "precision": precision,
        "mrr": reciprocal_rank,
        "ndcg": ndcg,
    }
)
METRICS: tuple[str, ...] = (
    *(f"{name}@{k}" for name in ("recall", "recall_any", "recall_all", "precision") for k in CUTS),
    f"mrr@{DEPTH}",
    f"ndcg@{DEPTH}",
)


def metric(name: str) -> Callable[[Ranks], float]:
    """The measure of a name such as `recall@5`. Raises `InvalidInput` that lists the known ones."""
    measure, _, cut = name.partition("@") if isinstance(name, str) else ("", "", "")
    if measure not in MEASURES or not cut.isdecimal() or not 0 < int(cut) <= 1000:
        raise InvalidInput(
            "metric", f"must be one of {', '.join(MEASURES)} with @k, such as recall@5, got {name!r:.80}"
        )
    return lambda ranks: MEASURES[measure](ranks, int(cut))


def _within(ranks: Ranks, k: int) -> int:
    return sum(rank is not None and rank <= k for rank in ranks)
