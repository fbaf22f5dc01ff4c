"""The vector index against NumPy, under any order of changes."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentformer.index import vectors
from agentformer.index.vectors import VectorIndex

DIMENSION = 8
HALF = 2e-3  # what half precision may cost in a cosine

changes = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 30), st.integers(1, 4)),
    st.tuples(st.just("drop"), st.integers(0, 32), st.just(0)),
    st.tuples(st.just("search"), st.integers(0, 2**30), st.integers(1, 8)),
    st.tuples(st.just("restore"), st.just(0), st.just(0)),
)


def unit(rng: np.random.Generator, rows: int) -> NDArray[np.float32]:
    made = rng.normal(size=(rows, DIMENSION)).astype(np.float32)
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), np.float32)


class Model:
    """Window -> (entry, row), as a dictionary."""

    def __init__(self) -> None:
        self.windows: dict[int, tuple[int, NDArray[np.float32]]] = {}

    def check(self, index: VectorIndex, query: NDArray[np.float32], limit: int, allowed: NDArray[np.bool_]) -> None:
        best: dict[int, float] = {}
        for entry, row in self.windows.values():
            if entry < len(allowed) and allowed[entry]:
                best[entry] = max(best.get(entry, -2.0), float(row @ query))
        found = index.search(query, limit, allowed)
        assert len(found) == min(limit, len(best))
        assert len({item.entry for item in found}) == len(found)
        for item, score in zip(found, sorted(best.values(), reverse=True), strict=False):
            entry, row = self.windows[item.window]
            assert entry == item.entry and entry in best
            assert abs(item.score - float(row @ query)) < HALF  # that window's own cosine
            assert abs(item.score - best[entry]) < HALF  # the entry's best window
            assert abs(item.score - score) < HALF  # nothing better was missed
        assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)


@given(steps=st.lists(changes, min_size=5, max_size=60), seed=st.integers(0, 2**16))
@settings(max_examples=150)
def test_the_index_agrees_with_numpy_after_any_changes(steps: list[tuple[str, int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    index, model, windows = VectorIndex(DIMENSION), Model(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "_SWEEP_LEAST", 4)
        for name, number, count in steps:
            if name == "add":
                ids = np.arange(windows + 1, windows + 1 + count)
                windows += count
                rows = unit(rng, count)
                index.add(ids, np.full(count, number), rows)
                model.windows.update({int(i): (number, row) for i, row in zip(ids, rows, strict=True)})
            elif name == "drop":
                index.drop(number)
                model.windows = {w: (e, row) for w, (e, row) in model.windows.items() if e != number}
            elif name == "restore":
                index = restored(index, {w: entry for w, (entry, _) in model.windows.items()})
            else:
                allowed = np.random.default_rng(number).random(number % 40) < 0.6
                model.check(index, unit(rng, 1)[0], count, allowed)
            assert len(index) == len(model.windows)
        model.check(index, unit(rng, 1)[0], 50, np.ones(64, np.bool_))


def restored(index: VectorIndex, entry_of: dict[int, int]) -> VectorIndex:
    """Through a file's bytes and back."""
    data: Any = faiss.serialize_index(index.snapshot())
    return VectorIndex.restored(faiss.deserialize_index(data), entry_of)


def test_a_restored_index_leaves_out_windows_that_are_gone() -> None:
    rng = np.random.default_rng(1)
    index, rows = VectorIndex(DIMENSION), unit(rng, 6)
    index.add(np.arange(6) + 10, np.array([1, 1, 2, 2, 3, 3]), rows)
    again = restored(index, {10: 1, 12: 2, 13: 2, 15: 9})
    assert len(again) == 4
    everything = np.ones(20, np.bool_)
    assert {(item.entry, item.window) for item in again.search(rows[0], 9, everything)} >= {(1, 10), (9, 15)}
    assert {item.entry for item in again.search(rows[0], 9, everything)} == {1, 2, 9}
    again.drop(2)
    assert {item.entry for item in again.search(rows[0], 9, everything)} == {1, 9}


def test_an_entry_with_many_near_windows_does_not_crowd_out_others() -> None:
    rng = np.random.default_rng(2)
    query = unit(rng, 1)[0]
    crowd = np.repeat(query[None], 500, 0)
    index = VectorIndex(DIMENSION)
    index.add(np.arange(500), np.zeros(500, np.int64), crowd)
    index.add(np.arange(500, 505), np.arange(1, 6), unit(rng, 5))
    assert {item.entry for item in index.search(query, 6, np.ones(6, np.bool_))} == set(range(6))
    assert index.search(query, 1, np.ones(6, np.bool_))[0].entry == 0


def test_a_scope_of_one_among_many_is_found() -> None:
    rng = np.random.default_rng(3)
    index = VectorIndex(DIMENSION)
    index.add(np.arange(5000), np.arange(5000), unit(rng, 5000))
    allowed = np.zeros(5000, np.bool_)
    allowed[4321] = True
    assert [item.entry for item in index.search(unit(rng, 1)[0], 10, allowed)] == [4321]
    assert index.search(unit(rng, 1)[0], 10, np.zeros(5000, np.bool_)) == []


def test_an_empty_index_finds_nothing() -> None:
    index = VectorIndex(DIMENSION)
    assert index.search(np.ones(DIMENSION, np.float32), 3, np.ones(9, np.bool_)) == []
    index.drop(7)
    index.add(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, DIMENSION), np.float32))
    assert len(index) == 0 == len(restored(index, {}))


def test_dropped_rows_do_not_stay_in_memory_or_in_the_snapshot() -> None:
    rng = np.random.default_rng(4)
    index = VectorIndex(DIMENSION)
    for n in range(20):
        index.drop(1)
        index.add(np.arange(n * 1000, (n + 1) * 1000), np.full(1000, 1), unit(rng, 1000))
    assert len(index) == 1000
    assert index._faiss.ntotal < 4000
    assert index.snapshot().ntotal == 1000
