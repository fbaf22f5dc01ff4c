"""`Batcher` combines the calls of threads that wait for a model at the same time into one call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")


class _Waiter:
    """A call that waits. `leads` is True while this call must run a batch, and `batch` are the calls of this batch."""

    __slots__ = ("batch", "done", "error", "item", "leads", "result", "wake")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.wake = threading.Event()
        self.leads = False
        self.batch: list[_Waiter] = []
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class Batcher(Generic[Item, Result]):
    """Runs the calls of many threads in batches. Thread-safe.

    If no batch is running, a call runs its own item at once. Calls that arrive meanwhile wait until this batch ends.
    Then the first waiting call runs a batch with the items of at most `most` waiting calls; equal items are computed
    once. So a single caller never waits, and other calls wait only as long as they would wait for the model itself. The
    batches run in the threads of the callers.

    `run` returns one result for each of its items. If it raises an error, each call of the batch raises this error. If
    a caller is interrupted, such as by `KeyboardInterrupt`, only its own call raises this exception, and the other
    calls continue.
    """

    def __init__(self, run: Callable[[Sequence[Item]], Sequence[Result]], *, most: int) -> None:
        self._run = run
        self._most = most
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._running = False

    def __call__(self, item: Item) -> Result:
        """Return the result of `run` for this item."""
        if self._process != os.getpid():  # the threads of the parent process do not run in a forked process
            self._reset()
        waiter = _Waiter(item)
        with self._lock:
            waiter.leads = not self._running
            self._running = True
            if not waiter.leads:
                self._waiting.append(waiter)
        try:
            while not waiter.done:
                if waiter.leads:
                    self._lead(waiter)
                else:
                    waiter.wake.wait()
                    waiter.wake.clear()
        finally:
            self._leave(waiter)
        if waiter.error is not None:
            raise waiter.error
        result: Result = waiter.result
        return result

    def _lead(self, leader: _Waiter) -> None:
        """Run a batch with the items of `leader` and of waiting calls, and store the result or the error of each."""
        with self._lock:
            leader.batch = [leader, *self._waiting[: self._most - 1]]
            del self._waiting[: self._most - 1]
        try:
            items = list(dict.fromkeys(waiter.item for waiter in leader.batch))
            results = dict(zip(items, self._run(items), strict=True))
            for waiter in leader.batch:
                waiter.result, waiter.done = results[waiter.item], True
        except Exception as error:  # noqa: BLE001 - every call of the batch raises it
            for waiter in leader.batch:
                waiter.error, waiter.done = error, True

    def _leave(self, waiter: _Waiter) -> None:
        """End a call, also one that was interrupted. If the call runs a batch, wake the other calls of this batch, put
        the calls without a result back into the queue, and let the next waiting call run a batch."""
        with self._lock:
            if not waiter.leads:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                return
            waiter.leads = False
            self._waiting[:0] = [other for other in waiter.batch if not (other.done or other is waiter)]
            following = self._waiting.pop(0) if self._waiting else None
            self._running = following is not None
            if following is not None:
                following.leads = True
        for other in (*([following] if following is not None else ()), *waiter.batch):
            other.wake.set()
