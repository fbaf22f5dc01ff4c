"""The second stage: an inverted file of rows in 8 bits a dimension; the caller re-ranks what it finds."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.base import Nearest, nearest, one_thread, parameters
from agentformer.index.vectors.outliers import Apart
from agentformer.index.vectors.rows import IntArray, Mask, Rows, grown
from agentformer.index.vectors.selection import Copy, Selection, selector
from agentformer.types import Matrix, Vector

_NOWHERE = -1  # the place of a position whose row is not in the index


class Placed(NamedTuple):
    """Rows with the lists that they belong to."""

    rows: Matrix
    lists: IntArray


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was measured after training. `recall` is of the ten best, on queries that the tuning did not see."""

    probes: int  # lists that a search looks into
    candidates: int  # rows that are re-ranked at least
    recall: float
    queries: int = 0  # of users among those it was measured with; the others are made from stored vectors


@dataclass(slots=True)
class Inverted:
    """Lists of rows around centroids. A search looks into the nearest ones; one in a scope of at most `exact_rows` rows
    into every list that holds any of them, which makes it exact but for the 8 bits."""

    index: Any  # faiss.IndexIVFScalarQuantizer; its ids are positions
    trained_rows: int
    trained_at: str  # ISO 8601, UTC
    exact_rows: int
    tuning: Tuning
    apart: Apart
    list_of: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))  # by position, with room
    size: int = 0
    _reach: float = field(init=False)  # the largest number that the codes hold
    _place_of: NDArray[np.int32] = field(init=False)  # in its list, by position, with room
    _sizes: NDArray[np.int64] = field(init=False)  # of the lists
    name = "inverted"

    def __post_init__(self) -> None:
        import faiss

        self._place_of = np.full(len(self.list_of), _NOWHERE, np.int32)
        self._sizes = np.zeros(self.lists, np.int64)
        self._reach = -float(faiss.vector_to_array(self.index.sq.trained)[0])
        self._locate()

    @property
    def lists(self) -> int:
        return int(self.index.nlist)

    @property
    def bytes(self) -> int:
        codes = int(self.index.ntotal) * (int(self.index.code_size) + 8)
        centroids = self.lists * int(self.index.d) * 4
        return codes + centroids + self.list_of.nbytes + self._place_of.nbytes + self.apart.bytes

    def place(self, rows: Matrix) -> Placed:
        """The nearest list of each row; needs no lock, since centroids never change."""
        rows = np.ascontiguousarray(rows, np.float32)
        one_thread()
        return Placed(rows, self.index.quantizer.assign(rows, 1).reshape(-1))

    def add(self, placed: Placed, start: int) -> None:
        """Keep rows at the positions from `start` on."""
        self.put(placed, np.arange(start, start + len(placed.rows)))

    def put(self, placed: Placed, positions: IntArray) -> None:
        """Keep rows at these positions."""
        import faiss

        if len(positions) == 0:
            return
        self.reserve(int(positions.max()) + 1)
        self.list_of[positions] = placed.lists
        self._place_of[positions] = self._sizes[placed.lists] + _ranks(placed.lists)
        self._sizes += np.bincount(placed.lists, minlength=self.lists)
        lists, at = np.ascontiguousarray(placed.lists, np.int64), np.ascontiguousarray(positions, np.int64)
        pointers = [faiss.swig_ptr(array) for array in (placed.rows, at, lists)]
        self.index.add_core(len(at), *pointers)
        beyond = np.maximum(placed.rows.max(axis=1), -placed.rows.min(axis=1)) > self._reach
        if beyond.any():
            self.apart.add(placed.rows[beyond], at[beyond])

    def reserve(self, size: int) -> None:
        """Have so many positions, of which some may hold no row."""
        if size > len(self.list_of):
            room = max(size, self.size + self.size // 2)
            self.list_of, self._place_of = grown(self.list_of, room), grown(self._place_of, room, _NOWHERE)
        self.size = max(self.size, size)

    def forget(self, positions: IntArray) -> None:
        """Take the codes of these positions out of their lists."""
        if len(positions):
            gone = np.zeros(self.size, np.bool_)
            gone[positions] = True
            self.index.remove_ids(selector(gone))
            self.apart.forget(gone)
            self._locate()

    def select(self, rows: Rows, inside: Mask, holes: int) -> Selection:
        """The selection of the rows of a mask by position; `holes` dead rows are still in the index."""
        count, apart = int(np.count_nonzero(inside)), self.apart.select(inside)
        if count == rows.live:
            return Selection(count, selector(inside) if holes else None, apart=apart)
        if count <= self.exact_rows:
            return Selection(count, copy=self._copied(np.flatnonzero(inside)), apart=apart)
        lists = np.bincount(self.list_of[: rows.size][inside], minlength=self.lists)
        return Selection(count, selector(inside), lists, apart=apart)

    def search(self, query: Vector, count: int, selection: Selection, probes: int = 0) -> Nearest:
        """The `count` nearest rows of the selection, in `probes` lists, as tuned if 0."""
        found = self._coded(query, count, selection, probes)
        return self.apart.merged(found, query, count, selection.apart) if selection.apart else found

    def _coded(self, query: Vector, count: int, selection: Selection, probes: int) -> Nearest:
        """What their codes say, which for rows that are kept apart is too little."""
        one_thread()
        if selection.copy is not None:
            found = nearest(*selection.copy.index.search(query.reshape(1, -1), min(count, selection.count)))
            return Nearest(selection.copy.positions[found.positions], found.scores)
        row, count = np.ascontiguousarray(query.reshape(1, -1), np.float32), min(count, selection.count)
        lists = self._lists(row, selection, probes or self.tuning.probes)
        if lists is None:
            # Probes that were tuned with many rows say nothing once nearly all are gone.
            shrunk = selection.count <= self.exact_rows < self.trained_rows and not probes
            wanted = self.lists if shrunk else probes or self.tuning.probes
            how = parameters(min(wanted, self.lists), selection.selector)
            return nearest(*self.index.search(row, count, params=how))
        return self._within(row, count, selection, lists)

    def _lists(self, row: Matrix, selection: Selection, probes: int) -> IntArray | None:
        """The lists to look into; None for the nearest ones, whatever they hold. In a scope these are so many that as
        many rows inside it are seen as an unscoped search would see."""
        if selection.lists is None:
            return None
        if probes >= self.lists:
            return np.flatnonzero(selection.lists)
        wanted = probes * self.size / self.lists
        share = selection.count / max(self.size, 1)
        ask = min(self.lists, int(2 * probes / share) + 1)
        order = self.index.quantizer.assign(row, ask)[0]
        seen = np.cumsum(selection.lists[order])
        if seen[-1] < wanted:
            order = self.index.quantizer.assign(row, self.lists)[0] if ask < self.lists else order
            seen = np.cumsum(selection.lists[order])
        near = order[: int(np.searchsorted(seen, wanted)) + 1]
        return np.asarray(near[selection.lists[near] > 0], np.int64)

    def _within(self, row: Matrix, count: int, selection: Selection, lists: IntArray) -> Nearest:
        import faiss

        lists = np.ascontiguousarray(lists, np.int64)
        centroids = np.zeros(len(lists), np.float32)  # unused: the codes are of the rows, not of residuals
        scores, positions = np.empty((1, count), np.float32), np.empty((1, count), np.int64)
        how = parameters(len(lists), selection.selector)
        pointers = [faiss.swig_ptr(array) for array in (lists, centroids, scores, positions)]
        self.index.search_preassigned_c(1, faiss.swig_ptr(row), count, *pointers, False, how)
        return nearest(scores, positions)

    def _copied(self, positions: IntArray) -> Copy:
        """The codes of these positions. Rows that are known by position but not in the index, as they were removed from
        the records before they could be put there, are left out."""
        import faiss

        lists, places = self.list_of[positions], self._place_of[positions]
        there = places != _NOWHERE
        lists, places, positions = lists[there], places[there], positions[there]
        size, held = int(self.index.code_size), self.index.invlists
        starts = np.zeros(self.lists, np.int64)
        for number in np.unique(lists).tolist():
            starts[number] = int(held.get_codes(number))
        codes = np.empty((len(positions), size), np.uint8)
        to = codes.ctypes.data
        # Rows of one scope are few in each list: copying them one by one is five times as fast as by NumPy's views.
        for n, address in enumerate((starts[lists] + places.astype(np.int64) * size).tolist()):
            ctypes.memmove(to + n * size, address, size)
        index = faiss.IndexScalarQuantizer(self.index.d, self.index.sq.qtype, faiss.METRIC_INNER_PRODUCT)
        faiss.copy_array_to_vector(faiss.vector_to_array(self.index.sq.trained), index.sq.trained)
        index.is_trained = True
        if len(codes):
            index.add_sa_codes(codes)
        return Copy(index, positions)

    def _locate(self) -> None:
        """Read from the lists where each position is."""
        import faiss

        held = self.index.invlists
        for number in range(self.lists):
            self._sizes[number] = size = held.list_size(number)
            if size:
                self._place_of[faiss.rev_swig_ptr(held.get_ids(number), size)] = np.arange(size)


def _ranks(lists: IntArray) -> IntArray:
    """How many equal numbers stand before each."""
    order = np.argsort(lists, kind="stable")
    _, first, counts = np.unique(lists[order], return_index=True, return_counts=True)
    ranks = np.empty(len(lists), np.int64)
    ranks[order] = np.arange(len(lists)) - np.repeat(first, counts)
    return ranks
