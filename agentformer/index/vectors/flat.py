"""The first stage: every row in half precision, every search exact."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.base import Nearest, nearest, one_thread, parameters
from agentformer.index.vectors.rows import IntArray, Mask, Rows
from agentformer.index.vectors.selection import Selection, selector
from agentformer.types import Matrix, Vector


class Flat:
    """A scan of all rows, or of those inside a scope alone. Half precision halves memory and costs about 1e-4 in a
    score; callers re-rank exactly."""

    name = "exact"

    def __init__(self, dimension: int, index: Any = None) -> None:
        import faiss

        half = faiss.ScalarQuantizer.QT_fp16
        self.index: Any = index or faiss.IndexScalarQuantizer(dimension, half, faiss.METRIC_INNER_PRODUCT)

    @property
    def bytes(self) -> int:
        return int(self.index.ntotal * self.index.code_size)

    def place(self, rows: Matrix) -> NDArray[np.uint8]:
        """The rows as they are kept; needs no lock."""
        return np.ascontiguousarray(rows, "<f2").view(np.uint8)

    def add(self, placed: NDArray[np.uint8], start: int) -> None:
        """Keep rows at the positions from `start` on, which is the number of those that there are."""
        self.index.add_sa_codes(placed)

    def search(self, query: Vector, count: int, selection: Selection, probes: int = 0) -> Nearest:
        """The `count` nearest rows of the selection. `probes` mean nothing here."""
        one_thread()
        how = parameters(0, selection.selector) if selection.selector is not None else None
        return nearest(*self.index.search(query.reshape(1, -1), min(count, selection.count), params=how))

    def select(self, rows: Rows, inside: Mask, holes: int) -> Selection:
        """The selection of the rows of a mask by position; `holes` dead rows are still in the index."""
        count = int(np.count_nonzero(inside))
        return Selection(count, None if count == rows.live and not holes else selector(inside))

    def kept(self, positions: IntArray) -> Flat:
        """These rows alone, in this order."""
        import faiss

        codes = faiss.vector_to_array(self.index.codes).reshape(-1, self.index.code_size)
        fresh = Flat(self.index.d)
        if len(positions):
            fresh.index.add_sa_codes(np.ascontiguousarray(codes[positions]))
        return fresh
