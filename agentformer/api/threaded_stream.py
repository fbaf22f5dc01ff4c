"""A generator that runs in a thread of its own, so that whoever waits for it can do something meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing, suppress
from queue import Empty, Queue
from typing import Generic, TypeVar

T = TypeVar("T")
_MOST = 64  # threads at once; further generators run in their caller's, and whoever waits for them just waits
_room = threading.BoundedSemaphore(_MOST)


def pulled(items: Generator[T, None, None], seconds: float) -> Generator[T | None, None, None]:
    """The items as they come, and None whenever `seconds` pass without one. What they raise is raised here.

    Closing it does not wait: `items` is closed as soon as it comes to its next item or its end.
    """
    if not _room.acquire(blocking=False):
        with closing(items):
            yield from items
        return
    pull = _Pull(items)
    threading.Thread(target=pull.run, name="agentformer-stream", daemon=True).start()
    try:
        while True:
            try:
                item = pull.came.get(timeout=seconds)
            except Empty:
                yield None
                continue
            if isinstance(item, _End):
                break
            yield item
    finally:
        pull.leave()
    if item.error:
        raise item.error


class _End:
    def __init__(self, error: Exception | None) -> None:
        self.error = error


class _Pull(Generic[T]):
    """Hands over one item at a time, so that a slow reader slows the generator down."""

    def __init__(self, items: Generator[T, None, None]) -> None:
        self.came: Queue[T | _End] = Queue(1)
        self._items = items
        self._left = threading.Event()

    def run(self) -> None:
        error: Exception | None = None
        try:
            with closing(self._items) as items:
                for item in items:
                    self.came.put(item)
                    if self._left.is_set():
                        break
        except Exception as raised:  # noqa: BLE001 - it is raised where the items are read
            error = raised
        finally:
            _room.release()
            if not self._left.is_set():
                self.came.put(_End(error))

    def leave(self) -> None:
        """Nobody reads on. An item that waits is dropped, so that `run` does not wait for its place."""
        self._left.set()
        with suppress(Empty):
            self.came.get_nowait()
