"""`one_ahead`: prepares the next item while the present one is used."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from agentformer.types import Stopped

T = TypeVar("T")
P = TypeVar("P")

AHEAD_BYTES = 32 << 20  # a larger file is not read ahead, so that memory holds at most one such file


def one_ahead(
    items: Sequence[T], prepare: Callable[[T, Stopped | None], P], may: Callable[[T], bool]
) -> Generator[tuple[T, Callable[[], P]], None, None]:
    """Yield each item with a function that returns the prepared item or raises the error of its preparation.

    While the caller uses an item, a thread calls `prepare(item, stopped)` for the next one, if `may` allows it. Other
    items are prepared when the function is called, by `prepare(item, None)`. The caller must close the generator:
    `stopped()` is then true, and the end of the thread is awaited."""
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="agentformer-ahead") as thread:
        try:
            prepared: Callable[[], P] | None = None
            for number, item in enumerate(items, 1):
                present = prepared or partial(prepare, item, None)
                prepared = None
                if number < len(items) and may(items[number]):
                    run = contextvars.copy_context().run
                    prepared = thread.submit(run, prepare, items[number], stop.is_set).result
                yield item, present
                del present  # with what was prepared for the item
        finally:
            stop.set()
