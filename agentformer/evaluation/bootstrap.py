"""Means with 95% confidence intervals by the percentile bootstrap (Efron & Tibshirani, An Introduction to the
Bootstrap, 1993, chapter 13): the questions are drawn anew, with replacement, and the 2.5% and 97.5% quantiles of the
means taken.

All columns of one call share their draws, so the interval of a difference of two columns is that of the paired
bootstrap. Same seed, same values, same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

RESAMPLES = 1_000
_AT_ONCE = 4_000_000  # counts held at a time: 32 MB


class Interval(NamedTuple):
    """A mean over questions, and the bounds of its 95% confidence interval."""

    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Of a difference: does its interval leave out 0?"""
        return self.low > 0 or self.high < 0


def intervals(columns: Sequence[Sequence[float]], *, seed: int = 0, resamples: int = RESAMPLES) -> list[Interval]:
    """The mean and interval of each column; all have one value a question, at least one, in the same order."""
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
    """The mean of `a - b` over the same questions, with the interval of the paired bootstrap."""
    paired = [[one - other for one, other in zip(a, b, strict=True)]]
    return intervals(paired, seed=seed, resamples=resamples)[0]
