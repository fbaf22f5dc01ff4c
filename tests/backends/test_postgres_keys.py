"""The keys of the tables in PostgreSQL begin with the namespace, and stores of the former keys are moved to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict
from agentformer.memory.backends.postgres import schema
from agentformer.memory.backends.postgres.connection import PostgresDatabase
from agentformer.memory.backends.postgres.server import Connection, open_connection
from agentformer.testing import FlakyEmbedder, make_entry
from agentformer.testing.case import run_in_threads
from agentformer.types import MemoryBackend, Query, Scope
from tests.backends.postgres_server import open_store, schema_of

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("postgres_url")]

# Tables that each node of a distributed database has as a whole: they belong to no namespace, or to all.
REFERENCE = {
    *("absent_documents", "changes", "commits", "entry_places", "files", "jobs", "leases", "meta", "nodes", "points"),
    *("schema_version", "spaces", "word_counts", "word_totals"),
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
def sql(postgres_url: str, tmp_path: Path) -> Iterator[Connection]:
    """Statements on the tables of the test's store."""
    with open_connection(postgres_url) as raw:
        raw.execute(f'SET search_path = "{schema_of(tmp_path)}", public'.encode())
        yield Connection(raw)


def _rows(sql: Connection, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in sql.run(query, [])]


def _contents(memory: MemoryBackend) -> list[Any]:
    entries = [entry for name in memory.namespaces() for entry in memory.list(Scope(name, include_archived=True))]
    return [(entry, memory.history(entry.id)) for entry in entries]


def _hits(memory: MemoryBackend, namespace: str) -> list[Any]:
    return [
        [
            (hit.entry.id, round(hit.score, 6), hit.span)
            for hit in memory.search(Query(text, Scope(namespace), mode=mode))
        ]
        for text in ("the heron", "a newt of the lake")
        for mode in ("lexical", "dense", "hybrid")
    ]


def test_each_key_of_a_distributed_table_begins_with_the_namespace(sql: Connection, tmp_path: Path) -> None:
    open_store(tmp_path, HashingEmbedder()).close()
    tables = {row[0] for row in sql.run("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema_of(tmp_path)])}
    assert tables == REFERENCE | DISTRIBUTED
    keys = [tuple(row) for row in sql.run(_KEYS, [schema_of(tmp_path)])]
    assert {table for table, primary, _ in keys if primary} >= DISTRIBUTED
    for table, _, first in keys:
        if table in DISTRIBUTED:
            assert first in ("namespace", "entry_namespace"), (table, first)
    for table, other, first in sql.run(_REFERENCES, [schema_of(tmp_path)]):
        assert table in DISTRIBUTED
        assert other in REFERENCE or first == "entry_namespace", (table, other, first)


def test_an_equal_text_has_one_vector_in_each_namespace_and_is_embedded_once(sql: Connection, tmp_path: Path) -> None:
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


def test_an_entry_moves_to_another_namespace_with_all_that_belongs_to_it(sql: Connection, tmp_path: Path) -> None:
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


def test_a_damaged_copy_of_a_vector_is_found_and_embedded_again(sql: Connection, tmp_path: Path) -> None:
    memory = open_store(tmp_path, HashingEmbedder())
    memory.store([make_entry("the heron", namespace=name) for name in ("north", "south")])
    sql.run("UPDATE vectors SET data = set_byte(data, 0, get_byte(data, 0) # 1) WHERE entry_namespace = 'south'", [])
    assert sum(check.found for check in memory.verify() if check.name == "vectors") == 1
    memory.verify(repair=True)
    assert all(not check.found for check in memory.verify())
    assert len(_rows(sql, "SELECT DISTINCT data FROM vectors")) == 1
    memory.close()


def test_a_store_with_the_former_keys_is_moved_by_nodes_that_start_at_once(
    postgres_url: str, tmp_path: Path, sql: Connection
) -> None:
    """All entries, former versions, vectors, claims and ranks are those of before."""
    embedder = FlakyEmbedder()
    memory = open_store(tmp_path, embedder)
    for namespace in ("north", "south", "it's a \N{SNOWMAN}"):
        memory.store([make_entry(f"the heron stands {n % 7} times", namespace=namespace) for n in range(12)])
        memory.store([make_entry("a newt of the lake", namespace=namespace, session_id="s", kind="message")])
    first = next(iter(memory.list(Scope("north"))))
    memory.update(first.id, {"content": "a renamed heron"})
    embedder.down = True
    memory.store([make_entry("a stoat that waits for its vectors", namespace="south")])
    memory.close()
    before = open_store(tmp_path, HashingEmbedder())
    contents, ranks = _contents(before), [_hits(before, name) for name in before.namespaces()]
    before.close()
    _restore_former_schema(sql, schema_of(tmp_path))
    opened = run_in_threads(3, lambda _: PostgresDatabase(postgres_url, schema_of(tmp_path)))
    for database in opened:
        database.close()
    after = open_store(tmp_path, HashingEmbedder())
    assert _contents(after) == contents
    assert [_hits(after, name) for name in after.namespaces()] == ranks
    assert all(not check.found for check in after.verify())
    assert len({row[0] for row in _rows(sql, "SELECT num FROM entry_places")}) == 3 * 13 + 1
    (entry,) = after.store([make_entry("the newest heron", namespace="north")])
    numbers = dict(_rows(sql, "SELECT id, num FROM entry_places"))
    assert numbers[entry.id] == max(numbers.values()) and after.embed_pending() == 0
    after.close()


def _restore_former_schema(sql: Connection, name: str) -> None:
    """Put the rows of the store into the tables of the former version 5."""
    raw = sql.raw
    with raw.transaction():
        raw.execute(f'ALTER SCHEMA "{name}" RENAME TO "{name}_new"'.encode())
        raw.execute(f'CREATE SCHEMA "{name}"; SET search_path = "{name}", public'.encode())
        for script in schema.MIGRATIONS[:5]:
            raw.execute(script.encode())
        raw.execute(b"CREATE TABLE schema_version (version integer NOT NULL); INSERT INTO schema_version VALUES (5)")
        for table in ("meta", "entries", "history", "changes", "points", "spaces", "vectors", "windows", "pending",
                      "derived", "word_entries", "words"):  # fmt: skip
            rows = raw.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
                [name, table],
            ).fetchall()
            columns = ", ".join(row[0] for row in rows)
            one = "DISTINCT ON (id)" if table == "vectors" else ""
            raw.execute(f'INSERT INTO {table} ({columns}) SELECT {one} {columns} FROM "{name}_new".{table}'.encode())
            if table in ("entries", "changes", "vectors", "windows"):
                key = {"entries": "num", "changes": "seq"}.get(table, "id")
                last = f"(SELECT max({key}) FROM {table})"
                raw.execute(f"SELECT setval(pg_get_serial_sequence('{table}', '{key}'), {last})".encode())
        raw.execute(b"INSERT INTO word_counts SELECT namespace, term, count(*) FROM words GROUP BY 1, 2")
        raw.execute(
            b"INSERT INTO word_totals SELECT namespace, language, count(*), "
            b"ARRAY[sum(lengths[1]), sum(lengths[2]), sum(lengths[3])] FROM word_entries GROUP BY 1, 2"
        )
        raw.execute(f'DROP SCHEMA "{name}_new" CASCADE'.encode())
