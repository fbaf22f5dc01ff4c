"""Embedding spaces never mix, and only unit vectors are stored."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderError, SpaceMismatch
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.faiss.folder import stored_space
from agentformer.records.spaces import check_same_space, claim_space
from agentformer.records.sqlite.database import Database
from agentformer.records.vectors import check_rows, put_vectors, text_hash, vector_ids
from agentformer.testing import CountingEmbedder, make_entry
from agentformer.types import EmbeddingSpace, Matrix, Query, Scope, Vector

SPACE = EmbeddingSpace("maker", "model", 4, 128)


def fingerprint(*values: float) -> str:
    return base64.b64encode(np.array(values, "<f2").tobytes()).decode()


def test_spaces_with_different_models_or_prefixes_do_not_match() -> None:
    changes: list[dict[str, Any]] = [
        {"provider": "other"},
        {"model": "other"},
        {"dimension": 5},
        {"revision": "2"},
        {"query_prefix": "q: "},
        {"document_prefix": "d: "},
        {"normalised": False},
        {"model": "model@int8"},
    ]
    for change in changes:
        with pytest.raises(SpaceMismatch, match="maker:model"):
            check_same_space(SPACE, dataclasses.replace(SPACE, **change))


def test_the_message_names_the_changed_options_and_the_command_to_move() -> None:
    with pytest.raises(SpaceMismatch, match=r"query_prefix was '', is 'q: '.*reembed --to maker:model"):
        check_same_space(SPACE, dataclasses.replace(SPACE, query_prefix="q: "))
    with pytest.raises(SpaceMismatch, match=r"--embedder maker:model.*reembed --to maker:other"):
        check_same_space(SPACE, dataclasses.replace(SPACE, model="other"))


def test_a_model_that_moved_to_another_name_matches_by_its_fingerprint_only() -> None:
    stored = dataclasses.replace(SPACE, fingerprint=fingerprint(1, 0, 0, 0))
    check_same_space(stored, dataclasses.replace(stored, model="copy"))
    for other in (fingerprint(0.999, 0.03, 0, 0), ""):
        with pytest.raises(SpaceMismatch):
            check_same_space(stored, dataclasses.replace(stored, model="copy", fingerprint=other))


def test_spaces_match_despite_other_max_tokens_and_languages() -> None:
    check_same_space(SPACE, dataclasses.replace(SPACE, max_tokens=64, languages="en"))


def test_the_fingerprint_detects_another_model_of_the_same_name() -> None:
    stored = dataclasses.replace(SPACE, fingerprint=fingerprint(1, 0, 0, 0))
    check_same_space(stored, dataclasses.replace(stored, fingerprint=fingerprint(0.999, 0.01, 0, 0)))
    check_same_space(stored, dataclasses.replace(stored, fingerprint=""))
    for other in (
        fingerprint(0.9, 0.43, 0, 0),
        fingerprint(0, 1, 0, 0),
        fingerprint(1, 0, 0),
        fingerprint(-1, 0, 0, 0),
    ):
        with pytest.raises(SpaceMismatch, match="another model"):
            check_same_space(stored, dataclasses.replace(stored, fingerprint=other))


def test_rows_that_are_not_unit_vectors_are_refused() -> None:
    check_rows(np.eye(4, dtype=np.float32)[:1] * np.float32(1.0005), 1)
    for rows in (
        np.full((1, 4), np.nan),
        np.array([[np.inf, 0, 0, 0]]),
        np.zeros((1, 4)),
        np.full((1, 4), 1.0),
        np.eye(4)[:1] * 1.01,
        np.eye(4)[:2],
        np.eye(4)[0],
    ):
        with pytest.raises(EmbedderError):
            check_rows(rows.astype(np.float32), 1)


def test_equal_texts_share_a_vector_and_the_first_stays(tmp_path: Path) -> None:
    database = Database(tmp_path / "m.sqlite3")
    key = text_hash("text")
    with database.writing() as connection:
        space = claim_space(connection, SPACE)
        assert claim_space(connection, SPACE) == space
        put_vectors(connection, space, [key], np.eye(4, dtype=np.float32)[:1])
        put_vectors(connection, space, [key], np.eye(4, dtype=np.float32)[1:2])
        (row,) = connection.execute("SELECT data FROM vectors").fetchall()
        assert np.frombuffer(row[0], "<f4").tolist() == [1, 0, 0, 0]
        assert set(vector_ids(connection, space, [key, text_hash("Text")])) == {key}
    database.close()


class Broken(CountingEmbedder):
    """Returns the same row for every text."""

    def __init__(self, row: list[float]) -> None:
        super().__init__(HashingEmbedder(8))
        self.row = np.array(row, np.float32)

    def embed_documents(self, texts: object) -> Matrix:
        return np.stack([self.row] * len(texts))  # type: ignore[arg-type]

    def embed_query(self, text: str) -> Vector:
        return self.row


@pytest.mark.parametrize("row", [[np.nan] * 8, [np.inf] + [0] * 7, [0] * 8, [0.5] * 8])
def test_invalid_vectors_leave_entries_pending_and_findable_by_words(tmp_path: Path, row: list[float]) -> None:
    backend = FaissMemoryBackend(tmp_path, Broken(row))
    (entry,) = backend.store([make_entry("a numbat")])
    assert backend.pending(Scope()) == 1 and backend.status()["vectors"] == 0
    assert [hit.entry.id for hit in backend.search(Query("numbat", mode="lexical"))] == [entry.id]
    backend.close()
    good = FaissMemoryBackend(tmp_path, HashingEmbedder(8))
    assert good.embed_pending() == 0
    (hit,) = good.search(Query("a numbat", mode="dense"))
    assert abs((hit.dense_score or 0) - 1) < 1e-5
    good.close()


def test_the_space_of_a_store_can_be_read_without_an_embedder(tmp_path: Path) -> None:
    assert stored_space(tmp_path) is None
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder(8))
    assert stored_space(tmp_path) is None
    backend.store([make_entry("a")])
    backend.close()
    assert stored_space(tmp_path) == HashingEmbedder(8).space


def test_a_store_of_one_dimension_refuses_another(tmp_path: Path) -> None:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder(8))
    backend.store([make_entry("a numbat")])
    backend.close()
    other = FaissMemoryBackend(tmp_path, HashingEmbedder(16))
    with pytest.raises(SpaceMismatch, match="hashing:8"):
        other.store([make_entry("b")])
    with pytest.raises(SpaceMismatch, match="hashing:8"):
        other.search(Query("numbat"))
    assert other.count(Scope()) == 1
    other.close()


def test_removing_an_entry_removes_its_windows_and_vectors(tmp_path: Path) -> None:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder(8))
    one, other = backend.store([make_entry("a numbat"), make_entry("a kakapo")])
    backend.remove([one.id])
    assert backend.status()["vectors"] == 1
    backend.update(other.id, {"content": "a takahe"})
    backend.remove([other.id])
    assert {name: backend.status()[name] for name in ("entries", "windows", "vectors", "pending")} == {
        "entries": 0,
        "windows": 0,
        "vectors": 0,
        "pending": 0,
    }
    backend.close()
