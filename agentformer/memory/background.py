"""Background threads of a memory: a queue of jobs, a thread that calls a function periodically, and a thread that
retries failed embeddings."""

from __future__ import annotations

import logging
import random
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from agentformer.errors import AgentFormerError
from agentformer.records import change_feed
from agentformer.records.offers import vectors_of
from agentformer.records.trail import Trail
from agentformer.types import MemoryBackend, RecordStore

log = logging.getLogger("agentformer")

_MAX_WAIT = 300.0  # seconds between two attempts, so that an embedder is used again minutes after it becomes available
_UPKEEP_SECONDS = 60.0
_PIECES = 10  # transactions of an upkeep
_JITTER = 0.2  # each wait is up to this fraction shorter or longer, so that many processes do not call a server at once
Job = TypeVar("Job", bound=Hashable)


class JobQueue(Generic[Job]):
    """A queue that runs its jobs one after another in a daemon thread. A job is not queued if an equal job is already
    waiting. Thread-safe. The function `run` is called with each job and must not raise an error. The thread ends when
    no job is waiting, because a running thread would keep the owner of the queue in memory."""

    def __init__(self, run: Callable[[Job], object]) -> None:
        self._run = run
        self._waiting: dict[Job, None] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """Queue a job. Do nothing if an equal job is already waiting, or if the queue is closed."""
        with self._lock:
            if self._closed:
                return
            self._waiting[job] = None
            if self._thread is None or not self._thread.is_alive():  # not alive after a fork, which copies no threads
                self._thread = threading.Thread(target=self._work, name="agentformer-cleaner", daemon=True)
                self._thread.start()

    def close(self, seconds: float) -> bool:
        """Accept no more jobs, and wait up to `seconds` until all queued jobs are finished. If a job is still running
        after this time, drop the jobs that have not started, and return False. Idempotent."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, seconds))
        with self._lock:
            self._waiting.clear()  # after a timeout, the waiting jobs are dropped
        return not thread.is_alive()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                job = next(iter(self._waiting))
                del self._waiting[job]
            self._run(job)


class PeriodicThread:
    """A daemon thread that calls the method `tick` every `seconds` seconds, or never if `seconds` is 0. If `tick`
    returns True, the next wait is twice as long. The thread ends when this object is deleted, because the thread holds
    a reference to the object only while `tick` runs."""

    name = "agentformer-clock"
    jitter = 0.0  # maximum random fraction by which a wait is shorter or longer

    def __init__(self, seconds: float, tick: Callable[[], object] | None = None) -> None:
        self._seconds = min(seconds, threading.TIMEOUT_MAX / 2)  # half, because jitter is added
        self._tick = tick
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it is already running or was closed, or `seconds` is 0."""
        if self._thread is None and self._seconds > 0 and not self._stopped.is_set():
            arguments = (weakref.ref(self), self._stopped, self._seconds, self.jitter)
            self._thread = threading.Thread(target=_run_periodically, args=arguments, name=self.name, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._stopped.set).atexit = False

    def close(self, seconds: float = 5.0) -> None:
        """Stop the thread. If `tick` is running, wait up to `seconds` until it ends. Idempotent."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def tick(self) -> bool:
        """Call the function that the constructor received as `tick`, and return False. A subclass may return True."""
        if self._tick is not None:
            self._tick()
        return False


class EmbedRetry(PeriodicThread):
    """A thread that embeds the entries without vectors every `seconds` seconds. After a failure, it waits longer."""

    name = "agentformer-embedding"
    jitter = _JITTER

    def __init__(self, backend: MemoryBackend, seconds: float) -> None:
        super().__init__(seconds)
        self._vectors = vectors_of(backend)

    def tick(self) -> bool:
        """Try to embed the entries that have no vectors yet. Return True if some of these entries still have no
        vectors, or if an error occurred."""
        try:
            return self._vectors.embed_pending(refused=False) > 0
        except Exception as error:  # noqa: BLE001 - the thread goes on after any error
            if not self._stopped.is_set():
                log.warning("entries without vectors could not be embedded and are tried again later: %s", error)
            return True


class Upkeep(PeriodicThread):
    """A thread that deletes what a store need not keep: rows of the trail that are older than `trail_days`, and the old
    part of the change feed. Each minute it deletes a bounded number of rows, so it slows no writer down."""

    name = "agentformer-upkeep"
    jitter = _JITTER

    def __init__(self, database: RecordStore, trail_days: float) -> None:
        super().__init__(_UPKEEP_SECONDS)
        self._database, self._trail, self._days = database, Trail(database), trail_days

    def tick(self) -> bool:
        """Delete some of it. Errors are logged, and the next call tries again."""
        try:
            self._trail.trim(self._days, _PIECES)
            change_feed.compact(self._database, _PIECES)
        except AgentFormerError as error:
            if not self._stopped.is_set():
                log.warning("old rows could not be deleted and are deleted later: %s", error)
            return True
        return False


def _run_periodically(
    reference: weakref.ref[PeriodicThread], stopped: threading.Event, seconds: float, jitter: float
) -> None:
    wait = seconds
    while not stopped.wait(wait * (1 + random.uniform(-jitter, jitter))):  # noqa: S311
        owner = reference()
        wait = min(wait * 2, _MAX_WAIT) if owner and owner.tick() else seconds
        del owner
