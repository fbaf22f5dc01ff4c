"""A store of an older schema opens, keeps its content, and supports the new fields."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreDamaged, StoreError
from agentformer.memory.backends.faiss.backend import DATABASE_FILE, FaissMemoryBackend
from agentformer.records import duplicates, supersession
from agentformer.records.integrity import checksums
from agentformer.records.integrity.file_guard import open_read_only
from agentformer.records.sqlite import schema
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.types import AbsentDocument, Query, Scope

_FIRST = """
INSERT INTO meta VALUES ('store_id', 'first');
INSERT INTO entries (id, namespace, tier, kind, content, title, context, metadata, derived_from, occurred_at,
    created_at, updated_at, access_count, match_count, read_count, salience, version)
VALUES ('e1', 'default', 'semantic', 'fact', 'the second text', '', '', '{"a": 1}', '[]', 5, 10, 20, 1, 2, 3, 0.5, 2);
INSERT INTO history VALUES (1, 1,
    '{"id": "e1", "content": "the first text", "created_at": "2024-01-01T00:00:00+00:00"}');
INSERT INTO changes (entry) VALUES (1);
INSERT INTO points VALUES (1, x'00');
INSERT INTO pending VALUES (1, 1, 'no embedder');
PRAGMA user_version = 1;
"""


def test_a_store_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / DATABASE_FILE)
    connection.executescript(schema.MIGRATIONS[0] + _FIRST)
    connection.close()

    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    (entry,) = backend.list(Scope())
    assert (entry.content, entry.metadata, entry.salience, entry.version) == ("the second text", {"a": 1}, 0.5, 2)
    assert (entry.match_count, entry.repeat_count, entry.category, entry.user_id, entry.archived_by) == (
        2,
        0,
        "",
        None,
        None,
    )
    assert [former.content for former in backend.history("e1")] == ["the first text"]
    assert backend.embed_pending() == 0
    assert [hit.entry.id for hit in backend.search(Query("second", mode="dense"))] == ["e1"]

    changed = backend.update("e1", {"category": "context", "user_id": "aino"})
    assert [e.id for e in backend.list(Scope(user_id="aino", categories=("context",)))] == ["e1"]
    assert changed.version == 3
    summary = backend.consolidate(make_entry("in short", kind="summary"), ["e1"])
    assert [e.id for e in backend.list(Scope())] == [summary.id]
    backend.close()


def test_a_new_store_has_the_schema_of_a_store_that_was_migrated_from_the_first_version() -> None:
    def tables_and_indexes(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
        schema.migrate(connection)
        assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
        return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()

    with (
        closing(sqlite3.connect(":memory:", isolation_level=None)) as new,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as migrated,
    ):
        migrated.executescript(schema.MIGRATIONS[0] + "PRAGMA user_version = 1;")
        assert tables_and_indexes(new) == tables_and_indexes(migrated)
        ((key, value, checksum),) = new.execute("SELECT key, value, checksum FROM meta")
    assert (key, checksum) == ("store_id", checksums.of_text(value, "store_id"))


def test_the_lookup_of_duplicates_uses_its_index(tmp_path: Path) -> None:
    """Every store runs it, so it must not read the whole namespace."""
    database = Database(tmp_path / "memory.sqlite3")
    with database.reading() as connection:
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN {duplicates._SAME_START.sqlite}", ["default", "x", "x"]
        ).fetchall()
    database.close()
    assert "entries_by_beginning (namespace=? AND <expr>=?)" in plan[0][3]


def test_the_lookup_of_superseded_entries_uses_its_index(tmp_path: Path) -> None:
    """Every removal runs it, so it must not read all entries."""
    database = Database(tmp_path / "memory.sqlite3")
    with database.reading() as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {supersession.PREDECESSORS.sqlite}", ['["x"]']).fetchall()
    database.close()
    assert any("entries_by_successor (superseded_by=?)" in row[3] for row in plan)


def test_a_former_version_on_read_only_media_raises_store_error_with_advice(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_FILE
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join(schema.MIGRATIONS[:5]) + "PRAGMA user_version = 5")
        connection.execute("INSERT INTO meta VALUES ('store_id', 'former')")
        connection.commit()
    before = path.read_bytes()
    message = r"an older version of agentformer wrote this store .* open the store once with write access"
    with closing(open_read_only(path, 1.0)) as connection, pytest.raises(StoreError, match=message):
        schema.migrate(connection)
    assert path.read_bytes() == before
    Database(path).close()
    with closing(open_read_only(path, 1.0)) as connection:
        schema.migrate(connection)


def test_a_negative_schema_number_is_reported_as_damage(tmp_path: Path) -> None:
    FaissMemoryBackend(tmp_path, HashingEmbedder()).close()
    connection = sqlite3.connect(tmp_path / DATABASE_FILE)
    connection.execute("PRAGMA user_version = -1")
    connection.close()
    with pytest.raises(StoreDamaged, match=r"the damaged schema number -1; .* run `agentformer doctor --repair`"):
        FaissMemoryBackend(tmp_path, HashingEmbedder())


def test_a_store_without_absent_documents_records_them_after_its_migration(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        connection.executescript("".join(schema.MIGRATIONS[:8]))
        connection.executescript("INSERT INTO meta VALUES ('store_id', 'eighth', NULL); PRAGMA user_version = 8")
    document = make_entry("numbat.txt", kind="document", metadata={"sha256": "ab"})
    for absent in ([], [AbsentDocument(document.id, "ab")]):
        with closing(FaissMemoryBackend(tmp_path, HashingEmbedder())) as backend:
            assert list(backend.absent_documents()) == absent
            backend.store([document])
            backend.remove([document.id])


def test_the_schema_of_a_new_database_is_one_transaction(tmp_path: Path) -> None:
    done: list[str] = []
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as connection:
        connection.set_trace_callback(done.append)
        schema.migrate(connection)
    assert done.count("COMMIT") == 1


def test_entries_of_the_schema_before_validity_hold_always(tmp_path: Path) -> None:
    """Their checksums stay valid, and they can get times."""
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        connection.executescript(schema.MIGRATIONS[0] + _FIRST)
        for number in range(1, 12):
            schema._apply(connection, number)
        connection.executescript("PRAGMA user_version = 12")
        connection.commit()
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    (entry,) = backend.list(Scope())
    assert (entry.valid_from, entry.valid_to, entry.expires_at) == (None, None, None)
    assert [hit.entry.id for hit in backend.search(Query("second"))] == ["e1"]
    assert not any(check.found for check in backend.verify())
    new = backend.store([make_entry("the third text")])[0]
    assert backend.update("e1", {"superseded_by": new.id}).valid_to == new.created_at
    assert [e.id for e in backend.list(Scope())] == [new.id]
    backend.close()
