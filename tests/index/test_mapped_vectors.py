"""Large trained indexes: codes that are mapped from the snapshot, training by steps, and processes that share them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.files import INDEX_FILE, META_FILE
from agentformer.index.vectors import IndexOptions, follower, training
from agentformer.index.vectors import index as growing
from agentformer.index.vectors import snapshot as snapshots
from agentformer.index.vectors.flat import Flat
from agentformer.index.vectors.index import VectorIndex
from agentformer.index.vectors.ivf import Ivf
from agentformer.index.vectors.lists import map_index
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, FaissOptions
from agentformer.testing import Reference, make_entry
from agentformer.types import Matrix, MemoryEntry, Query, Scope
from tests.faults.long_form import LONG
from tests.forked import start
from tests.index.test_training import IMPORTS, always_found
from tests.index.test_vectors import ALL, DIMENSION, NONE, SMALL, Model, changes, grown, restored, unit

QUERY = Query("numbat 3 under lantern 5", limit=12, mode="dense")
TIMEOUT = 60.0

steps = st.lists(
    st.one_of(changes, st.tuples(st.just("freeze"), st.just(0), st.just(0))),
    min_size=5,
    max_size=40,
)


@pytest.fixture
def mapping(monkeypatch: pytest.MonkeyPatch, few_queries: None) -> None:
    """Maps every trained snapshot, however small it is."""
    for module in (growing, snapshots):
        monkeypatch.setattr(module, "MAP_BYTES", 0)
    monkeypatch.setattr(follower, "_LOOK_SECONDS", 0.0)


@given(steps=steps, seed=st.integers(0, 2**16))
@settings(max_examples=40 if LONG else 15)
def test_a_mapped_index_agrees_with_numpy_after_any_changes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    index, model = VectorIndex(DIMENSION, SMALL), Model()
    with pytest.MonkeyPatch.context() as patch:
        for module in (growing, snapshots):
            patch.setattr(module, "MAP_BYTES", 0)
        patch.setattr(growing, "_SWEEP_MIN", 4)
        patch.setattr(growing, "_MAX_HOLES", 3)
        patch.setattr(growing, "_SPILL_BYTES", 0)
        for name, number, count in [("add", 1, 20), ("train", 0, 0), *steps]:
            if name == "restore":
                index = restored(index, tmp_path_factory.mktemp("snapshot"))
            elif name == "freeze" and index.status()["stage"] == "inverted":
                index = through_a_frozen_image(index, tmp_path_factory.mktemp("frozen"))
            elif name == "train" and model.windows:
                index.spill_path = tmp_path_factory.mktemp("spill") / "codes"
                model.train(index)
                assert not index.spill_path.exists()
            model.step(index, rng, name, number, count)
            assert len(index) == len(model.windows)
        model.check(index, unit(rng, 1)[0], 50, ALL)


def through_a_frozen_image(index: VectorIndex, folder: Path) -> VectorIndex:
    snapshots.save(folder, index.frozen(), store_id="s", space=1, seq=1, point="")
    saved = snapshots.load(folder, store_id="s", space=1, dimension=DIMENSION)
    assert saved is not None and saved.image.mapped
    return VectorIndex.from_image(saved.image, SMALL)


def test_a_frozen_image_does_not_change_with_its_index(tmp_path: Path, mapping: None) -> None:
    index, model, rng = grown(300)
    image = index.frozen()
    before = dict(model.windows)
    for entry in range(50):
        model.drop(index, entry)
    model.add(index, 1000, unit(rng, 5))
    model.check(index, unit(rng, 1)[0], 20, ALL)  # the rows that were removed stay in their lists
    snapshots.save(tmp_path, image, store_id="s", space=1, seq=1, point="")
    saved = snapshots.load(tmp_path, store_id="s", space=1, dimension=DIMENSION)
    assert saved is not None
    model.windows = before
    model.check(VectorIndex.from_image(saved.image, SMALL), unit(rng, 1)[0], 20, ALL)


def test_a_mapped_index_asks_for_a_new_snapshot_after_enough_changes(tmp_path: Path, mapping: None) -> None:
    index, model, rng = grown(300)
    assert index.wants_mapping()
    index = restored(index, tmp_path)
    assert not index.wants_mapping() and index.status()["mapped"] == 300
    model.add(index, 1000, unit(rng, 30))
    assert not index.wants_mapping()
    model.add(index, 1001, unit(rng, 1))
    assert index.wants_mapping()
    index = restored(index, tmp_path)
    for entry in range(34):
        model.drop(index, entry)
    with index.image():  # sweeps
        assert index.wants_mapping()


def test_a_snapshot_is_better_if_it_saves_more_unmapped_rows_than_its_changes(tmp_path: Path, mapping: None) -> None:
    index, model, rng = grown(300)
    index = restored(index, tmp_path)
    model.add(index, 1000, unit(rng, 30))  # not mapped
    trained = index.status()["trained_rows"]
    assert index.is_snapshot_better(Ivf.name, trained, 29)
    assert not index.is_snapshot_better(Ivf.name, trained, 30)
    assert index.is_snapshot_better(Ivf.name, 2 * trained, 30) and not index.is_snapshot_better(
        Ivf.name, 2 * trained - 1, 30
    )
    assert not index.is_snapshot_better(Flat.name, 2 * trained, 0)


def test_a_snapshot_of_a_small_index_is_better_after_a_training_with_twice_the_rows() -> None:
    index, _, _ = grown(300)
    trained = index.status()["trained_rows"]
    assert index.is_snapshot_better(Ivf.name, 2 * trained, 10_000) and not index.is_snapshot_better(
        Ivf.name, 2 * trained - 1, 0
    )


def test_training_by_steps_finds_what_is_near(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With groups of centroids, a graph of them, and codes that are moved to files."""
    monkeypatch.setattr(training, "_ONE_LEVEL", 8)
    monkeypatch.setattr(training, "_GRAPH", 8)
    monkeypatch.setattr(training, "_SLICE", 512)
    monkeypatch.setattr(growing, "_SPILL_BYTES", 20_000)
    rng = np.random.default_rng(3)
    rows, numbers = unit(rng, 6000), np.arange(6000)
    index = VectorIndex(DIMENSION, IndexOptions(train_at=8, exact_rows=4, target_recall=0.95))
    index.spill_path = tmp_path / "codes"
    index.change(NONE, numbers, numbers, numbers, rows)

    def stored(vectors: Any) -> tuple[Any, Matrix]:
        return vectors, rows[vectors]

    index.train(index.training_rows(), stored, lambda: False, lambda: NONE, lambda image: None)
    told = index.status()
    assert told["lists"] == 150 and told["recall"] >= 0.93 and told["mapped"] > 3000
    found = []
    for query in unit(rng, 50):
        near = index.search(query, 10, growing.EVERYTHING)
        ranked = near.entries[np.argsort(-(rows[near.vectors] @ query))[:10]]
        found.append(np.isin(np.argsort(-(rows @ query))[:10], ranked).mean())
    assert np.mean(found) > 0.9
    assert list(tmp_path.iterdir()) == []


