"""The windows of many entries at once, held as columns: some fifty bytes a window instead of objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.records.vectors import HASH_BYTES, Window
from agentformer.types import Span


class Refused(NamedTuple):
    """In place of an entry's windows: why the model does not take it."""

    reason: str


Windows = list[Window] | Refused
Positions = NDArray[np.int64]


class Cuts:
    """Per entry, in the order of entries, its windows or why it is refused. A window's position counts all windows."""

    __slots__ = ("_ends", "_first", "_hashes", "_instead", "_starts")

    def __init__(self) -> None:
        self._first = array("q", [0])  # per entry, the position of its first window; and one more
        self._starts = array("i")
        self._ends = array("i")
        self._hashes = bytearray()
        self._instead: dict[int, Windows] = {}

    def append(self, windows: Iterable[Window]) -> None:
        """The windows of the next entry."""
        for (start, end), key in windows:
            self._starts.append(start)
            self._ends.append(end)
            self._hashes += key
        self._first.append(len(self._starts))

    def put(self, i: int, windows: Windows) -> None:
        """What stands for the windows of the entry `i` from now on; they keep their positions."""
        self._instead[i] = windows

    def __len__(self) -> int:
        return len(self._first) - 1

    def __getitem__(self, i: int) -> Windows:
        if not 0 <= i < len(self):
            raise IndexError(i)
        if i in self._instead:
            return self._instead[i]
        return [Window(self.span(p), self.hash(p)) for p in range(self._first[i], self._first[i + 1])]

    def __iter__(self) -> Iterator[Windows]:
        return (self[i] for i in range(len(self)))

    def of(self, entries: Sequence[int]) -> Cuts:
        """Those of some entries, in their order."""
        out = Cuts()
        for place, i in enumerate(entries):
            windows = self[i]
            out.append(() if isinstance(windows, Refused) else windows)
            if isinstance(windows, Refused):
                out.put(place, windows)
        return out

    def span(self, position: int) -> Span:
        return Span(self._starts[position], self._ends[position])

    def hash(self, position: int) -> bytes:
        return bytes(self._hashes[position * HASH_BYTES : (position + 1) * HASH_BYTES])

    def lengths(self, positions: Positions) -> Positions:
        """Code points of the entry's content in each of these windows."""
        starts, ends = (np.array(column, dtype=np.int64) for column in (self._starts, self._ends))
        return (ends - starts)[positions]

    def owners(self) -> Positions:
        """The entry of each window."""
        first = np.array(self._first, dtype=np.int64)
        return np.repeat(np.arange(len(self)), first[1:] - first[:-1])

    def texts(self) -> tuple[Positions, Positions]:
        """Of each distinct text, the position of its first window, in order; and of each window, the number of its
        text in that order."""
        if not self._starts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        hashes = np.frombuffer(bytes(self._hashes), dtype=f"V{HASH_BYTES}")
        _, first, text = np.unique(hashes, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return first[order], rank[text]
