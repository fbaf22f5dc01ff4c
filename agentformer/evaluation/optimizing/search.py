"""Which configuration is best on the development half: coordinate descent, one setting after another.

Each setting's values are tried with all others as they are, and the best one is taken where it is worth it; then the
next setting. `full` goes through all settings again as long as something changes. A change is worth it when it gains
more than one standard error of the paired difference over the questions (the one-standard-error rule of Breiman et al.
1984, here to prefer what is there): among many values some look better by chance alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from agentformer.evaluation.optimizing.space import Configuration, Space, key

PASSES = {"eval": 0, "quick": 1, "full": 3}  # a third one rarely changes anything, and a cycle must end

Measure = Callable[[Configuration], "Sequence[float] | None"]  # per question, higher is better; None: cannot be had
Planned = Callable[[Sequence[Configuration]], None]  # told what is left of this pass, as far as it is known


class Spent(Exception):
    """There is no time for another measurement."""


def descend(
    start: Configuration, space: Space, measure: Measure, planned: Planned = lambda left: None
) -> tuple[Configuration, bool]:
    """The best configuration that was found, and whether the search came to its end: `measure` may raise `Spent`."""
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
    except Spent:
        return best, False
    return best, True


def worth_it(scores: Sequence[float], former: Sequence[float]) -> bool:
    """Is the mean gain of `scores` over those of the same questions before more than its standard error?"""
    gains = [new - old for new, old in zip(scores, former, strict=True)]
    gain = statistics.fmean(gains) if gains else 0.0
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return gain > 0 and gain > error


def _step(
    best: Configuration, scores: Sequence[float], tried: Iterable[Configuration], measure: Measure
) -> tuple[Configuration, Sequence[float]]:
    """The best value of one setting. `Spent` in the midst of it leaves the setting as it is: what was not tried might
    have been better."""
    found = best, scores
    for candidate in tried:
        got = measure(candidate)
        if got is not None and statistics.fmean(got) > statistics.fmean(found[1]):
            found = candidate, got
    return found if worth_it(found[1], scores) else (best, scores)
