"""A circuit breaker: a server that did not answer is left alone for a while, so that it costs one timeout, not many.

Nygard 2007, "Release It!": closed while calls succeed, open after a failure, and half-open after the wait, when one
call is let through to see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Breaker:
    """One server's state. Thread-safe. A wait doubles, up to `longest` seconds, each time that the call which was let
    through after it fails; failures of calls that were under way together are one outage."""

    def __init__(self, seconds: float, *, longest: float = 300.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._first = seconds
        self._longest = max(seconds, longest)
        self._clock = clock
        self._lock = threading.Lock()
        self._wait = 0.0
        self._until = 0.0
        self._reason = ""
        self._half_open = False

    def blocked(self) -> str:
        """Why no call may be made now; "" when one may. After the wait, the first caller is let through and the
        others are held back for another wait, until that call has told how it went."""
        with self._lock:
            if not self._reason:
                return ""
            now = self._clock()
            if now >= self._until:
                self._until, self._half_open = now + self._wait, True
                return ""
            return f"{self._reason}; it is asked again in {max(1, round(self._until - now))} s"

    def succeeded(self) -> None:
        with self._lock:
            self._wait, self._reason, self._half_open = 0.0, "", False

    def failed(self, reason: str) -> None:
        with self._lock:
            if self._reason and not self._half_open:
                return
            self._wait = min(self._wait * 2, self._longest) if self._half_open else self._first
            self._until = self._clock() + self._wait
            self._reason, self._half_open = reason, False

    def reset(self) -> None:
        """Let the next call through: somebody asks for it now."""
        with self._lock:
            self._until = 0.0
