"""The vector index; `index.py` is its entry point. In a small index, every vector is compared with the query. A large
index is trained: its vectors are grouped into lists, and a search reads only the nearest lists.

The options are in this module, because importing it loads neither FAISS nor NumPy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Options of the vector index: when it is trained, and how exact its searches are. The numbers of rows were chosen
    by measurement (bench/log/speed.md)."""

    train_at: int = 30_000  # from this number of rows on, inverted lists with re-ranking are faster than an exact scan
    exact_rows: int = 50_000  # in a scope with at most so many rows, a trained index scans all of them
    target_recall: float = 0.99  # wanted share of the ten best rows that a search finds if it is not exact
    train_after: float = 5.0  # seconds from opening to the first training; a process for a single query ends earlier
