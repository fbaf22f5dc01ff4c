"""Exports are imported without loss, and a second export has the same bytes as the first."""

from __future__ import annotations

import hashlib
import json
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from agentformer.archive import importer
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.factory import connect
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.memory.routing import RoutedBackend
from agentformer.settings import Route
from agentformer.testing import CountingEmbedder, FlakyEmbedder, make_entry
from agentformer.types import Embedder, MemoryBackend, MemoryEntry, Query, Scope, Source
from tests.archive.conftest import everything, exported, fill, imported, same, to_first_format
from tests.edges.running import wait_until

Opened = Callable[[Path, Embedder], MemoryBackend]


def faiss(folder: Path, embedder: Embedder) -> MemoryBackend:
    return FaissMemoryBackend(folder, embedder)


def local_json(folder: Path, embedder: Embedder) -> MemoryBackend:
    return LocalJsonMemoryBackend(folder)


def routed(folder: Path, embedder: Embedder) -> MemoryBackend:
    """Episodic entries by themselves: two stores of one space."""
    backends = {name: faiss(folder / name, embedder) for name in ("most", "episodes")}
    return RoutedBackend((Route("episodes", tiers=("episodic",)),), backends, "most")


# Every pair of backends, and exports with and without vectors from each and to each.
@pytest.mark.parametrize(
    ("first", "second", "vectors"),
    [
        *((first, second, True) for first in (faiss, routed) for second in (faiss, routed)),
        *((first, local_json, first is routed) for first in (faiss, local_json, routed)),
        *((local_json, second, second is routed) for second in (faiss, routed)),
        (routed, faiss, False),
    ],
)
def test_an_imported_export_is_exported_again_byte_for_byte(
    tmp_path: Path, first: Opened, second: Opened, vectors: bool
) -> None:
    origin = first(tmp_path / "first", HashingEmbedder())
    if first is routed:
        origin.store([make_entry("kept by two backends", tier=tier) for tier in ("semantic", "episodic")])
    else:
        fill(origin)
    told = exported(origin, tmp_path / "out", vectors=vectors)
    assert sum(told.namespaces.values()) == len(everything(origin))
    counting = CountingEmbedder()
    copy = second(tmp_path / "second", counting)
    done = imported(copy, tmp_path / "out")
    assert (done.entries, done.there_already) == (len(everything(origin)), 0)
    assert everything(copy) == everything(origin)
    assert done.former == sum(len(past) for _, past in everything(origin).values()) == told.former
    if vectors and first is not local_json and second is not local_json:
        assert (counting.documents, done.vectors) == ([], told.vectors)
        assert told.vectors > 0
    keeps = first is not local_json and second is not local_json
    exported(copy, tmp_path / "back", vectors=vectors and keeps)
    if keeps or not vectors or first is local_json:
        assert same(tmp_path / "out", tmp_path / "back")
    again = imported(copy, tmp_path / "out")
    assert (again.entries, again.there_already) == (0, done.entries)
    origin.close()
    copy.close()


def test_vectors_of_another_space_are_ignored_and_texts_embedded(tmp_path: Path) -> None:
    origin = faiss(tmp_path / "first", HashingEmbedder())
    fill(origin)
    exported(origin, tmp_path / "out", vectors=True)
    counting = CountingEmbedder(HashingEmbedder(64))
    copy = faiss(tmp_path / "second", counting)
    assert imported(copy, tmp_path / "out").vectors == 0
    assert len(set(counting.documents)) > 0 and copy.pending(Scope()) == 0
    assert everything(copy) == everything(origin)
    copy.close()
    origin.close()


def test_an_import_works_without_an_embedder(tmp_path: Path) -> None:
    origin = faiss(tmp_path / "first", HashingEmbedder())
    origin.store([make_entry("a quiet harbour")])
    exported(origin, tmp_path / "out", vectors=True)
    embedder = FlakyEmbedder(down=True)
    copy = faiss(tmp_path / "second", embedder)
    assert imported(copy, tmp_path / "out").entries == 1
    assert copy.pending(Scope()) == 1
    embedder.down = False
    assert copy.embed_pending() == 0
    copy.close()
    origin.close()


@pytest.mark.model
def test_a_new_memory_uses_the_embedder_of_the_imported_vectors(tmp_path: Path) -> None:
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing:64") as af:
        af.memory.store("the boat lies at berth seven")
        af.export_to(tmp_path / "out", vectors=True)
    with connect(index_dir=tmp_path / "j", upload_dir=tmp_path / "v") as af:  # `auto`
        assert af.import_from(tmp_path / "out").vectors == 1
        assert af.backend.spaces()[0].space.spec == "hashing:64"
        (hit,) = af.backend.search(Query("berth", mode="dense"))
        assert hit.entry.content == "the boat lies at berth seven"
        assert af.embedder.space.spec == "hashing:64"


