"""What stands beside the codes of an index, by position: window, entry, vector, and whether the row is alive."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
_LEAST_ROOM = 256


class Rows:
    """Arrays of one length that grow together. Not thread-safe. A dead row keeps its position, with the entry -1."""

    def __init__(self, windows: Numbers, entries: Numbers, vectors: Numbers) -> None:
        self._windows, self._entries, self._vectors = windows, entries, vectors
        self.size = len(entries)
        self.dead = int(np.count_nonzero(entries < 0))
        self.newest_entry = int(entries.max(initial=-1))
        self.newest_window = int(windows.max(initial=-1))

    @classmethod
    def none(cls) -> Rows:
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty)

    @property
    def live(self) -> int:
        return self.size - self.dead

    @property
    def windows(self) -> Numbers:
        return self._windows[: self.size]

    @property
    def entries(self) -> Numbers:
        return self._entries[: self.size]

    @property
    def vectors(self) -> Numbers:
        return self._vectors[: self.size]

    @property
    def bytes(self) -> int:
        return self._windows.nbytes + self._entries.nbytes + self._vectors.nbytes

    def append(self, windows: Numbers, entries: Numbers, vectors: Numbers) -> None:
        end = self.size + len(windows)
        if end > len(self._entries):
            room = max(end, self.size + self.size // 2, _LEAST_ROOM)
            self._windows = grown(self._windows, room)
            self._entries = grown(self._entries, room)
            self._vectors = grown(self._vectors, room)
        self._windows[self.size : end] = windows
        self._entries[self.size : end] = entries
        self._vectors[self.size : end] = vectors
        self.size = end
        self.dead += int(np.count_nonzero(entries < 0))
        self.newest_entry = max(self.newest_entry, int(entries.max(initial=-1)))
        self.newest_window = max(self.newest_window, int(windows.max(initial=-1)))

    def drop(self, gone: Numbers) -> Numbers:
        """Positions of the rows of these entries, which are dead from now on."""
        gone = gone[(gone >= 0) & (gone <= self.newest_entry)]
        if len(gone) == 0:
            return gone
        if len(gone) == 1:  # one comparison of all rows: half a millisecond for a million
            positions = np.flatnonzero(self.entries == gone[0])
        else:
            table = np.zeros(self.newest_entry + 2, np.bool_)  # its last place is that of the entry -1
            table[gone] = True
            positions = np.flatnonzero(table[self.entries])
        return self.die(positions)

    def die(self, positions: Numbers) -> Numbers:
        """These rows are dead from now on. Returns those that were not."""
        positions = positions[self._entries[positions] >= 0]
        self._entries[positions] = -1
        self.dead += len(positions)
        return positions

    def inside(self, allowed: Mask) -> Mask:
        """The live rows of the entries that `allowed`, a mask by entry number, holds."""
        table = np.zeros(self.newest_entry + 2, np.bool_)
        known = min(len(allowed), self.newest_entry + 1)
        table[:known] = allowed[:known]
        inside: Mask = table[self.entries]
        return inside

    def taken(self, positions: Numbers) -> Rows:
        """These rows alone, in this order."""
        return Rows(self._windows[positions], self._entries[positions], self._vectors[positions])


def grown(array: NDArray[Any], size: int, filling: int = 0) -> NDArray[Any]:
    out = np.full(size, filling, array.dtype)
    out[: len(array)] = array
    return out
