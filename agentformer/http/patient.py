"""`Patient`: a call that may hang, and a caller that does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Patient(Generic[T]):
    """Makes a call in a thread, and does not wait long for its result. If the call hangs, later callers wait for the
    same call, so only one thread is blocked. Thread-safe."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._running: Future[T] | None = None
        self._started = 0.0  # monotonic time

    @property
    def waiting(self) -> float:
        """The seconds for which the present call has been running, or 0.0 if there is none."""
        with self._lock:
            running = self._running is not None and not self._running.done()
            return time.monotonic() - self._started if running else 0.0

    def result(self, seconds: float) -> T:
        """Start the call unless it is running, and return its result. Raises the error of the call, and `TimeoutError`
        if it has no result `seconds` after its start."""
        with self._lock:
            if self._running is None or self._running.done():
                self._running, self._started = Future(), time.monotonic()
                threading.Thread(target=self._run, args=(self._running,), daemon=True).start()
            running, left = self._running, self._started + seconds - time.monotonic()
        return running.result(max(0.0, left))

    def _run(self, future: Future[T]) -> None:
        try:
            future.set_result(self._call())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            future.set_exception(error)
