"""The rows of the vector index, and the exact stage of the index, which compares a query with every row. The vectors of
this stage are stored with 16 bits per dimension."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.scope_masks import ScopeMask
from agentformer.types import Matrix, Vector

IntArray = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MIN_CAPACITY = 256
_MAX_SELECTIONS = 16  # maximum cached selections; one with a million rows takes 125 kB, and its `ScopeMask` 1 MB
_MAX_COPIED_ROWS = 131_072  # maximum rows in all copies together: 50 MB at 384 dimensions

_thread = threading.local()


class Rows:
    """The numbers that belong to each row of the vector index: the number of its window (a part of an entry), of its
    entry, and of its vector. A row is identified by its position. A removed row is dead: it keeps its position, and its
    entry number is set to -1. Not thread-safe."""

    def __init__(self, windows: Sequence[int] | IntArray = (), entries: Any = (), vectors: Any = ()) -> None:
        self.size = len(entries)
        # (3, capacity): the window, entry and vector number of each position
        self._numbers: IntArray = np.empty((3, self.size), _kind(windows, entries, vectors))
        for kind, numbers in enumerate((windows, entries, vectors)):
            self._numbers[kind] = numbers
        self.dead = int(np.count_nonzero(self.entries < 0))
        self.newest_entry = int(self.entries.max(initial=-1))
        self.newest_window = int(self.windows.max(initial=-1))

    @property
    def live(self) -> int:
        return self.size - self.dead

    @property
    def windows(self) -> IntArray:
        return self._numbers[0, : self.size]

    @property
    def entries(self) -> IntArray:
        return self._numbers[1, : self.size]

    @property
    def vectors(self) -> IntArray:
        return self._numbers[2, : self.size]

    @property
    def bytes(self) -> int:
        return self._numbers.nbytes

    def append(self, windows: IntArray, entries: IntArray, vectors: IntArray) -> None:
        """Add rows at the end. The arrays have one element for each row: the number of its window (`windows`), of its
        entry (`entries`), and of its vector (`vectors`)."""
        end = self.size + len(windows)
        kind = np.promote_types(self._numbers.dtype, _kind(windows, entries, vectors))
        if end > self._numbers.shape[1] or kind != self._numbers.dtype:
            larger = np.zeros((3, max(end, self.size + self.size // 4, _MIN_CAPACITY)), kind)
            larger[:, : self.size] = self._numbers[:, : self.size]
            self._numbers = larger
        self._numbers[:, self.size : end] = windows, entries, vectors
        self.size = end
        self.dead += int(np.count_nonzero(entries < 0))
        self.newest_entry = max(self.newest_entry, int(entries.max(initial=-1)))
        self.newest_window = max(self.newest_window, int(windows.max(initial=-1)))

    def drop(self, entries: IntArray) -> IntArray:
        """Mark all rows of the given entries as dead. Return the positions of the rows that were marked."""
        entries = entries[(entries >= 0) & (entries <= self.newest_entry)]
        if len(entries) == 0:
            return entries
        if len(entries) == 1:  # one comparison with all rows takes half a millisecond for a million rows
            positions = np.flatnonzero(self.entries == entries[0])
        else:
            table = np.zeros(self.newest_entry + 2, np.bool_)  # the last element is for -1, the entry of dead rows
            table[entries] = True
            positions = np.flatnonzero(table[self.entries])
        return self.drop_positions(positions)

    def drop_positions(self, positions: IntArray) -> IntArray:
        """Mark the rows at these positions as dead. Return the positions of the rows that were not dead before."""
        positions = positions[self.entries[positions] >= 0]
        self.entries[positions] = -1
        self.dead += len(positions)
        return positions

    def inside(self, allowed: Mask) -> Mask:
        """Return a boolean array with one element for each row. It is True if the entry of the row is True in
        `allowed`, which has one element for each entry number. Dead rows are False."""
        table = np.zeros(self.newest_entry + 2, np.bool_)
        end = min(len(allowed), self.newest_entry + 1)
        table[:end] = allowed[:end]
        inside: Mask = table[self.entries]
        return inside

    def take(self, positions: IntArray) -> Rows:
        """Return a copy that contains only the rows at these positions, in this order."""
        return Rows(*self._numbers[:, positions])


def _kind(*numbers: Any) -> Any:
    """Return the integer type for these numbers: 32 bits if all of them fit, otherwise 64 bits."""
    largest = max(int(np.max(each, initial=0)) for each in numbers)
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


class Nearest(NamedTuple):
    """The result of a search: positions of rows, best first, and the approximate cosine of each row."""

    positions: IntArray
    scores: NDArray[np.float32]


class CodeCopy(NamedTuple):
    """A copy of the codes (compressed vectors) of the rows in a small scope. The copy is one block of memory, so a
    search reads it about ten times as fast as the lists of the index."""

    index: Any  # a FAISS index; its ids are indices into `positions`
    positions: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The rows that one search may return: all rows of a scope that are not dead. `count` is the number of these
    rows."""

    count: int
    selector: Any = None  # a FAISS selector for these rows; None for all rows of the index
    lists: NDArray[np.int64] | None = None  # number of these rows in each trained list; None if not needed
    copy: CodeCopy | None = None  # a copy of the rows of a small scope, in a trained index
    outliers: Selection | None = None  # the outliers among these rows, in a trained index; None if there are none


