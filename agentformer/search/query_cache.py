"""Vectors of the last questions: who asks again, or turns a page, does not wait for the model."""

from __future__ import annotations

import threading
from collections import OrderedDict

from agentformer.types import Embedder, Vector

_QUESTIONS = 512  # kept, the last ones asked: under 2 MB at 768 dimensions
_LONGEST = 4_000  # code points of a question that is worth keeping


class Questions:
    """Rows by the number of a space and the text. A store never uses a number for another space, so a model that was
    moved to or swapped never meets the row of another one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[int, str], Vector] = OrderedDict()

    def knows(self, space: int, text: str) -> bool:
        """Is its row at hand?"""
        with self._lock:
            return (space, text) in self._rows

    def embed(self, embedder: Embedder, space: int, text: str) -> Vector:
        """The row of `text`, by `embedder`, which is of the store's space with the number `space`."""
        key = (space, text)
        with self._lock:
            if (known := self._rows.get(key)) is not None:
                self._rows.move_to_end(key)
                return known
        row = embedder.embed_query(text)
        if len(text) <= _LONGEST:
            with self._lock:
                self._rows[key] = row
                if len(self._rows) > _QUESTIONS:
                    self._rows.popitem(last=False)
        return row
