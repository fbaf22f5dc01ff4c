"""Inverted lists: the codes of the rows of a trained index, grouped by the nearest centroid. `Lists` are either in
memory and change, or they are mapped from a file and never change. The operating system caches mapped lists, so several
processes share them, and only the parts that a search needs are read."""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.flat import IntArray, Mask, Nearest, bitmap_selector, nearest, search_parameters
from agentformer.settings.access import opener
from agentformer.types import Matrix

MAP_BYTES = 64_000_000  # codes with at least so many bytes are mapped from the snapshot
NO_OFFSET = -1  # the offset of a position without a row
_NO_LISTS = b"il00"  # the mark of an index without lists in a FAISS file
_ARRAY_LISTS = b"ilar"  # the mark of an index whose lists follow in the file

Codes = NDArray[np.uint8]


class ListCodes(NamedTuple):
    """The rows of one list: the position of each row, and its code."""

    positions: IntArray
    codes: Codes  # (rows, bytes of a code)


class AssignedRows(NamedTuple):
    """Vectors, and for each vector the number of the list that it belongs to."""

    rows: Matrix
    lists: IntArray


class Lists:
    """The inverted lists of the rows at consecutive positions of the index, from `first` on. Arrays of this class start
    at `first`: the position `first + 3` has the place 3 in them. Not thread-safe."""

    def __init__(
        self, index: Any, first: int = 0, places: NDArray[np.int32] | None = None, *, mapped: bool = False
    ) -> None:
        """`index` is a FAISS index with lists; its ids are positions. `places` has the shape (2, positions). It
        contains for each position the number of its list, and its offset in this list or `NO_OFFSET`. It may be None
        only if the index has no rows. `mapped` is True if the lists are mapped from a file."""
        self.index = index
        self.first = first
        self.mapped = mapped
        self.fixed = mapped  # rows cannot be added or removed
        self._places = np.zeros((2, 0), np.int32) if places is None else places
        self._list_sizes = np.zeros(self.lists, np.int64)
        self.size = self._places.shape[1]
        if not mapped:
            self._read_sizes()

    @property
    def lists(self) -> int:
        return int(self.index.nlist)

    @property
    def bytes(self) -> int:
        """The memory size of codes, list numbers and offsets in bytes. Codes that are mapped are not counted."""
        return self._places.nbytes + (0 if self.mapped else self.code_bytes)

    @property
    def code_bytes(self) -> int:
        """The size of all codes and of their positions in bytes."""
        return int(self.index.ntotal) * (int(self.index.code_size) + 8)

    @property
    def list_of(self) -> NDArray[np.int32]:
        """The list number of each position."""
        return self._places[0, : self.size]

    @property
    def offset_of(self) -> NDArray[np.int32]:
        """The offset of each position: the number of rows before it in its list. `NO_OFFSET` if it has no row."""
        return self._places[1, : self.size]

    def put(self, assigned: AssignedRows, positions: IntArray) -> None:
        """Add rows. `positions` contains the position of each row in the index."""
        import faiss

        self.reserve(int(positions.max()) + 1)
        places = positions - self.first
        self.list_of[places] = assigned.lists
        self.offset_of[places] = self._list_sizes[assigned.lists] + _occurrences(assigned.lists)
        self._list_sizes += np.bincount(assigned.lists, minlength=self.lists)
        lists, ids = np.ascontiguousarray(assigned.lists, np.int64), np.ascontiguousarray(positions, np.int64)
        self.index.add_core(len(ids), *(faiss.swig_ptr(array) for array in (assigned.rows, ids, lists)))

    def reserve(self, end: int) -> None:
        """Enlarge the lists to all positions below `end`. A position may stay without a row."""
        size = end - self.first
        if size > self._places.shape[1]:
            larger = np.zeros((2, max(size, self.size + self.size // 4)), np.int32)
            larger[1] = NO_OFFSET
            larger[:, : self.size] = self._places[:, : self.size]
            self._places = larger
        self.size = max(self.size, size)

    def remove(self, dropped: Mask) -> None:
        """Remove the rows at the positions that are True in `dropped`."""
        removed = self.present(dropped)
        if not removed.any():
            return
        self.index.remove_ids(bitmap_selector(dropped))
        self.offset_of[removed] = NO_OFFSET
        self._read_sizes()
        for number in np.unique(self.list_of[removed]).tolist():  # FAISS has moved other rows of these lists
            places = self.read(number).positions - self.first
            self.offset_of[places] = np.arange(len(places))

    def spilled(self, path: Path) -> Lists:
        """Return lists with the same rows, mapped from a new file at `path`. The file is deleted immediately; the
        operating system keeps its content while the lists are used. Raises `OSError` or `RuntimeError` if the file
        cannot be written or mapped."""
        try:
            with open(path, "xb", opener=opener) as file:
                write_lists(
                    file.write, empty_lists(self.index, centroids=False), self._list_sizes, all_joined([self], None)
                )
            return Lists(map_index(path), self.first, self._places[:, : self.size].copy(), mapped=True)
        finally:
            path.unlink(missing_ok=True)

    def within(self, mask: Mask) -> Mask:
        """Return a part of a mask: only the elements for the positions in these lists. `mask` has one element for each
        position of the index."""
        return mask[self.first : self.first + self.size]

    def present(self, live: Mask | None) -> Mask:
        """Return a mask of the positions whose rows are in the lists. If `live` is given, only positions that are True
        in `live` are included."""
        present: Mask = self.offset_of >= 0
        if live is not None:
            own = self.within(live)
            present[: len(own)] &= own
            present[len(own) :] = False
        return present

    def count(self, places: Mask) -> NDArray[np.int64]:
        """Return for each list the number of its rows at positions that are True in `places`. The mask `places` covers
        only these lists: its first element belongs to the position `self.first`."""
        return np.bincount(self.list_of[: len(places)][places], minlength=self.lists)

    def search(self, row: Matrix, count: int, lists: IntArray, selector: Any) -> Nearest:
        """Return the `count` rows in these lists that are nearest to the query `row` and that the selector allows."""
        import faiss

        lists = np.ascontiguousarray(lists, np.int64)
        centroids = np.zeros(len(lists), np.float32)  # unused: codes represent rows, not differences from centroids
        scores, positions = np.empty((1, count), np.float32), np.empty((1, count), np.int64)
        parameters = search_parameters(len(lists), selector)
        pointers = [faiss.swig_ptr(array) for array in (lists, centroids, scores, positions)]
        self.index.search_preassigned_c(1, faiss.swig_ptr(row), count, *pointers, False, parameters)
        return nearest(scores, positions)

    def copy(self, positions: IntArray) -> ListCodes:
        """Return a copy of the codes at these positions. Positions that are not in the lists are left out."""
        places = positions - self.first
        inside = (places >= 0) & (places < self.size)
        places, positions = places[inside], positions[inside]
        offsets, size = self.offset_of[places], int(self.index.code_size)
        present = offsets >= 0
        lists, offsets, positions = self.list_of[places][present], offsets[present], positions[present]
        if not len(positions):
            return ListCodes(positions, np.zeros((0, size), np.uint8))
        starts = np.zeros(self.lists, np.int64)
        for number in np.unique(lists).tolist():
            starts[number] = int(self.index.invlists.get_codes(number))
        return ListCodes(positions, _gather(starts[lists] + offsets.astype(np.int64) * size, size))

    def read(self, number: int) -> ListCodes:
        """Return the rows of one list. The arrays are views, which are valid until the lists change."""
        import faiss

        inverted, width = self.index.invlists, int(self.index.code_size)
        size = int(inverted.list_size(number))
        if not size:
            return ListCodes(np.zeros(0, np.int64), np.zeros((0, width), np.uint8))
        codes = faiss.rev_swig_ptr(inverted.get_codes(number), size * width).reshape(size, width)
        return ListCodes(faiss.rev_swig_ptr(inverted.get_ids(number), size), codes)

    def _read_sizes(self) -> None:
        inverted = self.index.invlists
        self._list_sizes[:] = [inverted.list_size(number) for number in range(self.lists)]


def empty_lists(index: Any, *, centroids: bool = True) -> Any:
    """Return an empty FAISS index whose codes have the same format as the codes of `index`. It shares the centroids of
    `index`, unless `centroids` is False. An index without centroids can be searched only in lists that the caller
    names."""
    import faiss

    quantizer: Any = index.quantizer if centroids else faiss.IndexFlatIP(index.d)
    kind, metric = index.sq.qtype, faiss.METRIC_INNER_PRODUCT
    empty = faiss.IndexIVFScalarQuantizer(quantizer, index.d, index.nlist, kind, metric, False)
    faiss.copy_array_to_vector(faiss.vector_to_array(index.sq.trained), empty.sq.trained)
    empty.is_trained = True
    # These objects own the centroids, so they must exist as long as `empty`.
    empty.referenced_objects = [quantizer, index]  # type: ignore[attr-defined]
    return empty


def write_lists(write: Callable[[Any], object], index: Any, sizes: IntArray, read: Iterable[ListCodes]) -> None:
    """Write an index in the format of FAISS with the function `write`, which receives bytes. `index` provides the
    centroids and the format of the codes. `sizes` contains the number of rows of each list, and `read` yields the rows
    of each list, so that only one list at a time must be in memory."""
    faiss: Any = importlib.import_module("faiss")
    header = empty_lists(index)  # `index` itself may have lists
    header.replace_invlists(None, False)
    header.ntotal = int(sizes.sum())
    data = faiss.serialize_index(header).tobytes()
    if not data.endswith(_NO_LISTS):
        raise ValueError("this version of FAISS writes an index without lists in an unknown way")
    write(data[: -len(_NO_LISTS)])
    write(_ARRAY_LISTS + struct.pack("<QQ", len(sizes), index.code_size) + b"full" + struct.pack("<Q", len(sizes)))
    write(np.ascontiguousarray(sizes, "<u8").data)
    for positions, codes in read:
        if len(positions):
            write(np.ascontiguousarray(codes).reshape(-1).data)
            write(np.ascontiguousarray(positions, "<i8").data)


def can_map() -> bool:
    """Return whether lists can be mapped from a file: FAISS must support it, and the operating system must allow the
    deletion of a mapped file."""
    faiss: Any = importlib.import_module("faiss")
    return os.name == "posix" and hasattr(faiss, "IO_FLAG_MMAP_IFC")


def map_index(path: Path) -> Any:
    """Return the FAISS index in a file. Its lists are mapped from the file. Raises `FileNotFoundError` if the file was
    deleted, and `RuntimeError` if it cannot be read for another reason."""
    faiss: Any = importlib.import_module("faiss")
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:  # FAISS opens the file by its path and has one error for everything
        if path.exists():
            raise
        raise FileNotFoundError(path) from error


def joined(parts: Iterable[Lists], number: int, live: Mask | None) -> ListCodes:
    """Return the rows of one list from all parts, without rows at positions that are False in `live`."""
    found = [part.read(number) for part in parts]
    rows = found[0] if len(found) == 1 else ListCodes(*(np.concatenate(column) for column in zip(*found, strict=True)))
    if live is None or not len(rows.positions):
        return rows
    selected = rows.positions < len(live)
    selected[selected] = live[rows.positions[selected]]
    return rows if selected.all() else ListCodes(rows.positions[selected], rows.codes[selected])


def all_joined(parts: list[Lists], live: Mask | None) -> Iterator[ListCodes]:
    """Yield the rows of each list, collected from all parts."""
    for number in range(parts[0].lists):
        yield joined(parts, number, live)


def _gather(addresses: IntArray, size: int) -> Codes:
    """Return the bytes at these memory addresses: `size` bytes at each."""
    lowest = int(addresses.min())
    span = int(addresses.max()) - lowest + size
    memory: Any = (ctypes.c_uint8 * span).from_address(lowest)
    # a view with an item at each byte; NumPy copies only the requested items
    items: NDArray[Any] = np.ndarray((span - size + 1,), f"V{size}", memory, strides=(1,))
    return items[addresses - lowest].view(np.uint8).reshape(-1, size)


def _occurrences(lists: IntArray) -> IntArray:
    """Return for each element of `lists` how often the same number occurs before it. This number is added to the size
    of a list to get the offset of a new row: the second new row of a list comes one place after the first."""
    order = np.argsort(lists, kind="stable")
    _, first, counts = np.unique(lists[order], return_index=True, return_counts=True)
    ranks = np.empty(len(lists), np.int64)
    ranks[order] = np.arange(len(lists)) - np.repeat(first, counts)
    return ranks
