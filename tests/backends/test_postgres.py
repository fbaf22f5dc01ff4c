"""The backend `postgres` keeps the whole contract."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.postgres.backend import PostgresMemoryBackend, PostgresOptions
from agentformer.memory.backends.postgres.database import PostgresDatabase
from agentformer.testing import BackendConformance, make_entry
from agentformer.testing.case import run_in_threads
from agentformer.types import Embedder, MemoryBackend, Query, Scope, new_id
from tests.backends.postgres_server import open_store, schema_of

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("postgres_url")]


class TestPostgres(BackendConformance):
    def open(self, folder: Path, embedder: Embedder) -> MemoryBackend:
        return open_store(folder, embedder)


def test_a_search_needs_few_round_trips(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them takes longer than most statements. What every search reads comes with the beginning."""
    memory = open_store(tmp_path, HashingEmbedder())
    memory.store([make_entry(f"a heron at lake {n}") for n in range(5)])
    modes: tuple[Literal["lexical", "dense", "hybrid"], ...] = ("lexical", "dense", "hybrid")
    queries = [Query("heron at the lake", mode=mode) for mode in modes]
    for query in queries * 2:  # connections are opened, scopes counted, and their vectors read
        memory.search(query)
    sent = _statements(monkeypatch)
    counts = []
    for query in queries:
        sent.clear()
        assert len(memory.search(query)) == 5
        counts.append(len(sent))
    assert counts[1] <= 3 and counts[0] <= 8 and counts[2] <= 9, counts  # rows of the first pass are in memory
    memory.close()


def test_a_call_that_stores_needs_few_round_trips(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = PostgresMemoryBackend(postgres_url, HashingEmbedder(), PostgresOptions(schema=schema_of(tmp_path)))
    entries = [make_entry(f"a heron at lake {n}", kind="fact") for n in range(40)]
    memory.store(entries[:1])
    sent = _statements(monkeypatch)
    counts = []
    for new, unique in ((entries[1:2], False), (entries[2:], False), (entries[:3], True), (entries, True)):
        sent.clear()
        memory.store([dataclasses.replace(entry, id=new_id()) for entry in new], unique=unique)
        counts.append(len(sent))
    assert all(count <= most for count, most in zip(counts, (35, 37, 27, 99), strict=True)), counts
    memory.close()


def _statements(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each statement is added that is sent to the server."""
    cursor = pytest.importorskip("psycopg").Cursor
    sent: list[Any] = []
    for name in ("execute", "executemany"):
        monkeypatch.setattr(cursor, name, _counted(getattr(cursor, name), sent))
    return sent


def _counted(call: Any, sent: list[Any]) -> Any:
    def counted(cursor: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(statement)
        return call(cursor, statement, *arguments, **options)

    return counted


def test_a_search_that_waits_for_its_words_needs_one_connection_of_its_own(postgres_url: str, tmp_path: Path) -> None:
    """The words are searched in another thread, which must not wait for the connection that the search holds."""
    memory = PostgresMemoryBackend(
        postgres_url, HashingEmbedder(), PostgresOptions(schema=schema_of(tmp_path), connections=1)
    )
    (entry,) = memory.store([make_entry("a heron at the lake")])
    found = run_in_threads(4, lambda n: [hit.entry.id for hit in memory.search(Query(f"heron {n}"))])
    assert found == [[entry.id]] * 4
    memory.close()


def test_words_have_the_scores_of_the_embedded_backend(tmp_path: Path) -> None:
    texts = (
        "The heron waits at the lake.",
        "The otter waits at the lake; the otter swims.",
        "Haikara nukkuu järven rannalla.",
        "The crane dances at the river.",
    )
    entries = [make_entry(text, title="heron" if n == 3 else "") for n, text in enumerate(texts)]
    ours, theirs = (
        open_store(tmp_path / "p", HashingEmbedder()),
        FaissMemoryBackend(tmp_path / "f", HashingEmbedder()),
    )
    for backend in (ours, theirs):
        backend.store(entries)
    for text in ("heron", "otter", "waits at the lake", "järvi", "crane heron"):
        expected, found = (
            [(h.entry.id, h.lexical_score) for h in b.search(Query(text, mode="lexical"))] for b in (theirs, ours)
        )
        assert [id for id, _ in found] == [id for id, _ in expected], text
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-3), text
    ours.close()
    theirs.close()


def test_a_store_of_the_schema_before_validity_is_migrated(postgres_url: str, tmp_path: Path) -> None:
    psycopg = pytest.importorskip("psycopg")
    memory = open_store(tmp_path, HashingEmbedder())
    old, new = memory.store([make_entry("a heron at the lake"), make_entry("a heron at the sea")])
    memory.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema_of(tmp_path)}, public")
        for column in ("valid_from", "valid_to", "expires_at"):
            connection.execute(f"ALTER TABLE entries DROP COLUMN {column}")
        connection.execute("DROP TABLE events; DROP TABLE trail; ALTER TABLE jobs DROP COLUMN user_id")
        connection.execute("UPDATE schema_version SET version = 1")
    PostgresDatabase(postgres_url, schema_of(tmp_path), migrates=True).close()
    memory = open_store(tmp_path, HashingEmbedder())
    assert list(memory.get([old.id, new.id])) == [old, new]
    assert memory.update(old.id, {"superseded_by": new.id}).valid_to == new.created_at
    assert [hit.entry.id for hit in memory.search(Query("heron"))] == [new.id]
    assert memory.count(Scope(as_of=old.created_at)) == 1
    memory.close()