class SelectionCache:
    """A cache of recent selections. A selection is valid until the index changes; each change increases the generation
    number of the index. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selections: OrderedDict[int, tuple[ScopeMask, int, Selection]] = OrderedDict()

    def get(self, mask: ScopeMask, generation: int, make: Callable[[], Selection]) -> Selection:
        """Return the selection for a scope mask and generation of the index, from the cache or from `make`."""
        key = id(mask)  # the mask is stored with its selection, so that no other object can get its id
        with self._lock:
            cached = self._selections.get(key)
            if cached is not None and cached[1] == generation:
                self._selections.move_to_end(key)
                return cached[2]
        selection = make()
        with self._lock:
            self._selections[key] = (mask, generation, selection)
            self._selections.move_to_end(key)
            while len(self._selections) > 1 and self._too_large():
                self._selections.popitem(last=False)
        return selection

    def _too_large(self) -> bool:
        copied = sum(selection.count for _, _, selection in self._selections.values() if selection.copy)
        return len(self._selections) > _MAX_SELECTIONS or copied > _MAX_COPIED_ROWS


class Flat:
    """The exact stage of the vector index. A search compares the query with all rows, or with all rows of a scope.
    Vectors are stored with 16 bits per dimension. This needs half the memory of 32 bits and changes a score by about
    0.0001. Callers compute exact scores for the best rows."""

    name = "exact"

    def __init__(self, dimension: int, index: Any = None) -> None:
        import faiss

        half = faiss.ScalarQuantizer.QT_fp16
        self.index: Any = index or faiss.IndexScalarQuantizer(dimension, half, faiss.METRIC_INNER_PRODUCT)

    @property
    def bytes(self) -> int:
        return int(self.index.ntotal * self.index.code_size)

    def encode(self, rows: Matrix) -> NDArray[np.uint8]:
        """Return the codes of vectors: each element is rounded to 16 bits. The caller needs no lock."""
        return np.ascontiguousarray(rows, "<f2").view(np.uint8)

    def add(self, codes: NDArray[np.uint8], start: int) -> None:
        """Add codes at the end. `start` is the position of the first new row, which is equal to the current number of
        rows."""
        self.index.add_sa_codes(codes)

    def search(self, query: Vector, count: int, selection: Selection, probes: int = 0) -> Nearest:
        """Return the `count` rows of the selection that are nearest to the query. `probes` has no effect here."""
        limit_threads()
        parameters = search_parameters(0, selection.selector) if selection.selector is not None else None
        return nearest(*self.index.search(query.reshape(1, -1), min(count, selection.count), params=parameters))

    def select(self, rows: Rows, inside: Mask, holes: int) -> Selection:
        """Prepare searches in the rows that are True in `inside`. `holes` is the number of dead rows that FAISS still
        stores. If `holes` is 0 and `inside` contains all live rows, a search needs no filter."""
        count = int(np.count_nonzero(inside))
        return Selection(count, None if count == rows.live and not holes else bitmap_selector(inside))

    def take(self, positions: IntArray) -> Flat:
        """Return a copy that contains only the codes at these positions, in this order."""
        import faiss

        codes = faiss.vector_to_array(self.index.codes).reshape(-1, self.index.code_size)
        copy = Flat(self.index.d)
        if len(positions):
            copy.index.add_sa_codes(np.ascontiguousarray(codes[positions]))
        return copy


def nearest(scores: NDArray[np.float32], positions: IntArray) -> Nearest:
    """Convert the result arrays of FAISS for one query. Unused places, which FAISS fills with -1, are left out."""
    used = positions[0] >= 0
    return Nearest(positions[0][used], scores[0][used])


def search_parameters(lists: int, selector: Any) -> Any:
    """Return the FAISS parameters for a search. `lists` is the number of lists to read, or 0 for an index without
    lists. `selector` limits the search to some rows."""
    import faiss

    kind: Any = faiss.SearchParametersIVF if lists else faiss.SearchParameters
    return kind(sel=selector, nprobe=lists) if lists else kind(sel=selector)


def bitmap_selector(inside: Mask) -> Any:
    """Return a FAISS selector for the positions that are True in `inside`."""
    import faiss

    bits: Any = np.packbits(inside, bitorder="little")
    return faiss.IDSelectorBitmap(bits)  # type: ignore[call-arg]


def limit_threads(*, training: bool = False) -> None:
    """Limit the number of threads that FAISS uses for calls from the current thread: one, or half of the cores if
    `training` is True. Later calls in the same thread have no effect. A single query is not faster with more threads,
    and additional threads would slow down other searches. The environment variable `OMP_NUM_THREADS` sets an upper
    limit."""
    import faiss

    if not getattr(_thread, "set", False):
        faiss.omp_set_num_threads(max(1, faiss.omp_get_max_threads() // 2) if training else 1)
        _thread.set = True
