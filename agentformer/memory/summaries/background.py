"""Work that nobody waits for: one thread that does one job after another, and a clock that gives it some."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Job = TypeVar("Job", bound=Hashable)


class Background(Generic[Job]):
    """Does jobs one after another in a daemon thread, each kind of them waiting at most once. Thread-safe.

    `do` must not raise. The thread ends when nothing waits, so that it does not keep alive whom it works for.
    """

    def __init__(self, do: Callable[[Job], object]) -> None:
        self._do = do
        self._waiting: dict[Job, None] = {}
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """Do `job` when its turn comes; nothing once this is closed, or when the same job waits already."""
        with self._changing:
            if self._closed:
                return
            self._waiting[job] = None
            if self._thread is None or not self._thread.is_alive():  # a fork takes no threads along
                self._thread = threading.Thread(target=self._work, name="agentformer-cleaner", daemon=True)
                self._thread.start()

    def close(self, seconds: float) -> bool:
        """Take no more jobs, and finish those that wait within `seconds`; False when time ran out. Idempotent."""
        with self._changing:
            self._closed = True
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, seconds))
        with self._changing:
            self._waiting.clear()  # what is still at work finishes its job, and no other
        return not thread.is_alive()

    def _work(self) -> None:
        while True:
            with self._changing:
                if not self._waiting:
                    self._thread = None
                    return
                job = next(iter(self._waiting))
                del self._waiting[job]
            self._do(job)


class Clock:
    """Calls `tick` every `seconds` on a daemon thread, the first time after that many, while somebody holds it."""

    def __init__(self, seconds: float, tick: Callable[[], object]) -> None:
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._tick = tick
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None and self._seconds > 0 and not self._stopped.is_set():
            given = (weakref.ref(self), self._stopped, self._seconds)
            self._thread = threading.Thread(target=_run, args=given, name="agentformer-clock", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._stopped.set).atexit = False

    def stop(self) -> None:
        self._stopped.set()

    def tick(self) -> None:
        self._tick()


def _run(owner: weakref.ref[Clock], stopped: threading.Event, seconds: float) -> None:
    """The thread, which holds its clock only while it ticks."""
    while not stopped.wait(seconds):
        if clock := owner():
            clock.tick()
        clock = None
