"""A part of a search beside the rest of it: the scan of the vectors and the model need Python's lock for moments only,
and meanwhile another thread can ask for the words."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Beside:
    """One helping thread, begun when first needed, also anew in a process that was forked. Thread-safe."""

    def __init__(self) -> None:
        self._idle = threading.Lock()
        self._helper: ThreadPoolExecutor | None = None
        self._process = 0  # whose thread it is
        self._helps = (os.cpu_count() or 1) > 1

    def begin(self, task: Callable[[], Result]) -> Callable[[], Result]:
        """What waits for the result of `task`, or raises its error. It is the task itself where nobody is free to help:
        the processors are at work then."""
        if not self._helps or not self._idle.acquire(blocking=False):
            return task

        def work() -> Result:
            try:
                return task()
            finally:
                self._idle.release()

        try:
            return self._thread().submit(work).result
        except RuntimeError:  # the interpreter is ending, or has no room for a thread; the task stays queued there
            self._helper = None
            self._idle.release()
            return task

    def close(self) -> None:
        """End the thread. Idempotent; who begins something later does it alone."""
        self._helps = False
        if self._helper is not None and self._process == os.getpid():
            self._helper.shutdown()

    def _thread(self) -> ThreadPoolExecutor:
        if self._helper is None or self._process != os.getpid():
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="agentformer-search")
            self._process = os.getpid()
        return self._helper
