"""How often something may happen: requests of a key, and wrong keys from one address, in a minute. The callers give the
limits: the limit of a key is in its `allowance.Limits`, and that of wrong keys is `WRONG_A_MINUTE`."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

WRONG_A_MINUTE = 30  # requests with a wrong key from one address; more are refused with `Busy`
MINUTE = 60.0
DAY = 86_400
_REMEMBERED = 10_000  # names of which the last use is known
_UNITS = {"bytes": ';qu="content-bytes"'}  # units other than requests, by the name of the quota


class Quota(NamedTuple):
    """What a key may use of a limit, what is left, and the seconds until all is left again. `window` is the time in
    seconds for which the limit holds. A limit of what is stored has no window, and waiting does not help: both are 0.
    """

    limit: int
    left: int
    seconds: int
    window: int = int(MINUTE)


def quota_headers(quotas: Mapping[str, Quota]) -> dict[str, str]:
    """Return the headers RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers) for quotas by name."""
    if not quotas:
        return {}
    policies = (
        f'"{name}";q={quota.limit}{f";w={quota.window}" if quota.window else ""}{_UNITS.get(name, "")}'
        for name, quota in quotas.items()
    )
    states = (
        f'"{name}";r={quota.left}{f";t={quota.seconds}" if quota.window else ""}' for name, quota in quotas.items()
    )
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(states)}


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
            spent = min(limit, max(0.0, spent - (now - at) * limit / MINUTE))  # the limit may have been lowered
            wait = max(0.0, (spent + 1 - limit) * MINUTE / limit)
            if not wait:
                spent += 1
            self._spent[name] = spent, now
            if len(self._spent) > _REMEMBERED:
                self._spent.popitem(last=False)
        return Quota(limit, int(limit - spent), round(spent * MINUTE / limit)), wait
