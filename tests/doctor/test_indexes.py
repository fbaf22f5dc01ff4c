"""Intact index files that do not belong to the records."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tantivy

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderError
from agentformer.index.vectors import IndexOptions
from agentformer.index.words import writer as manifest
from agentformer.index.words.fields import AnalyzedEntry, schema
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, FaissOptions
from agentformer.records.integrity.files import delete
from agentformer.testing import CountingEmbedder, make_entry
from agentformer.types import Check, MemoryEntry, Query, Scope

pytestmark = pytest.mark.fault

PLANS = {"exact": IndexOptions(), "trained": IndexOptions(train_at=30, exact_rows=10, train_after=0.0)}


def filled(folder: Path, plan: IndexOptions, animal: str = "marmot") -> list[MemoryEntry]:
    with closing(FaissMemoryBackend(folder, HashingEmbedder(64), FaissOptions(index=plan))) as backend:
        stored = backend.store([make_entry(f"the {animal} number n{n} whistles") for n in range(40)])
        backend.embed_pending()
        backend.search(Query(animal))
        return stored


def found(backend: FaissMemoryBackend, *, repair: bool = False) -> dict[str, Check]:
    return {check.name: check for check in backend.verify(repair=repair) if check.found}


def assert_repaired(folder: Path, plan: IndexOptions, check: str, message: str) -> None:
    """Only this check finds it, a repair repairs it, and then all entries are found."""
    with closing(FaissMemoryBackend(folder, HashingEmbedder(64), FaissOptions(index=plan))) as backend:
        assert list(found(backend)) == [check]
        assert message in found(backend)[check].findings[0]
        assert found(backend, repair=True)[check].mended == 1
        assert found(backend) == {}
        for entry in backend.list(Scope()):
            for mode in ("lexical", "dense"):
                hits = backend.search(Query(entry.content, limit=3, mode=mode))  # type: ignore[arg-type]
                assert entry.id in [hit.entry.id for hit in hits]
        assert found(backend) == {}


@pytest.mark.parametrize("plan", PLANS)
def test_a_snapshot_with_vectors_of_other_texts_is_repaired(tmp_path: Path, plan: str) -> None:
    filled(tmp_path, PLANS[plan])
    other = np.zeros(64, "<f4")
    other[3] = 1
    with closing(sqlite3.connect(tmp_path / "memory.sqlite3")) as connection:
        connection.execute("UPDATE vectors SET data = ?, checksum = NULL WHERE id = 7", [other.tobytes()])
        connection.commit()
    with closing(FaissMemoryBackend(tmp_path, HashingEmbedder(64), FaissOptions(index=PLANS[plan]))) as backend:
        assert "contains 1 vectors that differ from" in found(backend)["snapshot"].findings[0]


@pytest.mark.parametrize("plan", PLANS)
def test_a_snapshot_with_other_rows_is_repaired(tmp_path: Path, plan: str) -> None:
    filled(tmp_path, PLANS[plan])
    with closing(sqlite3.connect(tmp_path / "memory.sqlite3")) as connection:
        first, second = (row[0] for row in connection.execute("SELECT entry FROM windows WHERE id IN (3, 4)"))
        connection.execute("UPDATE windows SET checksum = NULL, entry = ? - entry WHERE id IN (3, 4)", [first + second])
        connection.execute("UPDATE windows SET vector = 7 - vector WHERE id IN (3, 4)")  # so that texts agree again
        connection.commit()
    assert_repaired(tmp_path, PLANS[plan], "snapshot", "they may differ in their entries or vectors")


def test_index_files_of_another_store_are_repaired(tmp_path: Path) -> None:
    for name in ("one", "other"):
        filled(tmp_path / name, PLANS["exact"], name)
    for name in ("rag_faiss_index.bin", "rag_faiss_meta.json"):
        shutil.copy(tmp_path / "other" / name, tmp_path / "one" / name)
    assert_repaired(tmp_path / "one", PLANS["exact"], "snapshot", "belongs to another store")
    filled(tmp_path / "one", PLANS["exact"], "one more")
    delete(tmp_path / "one" / "words")
    shutil.copytree(tmp_path / "other" / "words", tmp_path / "one" / "words")
    assert_repaired(tmp_path / "one", PLANS["exact"], "words", "belongs to another store")


def rewritten(folder: Path, num: int, instead: AnalyzedEntry | None) -> None:
    """Write the word index with another document, or none, for an entry, and a valid manifest."""
    words = folder / "words"
    state = manifest.read_manifest(words, verify=True)
    index = tantivy.Index(schema(), path=str(words))
    writer = index.writer(heap_size=20_000_000, num_threads=1)
    writer.delete_documents_by_query(tantivy.Query.term_query(index.schema, "num", num))
    if instead is not None:
        writer.add_document(instead.document())
    writer.commit()
    writer.wait_merging_threads()
    manifest.write_manifest(words, state)


def test_a_word_index_without_an_entry_is_repaired(tmp_path: Path) -> None:
    filled(tmp_path, PLANS["exact"])
    rewritten(tmp_path, 5, None)
    assert_repaired(tmp_path, PLANS["exact"], "words", "lacks 1 entries, such as entry number 5")


def test_a_word_index_with_an_unknown_entry_is_repaired(tmp_path: Path) -> None:
    filled(tmp_path, PLANS["exact"])
    rewritten(tmp_path, 999, AnalyzedEntry.of(999, make_entry("of nobody")))
    assert_repaired(tmp_path, PLANS["exact"], "words", "1 entries that do not exist, such as entry number 999")


def test_a_word_index_with_terms_of_another_text_is_repaired(tmp_path: Path) -> None:
    stored = filled(tmp_path, PLANS["exact"])
    rewritten(tmp_path, 5, AnalyzedEntry.of(5, make_entry("something else")))
    assert_repaired(tmp_path, PLANS["exact"], "words", f"lacks terms of entry {stored[4].id}")


def test_an_index_that_is_behind_the_records_is_sound(tmp_path: Path) -> None:
    """A process killed before it wrote its indexes leaves such an index."""
    stored = filled(tmp_path / "store", PLANS["exact"])
    shutil.copytree(tmp_path / "store", tmp_path / "before")
    with closing(FaissMemoryBackend(tmp_path / "store", HashingEmbedder(64))) as backend:
        backend.update(stored[0].id, {"content": "the marmot sleeps"})
        backend.remove([stored[1].id])
        backend.store([make_entry("a new one")])
        backend.search(Query("marmot"))
    for name in ("words", "rag_faiss_index.bin", "rag_faiss_meta.json"):
        delete(tmp_path / "store" / name)
        former = tmp_path / "before" / name
        (shutil.copytree if former.is_dir() else shutil.copy)(former, tmp_path / "store" / name)
    with closing(FaissMemoryBackend(tmp_path / "store", HashingEmbedder(64))) as backend:
        assert found(backend) == {}
        assert [hit.entry.content for hit in backend.search(Query("sleeps", limit=1))] == ["the marmot sleeps"]


class Picky(CountingEmbedder):
    """Refuses certain texts."""

    def embed_documents(self, texts: Sequence[str]):  # type: ignore[no-untyped-def]
        if any("poison" in text for text in texts):
            raise EmbedderError("the server refused this text")
        return super().embed_documents(texts)


def test_returning_to_a_space_drops_vectors_of_a_refused_text(tmp_path: Path) -> None:
    one, other = HashingEmbedder(64), HashingEmbedder(96)
    with closing(FaissMemoryBackend(tmp_path, one)) as backend:
        (entry, _) = backend.store([make_entry("a numbat at dawn"), make_entry("a quokka")])
        backend.reembed(other)
    with closing(FaissMemoryBackend(tmp_path, other)) as backend:
        backend.reembed(one)
    with closing(FaissMemoryBackend(tmp_path, one)) as backend:
        backend.update(entry.id, {"content": "poison"})
        assert backend.reembed(Picky(other)).failed == 1
    with closing(FaissMemoryBackend(tmp_path, other)) as backend:
        assert entry.id not in [hit.entry.id for hit in backend.search(Query("a numbat at dawn", mode="dense"))]
        assert found(backend) == {}
