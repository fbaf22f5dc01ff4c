from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from agentformer_onefile import FILE, OneFileStore, present

from agentformer.errors import StoreBusy, StoreDamaged
from agentformer.testing import SnapshotConformance, StoreConformance, make_entry
from agentformer.types import Embedder, Scope


class TestOneFileStore(StoreConformance, SnapshotConformance):
    """The suite of `MemoryBackend`, and that of the one further protocol that the store offers."""

    vectors = False

    def open(self, folder: Path, embedder: Embedder) -> OneFileStore:
        return OneFileStore(folder / FILE)


def test_a_store_is_present_after_it_was_opened(tmp_path: Path) -> None:
    assert not present(tmp_path)
    OneFileStore(tmp_path / FILE).close()
    assert present(tmp_path)


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database, but long enough to be looked at" * 30)
    with pytest.raises(StoreDamaged, match=FILE):
        OneFileStore(tmp_path / FILE)


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    store = OneFileStore(tmp_path / FILE)
    (entry,) = store.store([make_entry("a lighthouse")])
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("UPDATE entries SET record = '{'")
    other.close()
    with pytest.raises(StoreDamaged, match=f"entry {entry.id}"):
        store.count(Scope())
    store.close()


def test_a_failed_save_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentformer_onefile._SECONDS", 0.01)
    store = OneFileStore(tmp_path / FILE)
    (entry,) = store.store([make_entry("a lighthouse")])
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreBusy):
        store.remove([entry.id])
    other.execute("ROLLBACK")
    other.close()
    assert list(store.list(Scope())) == [entry]
    store.close()
