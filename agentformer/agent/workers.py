"""Threads for the calls of a turn. When the time of the turn ends, the turn no longer waits for these threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class OutOfTime(Exception):
    """The task is still running. The limits of the task will end it."""


class Workers:
    """Daemon threads. Ctrl-C and the end of the process do not wait for them. Thread-safe."""

    def __init__(self) -> None:
        self._open: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def start(self, *tasks: Callable[[], T]) -> list[Future[T]]:
        """Run the tasks one after another in a new thread. Skip a task if its future was cancelled."""
        futures: list[Future[T]] = [Future() for _ in tasks]
        with self._lock:
            self._open |= set(futures)
        if tasks:
            threading.Thread(target=self._run, args=(tasks, futures), name="agentformer-agent", daemon=True).start()
        return futures

    def close(self, seconds: float) -> bool:
        """Cancel waiting tasks, and wait `seconds` for running tasks. Return True if all tasks have finished."""
        with self._lock:
            running = [future for future in self._open if not future.cancel()]
        return not wait(running, seconds).not_done

    def _run(self, tasks: Sequence[Callable[[], T]], futures: Sequence[Future[T]]) -> None:
        for task, future in zip(tasks, futures, strict=True):
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(task())
            except BaseException as error:  # noqa: BLE001  `result` raises it
                future.set_exception(error)
            finally:
                with self._lock:
                    self._open.discard(future)


def result(future: Future[T], seconds: float) -> T:
    """Return the result of a task, or raise its error. On timeout, raise `OutOfTime`, and cancel the task if it has not
    started."""
    if wait([future], seconds).not_done:
        future.cancel()
        raise OutOfTime
    return future.result()
