"""The keys of the tables in PostgreSQL begin with the namespace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict
from agentformer.memory.backends.postgres.connection import PostgresConnection
from agentformer.memory.backends.postgres.server import open_connection
from agentformer.testing import FlakyEmbedder, make_entry
from agentformer.types import Query, Scope
from tests.backends.postgres_server import open_store, schema_of

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("postgres_url")]

# Tables that each node of a distributed database has as a whole: they belong to no namespace, or to all.
REFERENCE = {
    *("absent_documents", "changes", "commits", "entry_places", "events", "files", "jobs", "leases", "meta", "nodes"),
    *("points", "schema_version", "spaces", "trail", "word_counts", "word_totals"),
}
DISTRIBUTED = {"derived", "entries", "history", "moving", "pending", "vectors", "windows", "word_entries", "words"}
_KEYS = """
    SELECT t.relname, i.indisprimary, a.attname FROM pg_index AS i
    JOIN pg_class AS t ON t.oid = i.indrelid JOIN pg_namespace AS n ON n.oid = t.relnamespace
    JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = i.indkey[0]
    WHERE n.nspname = %s AND i.indisunique
"""
_REFERENCES = """
    SELECT c.conrelid::regclass::text, c.confrelid::regclass::text, a.attname FROM pg_constraint AS c
    JOIN pg_namespace AS n ON n.oid = c.connamespace
    JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
    WHERE n.nspname = %s AND c.contype = 'f'
"""


@pytest.fixture
def sql(postgres_url: str, tmp_path: Path) -> Iterator[PostgresConnection]:
    """Statements on the tables of the test's store."""
    with open_connection(postgres_url) as raw:
        raw.execute(f'SET search_path = "{schema_of(tmp_path)}", public'.encode())
        yield PostgresConnection(raw)


def _rows(sql: PostgresConnection, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in sql.execute(query, [])]


def test_each_key_of_a_distributed_table_begins_with_the_namespace(sql: PostgresConnection, tmp_path: Path) -> None:
    open_store(tmp_path, HashingEmbedder()).close()
    tables = {
        row[0] for row in sql.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema_of(tmp_path)])
    }
    assert tables == REFERENCE | DISTRIBUTED
    keys = [tuple(row) for row in sql.execute(_KEYS, [schema_of(tmp_path)])]
    assert {table for table, primary, _ in keys if primary} >= DISTRIBUTED
    for table, _, first in keys:
        if table in DISTRIBUTED:
            assert first in ("namespace", "entry_namespace"), (table, first)
    for table, other, first in sql.execute(_REFERENCES, [schema_of(tmp_path)]):
        assert table in DISTRIBUTED
        assert other in REFERENCE or first == "entry_namespace", (table, other, first)


def test_an_equal_text_has_one_vector_in_each_namespace_and_is_embedded_once(
    sql: PostgresConnection, tmp_path: Path
) -> None:
    embedder = FlakyEmbedder()
    memory = open_store(tmp_path, embedder)
    text = "the heron stands in the reeds"
    (north,) = memory.store([make_entry(text, namespace="north")])
    (south,) = memory.store([make_entry(text, namespace="south")])
    memory.store([make_entry(text, namespace="south")])
    assert embedder.documents.count(text) == 1
    assert _rows(sql, "SELECT entry_namespace, count(*) FROM vectors GROUP BY 1 ORDER BY 1") == [
        ("north", 1),
        ("south", 1),
    ]
    assert len(_rows(sql, "SELECT DISTINCT id, hash, data, half::text FROM vectors")) == 1
    assert memory.spaces()[0].vectors == 1
    for namespace, entry in (("north", north), ("south", south)):
        assert memory.search(Query(text, Scope(namespace), mode="dense"))[0].entry.namespace == namespace
        assert memory.get([entry.id]) == [entry]
    memory.remove([north.id])
    assert _rows(sql, "SELECT entry_namespace FROM vectors") == [("south",)]
    assert all(not check.found for check in memory.verify())
    memory.close()


def test_an_id_belongs_to_one_namespace(tmp_path: Path) -> None:
    memory = open_store(tmp_path, HashingEmbedder())
    entry = make_entry("a newt", namespace="north")
    memory.store([entry])
    with pytest.raises(Conflict):
        memory.store([make_entry("another newt", id=entry.id, namespace="south")])
    assert memory.count(Scope("south")) == 0
    memory.remove([entry.id])
    memory.store([make_entry("another newt", id=entry.id, namespace="south")])
    assert memory.get([entry.id])[0].namespace == "south"
    memory.close()


def test_an_entry_moves_to_another_namespace_with_all_that_belongs_to_it(
    sql: PostgresConnection, tmp_path: Path
) -> None:
    memory = open_store(tmp_path, HashingEmbedder())
    entry, other = memory.store([make_entry("a newt of the pond", namespace="north") for _ in range(2)])
    memory.update(entry.id, {"content": "the heron at the lake"})
    moved = memory.update(entry.id, {"namespace": "south", "title": "Birds"})
    assert (moved.namespace, moved.title, moved.version) == ("south", "Birds", 3)
    assert memory.get([entry.id]) == [moved] and len(memory.history(entry.id)) == 2
    assert [hit.entry.id for hit in memory.search(Query("heron", Scope("south")))] == [entry.id]
    assert [hit.entry.id for hit in memory.search(Query("heron newt", Scope("north")))] == [other.id]
    for table in ("history", "windows", "derived"):
        found = _rows(sql, f"SELECT DISTINCT c.entry_namespace FROM {table} c JOIN entry_places p ON p.num = c.entry "
                           f"WHERE p.id = '{entry.id}'")  # fmt: skip
        assert found == [("south",)], table
    assert _rows(sql, "SELECT entry_namespace, count(*) FROM vectors GROUP BY 1 ORDER BY 1") == [
        ("north", 1),
        ("south", 1),
    ]
    assert all(not check.found for check in memory.verify())
    memory.close()


def test_a_damaged_copy_of_a_vector_is_found_and_embedded_again(sql: PostgresConnection, tmp_path: Path) -> None:
    memory = open_store(tmp_path, HashingEmbedder())
    memory.store([make_entry("the heron", namespace=name) for name in ("north", "south")])
    sql.execute(
        "UPDATE vectors SET data = set_byte(data, 0, get_byte(data, 0) # 1) WHERE entry_namespace = 'south'", []
    )
    assert sum(check.found for check in memory.verify() if check.name == "vectors") == 1
    memory.verify(repair=True)
    assert all(not check.found for check in memory.verify())
    assert len(_rows(sql, "SELECT DISTINCT data FROM vectors")) == 1
    memory.close()