def test_an_export_is_of_one_moment(tmp_path: Path) -> None:
    """Two namespaces change in one transaction, again and again, while exports are taken."""
    backend = faiss(tmp_path / "store", HashingEmbedder())
    stop = threading.Event()
    rounds = 0

    def change() -> None:
        nonlocal rounds
        while not stop.is_set():
            rounds += 1
            pair = [make_entry(f"round {rounds}", namespace=name) for name in ("a", "b")]
            backend.store(pair, replacing=[Scope("a"), Scope("b")])

    change_once = make_entry("round 0", namespace="a"), make_entry("round 0", namespace="b")
    backend.store(change_once)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        seen = set()
        for n in range(20):
            exported(backend, tmp_path / f"out{n}")
            found = [json.loads(line)["content"] for name in "ab" for line in _lines(tmp_path / f"out{n}", name)]
            assert len(found) == 2 and len(set(found)) == 1
            seen.add(found[0])
            written = rounds
            wait_until(lambda: rounds >= written + 2 or not thread.is_alive())  # noqa: B023 - called at once
    finally:
        stop.set()
        thread.join()
        backend.close()
    assert len(seen) == 20


def _lines(folder: Path, namespace: str) -> list[str]:
    return (folder / "entries" / f"{namespace}.jsonl").read_text(encoding="utf-8").split("\n")[:-1]


def test_an_export_of_the_first_format_is_imported_with_histories(tmp_path: Path) -> None:
    origin = faiss(tmp_path / "first", HashingEmbedder())
    fill(origin)
    exported(origin, tmp_path / "out")
    to_first_format(tmp_path / "out")
    copy = local_json(tmp_path / "second", HashingEmbedder())
    imported(copy, tmp_path / "out")
    assert everything(copy) == everything(origin)
    copy.close()
    origin.close()


@pytest.mark.slow
def test_export_and_import_use_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 MB of pages on disk, a fraction of them in memory."""
    monkeypatch.setattr(importer, "_BATCH_BYTES", 1 << 20)
    backend, copy = (faiss(tmp_path / name, HashingEmbedder()) for name in ("store", "copy"))
    backend.store([entry for n in range(100) for entry in _document(f"{n}.txt", "harbour " * 25_000)])
    copy.store([make_entry("so that what storing needs is imported")])
    tracemalloc.start()
    try:
        exported(backend, tmp_path / "out")
        _, out = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert imported(copy, tmp_path / "out").entries == 200
        _, back = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        copy.close()
        backend.close()
    assert (tmp_path / "out" / "entries" / "default.jsonl").stat().st_size > 20_000_000
    print(f"peak of an export {out / 1e6:.1f} MB, of an import {back / 1e6:.1f} MB")
    assert out < 16_000_000 and back < 12_000_000


def _document(name: str, text: str) -> list[MemoryEntry]:
    """A document of one page, of which nothing is searched."""
    details = {"sha256": hashlib.sha256(name.encode()).hexdigest(), "bytes": 1, "pages": 1, "chunks": 0}
    told = {"name": name, "media_type": "", "status": "no_text", "reason": "", "language": "", "given": {}}
    whole = make_entry(name, kind="document", metadata={**details, **told})
    source = Source(whole.id, name, 1, "", 0, len(text))
    return [whole, make_entry(text, kind="page", source=source, parent_id=whole.id)]


@pytest.mark.parametrize("levels", [1, 98, 99])
def test_metadata_of_a_document_may_nest_as_deep_as_other_metadata(tmp_path: Path, levels: int) -> None:
    given: object = "deep"
    for _ in range(levels):
        given = {"k": given}
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing:") as af:
        af.rag.upload(b"Boats are lifted in October.", name="rules.txt", metadata=given)  # type: ignore[arg-type]
        af.export_to(tmp_path / "e")
    with connect(index_dir=tmp_path / "i2", upload_dir=tmp_path / "u2", embedder="hashing:") as af:
        af.import_from(tmp_path / "e")
        (document,) = af.rag.documents()
        assert document.metadata == given


@pytest.mark.parametrize("batch", [1, 1000])
def test_superseded_entries_are_imported_together_with_their_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """A successor may come after the entry that it superseded, and in another batch."""
    monkeypatch.setattr(importer, "_BATCH", batch)
    origin = faiss(tmp_path / "first", HashingEmbedder())
    ids = [entry.id for entry in origin.store([make_entry(f"newt {n}") for n in range(6)])]
    for old, new in ((0, 3), (1, 3), (3, 2), (5, 4)):
        origin.update(ids[old], {"superseded_by": ids[new]})
    exported(origin, tmp_path / "out")
    copy = local_json(tmp_path / "second", HashingEmbedder())
    imported(copy, tmp_path / "out")
    assert everything(copy) == everything(origin)
    assert imported(copy, tmp_path / "out").there_already == 6
    origin.close()
    copy.close()
