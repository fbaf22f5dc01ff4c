"""A thread in which a search by words runs while the caller searches the vectors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class HelperThread:
    """A thread for one task at a time. It starts with the first task. A forked process gets its own thread.
    Thread-safe."""

    def __init__(self) -> None:
        self._idle = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0  # the process that the executor belongs to
        self._enabled = (os.cpu_count() or 1) > 1

    def start(self, task: Callable[[], Result]) -> Callable[[], Result]:
        """Start `task` in the thread. Return a function that waits for the task, and returns its result or raises its
        error. If the thread is busy, or if there is only one CPU, return `task` itself, so that the caller runs it."""
        if not self._enabled or not self._idle.acquire(blocking=False):
            return task

        def run() -> Result:
            try:
                return task()
            finally:
                self._idle.release()

        try:
            return self._started().submit(run).result
        except RuntimeError:  # the interpreter exits or cannot start a thread; the task stays in the queue
            self._executor = None
            self._idle.release()
            return task

    @property
    def started(self) -> bool:
        """True if `start` need not create the thread: this process has already created it, or no thread is used."""
        return not self._enabled or (self._executor is not None and self._process == os.getpid())

    def close(self) -> None:
        """End the thread. After this call, `start` returns each task to the caller. A second call has no effect."""
        self._enabled = False
        if self._executor is not None and self._process == os.getpid():
            self._executor.shutdown()

    def _started(self) -> ThreadPoolExecutor:
        if self._executor is None or self._process != os.getpid():
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="agentformer-search")
            self._process = os.getpid()
        return self._executor
