"""The backend `postgres` while the server is lost, restarted, read-only or used by another version."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentformer
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, StoreError, StoreReadOnly
from agentformer.memory.backends.postgres import searching, vectors
from agentformer.memory.backends.postgres.backend import PostgresMemoryBackend, PostgresOptions
from agentformer.memory.backends.postgres.database import PostgresDatabase, vacuum
from agentformer.memory.backends.postgres.server import open_connection
from agentformer.settings import Settings
from agentformer.testing import make_entry
from agentformer.testing.case import EVERYTHING, run_in_threads
from agentformer.types import Query, Scope
from tests.backends.postgres_server import schema_of

pytestmark = pytest.mark.process


def _open(url: str, folder: Path) -> PostgresMemoryBackend:
    return PostgresMemoryBackend(url, HashingEmbedder(), PostgresOptions(schema=schema_of(folder)))


def _execute(url: str, statement: str) -> None:
    with open_connection(url) as raw:
        raw.execute(statement.encode())


_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename IS NOT NULL"


def test_nodes_that_start_at_once_create_one_store(postgres_url: str, tmp_path: Path) -> None:
    backends = run_in_threads(4, lambda _: _open(postgres_url, tmp_path))
    assert len({backend._database.store_id for backend in backends}) == 1
    stored = run_in_threads(4, lambda n: backends[n].store([make_entry(f"a heron {n}")])[0].id)
    assert {entry.id for entry in backends[0].list(EVERYTHING)} == {*stored}
    for backend in backends:
        backend.close()


def test_cut_connections_are_replaced_and_half_a_transaction_is_undone(postgres_url: str, tmp_path: Path) -> None:
    backend = _open(postgres_url, tmp_path)
    (first,) = backend.store([make_entry("a heron")])
    _execute(postgres_url, _CUT)
    assert [entry.id for entry in backend.list(EVERYTHING)] == [first.id]
    second = make_entry("a puffin")
    with pytest.raises(StoreError, match="cannot be reached"):
        backend.store([second], check=lambda _: _execute(postgres_url, _CUT))
    assert backend.get([second.id]) == []
    backend.store([second])
    with pytest.raises(Conflict):
        backend.store([second])
    assert backend.count(EVERYTHING) == 2
    backend.close()


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_in_doubt_is_looked_up_and_repeated(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    import psycopg

    backend = _open(postgres_url, tmp_path)
    execute, lost = psycopg.Connection.execute, []

    def lose(raw: Any, query: Any, *args: Any, **options: Any) -> Any:
        if query != "COMMIT" or lost:
            return execute(raw, query, *args, **options)
        lost.append(raw)
        if committed:
            execute(raw, query)
        raw.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    entry = make_entry("a heron in doubt")
    monkeypatch.setattr(psycopg.Connection, "execute", lose)
    backend.store([entry])  # is repeated if it was not committed
    assert lost and backend.list(EVERYTHING) == backend.get([entry.id])
    backend.close()


def test_a_read_only_server_is_read(postgres_url: str, tmp_path: Path) -> None:
    backend = _open(postgres_url, tmp_path)
    (entry,) = backend.store([make_entry("a heron")])
    backend.close()
    reader = _open(f"{postgres_url}&options=-cdefault_transaction_read_only%3Don", tmp_path)
    assert [hit.entry.id for hit in reader.search(Query("heron"))] == [entry.id]
    with pytest.raises(StoreReadOnly, match="cannot be written"):
        reader.store([make_entry("a puffin")])
    reader.touch([])
    reader.close()


def test_a_role_without_rights_to_write_reads(postgres_url: str, tmp_path: Path) -> None:
    backend, role = _open(postgres_url, tmp_path), schema_of(tmp_path)
    (entry,) = backend.store([make_entry("a heron")])
    backend.close()
    _execute(postgres_url, f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {role} TO {role}")
    _execute(postgres_url, f"GRANT SELECT ON ALL TABLES IN SCHEMA {role} TO {role}")
    reader = _open(postgres_url.replace("postgresql://postgres", f"postgresql://{role}"), tmp_path)
    assert [hit.entry.id for hit in reader.search(Query("heron"))] == [entry.id]
    with pytest.raises(StoreReadOnly, match="grant rights"):
        reader.store([make_entry("a puffin")])
    reader.close()


def test_a_store_of_an_earlier_numbering_is_opened_or_named(postgres_url: str, tmp_path: Path) -> None:
    backend, schema = _open(postgres_url, tmp_path), schema_of(tmp_path)
    (entry,) = backend.store([make_entry("a heron")])
    backend.close()
    columns = "valid_from", "valid_to", "expires_at"
    _execute(postgres_url, f"ALTER TABLE {schema}.entries {', '.join(f'DROP COLUMN {name}' for name in columns)}")
    _execute(postgres_url, f"DROP TABLE {schema}.events; DROP TABLE {schema}.trail")
    _execute(postgres_url, f"ALTER TABLE {schema}.jobs DROP COLUMN user_id")
    _execute(postgres_url, f"ALTER INDEX {schema}.word_counts_pkey RENAME TO word_counts_of_all")
    _execute(postgres_url, f"UPDATE {schema}.schema_version SET version = 7")
    with pytest.raises(StoreError, match=r"pg_dump.*agentformer upgrade --without-copy"):
        _open(postgres_url, tmp_path)
    PostgresDatabase(postgres_url, schema, migrates=True).close()
    reopened = _open(postgres_url, tmp_path)
    assert [hit.entry.id for hit in reopened.search(Query("heron"))] == [entry.id]
    reopened.close()
    _execute(
        postgres_url,
        f"ALTER TABLE {schema}.entry_places RENAME TO unknown; UPDATE {schema}.schema_version SET version = 3",
    )
    with pytest.raises(StoreError, match=r"earlier numbering.*export"):
        _open(postgres_url, tmp_path)


def test_a_newer_schema_and_a_lost_server_are_named(postgres_url: str, tmp_path: Path) -> None:
    _open(postgres_url, tmp_path).close()
    _execute(postgres_url, f"UPDATE {schema_of(tmp_path)}.schema_version SET version = 99")
    with pytest.raises(StoreError, match="newer version of agentformer"):
        _open(postgres_url, tmp_path)
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        PostgresDatabase("postgresql://me:geheim@127.0.0.1:1/x")
    assert "geheim" not in str(caught.value)


def test_a_server_without_free_connections_is_named(postgres_url: str, tmp_path: Path) -> None:
    role = schema_of(tmp_path)
    _execute(postgres_url, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")
    url = postgres_url.replace("postgresql://postgres", f"postgresql://{role}")
    with open_connection(url), pytest.raises(StoreError, match="max_connections"):
        open_connection(url)


def test_a_vacuum_deletes_old_versions_and_frees_deleted_rows(postgres_url: str, tmp_path: Path) -> None:
    backend = _open(postgres_url, tmp_path)
    (entry,) = backend.store([make_entry("a heron")])
    for text in ("an egret", "a stork"):
        backend.update(entry.id, {"content": text})
    settings = Settings(backend="postgres", postgres_url=postgres_url, postgres_schema=schema_of(tmp_path))
    assert vacuum(settings, None).versions == 0 and len(backend.history(entry.id)) == 2
    done = vacuum(settings, datetime.now(UTC))
    assert done.versions == 2 and done.before > 0 < done.after and backend.history(entry.id) == []
    assert [hit.entry.content for hit in backend.search(Query("stork"))] == ["a stork"]
    backend.close()


def test_callers_share_the_connections_that_the_server_accepts(postgres_url: str, tmp_path: Path) -> None:
    role = schema_of(tmp_path)
    _open(postgres_url, tmp_path).close()
    _execute(postgres_url, f"CREATE ROLE {role} LOGIN SUPERUSER")
    limited = postgres_url.replace("postgresql://postgres", f"postgresql://{role}")
    _execute(postgres_url, f"ALTER ROLE {role} NOSUPERUSER CONNECTION LIMIT 3")
    _execute(postgres_url, f"GRANT ALL ON SCHEMA {role} TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA {role} TO {role}")
    with open_connection(limited) as raw:
        (name,) = raw.execute("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()").fetchone()
    assert str(name).startswith(f"agentformer {os.getpid()} ")
    options = PostgresOptions(schema=role, connections=8)
    backend = PostgresMemoryBackend(limited, HashingEmbedder(), options)

    def work(number: int) -> None:
        for n in range(5):
            (entry,) = backend.store([make_entry(f"heron {number} {n}")])
            assert backend.get([entry.id]) == [entry]
            backend.search(Query(f"heron {number} {n}"))

    run_in_threads(8, work)
    assert backend.count(EVERYTHING) == 40
    backend.close()


def test_a_large_space_is_searched_by_its_index(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "INDEXED_FROM", 100)
    monkeypatch.setattr(vectors, "FEW", 20)
    monkeypatch.setattr(searching, "FEW", 20)
    backend = _open(postgres_url, tmp_path)
    words = ["heron", "puffin", "stoat", "marmot", "lynx", "newt"]
    random = np.random.default_rng(5)
    entries = [make_entry(" ".join(random.choice(words, 4)) + f" {n}", session_id=f"s{n % 9}") for n in range(300)]
    backend.store(entries)
    queries = [Query(entry.content, mode="dense", limit=10) for entry in entries[:20]]
    exact = [[hit.dense_score for hit in backend.search(query)] for query in queries]
    backend._vectors.build(wait=True)
    assert backend.status()["index"]["kind"] == "hnsw"
    found = [[hit.dense_score for hit in backend.search(query)] for query in queries]
    assert np.allclose(found, exact, atol=1e-6)
    scope = Scope(session_id="s4")
    assert {hit.entry.session_id for hit in backend.search(Query("heron", scope, mode="dense", limit=50))} == {"s4"}
    backend.close()


def test_a_memory_in_postgres_is_backed_up_and_exported(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFORMER_POSTGRES_URL", postgres_url)
    monkeypatch.setenv("AGENTFORMER_POSTGRES_SCHEMA", "memory_{folder}")
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    (tmp_path / "birds.md").write_text("# Birds\n\nThe heron nests at the lake.\n", encoding="utf-8")
    with agentformer.connect(backend="postgres", **folders) as af:
        af.rag.upload((tmp_path / "birds.md").read_bytes(), name="birds.md")
        af.memory.store("The puffin nests at the sea.")
        af.backup(tmp_path / "backup")
        assert not [check for check in af.verify() if check.found]
        assert af.status()["entries"] == af.backend.status()["entries"]
    with agentformer.connect(backend="postgres", **folders) as af:
        assert "lake" in af.rag.query("Where does the heron nest?").text
    copy = {"index_dir": tmp_path / "backup" / "indexes", "upload_dir": tmp_path / "backup" / "uploads"}
    with agentformer.connect(embedder="hashing", **copy) as af:
        assert [hit.entry.content for hit in af.memory.search("puffin")] == ["The puffin nests at the sea."]
