"""How long measurements take: what is told while one waits, and what a budget leaves time for."""

from __future__ import annotations

import statistics
import time

from agentformer.evaluation.optimizing.search import Spent


class Clock:
    """Begins when it is made. `budget` is in seconds; None: as long as it takes."""

    def __init__(self, budget: float | None = None) -> None:
        self._end = None if budget is None else time.monotonic() + budget
        self._filling: list[float] = []
        self._asking: list[float] = []

    def took(self, opening: float, asking: float, *, filled: bool) -> None:
        """One took so many seconds until its memory was there, and then to be asked."""
        self._asking.append(asking)
        if filled:
            self._filling.append(opening)

    def estimate(self, *, fills: bool) -> float | None:
        """Seconds of another one, with a store to be filled or without; None where nothing is known."""
        if not self._asking or (fills and not self._filling):
            return None
        return statistics.fmean(self._asking) + (statistics.fmean(self._filling) if fills else 0.0)

    def check(self, *, fills: bool) -> None:
        """Raises `Spent` where another one would most likely end too late."""
        if self._end is not None and time.monotonic() + (self.estimate(fills=fills) or 0.0) > self._end:
            raise Spent
