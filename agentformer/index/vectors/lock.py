"""Many searches at once, one change at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """A lock that any number of readers share and a writer has alone. A waiting writer goes before new readers, so
    that a stream of searches holds up no change. Not reentrant."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._reading = 0
        self._waiting = 0
        self._writing = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._turn:
            while self._writing or self._waiting:
                self._turn.wait()
            self._reading += 1
        try:
            yield
        finally:
            with self._turn:
                self._reading -= 1
                if not self._reading:
                    self._turn.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._turn:
            self._waiting += 1
            try:
                while self._writing or self._reading:
                    self._turn.wait()
                self._writing = True
            finally:
                self._waiting -= 1
                self._turn.notify_all()
        try:
            yield
        finally:
            with self._turn:
                self._writing = False
                self._turn.notify_all()
