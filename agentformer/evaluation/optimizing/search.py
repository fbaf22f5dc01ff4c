"""Search the best configuration by coordinate descent, one setting after another, within a time budget.

The values of a setting are tried with all others unchanged, and the best is taken if it is an improvement. `full`
repeats all settings while something changes. An improvement gains more than one standard error of the paired difference
over the questions (after the one-standard-error rule of Breiman et al. 1984), because among many values some look
better by chance.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

from agentformer.evaluation.optimizing.space import Configuration, Space, key


class Clock:
    """Estimates the time of measurements. `budget` is in seconds; None for no limit."""

    def __init__(self, budget: float | None = None) -> None:
        self._end = None if budget is None else time.monotonic() + budget
        self._filling: list[float] = []
        self._asking: list[float] = []

    def took(self, opening: float, asking: float, *, filled: bool) -> None:
        """Record a measurement: seconds until its memory was open, and for its questions."""
        self._asking.append(asking)
        if filled:
            self._filling.append(opening)

    def estimate(self, *, fills: bool) -> float | None:
        """Return the estimated seconds of another measurement, with or without filling a store; None if unknown."""
        if not self._asking or (fills and not self._filling):
            return None
        return statistics.fmean(self._asking) + (statistics.fmean(self._filling) if fills else 0.0)

    def check(self, *, fills: bool) -> None:
        """Raise `OutOfTime` if another measurement would probably end too late."""
        if self._end is not None and time.monotonic() + (self.estimate(fills=fills) or 0.0) > self._end:
            raise OutOfTime


PASSES = {"eval": 0, "quick": 1, "full": 3}  # a third one rarely changes anything, and a cycle must end

Measure = Callable[[Configuration], "Sequence[float] | None"]  # per question, higher is better; None: cannot be had
Planned = Callable[[Sequence[Configuration]], None]  # told what is left of this pass, as far as it is known


class OutOfTime(Exception):
    """There is no time for another measurement."""


def descend(
    start: Configuration, space: Space, measure: Measure, planned: Planned = lambda left: None
) -> tuple[Configuration, bool]:
    """Return the best configuration found, and whether the search finished; `measure` may raise `OutOfTime`."""
    best, order = start, space.parameters(start)
    try:
        scores = measure(best)
        if scores is None:
            return best, True
        for _ in range(PASSES[space.level]):
            before = best
            for place, parameter in enumerate(order):
                rest = [each for other in order[place:] for each in space.candidates(other, best)]
                planned(list({key(each): each for each in rest}.values()))
                best, scores = _step(best, scores, space.candidates(parameter, best), measure)
            if best == before:
                break
    except OutOfTime:
        return best, False
    return best, True


def is_improvement(scores: Sequence[float], former: Sequence[float]) -> bool:
    """Return whether the mean gain of `scores` over `former`, by question, exceeds its standard error."""
    gains = [new - old for new, old in zip(scores, former, strict=True)]
    gain = statistics.fmean(gains) if gains else 0.0
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return gain > 0 and gain > error


def _step(
    best: Configuration, scores: Sequence[float], tried: Iterable[Configuration], measure: Measure
) -> tuple[Configuration, Sequence[float]]:
    """Return the best value of one setting. `OutOfTime` leaves the setting unchanged, because an untried value might be
    better."""
    found = best, scores
    for candidate in tried:
        got = measure(candidate)
        if got is not None and statistics.fmean(got) > statistics.fmean(found[1]):
            found = candidate, got
    return found if is_improvement(found[1], scores) else (best, scores)
