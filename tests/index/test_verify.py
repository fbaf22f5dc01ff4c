"""A verification of stored windows works without the embedder, and says what it could not compare."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import make_entry
from agentformer.types import Check, EmbeddingSpace


class Away(HashingEmbedder):
    """An embedder whose server is not reachable."""

    @property
    def space(self) -> EmbeddingSpace:
        raise EmbedderUnavailable("no server answers")


def windows(folder: Path) -> Check:
    """Return the result of the check of the windows while the embedder is away."""
    with closing(FaissMemoryBackend(folder, Away())) as backend:
        return next(check for check in backend.verify() if check.name == "windows")


@pytest.mark.parametrize("context", ["", "Handbook"])
def test_texts_with_a_context_line_are_not_compared_without_the_embedder(tmp_path: Path, context: str) -> None:
    with closing(FaissMemoryBackend(tmp_path, HashingEmbedder())) as backend:
        backend.store([make_entry("The heron waits.", context=context), make_entry("The otter swims.")])
    check = windows(tmp_path)
    assert (check.looked_at, check.found) == (2, 0)
    assert len(check.findings) == bool(context)
    assert all("were not compared" in text and "no server answers" in text for text in check.findings)


def test_a_vector_of_another_text_is_found_without_the_embedder(tmp_path: Path) -> None:
    with closing(FaissMemoryBackend(tmp_path, HashingEmbedder())) as backend:
        (entry, _) = backend.store([make_entry("The heron waits."), make_entry("The otter swims.")])
    with closing(sqlite3.connect(tmp_path / "memory.sqlite3")) as connection, connection:
        connection.execute("UPDATE windows SET checksum = NULL, vector = (SELECT max(id) FROM vectors)")
    check = windows(tmp_path)
    assert (check.found, len(check.findings)) == (1, 1)
    assert f"entry {entry.id} has a window with the vector of another text" in check.findings[0]
