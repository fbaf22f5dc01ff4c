"""The rows of the vector index, and its first stage: all rows in half precision, searched without approximation."""

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
_MAX_SELECTIONS = 16  # one of a million rows takes 125 kB here and 1 MB for its `ScopeMask`
_MAX_COPIED_ROWS = 131_072  # of all copies together: 50 MB at 384 dimensions

_thread = threading.local()


class Rows:
    """Window number, entry number and vector number of each position, in arrays that grow together. A dead row keeps
    its position, and its entry number is -1. Not thread-safe."""

    def __init__(self, windows: Sequence[int] | IntArray = (), entries: Any = (), vectors: Any = ()) -> None:
        self._numbers = np.array([windows, entries, vectors], np.int64)  # by kind of number and by position
        self.size = len(entries)
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
        """Append rows."""
        end = self.size + len(windows)
        if end > self._numbers.shape[1]:
            larger = np.zeros((3, max(end, self.size + self.size // 2, _MIN_CAPACITY)), np.int64)
            larger[:, : self.size] = self._numbers[:, : self.size]
            self._numbers = larger
        self._numbers[:, self.size : end] = windows, entries, vectors
        self.size = end
        self.dead += int(np.count_nonzero(entries < 0))
        self.newest_entry = max(self.newest_entry, int(entries.max(initial=-1)))
        self.newest_window = max(self.newest_window, int(windows.max(initial=-1)))

    def drop(self, entries: IntArray) -> IntArray:
        """Mark the rows of these entries as dead. Return the positions of these rows."""
        entries = entries[(entries >= 0) & (entries <= self.newest_entry)]
        if len(entries) == 0:
            return entries
        if len(entries) == 1:  # one comparison of all rows: half a millisecond for a million
            positions = np.flatnonzero(self.entries == entries[0])
        else:
            table = np.zeros(self.newest_entry + 2, np.bool_)  # the last element belongs to the entry -1
            table[entries] = True
            positions = np.flatnonzero(table[self.entries])
        return self.drop_positions(positions)

    def drop_positions(self, positions: IntArray) -> IntArray:
        """Mark the rows at these positions as dead. Return the positions that were alive."""
        positions = positions[self.entries[positions] >= 0]
        self.entries[positions] = -1
        self.dead += len(positions)
        return positions

    def inside(self, allowed: Mask) -> Mask:
        """Return a mask by position of the live rows with entries in the given mask by entry number."""
        table = np.zeros(self.newest_entry + 2, np.bool_)
        end = min(len(allowed), self.newest_entry + 1)
        table[:end] = allowed[:end]
        inside: Mask = table[self.entries]
        return inside

    def take(self, positions: IntArray) -> Rows:
        """Return a copy with only these rows, in this order."""
        return Rows(*self._numbers[:, positions])


class Nearest(NamedTuple):
    """Positions of rows, best first, with their approximate cosines."""

    positions: IntArray
    scores: NDArray[np.float32]


class CodeCopy(NamedTuple):
    """A copy of the codes of some rows in one block. Scanning the copy takes a tenth of the time of finding the rows in
    all lists."""

    index: Any  # of FAISS; its ids are indices into `positions`
    positions: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The live rows of a scope."""

    count: int
    selector: Any = None  # a FAISS selector of these rows; None if they are all rows of the index
    lists: NDArray[np.int64] | None = None  # rows per list of a trained index; None for all live rows
    copy: CodeCopy | None = None  # of the rows of a small scope of a trained index
    outliers: Selection | None = None  # the outliers of a trained index among them; None for none


class SelectionCache:
    """Recent selections. Each selection is valid for one generation of the index. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selections: OrderedDict[int, tuple[ScopeMask, int, Selection]] = OrderedDict()

    def get(self, mask: ScopeMask, generation: int, make: Callable[[], Selection]) -> Selection:
        """Return the selection of a scope mask. If it is not cached for this generation, call `make`."""
        key = id(mask)  # the mask is stored with its selection, so that its id is not used again
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
    """A scan of all rows, or of the rows of a scope. Half precision needs half the memory and changes a score by about
    1e-4. Callers compute exact scores for the best rows."""

    name = "exact"

    def __init__(self, dimension: int, index: Any = None) -> None:
        import faiss

        half = faiss.ScalarQuantizer.QT_fp16
        self.index: Any = index or faiss.IndexScalarQuantizer(dimension, half, faiss.METRIC_INNER_PRODUCT)

    @property
    def bytes(self) -> int:
        return int(self.index.ntotal * self.index.code_size)

    def encode(self, rows: Matrix) -> NDArray[np.uint8]:
        """Return the codes of rows. This needs no lock."""
        return np.ascontiguousarray(rows, "<f2").view(np.uint8)

    def add(self, codes: NDArray[np.uint8], start: int) -> None:
        """Append rows. `start` must be the number of present rows."""
        self.index.add_sa_codes(codes)

    def search(self, query: Vector, count: int, selection: Selection, probes: int = 0) -> Nearest:
        """Return the `count` nearest rows of the selection. `probes` is not used."""
        limit_threads()
        parameters = search_parameters(0, selection.selector) if selection.selector is not None else None
        return nearest(*self.index.search(query.reshape(1, -1), min(count, selection.count), params=parameters))

    def select(self, rows: Rows, inside: Mask, holes: int) -> Selection:
        """Return the selection of a mask by position. The index still contains `holes` dead rows."""
        count = int(np.count_nonzero(inside))
        return Selection(count, None if count == rows.live and not holes else bitmap_selector(inside))

    def take(self, positions: IntArray) -> Flat:
        """Return a copy with only these rows, in this order."""
        import faiss

        codes = faiss.vector_to_array(self.index.codes).reshape(-1, self.index.code_size)
        copy = Flat(self.index.d)
        if len(positions):
            copy.index.add_sa_codes(np.ascontiguousarray(codes[positions]))
        return copy


def nearest(scores: NDArray[np.float32], positions: IntArray) -> Nearest:
    """Return the answer of FAISS to one query, without empty places (-1)."""
    used = positions[0] >= 0
    return Nearest(positions[0][used], scores[0][used])


def search_parameters(lists: int, selector: Any) -> Any:
    """Return the FAISS parameters for a search in `probes` lists. With 0, return the parameters for a flat search."""
    import faiss

    kind: Any = faiss.SearchParametersIVF if lists else faiss.SearchParameters
    return kind(sel=selector, nprobe=lists) if lists else kind(sel=selector)


def bitmap_selector(inside: Mask) -> Any:
    """Return a FAISS selector of the positions in a mask."""
    import faiss

    bits: Any = np.packbits(inside, bitorder="little")
    return faiss.IDSelectorBitmap(bits)  # type: ignore[call-arg]


def limit_threads(*, training: bool = False) -> None:
    """Make FAISS use one core in this thread, or half of the cores for a `training`. Only the first call in a thread
    has an effect. A single query is not faster with more cores, and the additional threads take time from other
    searches. `OMP_NUM_THREADS` is an upper limit."""
    import faiss

    if not getattr(_thread, "set", False):
        faiss.omp_set_num_threads(max(1, faiss.omp_get_max_threads() // 2) if training else 1)
        _thread.set = True
