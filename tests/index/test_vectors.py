"""The vector index against NumPy, under any order of changes, on both stages and across the switch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors import IndexOptions
from agentformer.index.vectors import index as growing
from agentformer.index.vectors import snapshot as snapshots
from agentformer.index.vectors.flat import IntArray
from agentformer.index.vectors.index import VectorHits, VectorIndex
from agentformer.index.vectors.training import Interrupted
from agentformer.types import Matrix, Vector
from tests.faults.long_form import LONG

DIMENSION = 16
NONE = np.zeros(0, np.int64)
NO_ROWS = np.zeros((0, DIMENSION), np.float32)
SMALL = IndexOptions(train_at=8, exact_rows=4, target_recall=1.0)
ALL = np.ones(10_000, np.bool_)

changes = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 30), st.integers(1, 4)),
    st.tuples(st.just("drop"), st.integers(0, 32), st.just(0)),
    st.tuples(st.just("search"), st.integers(0, 2**30), st.integers(1, 8)),
    st.tuples(st.just("restore"), st.just(0), st.just(0)),
    st.tuples(st.just("train"), st.just(0), st.just(0)),
)


def unit(rng: np.random.Generator, rows: int, dimension: int = DIMENSION) -> NDArray[np.float32]:
    made = rng.normal(size=(rows, dimension)).astype(np.float32)
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), np.float32)


def allowed(mask: NDArray[np.bool_]) -> ScopeMask:
    return ScopeMask(mask, int(mask.sum()))


class Model:
    """Window -> (entry, row), as a dictionary; a window's vector has its number plus 1000."""

    def __init__(self) -> None:
        self.windows: dict[int, tuple[int, NDArray[np.float32]]] = {}

    def add(self, index: VectorIndex, entry: int, rows: Matrix, gone: IntArray = NONE) -> None:
        first = max(self.windows, default=0) + 1
        ids = np.arange(first, first + len(rows))
        index.change(gone, ids, np.full(len(rows), entry), ids + 1000, rows)
        self.windows = {w: kept for w, kept in self.windows.items() if kept[0] not in gone.tolist()}
        self.windows.update({int(i): (entry, row) for i, row in zip(ids, rows, strict=True)})

    def drop(self, index: VectorIndex, entry: int) -> None:
        index.change(np.array([entry]), NONE, NONE, NONE, NO_ROWS)
        self.windows = {w: kept for w, kept in self.windows.items() if kept[0] != entry}

    def stored(self, vectors: IntArray) -> tuple[IntArray, Matrix]:
        there = np.array([v for v in np.unique(vectors).tolist() if v - 1000 in self.windows], np.int64)
        rows = [self.windows[v - 1000][1] for v in there.tolist()]
        return there, np.array(rows, np.float32).reshape(-1, DIMENSION)

    def train(self, index: VectorIndex) -> None:
        index.train(index.training_rows(), self.stored, lambda: False, lambda: NONE, lambda image: None)

    def check(self, index: VectorIndex, query: Vector, limit: int, mask: NDArray[np.bool_]) -> None:
        best: dict[int, float] = {}
        for entry, row in self.windows.values():
            if entry < len(mask) and mask[entry]:
                best[entry] = max(best.get(entry, -2.0), float(row @ query))
        found = self.ranked(index.search(query, limit, allowed(mask)), query)
        assert len(found) >= min(limit, len(best))
        for (entry, score), expected in zip(found[:limit], sorted(best.values(), reverse=True), strict=False):
            assert score == pytest.approx(best[entry], abs=1e-6)  # the entry's best window
            assert score == pytest.approx(expected, abs=HALF)  # nothing better was missed

    def step(self, index: VectorIndex, rng: np.random.Generator, name: str, number: int, count: int) -> None:
        """Add rows, drop an entry, or compare a search; the other names do nothing."""
        if name == "add":
            self.add(index, number, unit(rng, count))
        elif name == "drop":
            self.drop(index, number)
        elif name == "search":
            self.check(index, unit(rng, 1)[0], count, np.random.default_rng(number).random(number % 40) < 0.6)

    def ranked(self, near: VectorHits, query: Vector) -> list[tuple[int, float]]:
        """Entries by their exact cosines, as the caller re-ranks them."""
        found: dict[int, float] = {}
        for window, entry, vector in zip(
            near.windows.tolist(), near.entries.tolist(), near.vectors.tolist(), strict=True
        ):
            assert self.windows[window][0] == entry and vector == window + 1000
            found[entry] = max(found.get(entry, -2.0), float(self.windows[window][1] @ query))
        return sorted(found.items(), key=lambda item: -item[1])


