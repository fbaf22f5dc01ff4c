"""What both stages share."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.rows import IntArray

_mine = threading.local()


class Nearest(NamedTuple):
    """Rows by position, best first, with their approximate cosines."""

    positions: IntArray
    scores: NDArray[np.float32]


def nearest(scores: NDArray[np.float32], positions: IntArray) -> Nearest:
    """FAISS's answer to one query, without its empty places."""
    there = positions[0] >= 0
    return Nearest(positions[0][there], scores[0][there])


def parameters(lists: int, selector: Any) -> Any:
    """FAISS's parameters of a search in so many lists, or in none if 0."""
    import faiss

    made: Any = faiss.SearchParametersIVF if lists else faiss.SearchParameters
    return made(sel=selector, nprobe=lists) if lists else made(sel=selector)


def one_thread() -> None:
    """Searches of this thread use one core: a single query gains nothing from more, and a team of threads that wait
    for each other takes the cores from other searches. FAISS keeps the number for each calling thread."""
    import faiss

    if not getattr(_mine, "set", False):
        faiss.omp_set_num_threads(1)
        _mine.set = True


def half_the_cores() -> None:
    """This thread trains, and leaves room for those that search. `OMP_NUM_THREADS` bounds both."""
    import faiss

    if not getattr(_mine, "set", False):
        faiss.omp_set_num_threads(max(1, faiss.omp_get_max_threads() // 2))
        _mine.set = True
