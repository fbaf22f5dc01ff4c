"""A lock per key."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class KeyedLock:
    """Locks by key. A key's lock exists only while a thread holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}  # with the number of its users
        self._guard = threading.Lock()

    @contextmanager
    def hold(self, key: Hashable) -> Iterator[None]:
        """Wait for the lock of `key` and hold it."""
        lock = self._count(key, 1)
        try:
            with lock:
                yield
        finally:
            self._count(key, -1)

    def _count(self, key: Hashable, change: int) -> threading.Lock:
        """Return the lock of `key` after a change of its number of users."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            if users + change:
                self._locks[key] = lock, users + change
            else:
                del self._locks[key]
            return lock