HALF = 2e-3  # what half precision may cost in a cosine at the end of a list


@given(steps=st.lists(changes, min_size=5, max_size=60), seed=st.integers(0, 2**16))
@settings(max_examples=100 if LONG else 25)
def test_the_index_agrees_with_numpy_after_any_changes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    index, model = VectorIndex(DIMENSION, SMALL), Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "_SWEEP_MIN", 4)
        patch.setattr(growing, "_MAX_HOLES", 3)
        for name, number, count in steps:
            if name == "restore":
                index = restored(index, tmp_path_factory.mktemp("snapshot"))
            elif name == "train" and model.windows:
                model.train(index)
            model.step(index, rng, name, number, count)
            assert len(index) == len(model.windows)
        model.check(index, unit(rng, 1)[0], 50, ALL)


def restored(index: VectorIndex, folder: Path) -> VectorIndex:
    """Through a snapshot and back."""
    return through_a_file(index, folder, SMALL)


def through_a_file(index: VectorIndex, folder: Path, plan: IndexOptions) -> VectorIndex:
    with index.image() as image:
        snapshots.save(folder, image, store_id="s", space=1, seq=1, point="")
    saved = snapshots.load(folder, store_id="s", space=1, dimension=index.dimension)
    assert saved is not None
    return VectorIndex.from_image(saved.image, plan)


def grown(rows: int, seed: int = 1, plan: IndexOptions = SMALL) -> tuple[VectorIndex, Model, np.random.Generator]:
    """A trained index of entries with one window each."""
    rng = np.random.default_rng(seed)
    index, model = VectorIndex(DIMENSION, plan), Model()
    made = unit(rng, rows)
    index.change(NONE, np.arange(rows) + 1, np.arange(rows), np.arange(rows) + 1001, made)
    model.windows = {n + 1: (n, row) for n, row in enumerate(made)}
    model.train(index)
    assert index.status()["stage"] == "inverted"
    return index, model, rng


@pytest.mark.usefixtures("few_queries")
def test_an_entry_with_many_near_windows_does_not_crowd_out_others() -> None:
    rng = np.random.default_rng(2)
    query = unit(rng, 1)[0]
    index, model = VectorIndex(DIMENSION), Model()
    model.add(index, 0, np.repeat(query[None], 500, 0))
    for entry in range(1, 6):
        model.add(index, entry, unit(rng, 1))
    for _ in range(2):
        everything = allowed(np.ones(6, np.bool_))
        assert set(index.search(query, 6, everything).entries.tolist()) == set(range(6))
        assert index.search(query, 1, everything).entries[0] == 0
        model.train(index)


@pytest.mark.usefixtures("few_queries")
def test_a_scope_of_one_among_many_is_found_on_both_stages() -> None:
    index, _, rng = grown(3000)
    mask = np.zeros(3000, np.bool_)
    mask[2345] = True
    flat = VectorIndex(DIMENSION)
    rows = unit(rng, 3000)
    flat.change(NONE, np.arange(3000), np.arange(3000), np.arange(3000), rows)
    for each in (index, flat):
        assert each.search(unit(rng, 1)[0], 10, allowed(mask)).entries.tolist() == [2345]
        assert len(each.search(unit(rng, 1)[0], 10, allowed(np.zeros(3000, np.bool_))).entries) == 0


def test_an_empty_index_finds_nothing(tmp_path: Path) -> None:
    index = VectorIndex(DIMENSION)
    assert len(index.search(np.ones(DIMENSION, np.float32), 3, allowed(ALL)).entries) == 0
    index.change(np.array([7]), NONE, NONE, NONE, NO_ROWS)
    assert len(index) == 0 == len(restored(index, tmp_path))