def test_a_training_whose_codes_cannot_be_moved_keeps_them_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(growing, "_SPILL_BYTES", 0)
    rng = np.random.default_rng(3)
    index, model = VectorIndex(DIMENSION, SMALL), Model()
    model.add(index, 1, unit(rng, 300))
    index.spill_path = tmp_path / "no folder" / "codes"
    model.train(index)
    assert index.status()["stage"] == "inverted" and index.status()["mapped"] == 0
    model.check(index, unit(rng, 1)[0], 20, ALL)


def test_a_trained_snapshot_of_the_former_format_is_built_again(tmp_path: Path) -> None:
    index, _, _ = grown(300)
    with index.image() as image:
        snapshots.save(tmp_path, image, store_id="s", space=1, seq=1, point="")
    meta = json.loads((tmp_path / META_FILE).read_bytes())
    meta = {**{name: value for name, value in meta.items() if name != "checksum"}, "format": 2}
    checksum = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
    (tmp_path / META_FILE).write_text(json.dumps({**meta, "checksum": checksum}))
    assert snapshots.load(tmp_path, store_id="s", space=1, dimension=DIMENSION) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX_FILE, META_FILE]  # it is not damaged


def test_the_parts_of_a_large_file_have_checksums_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_PART", 1000)
    monkeypatch.setattr(snapshots, "_BLOCK", 300)
    index, _, _ = grown(300)
    restored(index, tmp_path)
    meta = json.loads((tmp_path / META_FILE).read_bytes())
    assert len(meta["crc32"]) == -(-(tmp_path / INDEX_FILE).stat().st_size // 1000)
    with (tmp_path / INDEX_FILE).open("ab") as file:
        file.write(b"x")
    assert snapshots.load(tmp_path, store_id="s", space=1, dimension=DIMENSION) is None


# ------------------------------------------------------------------ processes

TRAIN = """
import sys
from pathlib import Path
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.vectors import IndexOptions
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, FaissOptions
options = FaissOptions(index=IndexOptions(4, 2, 1.0, 3600.0))
backend = FaissMemoryBackend(Path(folder), HashingEmbedder(), options)
backend.embed_pending()  # trains, and writes the snapshot
print(backend.status()["index"]["trained_at"], flush=True)
sys.stdin.readline()
backend.close()
"""


def entries(count: int, first: int = 0) -> list[MemoryEntry]:
    return [make_entry(f"numbat {n % 7} under lantern {n % 11} in room {n}") for n in range(first, first + count)]


def opened(folder: Path, train_at: int) -> FaissMemoryBackend:
    options = FaissOptions(index=IndexOptions(train_at, 2, 1.0, 0.0))
    return FaissMemoryBackend(folder, HashingEmbedder(), options)


def index_status(backend: FaissMemoryBackend) -> dict[str, Any]:
    """The status of the index after its background work."""
    deadline = time.monotonic() + TIMEOUT
    while (told := backend.status()["index"])["training"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return dict(told)


def test_a_snapshot_that_is_deleted_while_it_is_read_is_none(
    tmp_path: Path, mapping: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, _, _ = grown(300)
    snapshots.save(tmp_path, index.frozen(), store_id="s", space=1, seq=1, point="")
    expected = {"store": "s", "space": 1, "dimension": DIMENSION}
    found = snapshots.read(tmp_path, **expected)
    assert found is not None and found[1] is not None

    def deleted(path: Path) -> object:
        path.unlink()
        return map_index(path)

    monkeypatch.setattr(snapshots, "map_index", deleted)
    assert snapshots.read(tmp_path, **expected) is None


@pytest.mark.process
@pytest.mark.parametrize("map_bytes", [0, 1 << 40])
def test_a_process_adopts_the_snapshot_that_another_one_has_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapping: None, map_bytes: int
) -> None:
    for module in (growing, snapshots):
        monkeypatch.setattr(module, "MAP_BYTES", map_bytes)
    with closing(opened(tmp_path, train_at=10**9)) as backend:
        reference = Reference(backend.store(entries(400)))
        reference.check_dense(QUERY, backend.search(QUERY))
        assert index_status(backend)["stage"] == "exact"
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = start(f"folder = {str(tmp_path)!r}\n{TRAIN}", IMPORTS, cwd=tmp_path, env=os.environ, **pipes)
        assert child.stdout is not None
        trained_at = child.stdout.readline().strip()
        reference.entries.update({entry.id: entry for entry in backend.store(entries(20, first=400))})
        backend.remove([gone := min(reference.entries)])
        del reference.entries[gone]
        backend.search(QUERY)  # adopts in the background
        told = index_status(backend)
        child.communicate(timeout=TIMEOUT)
        assert (told["stage"], told["trained_at"], told["rows"]) == ("inverted", trained_at, 419)
        assert told["mapped"] == (0 if map_bytes else 400)
        reference.check_dense(QUERY, backend.search(QUERY))
        late = backend.store([make_entry("the zirconium ledger of Quetzalcoatl")])
        found = backend.search(Query("zirconium ledger of Quetzalcoatl", limit=1, mode="dense"))
        assert found[0].entry.id == late[0].id  # at once
    with closing(opened(tmp_path, train_at=4)) as again:
        reference.entries[late[0].id] = late[0]
        reference.check_dense(QUERY, again.search(QUERY))


def test_a_process_maps_what_it_has_trained_itself(tmp_path: Path, mapping: None) -> None:
    with closing(opened(tmp_path, train_at=4)) as backend:
        reference = Reference(backend.store(entries(100)))
        reference.check_dense(QUERY, backend.search(QUERY))
        told = index_status(backend)
        assert (told["stage"], told["mapped"], told["problem"]) == ("inverted", 100, None)
        reference.check_dense(QUERY, backend.search(QUERY))
        reference.entries.update({entry.id: entry for entry in backend.store(entries(30, first=100))})
        deadline = time.monotonic() + TIMEOUT
        while index_status(backend)["mapped"] != 130:  # a search writes a new snapshot in the background, and maps it
            assert time.monotonic() < deadline
            backend.search(QUERY)
        reference.check_dense(QUERY, backend.search(QUERY))


def test_an_entry_removed_while_a_snapshot_is_written_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapping: None
) -> None:
    with closing(opened(tmp_path, train_at=4)) as backend:
        reference = Reference(backend.store(entries(100)))
        hers = backend.store([make_entry("hers", user_id="x")])[0]
        backend.search(QUERY)
        assert index_status(backend)["mapped"] == 101
        reference.entries.update({entry.id: entry for entry in backend.store(entries(30, first=100))})
        save = snapshots.save

        def slow(folder: Path, *rest: Any, **more: Any) -> None:
            save(folder, *rest, **more)
            with closing(opened(tmp_path, train_at=10**9)) as other:  # as another process would
                assert other.remove([hers.id]) == 1

        with monkeypatch.context() as patch:
            patch.setattr(snapshots, "save", slow)
            backend.search(QUERY)
            index_status(backend)
        assert not (tmp_path / INDEX_FILE).exists()
        reference.check_dense(QUERY, backend.search(QUERY))  # writes it again, without the entry
        assert index_status(backend)["problem"] is None
        reference.check_dense(QUERY, backend.search(QUERY))


def test_a_large_store_without_a_snapshot_is_trained_by_its_first_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapping: None
) -> None:
    monkeypatch.setattr(follower, "_BUILD_TRAINED", 50)
    with closing(opened(tmp_path, train_at=10**9)) as backend:
        reference = Reference(backend.store(entries(100)))
        reference.check_dense(QUERY, backend.search(QUERY))
        told = index_status(backend)
        assert (told["stage"], told["rows"], told["recall"], told["mapped"]) == ("inverted", 100, 1.0, 100)
    assert json.loads((tmp_path / META_FILE).read_bytes())["count"] == 100


def test_changes_and_searches_go_on_while_snapshots_are_written_and_adopted(tmp_path: Path, mapping: None) -> None:
    with closing(opened(tmp_path, train_at=4)) as backend:
        kept = backend.store(entries(60))
        with always_found(backend, threads=2) as anchor:
            for n in range(8):
                fresh = backend.store(entries(20, first=60 + 20 * n))
                assert backend.remove([fresh[0].id]) == 1
                kept += fresh[1:]
                gone = backend.search(Query(fresh[0].content, limit=400, mode="dense"))
                assert fresh[0].id not in [hit.entry.id for hit in gone]
                if n == 4:
                    backend.store([make_entry("hers", user_id="x")])
                    assert backend.remove(Scope(user_id="x")) == 1  # deletes the snapshot
        index_status(backend)
        Reference([*kept, anchor]).check_dense(QUERY, backend.search(QUERY))
        assert index_status(backend)["problem"] is None
