"""`Lazy`: an object that is built at its first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lazy(Generic[T]):
    """An object that `build` returns at the first use, because its modules take time to import, or because building it
    can fail. If `build` raises an error, the next use calls it again. Thread-safe."""

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._built: list[T] = []  # empty, or the object
        self._lock = threading.RLock()

    def get(self) -> T:
        """Return the object, which is built at the first call. Raises the errors of `build`."""
        with self._lock:
            if not self._built:
                self._built.append(self._build())
            return self._built[0]

    def set(self, value: T) -> None:
        """Replace the object."""
        with self._lock:
            self._built = [value]
