"""Threads that a turn waits for, and leaves behind when its time is up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class OutOfTime(Exception):
    """What was waited for is still at work. It ends by limits of its own."""


class Workers:
    """Daemon threads, so that neither Ctrl-C nor the end of the process waits for a server. Thread-safe."""

    def __init__(self) -> None:
        self._open: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def begin(self, *works: Callable[[], T]) -> list[Future[T]]:
        """Do `works` one after another in a thread. One whose future was cancelled before its turn is not begun."""
        futures: list[Future[T]] = [Future() for _ in works]
        with self._lock:
            self._open |= set(futures)
        if works:
            threading.Thread(target=self._do, args=(works, futures), name="agentformer-agent", daemon=True).start()
        return futures

    def close(self, seconds: float) -> bool:
        """Begin nothing that waits, and give what is at work so many seconds to end; False when some did not."""
        with self._lock:
            left = [future for future in self._open if not future.cancel()]
        return not wait(left, seconds).not_done

    def _do(self, works: Sequence[Callable[[], T]], futures: Sequence[Future[T]]) -> None:
        for work, future in zip(works, futures, strict=True):
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(work())
            except BaseException as error:  # noqa: BLE001  raised where the result is asked for
                future.set_exception(error)
            finally:
                with self._lock:
                    self._open.discard(future)


def result(future: Future[T], seconds: float) -> T:
    """What the work gave, or its error. Raises `OutOfTime`; the work is not begun if it has not been yet."""
    if wait([future], seconds).not_done:
        future.cancel()
        raise OutOfTime
    return future.result()
