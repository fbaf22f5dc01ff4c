"""The embedded backend keeps the whole contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentformer.errors import EmbedderError
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import BackendConformance, CountingEmbedder, make_entry
from agentformer.types import Embedder, Matrix, Query, Scope


class TestFaiss(BackendConformance):
    def open(self, folder: Path, embedder: Embedder) -> FaissMemoryBackend:
        return FaissMemoryBackend(folder, embedder)


class Picky(CountingEmbedder):
    """A server that refuses certain texts, whoever asks with them."""

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        if any("poison" in text for text in texts):
            raise EmbedderError("the server refused this text")
        return super().embed_documents(texts)


def test_a_text_that_the_embedder_refuses_keeps_no_other_from_being_embedded(tmp_path: Path) -> None:
    backend = FaissMemoryBackend(tmp_path, Picky())
    backend.store([make_entry("poison")])
    fine, _ = backend.store([make_entry("a fine numbat"), make_entry("more poison")])
    assert backend.embed_pending() == 2
    assert [hit.entry.id for hit in backend.search(Query("numbat", mode="dense"))] == [fine.id]
    assert backend.pending(Scope()) == 2
    backend.close()


def test_the_status_leaves_out_a_file_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FaissMemoryBackend(tmp_path, CountingEmbedder())
    backend.store([make_entry("a fine numbat")])
    (tmp_path / ".partial").write_bytes(b"x" * 1_000)
    whole, is_file = backend.status()["disk_bytes"], Path.is_file

    def vanishes(path: Path) -> bool:
        found = is_file(path)
        if path.name == ".partial":
            path.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", vanishes)
    assert 0 < backend.status()["disk_bytes"] <= whole - 1_000
    backend.close()
