"""An older copy of the records put back in place: no index goes on with the history that was lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import agentformer


def open_store(folder: Path) -> agentformer.AgentFormer:
    return agentformer.connect(index_dir=folder, upload_dir=folder / "u", embedder="hashing")


def test_indexes_of_a_lost_history_are_not_believed(tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy.sqlite3"
    with open_store(store) as af:
        af.memory.store("a heron stands in the reeds")
        af.memory.search("heron")
    shutil.copy(store / "memory.sqlite3", copy)
    with open_store(store) as af:
        af.memory.store_many(f"seal {n} lies on the rock" for n in range(5))
        assert len(af.memory.search("seal", mode="lexical")) == 5
    shutil.copy(copy, store / "memory.sqlite3")
    with open_store(store) as af:
        af.memory.store_many(f"otter {n} swims in the bay" for n in range(6))
    with open_store(store) as af:
        otters = af.memory.search("otter swims in the bay", limit=10, mode="lexical")
        assert sorted(hit.entry.content for hit in otters) == [f"otter {n} swims in the bay" for n in range(6)]
        assert af.memory.search("seal", mode="lexical") == []
        near = af.memory.search("otter 3 swims in the bay", limit=7, mode="dense")
        assert near[0].entry.content == "otter 3 swims in the bay"
        assert len(near) == 7
