"""Parts of the vector index with bounds of their own: lock, cached selections, sizes of lists, and saved snapshots."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.files import META_FILE
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors import flat, follower
from agentformer.index.vectors.flat import CodeCopy, Rows, Selection, SelectionCache
from agentformer.index.vectors.index import ReadWriteLock
from agentformer.index.vectors.training import list_count, positions_of
from agentformer.index.vectors.tuning import _ladder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import make_entry
from agentformer.types import Query

NONE = np.zeros(0, np.int64)


def mask() -> ScopeMask:
    return ScopeMask(np.zeros(0, np.bool_), 0)


def test_a_selection_is_made_once_for_each_generation() -> None:
    cache, allowed, made = SelectionCache(), mask(), []

    def make() -> Selection:
        made.append(Selection(len(made)))
        return made[-1]

    assert cache.get(allowed, 1, make) is cache.get(allowed, 1, make) is made[0]
    assert cache.get(allowed, 2, make) is made[1]
    assert cache.get(mask(), 2, make) is made[2] and len(made) == 3


def test_the_oldest_selections_are_dropped_beyond_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "_MAX_SELECTIONS", 3)
    monkeypatch.setattr(flat, "_MAX_COPIED_ROWS", 100)
    cache, masks = SelectionCache(), [mask() for _ in range(4)]
    plain = [Selection(1000) for _ in masks]
    for allowed, selection in zip(masks, plain, strict=True):
        cache.get(allowed, 1, lambda selection=selection: selection)  # type: ignore[misc]
    kept = [cache.get(allowed, 1, lambda: Selection(0)) in plain for allowed in masks[1:]]
    assert kept == [True, True, True]  # the first of four was dropped
    copied = [Selection(count, copy=CodeCopy(None, NONE)) for count in (50, 50, 1)]
    for allowed, selection in zip(masks, copied, strict=False):
        cache.get(allowed, 2, lambda selection=selection: selection)  # type: ignore[misc]
    assert cache.get(masks[2], 2, mask) is copied[2] and cache.get(masks[1], 2, mask) is copied[1]
    again = Selection(0)
    assert cache.get(masks[0], 2, lambda: again) is again  # 101 rows were too many


def test_a_waiting_writer_goes_before_new_readers() -> None:
    lock, order = ReadWriteLock(), list[str]()
    reading, finish = threading.Event(), threading.Event()

    def read() -> None:
        with lock.read():
            reading.set()
            finish.wait(60)

    def write() -> None:
        with lock.write():
            order.append("write")

    def read_again() -> None:
        with lock.read():
            order.append("read")

    first = threading.Thread(target=read)
    first.start()
    assert reading.wait(60)
    with lock.read():  # readers share the lock
        pass
    writer = threading.Thread(target=write)
    writer.start()
    while not lock._waiting_writers:
        pass
    later = threading.Thread(target=read_again)
    later.start()
    assert not order
    finish.set()
    for thread in (first, writer, later):
        thread.join(60)
    assert order == ["write", "read"]


def test_the_number_of_lists_grows_with_the_root_of_the_rows() -> None:
    counts = {0: 1, 39: 1, 80: 2, 200: 5, 1_000: 25, 10_000: 250, 40_000: 800, 1_000_000: 4_000}
    assert {rows: list_count(rows) for rows in counts} == counts


def test_tuning_tries_ever_more_lists_up_to_all() -> None:
    assert _ladder(1) == [1] and _ladder(4) == [1, 2, 3, 4]
    steps = _ladder(1_000)
    assert steps[0] == 1 and steps[-1] == 1_000 and steps == sorted(set(steps))
    assert all(after <= max(before + 1, before * 1.25 + 1) for before, after in pairwise(steps))


def test_each_position_of_a_shared_vector_is_found() -> None:
    vectors = np.array([7, 3, 7, 9, 3])
    positions, which = positions_of(vectors, np.argsort(vectors, kind="stable"), np.array([3, 7]))
    assert sorted(zip(positions.tolist(), which.tolist(), strict=True)) == [(0, 1), (1, 0), (2, 1), (4, 0)]


def test_dropped_rows_are_counted_once_and_unknown_entries_ignored() -> None:
    rows = Rows(np.arange(4), np.array([5, 6, 5, 8]), np.arange(4))
    assert rows.drop(np.array([9, -1])).tolist() == []
    assert rows.drop(np.array([5])).tolist() == [0, 2] and rows.drop(np.array([5, 8])).tolist() == [3]
    assert (rows.live, rows.dead) == (1, 3)
    assert rows.inside(np.ones(20, np.bool_)).tolist() == [False, True, False, False]
    assert rows.inside(np.ones(6, np.bool_)).tolist() == [False] * 4


def test_a_large_store_saves_a_snapshot_only_after_enough_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_SMALL", 20)

    def saved_after(count: int) -> int:
        backend = FaissMemoryBackend(tmp_path, HashingEmbedder(16))
        backend.store([make_entry(f"a numbat under lantern {n} of {count}") for n in range(count)])
        backend.search(Query("numbat", mode="dense"))
        backend.close()
        return int(json.loads((tmp_path / META_FILE).read_bytes())["count"])

    assert saved_after(30) == 30  # the first snapshot is always written
    assert saved_after(2) == 30
    assert saved_after(8) == 40
