"""A lock for many concurrent searches and one change at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ReadWriteLock:
    """A lock that many readers share and a writer holds alone.

    A waiting writer goes before new readers, so that a stream of searches does not delay a change. Not reentrant.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._waiting_writers = 0
        self._writing = False

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        with self._condition:
            while self._writing or self._waiting_writers:
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
        """Hold the lock alone."""
        with self._condition:
            self._waiting_writers += 1
            try:
                while self._writing or self._readers:
                    self._condition.wait()
                self._writing = True
            finally:
                self._waiting_writers -= 1
                self._condition.notify_all()
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
