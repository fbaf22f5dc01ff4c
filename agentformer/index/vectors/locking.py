"""The lock of the vector index: several searches can hold it at the same time, and a change holds it alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ReadWriteLock:
    """A lock that many readers can hold together, or that one writer holds alone. New readers wait while a writer
    waits, so that frequent searches do not delay a change. A thread that holds the lock must not acquire it again."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())  # a writer holds its lock until the end of its block
        self._readers = 0
        self._waiting_writers = 0

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock as a reader. Other readers can hold it at the same time."""
        with self._condition:
            while self._waiting_writers:
                self._condition.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                if not self._readers:
                    self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the lock as the writer. No other thread can hold it at the same time."""
        with self._condition:
            self._waiting_writers += 1
            try:
                while self._readers:
                    self._condition.wait()
            finally:
                self._waiting_writers -= 1
                self._condition.notify_all()
            yield
