"""One at a time for each thing, while others go on with other things."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Turns:
    """Locks by key, that are there only while somebody has or awaits them."""

    def __init__(self) -> None:
        self._all: dict[Hashable, tuple[threading.Lock, int]] = {}  # with how many want it
        self._guard = threading.Lock()

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """Wait for the turn at `key`, and have it."""
        lock = self._wanted(key, 1)
        try:
            with lock:
                yield
        finally:
            self._wanted(key, -1)

    def _wanted(self, key: Hashable, change: int) -> threading.Lock:
        with self._guard:
            lock, wanting = self._all.get(key, (threading.Lock(), 0))
            if wanting + change:
                self._all[key] = lock, wanting + change
            else:
                del self._all[key]
            return lock
