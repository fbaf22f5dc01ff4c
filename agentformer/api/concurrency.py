"""Limits of concurrent requests: how many threads may handle slow requests, how many threads a server needs, and which
worker process accepts a new connection."""

from __future__ import annotations

import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import TypeVar

from flask import Response

from agentformer.errors import Busy
from agentformer.servers.slow_clients import MAX_SLOW_READERS
from agentformer.settings import Settings

Result = TypeVar("Result")

MAX_WAITING = 32  # slow requests that wait for a thread; each of them blocks a thread of the server
MAX_WAITING_UPLOADS = 16  # each of them blocks a thread of the server too
MAX_BODIES = 24  # requests whose bodies are still arriving when a thread begins to read them
_RETRY_AFTER = 2  # seconds
_SLOTS = 256  # counts in the shared memory, one for each worker; a server has fewer workers
_UNUSED = -1  # the count of a slot without a worker
_DEFER_SECONDS = 0.05  # after this time, a busier worker accepts a connection that no other worker has accepted
_NEW_SECONDS = 0.1  # after a pause of this length, a waiting connection counts as a new one


def server_threads(settings: Settings) -> int:
    """Return the number of threads that a server needs to answer quick requests at any time. Even if every
    `ThreadLimit` is reached and its queue is full, one thread is free for a quick request."""
    limited = max(1, settings.threads - 1) + settings.max_uploads + MAX_BODIES + MAX_SLOW_READERS
    return limited + MAX_WAITING + MAX_WAITING_UPLOADS + 1


class ThreadLimit:
    """A limit on the number of threads that handle slow requests. A slow request waits for a model, uploads files or
    follows a job. Thread-safe.

    A request over the limit waits at most `wait_seconds` until another request ends. The requests are served in the
    order in which they came. A waiting request blocks a thread too, so at most `max_waiting` requests wait. The server
    has more threads than all slow and waiting requests can use (`server_threads`), so a quick request always finds a
    free thread. A slow request that gets no thread ends with the error `Busy`. The message of this error says why
    (`reason`), and which setting to raise (`limit`)."""

    def __init__(
        self,
        threads: int,
        *,
        wait_seconds: float,
        max_waiting: int = MAX_WAITING,
        limit: str = "threads",
        reason: str = "all worker threads are in use",
    ) -> None:
        self._threads = max(1, threads)
        self._wait_seconds = wait_seconds
        self._max_waiting = max_waiting
        self._limit = limit
        self._reason = reason
        self._used = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of threads that are in use, and of requests that wait for one."""
        with self._changed:
            return self._used, len(self._waiting)

    def reserve(self) -> ExitStack:
        """Reserve a thread, and return an `ExitStack` whose `close` releases it. A second `close` does nothing, because
        a server may close a response twice. Raises `Busy` if no thread becomes free in time, or if too many requests
        wait already."""
        with self._changed:
            if self._used >= self._threads or self._waiting:
                self._wait()
            self._used += 1
        held = ExitStack()
        held.callback(self._release)
        return held

    def run(self, view: Callable[[], Result]) -> Result:
        """Reserve a thread, call `view` and return its response. A streamed response keeps its thread until the
        response is closed. Raises `Busy` if no thread becomes free in time."""
        with self.reserve() as held:
            response = view()
            if isinstance(response, Response) and response.is_streamed:
                response.call_on_close(held.pop_all().close)
            return response

    def _wait(self) -> None:
        """Wait until a thread is free and all earlier requests have a thread. Raises `Busy` if no thread becomes free
        in time, or if too many requests wait already."""
        ticket = object()
        if len(self._waiting) >= self._max_waiting:
            raise self._busy()
        self._waiting.append(ticket)
        try:
            if not self._changed.wait_for(
                lambda: self._waiting[0] is ticket and self._used < self._threads, self._wait_seconds
            ):
                raise self._busy()
        finally:
            self._waiting.remove(ticket)
            self._changed.notify_all()

    def _busy(self) -> Busy:
        message = f"Server busy: {self._reason}. Retry after {_RETRY_AFTER} s."
        return Busy(self._limit, message, _RETRY_AFTER)

    def _release(self) -> None:
        with self._changed:
            self._used -= 1
            self._changed.notify_all()


class ConnectionCounts:
    """The numbers of active connections of all workers, in memory that they share. Create the object before the workers
    are forked. Each worker has a slot, whose number is an index into the shared memory.

    All workers listen at the same socket, and the first one that accepts a connection keeps it. Without the rule in
    `should_defer`, one of two workers often gets six of eight connections, and its clients wait three times as long as
    the clients of the other worker."""

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, 4 * _SLOTS)).cast("i")
        self._counts[:] = memoryview(b"\xff" * (4 * _SLOTS)).cast("i")
        self._deferred_at = self._defer_until = 0.0

    def free_slot(self, used: Collection[int]) -> int:
        """Return the lowest slot for a new worker. `used` are the slots of the running workers."""
        return next(slot for slot in range(_SLOTS) if slot not in used)

    def set(self, slot: int, count: int) -> None:
        """Store the number of active connections of the worker in this slot."""
        self._counts[slot] = count

    def leave(self, slot: int) -> None:
        """Record that the worker in this slot accepts no more connections, so that no other worker defers to it."""
        self._counts[slot] = _UNUSED

    def should_defer(self, slot: int) -> bool:
        """Return True if the worker in this slot should leave a new connection to another worker with fewer active
        connections. Return False after 50 ms, because the other worker may be blocked."""
        counts = self._counts
        own = counts[slot]
        if not any(_UNUSED < count < own for count in counts):
            return False
        now = time.monotonic()
        if now - self._deferred_at > _NEW_SECONDS:
            self._defer_until = now + _DEFER_SECONDS
        self._deferred_at = now
        return now < self._defer_until
