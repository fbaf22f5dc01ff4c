"""What a provider was asked and what it cost: calls, errors, tokens, latency."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Usage:
    """Counts since the process started. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._errors: Counter[str] = Counter()
        self._last_error = ""
        self._tokens_in = 0
        self._tokens_out = 0
        self._seconds = 0.0
        self._slowest = 0.0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Time a call and count it; an error is counted by its kind and passed on."""
        started = time.perf_counter()
        try:
            yield
        except Exception as error:
            self.failed(error)
            raise
        finally:
            took = time.perf_counter() - started
            with self._lock:
                self._calls += 1
                self._seconds += took
                self._slowest = max(self._slowest, took)

    def failed(self, error: Exception) -> None:
        """Count an error by its kind, such as one before the first call could be made."""
        with self._lock:
            self._errors[type(error).__name__] += 1
            self._last_error = str(error)

    def tokens(self, read: int, written: int = 0) -> None:
        """Count tokens that the provider says it read and wrote."""
        with self._lock:
            self._tokens_in += read
            self._tokens_out += written

    def snapshot(self) -> dict[str, Any]:
        """Everything so far, as JSON values; latency in milliseconds, failed calls included."""
        with self._lock:
            mean = self._seconds / self._calls if self._calls else 0.0
            return {
                "calls": self._calls,
                "errors": dict(self._errors),
                "last_error": self._last_error,
                "tokens_in": self._tokens_in,
                "tokens_out": self._tokens_out,
                "seconds": round(self._seconds, 3),
                "mean_ms": round(mean * 1000, 1),
                "slowest_ms": round(self._slowest * 1000, 1),
            }
