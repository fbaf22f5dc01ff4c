"""Divides the new connections of a server evenly among its worker processes.

All workers listen at the same socket, and the first one that accepts a connection keeps it. Without a rule, one of two
workers often gets six of eight connections, and these clients wait three times as long as the other two.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Collection

_SLOTS = 256  # more workers than a server has; each one has a number in the shared memory
_UNUSED = -1  # the count of a slot without a worker
_DEFER_SECONDS = 0.05  # after this time, a busier worker accepts a connection that no other worker has accepted
_NEW_SECONDS = 0.1  # a connection that waits after so long a pause is another one


class ConnectionCounts:
    """The numbers of active connections of all workers, in memory that they share. Create the object before the workers
    are forked. Each worker has a slot, whose number is an index into the shared memory."""

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
        """Record that the worker in this slot accepts no more connections, so that others leave none to it."""
        self._counts[slot] = _UNUSED

    def should_defer(self, slot: int) -> bool:
        """Return True if the worker in this slot should leave a new connection to another worker that has fewer active
        connections. Return False if the connection was not accepted within 50 ms, because the other worker may be
        blocked."""
        counts = self._counts
        own = counts[slot]
        if not any(_UNUSED < count < own for count in counts):
            return False
        now = time.monotonic()
        if now - self._deferred_at > _NEW_SECONDS:
            self._defer_until = now + _DEFER_SECONDS
        self._deferred_at = now
        return now < self._defer_until
