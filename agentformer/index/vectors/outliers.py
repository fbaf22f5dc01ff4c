"""Outliers of a trained index: the vectors that its 8-bit codes cannot represent."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.flat import Flat, IntArray, Mask, Nearest, Selection, bitmap_selector
from agentformer.types import Matrix, Vector


class OutlierCodes(NamedTuple):
    """The outliers of an index as they are saved in a snapshot: the position of each outlier, and its vector as bytes,
    with 16 bits per dimension."""

    positions: IntArray
    halves: NDArray[np.uint8]  # (rows, 2 x dimension)


class Outliers:
    """Vectors with an element that is too large for the 8-bit codes. These vectors are also stored with 16 bits per
    dimension, and every search compares the query with all of them. In the lists, each outlier has the nearest code
    that is possible."""

    def __init__(self, dimension: int, codes: OutlierCodes | None = None) -> None:
        self._flat = Flat(dimension)
        self._positions = np.zeros(0, np.int64)
        if codes is not None and len(codes.positions):
            self._positions = codes.positions
            self._flat.index.add_sa_codes(np.ascontiguousarray(codes.halves))

    @property
    def size(self) -> int:
        return len(self._positions)

    @property
    def bytes(self) -> int:
        return self._flat.bytes + self._positions.nbytes

    def add(self, rows: Matrix, positions: IntArray) -> None:
        """Add outliers. `positions` contains the position of each row in the index."""
        self._flat.add(self._flat.encode(rows), self.size)
        self._positions = np.concatenate([self._positions, positions])

    def remove(self, dropped: Mask) -> None:
        """Remove the outliers at the positions that are True in `dropped`."""
        remaining = np.flatnonzero(~dropped[self._positions])
        if len(remaining) < self.size:
            self._flat, self._positions = self._flat.take(remaining), self._positions[remaining]

    def copy(self) -> Outliers:
        """Return a copy of the outliers, which can be changed independently."""
        return Outliers(self._flat.index.d, self.codes())

    def select(self, inside: Mask) -> Selection | None:
        """Return the outliers at the positions that are True in `inside`, as a `Selection` for `merge`. Return None if
        there are none."""
        if not self.size:
            return None
        selected = inside[self._positions]
        count = int(np.count_nonzero(selected))
        return Selection(count, bitmap_selector(selected)) if count else None

    def merge(self, results: Nearest, query: Vector, count: int, selection: Selection) -> Nearest:
        """Combine the rows that were found in the lists (`results`) with the selected outliers. Return the best `count`
        rows. The score of an outlier is computed from its 16-bit vector."""
        near = self._flat.search(query, count, selection)
        others = ~np.isin(results.positions, self._positions)
        positions = np.concatenate([self._positions[near.positions], results.positions[others]])
        scores = np.concatenate([near.scores, results.scores[others]])
        best = np.argsort(-scores, kind="stable")[:count]
        return Nearest(positions[best], scores[best])

    def codes(self) -> OutlierCodes:
        """Return the outliers as they are saved in a snapshot."""
        import faiss

        index: Any = self._flat.index
        return OutlierCodes(self._positions, faiss.vector_to_array(index.codes).reshape(-1, index.code_size))
