"""The trained stage of the vector index. Rows are grouped into lists of similar vectors (an inverted file), and vectors
are stored with 8 bits per dimension. The caller computes exact scores for the best rows."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.flat import (
    CodeCopy,
    Flat,
    IntArray,
    Mask,
    Nearest,
    Rows,
    Selection,
    bitmap_selector,
    limit_threads,
    nearest,
    search_parameters,
)
from agentformer.types import Matrix, Vector

_NO_OFFSET = -1  # of a position with no row in the index


class OutlierCodes(NamedTuple):
    """The outliers of an index as they are saved in a snapshot: the position of each row, and its vector as bytes, with
    16 bits per dimension."""

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

    def select(self, inside: Mask) -> Selection | None:
        """Return the outliers at the positions that are True in `inside`, in the form that `merge` needs. Return None
        if there is none."""
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


class AssignedRows(NamedTuple):
    """Vectors, and for each vector the number of the list that it belongs to."""

    rows: Matrix
    lists: IntArray


@dataclass(frozen=True, slots=True)
class Tuning:
    """The number of lists and rows that a search reads, and the recall that was measured with these numbers. The recall
    is measured with other queries than those that were used to choose the numbers."""

    probes: int  # lists that a search reads
    candidates: int  # rows that are re-ranked at least
    recall: float
    queries: int = 0  # queries of users among those measured; the others are made from stored vectors


@dataclass(slots=True)
class Ivf:
    """The trained stage of the index. Rows are grouped into lists around centroids, and a search reads the nearest
    lists. If a scope has at most `exact_rows` rows, a search reads every row of the scope. Such a search is exact
    except for the rounding to 8 bits."""

    index: Any  # faiss.IndexIVFScalarQuantizer; its ids are positions
    trained_rows: int
    trained_at: str  # ISO 8601, UTC
    exact_rows: int
    tuning: Tuning
    outliers: Outliers
    list_of: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))  # by position, with capacity
    size: int = 0
    _max_code: float = field(init=False)  # the largest number that the codes can hold
    _offset_of: NDArray[np.int32] = field(init=False)  # in its list, by position, with capacity
    _list_sizes: NDArray[np.int64] = field(init=False)
    name = "inverted"

    def __post_init__(self) -> None:
        import faiss

        self._offset_of = np.full(len(self.list_of), _NO_OFFSET, np.int32)
        self._list_sizes = np.zeros(self.lists, np.int64)
        self._max_code = -float(faiss.vector_to_array(self.index.sq.trained)[0])
        self._read_offsets()

    @property
    def lists(self) -> int:
        return int(self.index.nlist)

    @property
    def bytes(self) -> int:
        """The memory size of codes, centroids, row offsets and outliers in bytes. Python objects are not counted."""
        codes = int(self.index.ntotal) * (int(self.index.code_size) + 8)
        centroids = self.lists * int(self.index.d) * 4
        return codes + centroids + self.list_of.nbytes + self._offset_of.nbytes + self.outliers.bytes

    def encode(self, rows: Matrix) -> AssignedRows:
        """Find the nearest list for each vector. Return the vectors with the numbers of these lists. No lock is needed,
        because the lists never change their centroids."""
        rows = np.ascontiguousarray(rows, np.float32)
        limit_threads()
        return AssignedRows(rows, self.index.quantizer.assign(rows, 1).reshape(-1))

    def add(self, assigned: AssignedRows, start: int) -> None:
        """Add rows at consecutive positions that begin at `start`."""
        self.put(assigned, np.arange(start, start + len(assigned.rows)))

    def put(self, assigned: AssignedRows, positions: IntArray) -> None:
        """Add rows. `positions` contains the position of each row in the index."""
        import faiss

        if len(positions) == 0:
            return
        self.reserve(int(positions.max()) + 1)
        self.list_of[positions] = assigned.lists
        self._offset_of[positions] = self._list_sizes[assigned.lists] + _occurrences(assigned.lists)
        self._list_sizes += np.bincount(assigned.lists, minlength=self.lists)
        lists, ids = np.ascontiguousarray(assigned.lists, np.int64), np.ascontiguousarray(positions, np.int64)
        pointers = [faiss.swig_ptr(array) for array in (assigned.rows, ids, lists)]
        self.index.add_core(len(ids), *pointers)
        beyond = np.maximum(assigned.rows.max(axis=1), -assigned.rows.min(axis=1)) > self._max_code
        if beyond.any():
            self.outliers.add(assigned.rows[beyond], ids[beyond])

    def reserve(self, size: int) -> None:
        """Allocate space for all positions below `size`. A position may stay without a row."""
        if size > len(self.list_of):
            added = (0, max(size, self.size + self.size // 2) - len(self.list_of))
            self.list_of = np.pad(self.list_of, added)
            self._offset_of = np.pad(self._offset_of, added, constant_values=_NO_OFFSET)
        self.size = max(self.size, size)

    def remove(self, positions: IntArray) -> None:
        """Remove the rows at these positions from their lists and from the outliers."""
        if len(positions):
            dropped = np.zeros(self.size, np.bool_)
            dropped[positions] = True
            self.index.remove_ids(bitmap_selector(dropped))
            self.outliers.remove(dropped)
            self._read_offsets()

    def select(self, rows: Rows, inside: Mask, holes: int) -> Selection:
        """Return the selection of the rows that are True in `inside`. `holes` is the number of dead rows that FAISS
        still stores."""
        count, outliers = int(np.count_nonzero(inside)), self.outliers.select(inside)
        if count == rows.live:
            return Selection(count, bitmap_selector(inside) if holes else None, outliers=outliers)
        if count <= self.exact_rows:
            return Selection(count, copy=self._copy_codes(np.flatnonzero(inside)), outliers=outliers)
        lists = np.bincount(self.list_of[: rows.size][inside], minlength=self.lists)
        return Selection(count, bitmap_selector(inside), lists, outliers=outliers)

    def search(self, query: Vector, count: int, selection: Selection, probes: int = 0) -> Nearest:
        """Return the `count` rows of the selection that are nearest to the query. `probes` is the number of lists to
        read; 0 means the number that was chosen by the last tuning."""
        results = self._search_codes(query, count, selection, probes)
        return self.outliers.merge(results, query, count, selection.outliers) if selection.outliers else results

    def _search_codes(self, query: Vector, count: int, selection: Selection, probes: int) -> Nearest:
        """Search with the 8-bit codes only. The scores of outliers are too low in this result."""
        limit_threads()
        row, count = np.ascontiguousarray(query.reshape(1, -1), np.float32), min(count, selection.count)
        if selection.copy is not None:
            results = nearest(*selection.copy.index.search(row, count))
            return Nearest(selection.copy.positions[results.positions], results.scores)
        lists = self._lists_of_scope(row, selection, probes or self.tuning.probes)
        if lists is not None:
            return self._search_lists(row, count, selection, lists)
        # Probes tuned with many rows mean nothing once nearly all of these are removed.
        shrunk = selection.count <= self.exact_rows < self.trained_rows and not probes
        probes = self.lists if shrunk else probes or self.tuning.probes
        parameters = search_parameters(min(probes, self.lists), selection.selector)
        return nearest(*self.index.search(row, count, params=parameters))

    def _lists_of_scope(self, row: Matrix, selection: Selection, probes: int) -> IntArray | None:
        """Return the numbers of the lists to read for a search in a scope. These are the lists nearest to the query
        `row`. Together they contain about as many rows of the scope as a search without a scope would read. Return None
        if the selection is not limited to a scope."""
        if selection.lists is None:
            return None
        if probes >= self.lists:
            return np.flatnonzero(selection.lists)
        wanted = probes * self.size / self.lists
        share = selection.count / max(self.size, 1)
        ask = min(self.lists, int(2 * probes / share) + 1)
        order = self.index.quantizer.assign(row, ask)[0]
        rows_read = np.cumsum(selection.lists[order])
        if rows_read[-1] < wanted:
            order = self.index.quantizer.assign(row, self.lists)[0] if ask < self.lists else order
            rows_read = np.cumsum(selection.lists[order])
        near = order[: int(np.searchsorted(rows_read, wanted)) + 1]
        return np.asarray(near[selection.lists[near] > 0], np.int64)

    def _search_lists(self, row: Matrix, count: int, selection: Selection, lists: IntArray) -> Nearest:
        import faiss

        lists = np.ascontiguousarray(lists, np.int64)
        centroids = np.zeros(len(lists), np.float32)  # unused: the codes are of the rows, not of residuals
        scores, positions = np.empty((1, count), np.float32), np.empty((1, count), np.int64)
        parameters = search_parameters(len(lists), selection.selector)
        pointers = [faiss.swig_ptr(array) for array in (lists, centroids, scores, positions)]
        self.index.search_preassigned_c(1, faiss.swig_ptr(row), count, *pointers, False, parameters)
        return nearest(scores, positions)

    def _copy_codes(self, positions: IntArray) -> CodeCopy:
        """Return a copy of the codes at these positions. A position without a code is left out. This happens if the
        vector of a row was removed from the records before the row was added to the index."""
        import faiss

        lists, offsets = self.list_of[positions], self._offset_of[positions]
        present = offsets != _NO_OFFSET
        lists, offsets, positions = lists[present], offsets[present], positions[present]
        size, inverted = int(self.index.code_size), self.index.invlists
        starts = np.zeros(self.lists, np.int64)
        for number in np.unique(lists).tolist():
            starts[number] = int(inverted.get_codes(number))
        codes = np.empty((len(positions), size), np.uint8)
        target = codes.ctypes.data
        # A scope has few rows in each list: copying these one by one is five times as fast as with NumPy's views.
        for n, address in enumerate((starts[lists] + offsets.astype(np.int64) * size).tolist()):
            ctypes.memmove(target + n * size, address, size)
        index = faiss.IndexScalarQuantizer(self.index.d, self.index.sq.qtype, faiss.METRIC_INNER_PRODUCT)
        faiss.copy_array_to_vector(faiss.vector_to_array(self.index.sq.trained), index.sq.trained)
        index.is_trained = True
        if len(codes):
            index.add_sa_codes(codes)
        return CodeCopy(index, positions)

    def _read_offsets(self) -> None:
        import faiss

        inverted = self.index.invlists
        for number in range(self.lists):
            self._list_sizes[number] = size = inverted.list_size(number)
            if size:
                self._offset_of[faiss.rev_swig_ptr(inverted.get_ids(number), size)] = np.arange(size)


def _occurrences(lists: IntArray) -> IntArray:
    """Return for each number how often the same number occurs before it in `lists`."""
    order = np.argsort(lists, kind="stable")
    _, first, counts = np.unique(lists[order], return_index=True, return_counts=True)
    ranks = np.empty(len(lists), np.int64)
    ranks[order] = np.arange(len(lists)) - np.repeat(first, counts)
    return ranks
