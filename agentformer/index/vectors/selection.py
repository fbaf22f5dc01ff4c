"""Which rows a search may find, worked out once for each state of a scope and of the index."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors.rows import IntArray, Mask

_KEPT = 16  # scopes; one of a million rows takes 125 kB here and 1 MB for its `ScopeMask`
_COPIED = 131_072  # rows of all copies together: 50 MB at 384 dimensions


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The live rows inside a scope."""

    count: int
    selector: Any = None  # a FAISS selector of these rows; None where every row in the index is one of them
    lists: NDArray[np.int64] | None = None  # how many each list of a trained index has; None for all live rows
    copy: Copy | None = None  # of the rows of a small scope of a trained index
    apart: Selection | None = None  # of those that a trained index keeps apart; None for none


class Copy(NamedTuple):
    """The codes of some rows side by side: scanning these takes a tenth of finding them in all lists."""

    index: Any  # of FAISS; its ids are places in `positions`
    positions: IntArray


class Selections:
    """Memtable selections, each valid for one generation of the index. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[int, tuple[ScopeMask, int, Selection]] = OrderedDict()

    def of(self, allowed: ScopeMask, generation: int, make: Callable[[], Selection]) -> Selection:
        key = id(allowed)  # the object is kept with its selection, so no other one can have its id
        with self._lock:
            known = self._known.get(key)
            if known is not None and known[1] == generation:
                self._known.move_to_end(key)
                return known[2]
        made = make()
        with self._lock:
            self._known[key] = (allowed, generation, made)
            self._known.move_to_end(key)
            while len(self._known) > 1 and (len(self._known) > _KEPT or self._copied() > _COPIED):
                self._known.popitem(last=False)
        return made

    def _copied(self) -> int:
        return sum(selection.count for _, _, selection in self._known.values() if selection.copy)


def selector(inside: Mask) -> Any:
    """FAISS's way to say which positions count."""
    import faiss

    bits: Any = np.packbits(inside, bitorder="little")
    return faiss.IDSelectorBitmap(bits)  # type: ignore[call-arg]
