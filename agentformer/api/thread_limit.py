"""Room for requests that may hold a thread for long: whatever waits for a model, brings in a file, or follows a job.

One thread always stays with the others, so that a model which does not answer stops nobody who only reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from flask import Response

from agentformer.errors import Busy

_PATIENCE = 1.0  # seconds that a request waits for a place, and only while places change hands
_RETRY_AFTER = 2

Result = TypeVar("Result")


class ThreadLimit:
    """A number of places. Thread-safe. Where requests come and go, a further one waits for its turn; where nobody has
    come or gone for a while, it is refused at once, since each that waits holds a thread as well."""

    def __init__(self, places: int, *, patience: float = _PATIENCE) -> None:
        self._places = max(1, places)
        self._patience = patience
        self._inside = 0
        self._changing = threading.Condition()
        self._changed = time.monotonic()

    def enter(self) -> Callable[[], None]:
        """Take a place. What is returned gives it back, once, however often it is called: a server may close an answer
        twice. Raises `Busy` where there is none."""
        with self._changing:
            until = time.monotonic() + self._patience
            while self._inside >= self._places:
                left = min(until, self._changed + self._patience) - time.monotonic()
                if left <= 0:
                    raise Busy("threads", "too much waits for models or files here already; ask again", _RETRY_AFTER)
                self._changing.wait(left)
            self._inside += 1
            self._changed = time.monotonic()
        held = True

        def leave() -> None:
            nonlocal held
            with self._changing:
                if held:
                    held = False
                    self._inside -= 1
                    self._changed = time.monotonic()
                    self._changing.notify()

        return leave

    @contextmanager
    def place(self) -> Iterator[None]:
        leave = self.enter()
        try:
            yield
        finally:
            leave()

    def answer(self, view: Callable[[], Result]) -> Result:
        """What `view` answers, made with a place. A stream keeps it until it ends, or its client is gone."""
        leave = self.enter()
        kept = False
        try:
            response = view()
            if isinstance(response, Response) and response.is_streamed:
                response.call_on_close(leave)
                kept = True
            return response
        finally:
            if not kept:
                leave()