@pytest.mark.parametrize("train", [False, True])
def test_dropped_rows_do_not_stay_in_memory_or_in_the_snapshot(tmp_path: Path, train: bool) -> None:
    rng = np.random.default_rng(4)
    index, model = VectorIndex(DIMENSION, SMALL), Model()
    for n in range(20):
        model.add(index, 1, unit(rng, 1000), gone=np.array([1]))
        if train and n == 3:
            model.train(index)
    assert len(index) == 1000
    assert index._stage.index.ntotal < 4000
    assert len(restored(index, tmp_path)) == 1000
    with index.image() as image:
        assert image.index.ntotal == 1000


@pytest.mark.slow
def test_a_large_scope_of_a_trained_index_is_searched_as_well_as_the_whole() -> None:
    index, model, rng = grown(6000, plan=IndexOptions(train_at=8, exact_rows=4, target_recall=0.95))
    assert 1 < index.status()["probes"] < index.status()["lists"]
    rows = np.array([row for _, row in model.windows.values()])
    for share in (0.05, 0.3, 0.8):
        mask = rng.random(6000) < share
        recall = []
        for query in unit(rng, 60):
            scores = np.where(mask, rows @ query, -2)
            best = set(np.argsort(-scores)[:10].tolist())
            found = [entry for entry, _ in model.ranked(index.search(query, 10, allowed(mask)), query)]
            assert mask[found].all()
            recall.append(len(best & set(found[:10])) / 10)
        assert np.mean(recall) > 0.9, share


@pytest.mark.slow
def test_the_reported_recall_is_the_measured_one() -> None:
    index, model, rng = grown(6000, plan=IndexOptions(train_at=8, exact_rows=4, target_recall=0.9))
    rows = np.array([row for _, row in model.windows.values()])
    recall = []
    for query in unit(rng, 200):  # uniform rows: nothing is harder to find than the queries it was tuned with
        best = set(np.argsort(-(rows @ query))[:10].tolist())
        found = [entry for entry, _ in model.ranked(index.search(query, 10, allowed(ALL)), query)]
        recall.append(len(best & set(found[:10])) / 10)
    assert 0.8 < index.status()["recall"] < 1
    assert abs(np.mean(recall) - index.status()["recall"]) < 0.1


@pytest.mark.slow
def test_the_latest_queries_decide_the_probes() -> None:
    index, model, rng = grown(1500, plan=IndexOptions(train_at=8, exact_rows=4, target_recall=0.9))
    assert index.status()["queries"] == 0 and not index.needs_tuning()
    for query in unit(rng, 200):
        index.search(query, 3, allowed(ALL))
    assert index.needs_tuning()
    index.tune(model.stored, lambda: False)
    assert index.status()["queries"] == 200 and not index.needs_tuning()


def test_a_limit_beyond_the_tuned_lists_finds_all_rows() -> None:
    index, _, rng = grown(3000, plan=IndexOptions(train_at=8, exact_rows=4, target_recall=0.5))
    found = index.search(unit(rng, 1)[0], 3000, allowed(ALL))
    assert sorted(found.entries.tolist()) == list(range(3000))


@pytest.mark.usefixtures("few_queries")
def test_what_changes_during_a_training_is_in_the_trained_index() -> None:
    rng = np.random.default_rng(6)
    index, model = VectorIndex(DIMENSION, SMALL), Model()
    for entry in range(600):
        model.add(index, entry, unit(rng, 1))
    done = []

    def keep(image: Any) -> None:
        """The last moment before the switch."""
        for entry in range(0, 100):
            model.drop(index, entry)
        for entry in range(600, 1200):
            model.add(index, entry, unit(rng, 1))
        model.add(index, 300, unit(rng, 2), gone=np.array([300]))
        done.append(image)

    index.train(index.training_rows(), model.stored, lambda: False, lambda: NONE, keep)
    assert done and index.status()["stage"] == "inverted" and len(index) == len(model.windows)
    for query in unit(rng, 20):
        model.check(index, query, 12, ALL)


def test_entries_changed_during_a_training_are_not_in_its_snapshot() -> None:
    index, model, _ = grown(100)
    images: list[Any] = []
    index.train(
        index.training_rows(),
        model.stored,
        lambda: False,
        lambda: np.array([5, 7]),
        lambda image: images.append(image.index.ntotal),
    )
    assert images == [98]


