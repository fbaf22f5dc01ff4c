"""Metrics of a ranking, and confidence intervals of their means.

Each metric lies in 0..1, and a higher value is better. The name of a metric ends with the number of results that count,
such as `recall@5`. Ranks start at 1. The rank of a relevant passage is None if search did not find this passage. A
passage is either relevant or not. Each metric has its usual definition:

- `recall`: the share of the relevant passages that are found
- `recall_any`: 1 if at least one relevant passage is found, else 0. Other names are success and hit rate
- `recall_all`: 1 if all relevant passages are found, else 0
- `precision`: the share of the results that are relevant
- `mrr`: 1 / rank of the first relevant passage
- `ndcg`: nDCG (Järvelin & Kekäläinen, TOIS 2002) with the discount 1 / log2(rank + 1)

Intervals are 95% percentile bootstraps (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). One
call of `intervals` compares several columns of values, one for each search method, and draws the same questions for all
of them. So the interval of a difference comes from a paired bootstrap. The same seed and the same values give the
same interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from agentformer.errors import InvalidInput

Ranks = Sequence[int | None]  # the rank of each relevant passage

CUTS = (1, 3, 5, 10)
DEPTH = 10  # number of results that count for MRR and nDCG


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
    """Return the function that computes a metric from ranks. `name` is a name such as `recall@5`. Raises `InvalidInput`
    for an unknown name. The message lists the known names."""
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
_AT_ONCE = 4_000_000  # counts that are in memory at the same time: 32 MB


class Interval(NamedTuple):
    """A mean over questions (`value`), and the lower and upper bound of its 95% confidence interval."""

    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """True if the interval does not contain 0. A difference with such an interval is significant."""
        return self.low > 0 or self.high < 0

    def as_json(self) -> list[float]:
        """Return `[value, low, high]`, rounded to four digits."""
        return [round(each, 4) for each in self]


def intervals(columns: Sequence[Sequence[float]], *, seed: int = 0, resamples: int = RESAMPLES) -> list[Interval]:
    """Return the mean of each column, with its confidence interval. A column has one value for each question, and all
    columns have the same questions in the same order. There must be at least one question. `resamples` is the number of
    random draws, which `seed` determines."""
    if not columns:
        return []
    import numpy as np

    values = np.asarray(columns, dtype=np.float64).T  # (questions, columns)
    count = len(values)
    drawn = np.empty((resamples, values.shape[1]))
    random = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // count)
    for start in range(0, resamples, step):
        draws = min(step, resamples - start)
        # How often each draw contains each question: (draws, questions).
        times = random.multinomial(count, np.full(count, 1 / count), size=draws)
        drawn[start : start + draws] = times @ values / count
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    means = values.mean(axis=0)
    return [Interval(*(float(each) for each in three)) for three in zip(means, low, high, strict=True)]


def difference(a: Sequence[float], b: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Return the mean of `a - b`, with the confidence interval of the paired bootstrap. `a` and `b` have one value for
    each question, in the same order. `resamples` is the number of random draws, which `seed` determines."""
    paired = [[one - other for one, other in zip(a, b, strict=True)]]
    return intervals(paired, seed=seed, resamples=resamples)[0]
