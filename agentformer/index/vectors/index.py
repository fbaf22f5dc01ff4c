"""The vector index that grows itself: exact while it is small, trained and re-ranked when it is large.

Rows are addressed by position. Both stages show an added or dropped row at once; going from one stage to the next, and
from a trained index to a larger one, happens beside the searches (`build`) and in one step at its end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors.flat import Flat
from agentformer.index.vectors.ivf import Inverted, Tuning
from agentformer.index.vectors.lock import Gate
from agentformer.index.vectors.options import IndexOptions
from agentformer.index.vectors.outliers import Apart, Codes
from agentformer.index.vectors.rows import IntArray, Rows
from agentformer.index.vectors.selection import Selection, Selections
from agentformer.index.vectors.training import Interrupted, Stored, positions_of, trained
from agentformer.index.vectors.tuning import Asked, tuned
from agentformer.types import Matrix, Vector

_SWEEP_SHARE = 0.25  # sweep when this share of the rows is dead: a sweep costs a copy, a dead row costs each search
_SWEEP_LEAST = 1024
_HOLES = 1024  # dropped rows that wait in a trained index to be taken out together
_FEW = 256  # rows added during a training that the last step may take over while nothing else happens
_GROUP = 4_096  # rows taken over at a time before that
_SPARE = 16  # rows beyond those asked for, among which re-ranking finds what rounding moved over the end of the list
_RETUNE = 200  # queries of users after which the probes are measured with them

_APART_LEAST = 1_024  # rows that the codes cannot hold, and each search scans, before a training widens their range:
_APART_SHARE = 0.01  # so many, or this share of all

_NONE = np.zeros(0, np.int64)
EVERYTHING = ScopeMask(np.zeros(0, np.bool_), 0)  # stands for all live rows


class VectorHits(NamedTuple):
    """The windows nearest to a query, best first, of at least `limit` entries where there are as many."""

    query: Vector
    limit: int
    windows: IntArray
    entries: IntArray
    vectors: IntArray
    scores: NDArray[np.float32]
    sure: int  # the first so many hold the ten nearest as surely as the index was asked to


class Image(NamedTuple):
    """What a snapshot holds."""

    index: Any  # of FAISS
    rows: Rows
    lists: NDArray[np.int32] | None  # by position
    about: dict[str, Any]  # JSON values
    apart: Codes | None = None  # rows of a trained index that its codes cannot hold


class Base(NamedTuple):
    """The rows that a training begins with."""

    former: Rows  # of the index, which go on growing
    size: int  # that they had
    kept: IntArray  # positions of the live ones among them
    rows: Rows  # these


class VectorIndex:
    """Cosine search over windows. Thread-safe; one thread at a time calls `change`, and one `build` and `retune`."""

    def __init__(self, dimension: int, plan: IndexOptions | None = None) -> None:
        self.dimension = dimension
        self._plan = plan or IndexOptions()
        self._gate = Gate()
        self._stage: Flat | Inverted = Flat(dimension)
        self._rows = Rows.none()
        self._holes = 0  # dead rows that the stage still has
        self._generation = 0
        self._selections = Selections()
        self._asked = Asked()
        self._tuned_at = 0  # queries noted before the last tuning

    def __len__(self) -> int:
        return self._rows.live

    @property
    def newest_entry(self) -> int:
        return self._rows.newest_entry

    @property
    def newest_window(self) -> int:
        return self._rows.newest_window

    def change(self, gone: IntArray, windows: IntArray, entries: IntArray, vectors: IntArray, rows: Matrix) -> None:
        """Take the windows of the entries `gone` out and put others in, in one step. `vectors` are the numbers that
        `Stored` knows the rows by; rows are unit vectors, (len(windows), dimension)."""
        stage: Any = self._stage  # places and adds rows of its own kind
        placed = stage.place(rows) if len(windows) else None
        with self._gate.alone():
            self._holes += len(self._rows.drop(gone))
            if placed is not None:
                if stage is not self._stage:  # a trained one has taken its place meanwhile
                    stage = self._stage
                    placed = stage.place(rows)
                stage.add(placed, self._rows.size)
                self._rows.append(windows, entries, vectors)
            self._generation += 1
            if self._holes > self._bearable():
                self._sweep()

    def search(self, query: Vector, limit: int, allowed: ScopeMask) -> VectorHits:
        """Windows of the `limit` best entries among `allowed`, or of as many as there are, by approximate cosines. They
        are more than that where re-ranking needs more."""
        self._asked.note(query)
        with self._gate.shared():
            return self._nearest(query, limit, self._selection(allowed))

    def due(self) -> bool:
        """Is it time for `build`: the first training, one for twice the rows, one that leaves dead places out, or one
        for rows unlike those of the last?"""
        rows, stage = self._rows, self._stage
        if isinstance(stage, Flat):
            return rows.live >= self._plan.train_at
        unlike = stage.apart.size > max(_APART_LEAST, rows.live * _APART_SHARE)
        return unlike or rows.live >= 2 * stage.trained_rows or rows.dead > max(rows.live, _SWEEP_LEAST)

    def base(self) -> Base:
        """The rows of this moment, for `build`."""
        with self._gate.shared():
            kept = np.flatnonzero(self._rows.entries >= 0)
            return Base(self._rows, self._rows.size, kept, self._rows.taken(kept))

    def build(
        self,
        base: Base,
        stored: Stored,
        stopped: Callable[[], bool],
        changed: Callable[[], IntArray],
        keep: Callable[[Image], None],
    ) -> None:
        """Train an index beside the searches and put it, with all that came and went since `base`, in the place of the
        present one. Before that `keep` is given its image, without the entries that `changed` since `base`. Raises
        `Interrupted`."""
        rows = base.rows
        made = trained(rows.vectors, stored, self.dimension, self._plan.exact_rows, stopped)
        live, asked = made.select(rows, rows.entries >= 0, 0), self._asked.count

        def look(query: Vector, count: int, probes: int) -> IntArray:
            return made.search(query, count, live, probes).positions

        queries, target = self._asked.queries(), self._plan.target_recall
        made.tuning = tuned(look, made.lists, rows.vectors, queries, stored, target, stopped)
        made.forget(rows.drop(changed()))
        keep(image(made, rows))
        self._catch_up(made, base, stored)
        self._tuned_at = asked

    def retune_due(self) -> bool:
        """Have so many queries been asked since the last tuning that it should be made with them?"""
        return isinstance(self._stage, Inverted) and self._asked.count - self._tuned_at >= _RETUNE

    def retune(self, stored: Stored, stopped: Callable[[], bool]) -> None:
        """Measure recall with the latest queries and choose the probes by it. Raises `Interrupted`."""
        stage, asked = self._stage, self._asked.count
        if not isinstance(stage, Inverted):
            return
        with self._gate.shared():
            vectors = self._rows.vectors.copy()

        def look(query: Vector, count: int, probes: int) -> IntArray:
            with self._gate.shared():
                found = stage.search(query, count, self._selection(EVERYTHING), probes).positions
            return found[found < len(vectors)]

        self._tuned_at = asked
        stage.tuning = tuned(
            look, stage.lists, vectors, self._asked.queries(), stored, self._plan.target_recall, stopped
        )

    def status(self) -> dict[str, Any]:
        """For a person or a monitor, as JSON values. Recall is of the ten best; null where every search is exact."""
        return {**_about(self._stage, self._rows), "memory_bytes": self._stage.bytes + self._rows.bytes}

    @contextmanager
    def still(self) -> Iterator[Image]:
        """What a snapshot is written of; no row comes or goes meanwhile, and searches go on. Nothing of what was
        dropped is in it."""
        with self._gate.alone():
            self._sweep()
        with self._gate.shared():
            yield image(self._stage, self._rows)

    @classmethod
    def restored(cls, saved: Image, plan: IndexOptions | None = None) -> VectorIndex:
        """The inverse of `still`."""
        index = cls(int(saved.index.d), plan)
        index._rows = saved.rows
        if saved.lists is None:
            index._stage = Flat(index.dimension, saved.index)
        else:
            about = saved.about
            tuning = Tuning(about["probes"], about["candidates"], about["recall"], about["queries"])
            index._stage = Inverted(
                saved.index,
                about["trained_rows"],
                about["trained_at"],
                index._plan.exact_rows,
                tuning,
                Apart(index.dimension, saved.apart),
                saved.lists,
                len(saved.lists),
            )
        return index

    def _nearest(self, query: Vector, limit: int, selection: Selection) -> VectorHits:
        stage, probes = self._stage, 0
        if not selection.count or limit < 1:
            return VectorHits(query, limit, _NONE, _NONE, _NONE, np.zeros(0, np.float32), 0)
        sure = stage.tuning.candidates if isinstance(stage, Inverted) else 0
        wanted = max(limit + _SPARE, sure)
        while True:
            found = stage.search(query, wanted, selection, probes)
            entries = self._rows.entries[found.positions]
            if len(found.positions) >= selection.count or len(np.unique(entries)) >= limit:
                break
            if len(found.positions) >= wanted:
                wanted *= 4  # entries with many windows filled the list
            elif probes or isinstance(stage, Flat):
                break
            else:
                probes = stage.lists  # so many are asked for that the tuned ones do not hold them
        rows = self._rows
        positions = found.positions
        return VectorHits(query, limit, rows.windows[positions], entries, rows.vectors[positions], found.scores, sure)

    def _selection(self, allowed: ScopeMask) -> Selection:
        """Of the present generation; for who holds the gate."""

        def make() -> Selection:
            rows = self._rows
            inside = rows.entries >= 0 if allowed is EVERYTHING else rows.inside(allowed.mask)
            return self._stage.select(rows, inside, self._holes)

        return self._selections.of(allowed, self._generation, make)

    def _bearable(self) -> int:
        """Dead rows that the stage may hold: taking them out costs a pass over a trained index, and a copy of a flat
        one."""
        return _HOLES if isinstance(self._stage, Inverted) else max(_SWEEP_LEAST, int(self._rows.size * _SWEEP_SHARE))

    def _sweep(self) -> None:
        """Take dead rows out of the stage."""
        if not self._holes:
            return
        if isinstance(self._stage, Inverted):
            self._stage.forget(np.flatnonzero(self._rows.entries < 0))
        else:
            kept = np.flatnonzero(self._rows.entries >= 0)
            self._stage, self._rows = self._stage.kept(kept), self._rows.taken(kept)
        self._holes = 0
        self._generation += 1

    def _catch_up(self, made: Inverted, base: Base, stored: Stored) -> None:
        """Take over what came and went since `base`, and put `made` in the index's place. Raises `Interrupted` where a
        sweep gave the rows other positions meanwhile: the training begins again."""
        former, start, kept, rows = base
        done = start
        while True:
            with self._gate.shared():
                tail = self._rows.vectors[done:].copy()
            if len(tail) <= _FEW:
                break
            _put(made, tail[:_GROUP], rows.size + done - start, stored)
            done += len(tail[:_GROUP])
        with self._gate.alone():
            if self._rows is not former:
                raise Interrupted
            _put(made, former.vectors[done:], rows.size + done - start, stored)
            rows.die(np.flatnonzero(former.entries[kept] < 0))
            rows.append(former.windows[start:], former.entries[start:], former.vectors[start:])
            self._stage, self._rows, self._holes = made, rows, rows.dead
            self._generation += 1


def image(stage: Flat | Inverted, rows: Rows) -> Image:
    """What a snapshot of them holds."""
    if isinstance(stage, Inverted):
        return Image(stage.index, rows, stage.list_of[: rows.size], _about(stage, rows), stage.apart.codes())
    return Image(stage.index, rows, None, _about(stage, rows))


def _about(stage: Flat | Inverted, rows: Rows) -> dict[str, Any]:
    about: dict[str, Any] = {"stage": stage.name, "rows": rows.live, "dead": rows.dead, "recall": None}
    if isinstance(stage, Inverted):
        about |= {
            "lists": stage.lists,
            **dataclasses.asdict(stage.tuning),
            "trained_rows": stage.trained_rows,
            "trained_at": stage.trained_at,
        }
    return about


def _put(index: Inverted, vectors: IntArray, start: int, stored: Stored) -> None:
    """Add the stored vectors of these numbers at the positions from `start` on; those that are gone stay out."""
    if len(vectors) == 0:
        return
    found, rows = stored(np.unique(vectors))
    places, which = positions_of(vectors, np.argsort(vectors, kind="stable"), found)
    index.reserve(start + len(vectors))
    index.put(index.place(rows[which]), places + start)
