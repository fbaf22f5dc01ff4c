"""The trained stage of the vector index. Rows are grouped into lists of similar vectors (an inverted file), and vectors
are stored with 8 bits per dimension. The caller computes exact scores for the best rows. Outliers, the vectors that
these codes cannot represent, are also stored with 16 bits per dimension."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
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
)
from agentformer.index.vectors.lists import AssignedRows, ListCodes, Lists, can_map, empty_lists, joined
from agentformer.types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class Tuning:
    """The number of lists and rows that a search reads, and the recall that was measured with these numbers. The
    queries of this measurement are not the queries with which the numbers were chosen."""

    probes: int  # lists that a search reads
    candidates: int  # minimum number of rows that are re-ranked
    recall: float | None  # None if it was not measured yet
    queries: int = 0  # number of measured queries that came from users; the others were made from stored vectors


class OutlierCodes(NamedTuple):
    """The outliers of an index as they are saved in a snapshot: the position of each outlier, and its vector as bytes,
    with 16 bits per dimension."""

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

    def copy(self) -> Outliers:
        """Return a copy of the outliers, which can be changed independently."""
        return Outliers(self._flat.index.d, self.codes())

    def select(self, inside: Mask) -> Selection | None:
        """Return the outliers at the positions that are True in `inside`, as a `Selection` for `merge`, or None."""
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
        found = (
            Nearest(self._positions[near.positions], near.scores),
            Nearest(results.positions[others], results.scores[others]),
        )
        return _best(found, count)

    def codes(self) -> OutlierCodes:
        """Return the outliers as they are saved in a snapshot."""
        import faiss

        index: Any = self._flat.index
        return OutlierCodes(self._positions, faiss.vector_to_array(index.codes).reshape(-1, index.code_size))


class Ivf:
    """The trained stage of the index. Rows are grouped into lists around centroids, and a search reads the nearest
    lists. If a scope has at most `exact_rows` rows, a search reads every row of the scope. Such a search is exact
    except for the rounding to 8 bits.

    The lists have one or more parts, each for consecutive positions. Parts that are mapped from a file are fixed: their
    removed rows stay there, and each search leaves these rows out. New rows are added only to the last part."""

    name = "inverted"

    def __init__(
        self,
        parts: Sequence[Lists],
        trained_rows: int,
        trained_at: str,
        exact_rows: int,
        tuning: Tuning,
        outliers: Outliers,
    ) -> None:
        """`parts` has at least one part, and the index of the first part has the centroids. `trained_rows` is the
        number of rows at the training, and `trained_at` is the time of the training in ISO 8601, UTC."""
        import faiss

        self.parts = list(parts)
        self.index = self.parts[0].index  # a FAISS index; it has the centroids, even if its rows were moved to a file
        self.trained_rows = trained_rows
        self.trained_at = trained_at
        self.exact_rows = exact_rows
        self.tuning = tuning
        self.outliers = outliers
        self._max_code = -float(faiss.vector_to_array(self.index.sq.trained)[0])  # the largest number in a code
        self._quantizer: Any = faiss.downcast_index(self.index.quantizer)
        # A query is compared with every centroid. The graph that finds the list of a row would miss lists for one query
        # in a hundred, because queries are farther from the centroids than rows are.
        self._centroids: Any = self._quantizer
        if isinstance(self._quantizer, faiss.IndexHNSWFlat):
            self._centroids = faiss.downcast_index(self._quantizer.storage)

    @property
    def lists(self) -> int:
        return int(self.index.nlist)

    @property
    def size(self) -> int:
        """The number of positions in all parts. Positions without a row are counted, too."""
        return int(self.parts[-1].first + self.parts[-1].size)

    @property
    def bytes(self) -> int:
        """The memory size of codes, centroids, row offsets and outliers in bytes. Python objects and codes that are
        mapped from a file are not counted."""
        centroids = self.lists * int(self.index.d) * 4
        return sum(part.bytes for part in self.parts) + centroids + self.outliers.bytes

    @property
    def mapped(self) -> int:
        """The number of positions whose codes are mapped from files."""
        return sum(part.size for part in self.parts if part.mapped)

    def encode(self, rows: Matrix) -> AssignedRows:
        """Return the vectors with the numbers of their nearest lists. The caller needs no lock, because the centroids
        never change."""
        rows = np.ascontiguousarray(rows, np.float32)
        limit_threads()
        return AssignedRows(rows, self._quantizer.assign(rows, 1).reshape(-1))

    def add(self, assigned: AssignedRows, start: int) -> None:
        """Add the rows that `encode` has returned, at consecutive positions that begin at `start`."""
        self.put(assigned, np.arange(start, start + len(assigned.rows)))

    def put(self, assigned: AssignedRows, positions: IntArray) -> None:
        """Add rows to the index at `positions`, which must lie in its last part. `encode` has returned the rows."""
        if len(positions) == 0:
            return
        self._open_part().put(assigned, positions)
        beyond = np.maximum(assigned.rows.max(axis=1), -assigned.rows.min(axis=1)) > self._max_code
        if beyond.any():
            self.outliers.add(assigned.rows[beyond], positions[beyond])

    def reserve(self, end: int) -> None:
        """Enlarge the index to `end` positions. A position may stay without a row."""
        if end > self.size:
            self._open_part().reserve(end)

    def spill(self, path: Path, above: int) -> None:
        """Move the rows of the last part to a mapped file, if their codes have more than `above` bytes. The file is
        deleted at once, but stays readable while it is mapped. If it cannot be written, the rows stay in memory."""
        last = self.parts[-1]
        if last.fixed or last.code_bytes <= above or not can_map():
            return
        with suppress(OSError, RuntimeError):
            self.parts[-1] = last.spilled(path)
            last.index.reset()

    def freeze(self) -> Ivf:
        """Return a copy with the current rows. The copy shares its parts with this index. The shared parts never change
        again: rows that are removed later stay in their lists, and new rows are added to a new part."""
        for part in self.parts:
            part.fixed = True
        frozen = copy(self)
        frozen.parts, frozen.outliers = list(self.parts), self.outliers.copy()
        return frozen

    def remove(self, positions: IntArray) -> None:
        """Remove the rows at these positions from the outliers, and from the lists that are not fixed."""
        if len(positions):
            dropped = np.zeros(self.size, np.bool_)
            dropped[positions] = True
            for part in self.parts:
                if not part.fixed:
                    part.remove(dropped)
            self.outliers.remove(dropped)

    def stuck(self, dead: Mask) -> int:
        """Return the number of dead rows that cannot be removed, because their lists are fixed. `dead` is True at the
        positions of dead rows."""
        return sum(int(np.count_nonzero(part.present(dead))) for part in self.parts if part.fixed)

    def select(self, rows: Rows, inside: Mask, holes: int) -> Selection:
        """Prepare searches in the rows that are True in `inside`. `holes` is the number of dead rows that FAISS still
        stores. If `holes` is 0 and `inside` contains all live rows, a search needs no filter."""
        count, outliers = int(np.count_nonzero(inside)), self.outliers.select(inside)
        if count == rows.live:
            return Selection(count, bitmap_selector(inside) if holes else None, outliers=outliers)
        if count <= self.exact_rows:
            return Selection(count, copy=self._copy_codes(np.flatnonzero(inside)), outliers=outliers)
        lists = np.sum([part.count(part.within(inside)) for part in self.parts], axis=0)
        return Selection(count, bitmap_selector(inside), lists, outliers=outliers)

    def search(self, query: Vector, count: int, selection: Selection, probes: int = 0) -> Nearest:
        """Return the `count` rows of the selection that are nearest to the query. `probes` is the number of lists to
        read; 0 means the number that was chosen by the last tuning."""
        results = self._search_codes(query, count, selection, probes)
        return self.outliers.merge(results, query, count, selection.outliers) if selection.outliers else results

    def read(self, number: int, live: Mask | None = None) -> ListCodes:
        """Return the rows of one list. Rows at positions that are False in `live` are left out."""
        return joined(self.parts, number, live)

    def sizes(self, live: Mask | None) -> NDArray[np.int64]:
        """Return the number of rows that `read` returns for each list, for the same `live`."""
        sizes: NDArray[np.int64] = np.sum([part.count(part.present(live)) for part in self.parts], axis=0)
        return sizes

    def list_of(self) -> NDArray[np.int32]:
        """Return the number of the list of each position."""
        return np.concatenate([part.list_of for part in self.parts])

    def _open_part(self) -> Lists:
        if self.parts[-1].fixed:
            self.parts.append(Lists(empty_lists(self.index), self.size))
        return self.parts[-1]

    def _search_codes(self, query: Vector, count: int, selection: Selection, probes: int) -> Nearest:
        """Search with the 8-bit codes only. The scores of outliers are too low in this result."""
        limit_threads()
        row, count = np.ascontiguousarray(query.reshape(1, -1), np.float32), min(count, selection.count)
        if selection.copy is not None:
            results = nearest(*selection.copy.index.search(row, count))
            return Nearest(selection.copy.positions[results.positions], results.scores)
        lists = self._lists_of_scope(row, selection, probes or self.tuning.probes)
        if lists is None:
            # The tuned number of lists is useless after nearly all rows were removed.
            shrunk = selection.count <= self.exact_rows < self.trained_rows and not probes
            lists = self._nearest_lists(row, self.lists if shrunk else probes or self.tuning.probes)
        found = [part.search(row, count, lists, selection.selector) for part in self.parts if part.size]
        return found[0] if len(found) == 1 else _best(found, count)

    def _nearest_lists(self, row: Matrix, count: int) -> IntArray:
        lists: IntArray = self._centroids.assign(row, count)[0]
        return lists

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
        count = min(self.lists, int(2 * probes / share) + 1)
        order = self._nearest_lists(row, count)
        rows_read = np.cumsum(selection.lists[order])
        if rows_read[-1] < wanted:
            order = self._nearest_lists(row, self.lists)
            rows_read = np.cumsum(selection.lists[order])
        near = order[: int(np.searchsorted(rows_read, wanted)) + 1]
        return np.asarray(near[selection.lists[near] > 0], np.int64)

    def _copy_codes(self, positions: IntArray) -> CodeCopy:
        """Return a copy of the codes at these positions. A position without a code is left out. A row has no code if
        its vector was removed from the records before the row was added to the index."""
        import faiss

        copies = [part.copy(positions) for part in self.parts]
        index = faiss.IndexScalarQuantizer(self.index.d, self.index.sq.qtype, faiss.METRIC_INNER_PRODUCT)
        faiss.copy_array_to_vector(faiss.vector_to_array(self.index.sq.trained), index.sq.trained)
        index.is_trained = True
        for copied in copies:
            if len(copied.positions):
                index.add_sa_codes(copied.codes)
        return CodeCopy(index, np.concatenate([copied.positions for copied in copies]))


def _best(found: Sequence[Nearest], count: int) -> Nearest:
    """Return the `count` best of several results."""
    positions = np.concatenate([each.positions for each in found])
    scores = np.concatenate([each.scores for each in found])
    best = np.argsort(-scores, kind="stable")[:count]
    return Nearest(positions[best], scores[best])
