"""How often something may happen in a minute: requests of a key, and wrong keys from one address."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

MINUTE = 60.0
_REMEMBERED = 10_000  # names of which the last use is known


class Quota(NamedTuple):
    """The requests that a key may send in a minute, those that are left, and the seconds until all are left again."""

    limit: int
    left: int
    seconds: int


class Rates:
    """Counts events by name, as a token bucket: each name has `limit` tokens, an event takes one, and they grow back
    in a minute. The names used longest ago are forgotten. Each process counts for itself. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name -> (tokens spent, at this time)

    def take(self, name: str, limit: int) -> tuple[Quota, float]:
        """Take a token. Return what is left, and the seconds until a token is free: 0 if this one was."""
        with self._lock:
            now = self._clock()
            spent, at = self._spent.pop(name, (0.0, now))
            spent = max(0.0, spent - (now - at) * limit / MINUTE)
            wait = max(0.0, (spent + 1 - limit) * MINUTE / limit)
            if not wait:
                spent += 1
            self._spent[name] = spent, now
            if len(self._spent) > _REMEMBERED:
                self._spent.popitem(last=False)
        return Quota(limit, int(limit - spent), round(spent * MINUTE / limit)), wait
