"""A helper thread for one part of a search: the lexical query runs in it while the vectors are scanned."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class HelperThread:
    """One thread, started at its first task and again in a forked process. Thread-safe."""

    def __init__(self) -> None:
        self._idle = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0  # that the executor belongs to
        self._enabled = (os.cpu_count() or 1) > 1

    def start(self, task: Callable[[], Result]) -> Callable[[], Result]:
        """Start `task` and return a function that waits for its result or raises its error.

        If the thread is busy or there is one CPU only, the task itself is returned.
        """
        if not self._enabled or not self._idle.acquire(blocking=False):
            return task

        def run() -> Result:
            try:
                return task()
            finally:
                self._idle.release()

        try:
            return self._started().submit(run).result
        except RuntimeError:  # the interpreter is ending or has no thread to give; the task stays in the queue
            self._executor = None
            self._idle.release()
            return task

    def close(self) -> None:
        """End the thread. Idempotent; later tasks run in their callers' threads."""
        self._enabled = False
        if self._executor is not None and self._process == os.getpid():
            self._executor.shutdown()

    def _started(self) -> ThreadPoolExecutor:
        if self._executor is None or self._process != os.getpid():
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="agentformer-search")
            self._process = os.getpid()
        return self._executor
