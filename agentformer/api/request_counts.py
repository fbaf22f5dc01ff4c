"""The requests that a server process has answered, counted for `/metrics`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

# Upper limits of the buckets of a histogram, in seconds. The longest requests wait for a language model.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Durations(NamedTuple):
    """How many requests took at most each limit of `BUCKETS`, all requests, and the sum of their seconds."""

    within: tuple[int, ...]
    requests: int
    seconds: float


class RequestsSeen:
    """Counts requests by method, route and status, and their durations by route. A route is the pattern of a path, so
    that ids make no series of their own. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered: Counter[tuple[str, str, int]] = Counter()
        self._durations: dict[str, Durations] = {}

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        with self._lock:
            self._answered[method, route, status] += 1
            former = self._durations.get(route, Durations((0,) * len(BUCKETS), 0, 0.0))
            within = tuple(n + (seconds <= limit) for n, limit in zip(former.within, BUCKETS, strict=True))
            self._durations[route] = Durations(within, former.requests + 1, former.seconds + seconds)

    def snapshot(self) -> tuple[Mapping[tuple[str, str, int], int], Mapping[str, Durations]]:
        """Return the counts by method, route and status, and the durations by route."""
        with self._lock:
            return dict(self._answered), dict(self._durations)
