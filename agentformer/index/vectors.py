"""The vector index: FAISS, exact, half-precision, with tombstones.

Rows are addressed by position. FAISS holds the vectors; beside it stand, per position, the window's id,
its entry's number and whether it is alive. A deleted row is masked at once and swept out when enough have
gathered, and a scope is a mask over positions too, so a filtered search is exact and cheaper, not an
afterthought. Half precision halves memory and costs about 1e-4 in a score; callers re-rank exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from agentformer.types import Matrix, Vector

_SWEEP_SHARE = 0.25  # sweep when this share of the rows is dead: a sweep costs a copy, a dead row costs each search
_SWEEP_LEAST = 1024


class Found(NamedTuple):
    """A window in order of nearness."""

    window: int
    entry: int
    score: float  # cosine, higher is better


class VectorIndex:
    """Cosine search over windows. Not thread-safe: its owner holds a lock."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._faiss: Any = _empty(dimension)
        self._windows = np.zeros(0, np.int64)
        self._entries = np.zeros(0, np.int64)
        self._alive = np.zeros(0, np.bool_)
        self._size = 0  # rows in use; the arrays above have room for more
        self._dead = 0
        self._positions: dict[int, list[int]] = {}  # entry -> its live positions

    def __len__(self) -> int:
        return self._size - self._dead

    def add(self, windows: NDArray[np.int64], entries: NDArray[np.int64], rows: Matrix) -> None:
        """Add windows. Rows are unit vectors, (len(windows), dimension)."""
        if len(rows) == 0:
            return
        self._faiss.add(np.ascontiguousarray(rows, dtype=np.float32))
        self._adopt(windows, entries)

    def drop(self, entry: int) -> None:
        """Take an entry's windows out; unknown entries are ignored."""
        positions = self._positions.pop(entry, [])
        self._alive[positions] = False
        self._dead += len(positions)
        if self._dead > max(_SWEEP_LEAST, self._size * _SWEEP_SHARE):
            self._sweep()

    def search(self, query: Vector, limit: int, allowed: NDArray[np.bool_]) -> list[Found]:
        """The best window of each of the `limit` best entries among `allowed` (a mask by entry number)."""
        mask = self._mask(allowed)
        candidates = int(mask.sum())
        wanted = limit
        while candidates:
            rows = min(wanted, candidates)
            found = self._best(query, rows, mask)
            if len(found) >= limit or rows == candidates:
                return found[:limit]
            wanted *= 4  # entries with many windows filled the list
        return []

    def snapshot(self) -> Any:
        """A FAISS index of the live rows with their window ids, to be written to a file."""
        self._sweep()
        out = faiss.IndexIDMap(_empty(self.dimension))
        _fill(faiss.downcast_index(out.index), _codes(self._faiss))
        faiss.copy_array_to_vector(self._windows[: self._size].copy(), out.id_map)
        out.ntotal = self._size
        return out

    @classmethod
    def restored(cls, saved: Any, entry_of: Mapping[int, int]) -> VectorIndex:
        """The inverse of `snapshot`; rows whose window is not in `entry_of` are dropped."""
        index = cls(saved.d)
        windows = faiss.vector_to_array(saved.id_map)
        _fill(index._faiss, _codes(faiss.downcast_index(saved.index)))
        index._adopt(windows, np.fromiter((entry_of.get(w, -1) for w in windows.tolist()), np.int64, len(windows)))
        index.drop(-1)
        return index

    def _adopt(self, windows: NDArray[np.int64], entries: NDArray[np.int64]) -> None:
        start, end = self._size, self._size + len(windows)
        if end > len(self._windows):
            room = max(end, 2 * len(self._windows), 256)
            self._windows = _grown(self._windows, room)
            self._entries = _grown(self._entries, room)
            self._alive = _grown(self._alive, room)
        self._windows[start:end] = windows
        self._entries[start:end] = entries
        self._alive[start:end] = True
        for position, entry in enumerate(entries.tolist(), start):
            self._positions.setdefault(entry, []).append(position)
        self._size = end

    def _mask(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        entries = self._entries[: self._size]
        inside = (entries >= 0) & (entries < len(allowed))
        mask = self._alive[: self._size] & inside
        mask[mask] = allowed[entries[mask]]
        return mask

    def _best(self, query: Vector, rows: int, mask: NDArray[np.bool_]) -> list[Found]:
        bits = np.packbits(mask, bitorder="little")
        selector = faiss.IDSelectorBitmap(self._size, faiss.swig_ptr(bits))
        parameters = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        scores, positions = self._faiss.search(query.reshape(1, -1), rows, params=parameters)
        found: dict[int, Found] = {}
        for score, position in zip(scores[0].tolist(), positions[0].tolist(), strict=True):
            if position >= 0:
                entry = int(self._entries[position])
                found.setdefault(entry, Found(int(self._windows[position]), entry, score))
        return list(found.values())

    def _sweep(self) -> None:
        """Rebuild without dead rows."""
        if not self._dead:
            return
        kept = np.flatnonzero(self._alive[: self._size])
        fresh = VectorIndex(self.dimension)
        _fill(fresh._faiss, _codes(self._faiss)[kept])
        fresh._adopt(self._windows[kept], self._entries[kept])
        self.__dict__.update(fresh.__dict__)


def _empty(dimension: int) -> Any:
    return faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)


def _codes(index: Any) -> NDArray[np.uint8]:
    """The stored rows as they are, (rows, bytes per row)."""
    codes: NDArray[np.uint8] = faiss.vector_to_array(index.codes).reshape(-1, index.code_size)
    return codes


def _fill(index: Any, codes: NDArray[np.uint8]) -> None:
    """Put rows into an empty index."""
    faiss.copy_array_to_vector(np.ascontiguousarray(codes).reshape(-1), index.codes)
    index.ntotal = len(codes)


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    out = np.zeros(size, array.dtype)
    out[: len(array)] = array
    return out