@pytest.mark.usefixtures("few_queries")
def test_an_interrupted_training_changes_nothing() -> None:
    rng = np.random.default_rng(7)
    index, model = VectorIndex(DIMENSION, SMALL), Model()
    for entry in range(100):
        model.add(index, entry, unit(rng, 1))
    for patience in (0, 1, 5, 20):
        looks = iter([False] * patience)
        with pytest.raises(Interrupted):
            index.train(
                index.training_rows(), model.stored, partial(next, looks, True), lambda: NONE, lambda image: None
            )
        assert index.status()["stage"] == "exact"
        model.check(index, unit(rng, 1)[0], 10, ALL)


def test_a_training_is_needed_at_its_size_and_at_twice_that() -> None:
    rng = np.random.default_rng(8)
    index, model = VectorIndex(DIMENSION, SMALL), Model()
    for entry in range(8):
        assert not index.needs_training()
        model.add(index, entry, unit(rng, 1))
    assert index.needs_training()
    model.train(index)
    for entry in range(8, 16):
        assert not index.needs_training()
        model.add(index, entry, unit(rng, 1))
    assert index.needs_training()


def peaked(rng: np.random.Generator, rows: int, dimension: int) -> NDArray[np.float32]:
    """Unit vectors with one number far above those of `unit`."""
    made = 0.03 * rng.normal(size=(rows, dimension))
    made[np.arange(rows), rng.integers(0, 8, rows)] += 1.0
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), np.float32)


@pytest.mark.slow
def test_rows_beyond_the_range_of_the_codes_are_found_as_well_until_a_training_widens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dimension, first, later = 128, 3000, 400
    plan = IndexOptions(train_at=8, exact_rows=100)
    rng = np.random.default_rng(3)
    rows = np.concatenate([unit(rng, first, dimension), peaked(rng, later, dimension)])
    numbers = np.arange(len(rows))

    def stored(vectors: IntArray) -> tuple[IntArray, Matrix]:
        found = np.unique(vectors)
        return found, rows[found]

    def recall(index: VectorIndex, mask: NDArray[np.bool_]) -> float:
        hits = []
        for query in unit(np.random.default_rng(4), 60, dimension):
            query[:8] *= 4  # towards the peaked ones
            scores = np.where(mask, rows @ query, -9)
            near = index.search(query, 10, allowed(mask))
            assert mask[near.entries].all() and len(near.entries) == len(np.unique(near.entries))
            hits.append(np.isin(np.argsort(-scores)[:10], near.entries).mean())
        return float(np.mean(hits))

    index = VectorIndex(dimension, plan)
    index.change(NONE, numbers[:first], numbers[:first], numbers[:first], rows[:first])
    index.train(index.training_rows(), stored, lambda: False, lambda: NONE, lambda image: None)
    index.change(NONE, numbers[first:], numbers[first:], numbers[first:], rows[first:])
    small, large = np.zeros(len(rows), np.bool_), rng.random(len(rows)) < 0.7
    small[first - 40 : first + 40] = True
    for each in (index, through_a_file(index, tmp_path, plan)):
        for mask in (np.ones(len(rows), np.bool_), small, large):
            assert recall(each, mask) > 0.97
    assert not index.needs_training()
    monkeypatch.setattr(growing, "_MIN_OUTLIERS", 300)
    assert index.needs_training()
    index.change(numbers[first : first + 5], NONE, NONE, NONE, rows[:0])
    left = np.ones(len(rows), np.bool_)
    left[first : first + 5] = False
    index.train(index.training_rows(), stored, lambda: False, lambda: NONE, lambda image: None)
    assert not index.needs_training() and len(index) == len(rows) - 5
    assert recall(index, left) > 0.97


@pytest.mark.usefixtures("few_queries")
def test_equal_rows_are_no_loss_of_recall() -> None:
    rng = np.random.default_rng(5)
    index, model = VectorIndex(DIMENSION, IndexOptions(train_at=8, exact_rows=4)), Model()
    model.add(index, 0, np.repeat(unit(rng, 1), 2000, 0))
    model.train(index)
    assert index.status()["recall"] == 1.0
