"""Rows that the codes of a trained index cannot hold, kept apart in half precision; each search scans them too."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.base import Nearest
from agentformer.index.vectors.flat import Flat
from agentformer.index.vectors.rows import IntArray, Mask
from agentformer.index.vectors.selection import Selection, selector
from agentformer.types import Matrix, Vector


class Codes(NamedTuple):
    """What a snapshot holds of them. Arrays of one length."""

    positions: IntArray
    halves: NDArray[np.uint8]  # (rows, 2 x dimension)


class Apart:
    """Rows by their positions in the index. Its lists have these rows too, with the nearest codes that there are."""

    def __init__(self, dimension: int, saved: Codes | None = None) -> None:
        self._flat = Flat(dimension)
        self._positions = np.zeros(0, np.int64)
        if saved is not None and len(saved.positions):
            self._positions = saved.positions
            self._flat.index.add_sa_codes(np.ascontiguousarray(saved.halves))

    @property
    def size(self) -> int:
        return len(self._positions)

    @property
    def bytes(self) -> int:
        return self._flat.bytes + self._positions.nbytes

    def add(self, rows: Matrix, positions: IntArray) -> None:
        self._flat.add(self._flat.place(rows), self.size)
        self._positions = np.concatenate([self._positions, positions])

    def forget(self, gone: Mask) -> None:
        """Let go of the rows of these positions."""
        kept = np.flatnonzero(~gone[self._positions])
        if len(kept) < self.size:
            self._flat, self._positions = self._flat.kept(kept), self._positions[kept]

    def select(self, inside: Mask) -> Selection | None:
        """Those inside a mask by position, for `merged`; None for none."""
        if not self.size:
            return None
        mine = inside[self._positions]
        count = int(np.count_nonzero(mine))
        return Selection(count, selector(mine)) if count else None

    def merged(self, found: Nearest, query: Vector, count: int, selection: Selection) -> Nearest:
        """The `count` best of what the lists gave and of the selected rows here, whose scores here are right."""
        near = self._flat.search(query, count, selection)
        others = ~np.isin(found.positions, self._positions)
        positions = np.concatenate([self._positions[near.positions], found.positions[others]])
        scores = np.concatenate([near.scores, found.scores[others]])
        best = np.argsort(-scores, kind="stable")[:count]
        return Nearest(positions[best], scores[best])

    def codes(self) -> Codes:
        import faiss

        index: Any = self._flat.index
        return Codes(self._positions, faiss.vector_to_array(index.codes).reshape(-1, index.code_size))
