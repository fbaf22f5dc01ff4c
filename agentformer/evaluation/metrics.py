"""Metrics of a ranking, and confidence intervals of their means.

Higher is better, and each metric lies in 0..1. Ranks count from 1. The rank None means that a relevant passage is not
in the list. Relevance is binary, and each metric has its usual definition: the share of relevant passages (`recall`),
at least one relevant passage (`recall_any`, also called success or hit rate), all relevant passages (`recall_all`),
precision, the reciprocal rank of the first relevant passage, and nDCG (Järvelin & Kekäläinen, TOIS 2002) with the
discount 1 / log2(rank + 1).

Intervals are 95% percentile bootstraps (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). All
columns of a call use the same random draws, so the interval of the difference of two columns is that of the paired
bootstrap. The same seed and the same values give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from agentformer.errors import InvalidInput

Ranks = Sequence[int | None]  # of each relevant passage

CUTS = (1, 3, 5, 10)
DEPTH = 10  # of MRR and nDCG


MEASURES: Mapping[str, Callable[[Ranks, int], float]] = MappingProxyType(
    {
        "recall": lambda ranks, k: _within(ranks, k) / len(ranks),
        "recall_any": lambda ranks, k: float(_within(ranks, k) > 0),
        "recall_all": lambda ranks, k: float(_within(ranks, k) == len(ranks)),
        "precision": lambda ranks, k: _within(ranks, k) / k,  # missing places of a shorter list count as irrelevant
        "mrr": lambda ranks, k: 1 / min((rank for rank in ranks if rank is not None and rank <= k), default=math.inf),
        "ndcg": lambda ranks, k: _gain(ranks, k) / _gain(range(1, len(ranks) + 1), k),
    }
)
METRICS: tuple[str, ...] = (
    *(f"{name}@{k}" for name in ("recall", "recall_any", "recall_all", "precision") for k in CUTS),
    f"mrr@{DEPTH}",
    f"ndcg@{DEPTH}",
)


def metric(name: str) -> Callable[[Ranks], float]:
    """Return the metric with a name such as `recall@5`. Raises `InvalidInput`, which lists the known names."""
    measure, _, cut = name.partition("@") if isinstance(name, str) else ("", "", "")
    if measure not in MEASURES or not cut.isdecimal() or not 0 < int(cut) <= 1000:
        raise InvalidInput(
            "metric", f"must be one of {', '.join(MEASURES)} with @k, such as recall@5, got {name!r:.80}"
        )
    return lambda ranks: MEASURES[measure](ranks, int(cut))


def _within(ranks: Ranks, k: int) -> int:
    return sum(rank is not None and rank <= k for rank in ranks)


def _gain(ranks: Ranks, k: int) -> float:
    return sum(1 / math.log2(rank + 1) for rank in ranks if rank is not None and rank <= k)


RESAMPLES = 1_000
_AT_ONCE = 4_000_000  # counts held at a time: 32 MB


class Interval(NamedTuple):
    """The mean over questions and the bounds of its 95% confidence interval."""

    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """True if the interval of a difference excludes 0."""
        return self.low > 0 or self.high < 0


def intervals(columns: Sequence[Sequence[float]], *, seed: int = 0, resamples: int = RESAMPLES) -> list[Interval]:
    """Return mean and interval of each column. Each column has one value for each question, in the same order. There
    must be at least one question."""
    if not columns:
        return []
    import numpy as np

    values = np.asarray(columns, dtype=np.float64).T  # (questions, columns)
    count = len(values)
    drawn = np.empty((resamples, values.shape[1]))
    random = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // count)
    for start in range(0, resamples, step):
        some = min(step, resamples - start)
        times = random.multinomial(count, np.full(count, 1 / count), size=some)  # of each question in a draw
        drawn[start : start + some] = times @ values / count
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    means = values.mean(axis=0)
    return [Interval(*(float(each) for each in three)) for three in zip(means, low, high, strict=True)]


def difference(a: Sequence[float], b: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Return the mean of `a - b` over the same questions, with the interval of the paired bootstrap."""
    paired = [[one - other for one, other in zip(a, b, strict=True)]]
    return intervals(paired, seed=seed, resamples=resamples)[0]
