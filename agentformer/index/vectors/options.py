"""When and how the vector index grows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """The numbers of rows were chosen by measurement (docs/BENCHMARKS.md)."""

    train_at: int = 30_000  # rows from which on the lists, with their re-ranking, are faster than a scan
    exact_rows: int = 50_000  # rows inside a scope up to which a trained index scans all of them
    target_recall: float = 0.99  # of the ten best, where a search is not exact
    train_after: float = 5.0  # seconds of an opened index; a process that only asks once is gone before
