"""Copies between backends: all entries are equal, changes are followed, and interrupted copies are continued."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentformer.archive.copy import copy_entries
from agentformer.errors import Conflict, StoreError
from agentformer.factory import AgentFormer, connect
from agentformer.testing import make_entry
from agentformer.types import Scope, Use
from tests.archive.conftest import everything, exported, fill, same

Opened = Callable[[str, str], AgentFormer]
TEXT = b"The sauna is heated on Thursdays. " * 40


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Opened:
    def open_memory(backend: str, name: str) -> AgentFormer:
        settings: dict[str, Any] = {"backend": backend, "routes": (), "embedder": "hashing", "embed_retry_seconds": 0}
        af = connect(index_dir=tmp_path / name, upload_dir=tmp_path / "uploads", **settings)
        request.addfinalizer(af.close)
        return af

    return open_memory


@pytest.mark.parametrize(("one", "other"), [("faiss", "local_json"), ("local_json", "faiss"), ("faiss", "faiss")])
def test_every_entry_is_copied_there_and_back(opened: Opened, tmp_path: Path, one: str, other: str) -> None:
    source, target, back = opened(one, "a"), opened(other, "b"), opened(one, "c")
    fill(source.backend)
    source.rag.upload(TEXT, name="sauna.txt")
    done = source.copy_to(target)
    assert done.equal and done.stored == done.entries == len(everything(source.backend)) and done.passes == 2
    assert everything(target.backend) == everything(source.backend)
    assert target.copy_to(back).equal
    for name, af in (("x", source), ("y", back)):
        exported(af.backend, tmp_path / name)
    assert same(tmp_path / "x", tmp_path / "y")
    assert source.copy_to(target).stored == 0


def test_vectors_are_not_made_again(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = opened("faiss", "a"), opened("faiss", "b")
    source.rag.upload(TEXT, name="sauna.txt")
    source.memory.store("The door code is 4711.")
    calls: list[Any] = []
    monkeypatch.setattr(type(target.embedder), "embed_documents", lambda self, texts: calls.append(texts))
    done = source.copy_to(target)
    assert done.vectors > 0 and calls == []
    assert target.backend.pending(Scope()) == 0
    assert target.memory.search("door code")[0].entry.content == "The door code is 4711."


def test_changes_after_a_copy_are_followed(opened: Opened) -> None:
    source, target = opened("faiss", "a"), opened("local_json", "b")
    fill(source.backend)
    kept = source.rag.upload(TEXT, name="sauna.txt")
    gone = source.rag.upload(TEXT + b"2", name="other.txt")
    source.copy_to(target)
    (fact,) = source.backend.store([make_entry("drinks tea", kind="fact")])
    source.rag.upload(TEXT + b"3", name="sauna.txt")
    source.rag.remove(gone.id)
    said = [
        entry for entry in source.backend.list(Scope(session_id="live", include_archived=True)) if entry.archived_by
    ]
    source.backend.restore(said[0].archived_by or "")
    chunk = source.backend.list(Scope(kinds=("chunk",)))[0]
    source.backend.touch([Use(chunk.id, chunk.created_at or said[0].occurred_at, matches=2, reads=1, others=3)])  # type: ignore[arg-type]
    assert not target.backend.get([fact.id])
    done = source.copy_to(target, delete=True)
    assert done.equal and done.removed > 0 and done.stored < done.entries
    assert everything(target.backend) == everything(source.backend)
    assert not target.backend.get([kept.id]) and list(target.backend.absent_documents()) == []
    assert source.rag.original(source.rag.documents()[0].id) == TEXT + b"3"


def test_only_the_counts_of_used_entries_are_written(opened: Opened) -> None:
    source, target = opened("faiss", "a"), opened("faiss", "b")
    document = source.rag.upload(TEXT, name="sauna.txt")
    source.copy_to(target)
    parts = source.backend.list(Scope(parent_id=document.id, kinds=("chunk",)))
    source.backend.touch([Use(part.id, part.created_at, reads=1) for part in parts if part.created_at])
    done = source.copy_to(target)
    assert (done.stored, done.removed, done.counted) == (0, 0, len(parts)) and done.equal


def test_a_target_with_other_entries_is_refused(opened: Opened) -> None:
    source, target = opened("faiss", "a"), opened("faiss", "b")
    source.memory.store("The source knows tea.")
    own = target.memory.store("The target knows coffee.")
    with pytest.raises(Conflict, match="1 entries that the source does not have"):
        source.copy_to(target)
    assert [entry.id for entry in target.backend.list(Scope())] == [own.id]
    assert source.copy_to(target, delete=True).equal
    assert everything(target.backend) == everything(source.backend)


def test_an_interrupted_copy_is_continued(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = opened("faiss", "a"), opened("local_json", "b")
    fill(source.backend)
    source.rag.upload(TEXT, name="sauna.txt")
    monkeypatch.setattr("agentformer.archive.copy._BATCH", 3)
    store, left = target.backend.store, 2

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if not left:
            raise StoreError("the connection is lost")
        left -= 1
        return store(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(StoreError):
        patch.setattr(target.backend, "store", failing)
        source.copy_to(target)
    assert 0 < len(everything(target.backend)) < len(everything(source.backend))
    assert source.copy_to(target).equal
    assert everything(target.backend) == everything(source.backend)


@pytest.mark.slow
def test_a_copy_catches_up_with_a_writer(opened: Opened) -> None:
    source, target = opened("faiss", "a"), opened("faiss", "b")
    source.backend.store([make_entry(f"note {n}") for n in range(300)])
    stop = threading.Event()

    def write() -> None:
        ids: list[str] = []
        for n in range(10_000):
            if stop.is_set():
                return
            ids += [entry.id for entry in source.backend.store([make_entry(f"written meanwhile {n}")])]
            if n % 3 == 0:
                source.backend.update(ids[0], {"content": f"changed {n}"})
            if n % 5 == 0:
                source.backend.remove([ids.pop()])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        first = copy_entries(source.backend, target.backend, most=3)
        assert first.passes == 3 or first.equal
    finally:
        stop.set()
        writer.join()
    assert source.copy_to(target, delete=True).equal
    assert everything(target.backend) == everything(source.backend)
