"""The queries of uploads and writes use indexes, so that they cost the same in a large store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentformer.records import change_feed, trail
from agentformer.records import entries as records
from agentformer.records import vectors as store
from agentformer.records.change_feed import neighbor_texts
from agentformer.records.codec import now
from agentformer.records.scopes import changed_between, expired, next_change
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import Database
from agentformer.records.sqlite.scopes import searchable_numbers
from agentformer.testing import make_entry
from agentformer.types import MemoryEntry, Scope


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[SqliteConnection]:
    database = Database(tmp_path / "memory.sqlite3")
    with database.writing() as opened:
        yield opened
    database.close()


def entry(content: str, **values: object) -> MemoryEntry:
    return make_entry(content, created_at=now(), updated_at=now(), **values)


def statements(connection: SqliteConnection) -> list[str]:
    """Return a list that collects the statements of the connection, with their values."""
    seen: list[str] = []
    connection.set_trace_callback(lambda text: seen.append(text) if not text.startswith("--") else None)
    return seen


def plan(connection: SqliteConnection, query: str) -> str:
    return "\n".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}"))


@pytest.mark.parametrize("key", ["sha256", "name"])
def test_documents_are_found_by_hash_and_name_with_an_index(connection: SqliteConnection, key: str) -> None:
    scope = Scope("ours", kinds=("document",), metadata={key: "that one"})
    for namespace, metadata in (
        ("ours", {key: "that one"}),
        ("theirs", {key: "that one"}),
        ("ours", {key: "this one"}),
        ("ours", {key: ["that one"]}),
        ("ours", {}),
    ):
        records.insert(connection, [entry("x", kind="document", namespace=namespace, metadata=metadata)])
    assert records.count(connection, scope) == 1
    seen = statements(connection)
    assert [e.metadata for e in records.page(connection, scope, "", 5)] == [{key: "that one"}]
    connection.set_trace_callback(None)
    assert f"entries_by_{key}" in plan(connection, seen[0])


def test_namespaces_are_listed_without_a_full_scan(connection: SqliteConnection) -> None:
    assert records.namespaces(connection) == []
    records.insert(connection, [entry("x", namespace=name) for name in ["b", "ä", "a", "b", "b c"]])
    seen = statements(connection)
    assert records.namespaces(connection) == ["a", "b", "b c", "ä"]
    connection.set_trace_callback(None)
    assert "SCAN entries" not in plan(connection, seen[0])


@pytest.mark.parametrize("queued", [0, 3, 1_100])
def test_pending_entries_of_a_scope_are_counted_without_scanning_the_scope(
    connection: SqliteConnection, queued: int
) -> None:
    nums = records.insert(connection, [entry("x", namespace="ours" if n % 2 else "theirs") for n in range(1_200)])
    store.put_pending(connection, nums[:queued], "the server is gone")
    seen = statements(connection)
    assert store.pending_count(connection, Scope("ours")) == queued // 2
    connection.set_trace_callback(None)
    if queued < 1_000:
        assert not [query for query in seen if "namespace=" in plan(connection, query)]


def test_has_pending_knows_refused_entries(connection: SqliteConnection) -> None:
    assert not store.has_pending(connection, refused=True)
    nums = records.insert(connection, [entry("x"), entry("y")])
    store.put_pending(connection, nums[:1], "too long", refused=True)
    assert store.has_pending(connection, refused=True)
    assert not store.has_pending(connection, refused=False)
    store.put_pending(connection, nums[1:], "the server is gone")
    assert store.has_pending(connection, refused=False)


def test_many_vectors_are_looked_up_in_few_statements(connection: SqliteConnection) -> None:
    connection.execute("INSERT INTO spaces (id, description, active) VALUES (1, '{}', 1)")
    hashes = [store.text_hash(str(n)) for n in range(1_200)]
    connection.executemany(
        "INSERT INTO vectors (space, hash, data) VALUES (1, ?, x'00')", ((key,) for key in hashes[::2])
    )
    seen = statements(connection)
    assert set(store.vector_ids(connection, 1, hashes)) == set(hashes[::2])
    connection.set_trace_callback(None)
    assert len(seen) == 3
    assert "COVERING INDEX" in plan(connection, seen[0])


def test_entries_of_one_call_share_one_token(connection: SqliteConnection) -> None:
    seen = statements(connection)
    nums, fresh, standing = records.insert_unique(connection, [entry("one"), entry("two"), entry("one")], ())
    connection.set_trace_callback(None)
    assert (len(nums), [e.content for e in fresh]) == (2, ["one", "two"])
    assert [(e.content, e.repeat_count) for e in standing] == [("one", 0), ("two", 0), ("one", 1)]
    assert change_feed.entries_since(connection, 0) == nums
    assert sum("INTO points" in query for query in seen) == 1


# A scope, its index for a page in order of id, and its index for the newest entries.
_INDEXES = [
    (Scope("ours"), "id", "time"),
    (Scope("ours", tiers=("core",)), "tier", "tier_and_time"),
    (Scope("ours", kinds=("message",)), "kind", "time"),
    (Scope("ours", kinds=("fact",), tiers=("semantic",)), "kind_and_tier", "tier_and_time"),
    (Scope("ours", source_id="7", session_id="s"), "session", "session_and_time"),
    (Scope("ours", user_id="aino"), "user", "user_and_time"),
    (Scope("ours", user_id="aino", tiers=("episodic",), kinds=("fact",)), "user", "user_and_time"),
    (Scope("ours", session_id="s"), "session", "session_and_time"),
    (Scope("ours", session_id="s", kinds=("message",)), "session", "session_and_time"),
    (Scope("ours", session_id="s", kinds=("message",), user_id="aino"), "session", "session_and_time"),
    (Scope("ours", session_id="s", tiers=("episodic",)), "session", "session_and_time"),
    (Scope("ours", parent_id="p"), "parent", "parent"),
    (Scope("ours", parent_id="p", kinds=("chunk",), session_id="s"), "parent", "parent"),
    (Scope("ours", document_id="d", kinds=("chunk",), tiers=("semantic",)), "document", "document"),
    (Scope("ours", source_type="issue", source_id="7", user_id="aino"), "reference", "reference"),
    (Scope("ours", source_type="issue", source_id="7", user_id="aino", or_nobody=True), "reference", "reference"),
    (Scope("ours", kinds=("document",), metadata={"sha256": "x"}), "sha256", "sha256"),
]


def test_each_scope_uses_its_most_selective_index(connection: SqliteConnection) -> None:
    for scope, *indexes in _INDEXES:
        seen = statements(connection)
        records.page(connection, scope, "", 100)
        records.latest(connection, scope, 10)
        connection.set_trace_callback(None)
        for query, index in zip(seen, indexes, strict=True):
            steps = plan(connection, query)
            assert f"USING INDEX entries_by_{index} (" in steps, scope
            assert ("TEMP B-TREE" in steps) == (index in ("parent", "document", "reference", "sha256")), scope


def test_parts_are_found_with_an_index(connection: SqliteConnection) -> None:
    nums = records.insert(connection, [entry("whole", id="w"), entry("part", parent_id="w"), entry("other")])
    elsewhere = entry("not ours", parent_id="w", namespace="theirs")
    records.insert(connection, [elsewhere])
    seen = statements(connection)
    assert records.with_parts(connection, nums[:1]) == nums[:2]
    connection.set_trace_callback(None)
    assert "USING INDEX entries_by_parent (" in plan(connection, seen[0])


def test_neighbors_are_found_without_reading_their_session(connection: SqliteConnection) -> None:
    said = [entry(f"{n}", kind="message", session_id="s") for n in range(9)]
    records.insert(connection, said)
    seen = statements(connection)
    assert len(neighbor_texts(connection, said[4])) == 4
    connection.set_trace_callback(None)
    for query, bound in zip(seen, ("<expr><?", "<expr>>?"), strict=True):
        assert "entries_by_session_and_time" in (told := plan(connection, query)) and bound in told


def test_expired_entries_and_the_next_change_are_found_with_indexes(connection: SqliteConnection) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    due = expired(Scope("ours"), moment)
    seen = statements(connection)
    records.count(connection, due)
    records.page(connection, due, "", 100)
    next_change(connection, Scope("ours"), 7)
    changed_between(connection, Scope("ours"), 7, 9)
    connection.set_trace_callback(None)
    for query in seen[:2]:
        assert "USING INDEX entries_by_expiry (" in plan(connection, query)
    for query in seen[2:]:
        steps = plan(connection, query)
        assert all(f"COVERING INDEX entries_by_{name} (" in steps for name in ("start", "end", "expiry"))


def test_the_first_search_of_a_scope_reads_only_an_index(connection: SqliteConnection) -> None:
    scopes = (Scope("ours"), Scope("ours", user_id="u", or_nobody=True), Scope("ours", project="p"))
    for scope in (*scopes, Scope("ours", agent_id="a"), Scope("ours", tiers=("semantic",))):
        seen = statements(connection)
        searchable_numbers(connection, scope)
        connection.set_trace_callback(None)
        assert all("COVERING INDEX entries_" in plan(connection, query) for query in seen), scope


def test_the_trail_is_read_in_order_and_searched_by_subject_and_time(connection: SqliteConnection) -> None:
    values = [0, 0, "", "", 1, []]
    for statement, bound, index in (
        (trail._PAGE, [*values, 10], "INTEGER PRIMARY KEY (rowid>?)"),
        (trail._OF_SUBJECT, [*values, "a", 10], "trail_by_subject (subject=? AND rowid>?)"),
        (trail._FIRST, [5], "trail_by_time (at>?)"),
        (trail._OLDEST, [5], "trail_by_time (at<?)"),
        (trail._TRIM, [5, 10], "trail_by_time (at<?)"),
    ):
        seen = statements(connection)
        connection.run(statement, bound)
        connection.set_trace_callback(None)
        found = plan(connection, seen[0])
        assert index in found and "TEMP B-TREE" not in found, found
