"""Storing many entries at once: few statements, word index in steps, and scopes that are read from an index alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict
from agentformer.index.words import index as words
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records.codec import now
from agentformer.records.sqlite import scopes
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.types import MemoryEntry, Query, Scope


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "memory.sqlite3")
    yield opened
    opened.close()


def many(count: int, first: int = 0, **values: object) -> list[MemoryEntry]:
    moment = now()
    return [
        make_entry(f"numbat {n} sleeps", created_at=moment, updated_at=moment, **values)
        for n in range(first, first + count)
    ]


def test_many_entries_get_the_numbers_that_single_ones_would_get(database: Database) -> None:
    with database.writing() as connection:
        assert records.insert(connection, many(1)) == [1]
        assert records.insert(connection, many(20, 1)) == [*range(2, 22)]
        assert records.remove(connection, [20, 21]) == 2
        assert records.insert(connection, many(3, 21)) == [22, 23, 24]  # no number is used twice
        assert records.insert(connection, many(1, 24)) == [25]
        assert [entry.content for entry in records.by_num(connection, range(22, 26)).values()] == [
            f"numbat {n} sleeps" for n in range(21, 25)
        ]


@pytest.mark.parametrize("where", ["stored", "in the batch"])
def test_an_id_that_exists_among_many_is_named(database: Database, where: str) -> None:
    known, fresh = many(1)[0], many(12, 1)
    with database.writing() as connection:
        records.insert(connection, [known])
    batch = [*fresh[:5], known, *fresh[5:]] if where == "stored" else [*fresh, fresh[7]]
    twice = known if where == "stored" else fresh[7]
    with pytest.raises(Conflict, match=twice.id), database.writing() as connection:
        records.insert(connection, batch)
    with database.reading() as connection:
        assert records.count(connection, Scope()) == 1


def test_equal_texts_are_found_for_many_entries_together(database: Database) -> None:
    """Also those of another spelling, and those with a NUL, at which a function of SQLite ends a text."""
    texts = [f"numbat {n}" for n in range(20)] + ["caf\u00e9 noir", "a\0b", "a\0c"]
    again = [*texts[:20], "cafe\u0301 noir", "a\0b", "a\0d"]
    stored, repeated = (
        [make_entry(text, created_at=now(), updated_at=now()) for text in each] for each in (texts, again)
    )
    with database.writing() as connection:
        records.insert_unique(connection, stored, ())
    with database.writing() as connection:
        nums, inserted, kept = records.insert_unique(connection, repeated, ())
    assert [entry.content for entry in inserted] == ["a\0d"] and len(nums) == 1
    assert [entry.id for entry in kept[:22]] == [entry.id for entry in stored[:22]]
    assert {entry.repeat_count for entry in kept[:22]} == {1}


def test_an_entry_may_repeat_one_of_the_same_batch(database: Database) -> None:
    batch = many(30)
    with database.writing() as connection:
        nums, inserted, kept = records.insert_unique(connection, [*batch, *many(10, 5)], ())
    assert nums == [*range(1, 31)] and inserted == batch
    assert [entry.id for entry in kept[30:]] == [entry.id for entry in batch[5:15]]


@pytest.mark.parametrize(
    "scope",
    [
        Scope(),
        Scope(tiers=("semantic",)),
        Scope(kinds=("fact",)),
        Scope(user_id="u"),
        Scope(user_id="u", tiers=("semantic", "episodic")),
        Scope(user_id="u", kinds=("fact",)),
        Scope(user_id="u", except_kinds=("message",)),
        Scope(user_id="u", project="p"),
        Scope(project="p"),
        Scope(agent_id="a"),
        Scope(agent_id="a", kinds=("fact",)),
        Scope(user_id="u", or_nobody=True),
        Scope(user_id="u", project="p", or_nobody=True, tiers=("semantic",)),
    ],
    ids=str,
)
def test_the_first_search_of_a_scope_reads_an_index_alone(database: Database, scope: Scope) -> None:
    with database.writing() as connection:
        records.insert(connection, [*many(30), *many(30, 30, user_id="u", project="p", agent_id="a")])
        seen: list[str] = []
        connection.set_trace_callback(lambda text: None if text.startswith("--") else seen.append(text))
        found = scopes.searchable_numbers(connection, scope).tolist()
        connection.set_trace_callback(None)
        owned = scope.user_id or scope.project or scope.agent_id
        assert found == [*range(31 if owned and not scope.or_nobody else 1, 61)]
        plans = [[row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")] for query in seen]
    assert all(len(plan) == 1 and "COVERING INDEX" in plan[0] for plan in plans)
    owner = "user" if scope.user_id else "project" if scope.project else "agent"
    assert not owned or all(f"entries_searched_by_{owner} " in plan[0] for plan in plans)


def test_the_first_search_of_events_since_a_moment_reads_only_later_entries(database: Database) -> None:
    moment = now()
    with database.writing() as connection:
        records.insert(
            connection,
            [*many(9), *many(9, 9, occurred_at=moment), *many(9, 18, occurred_at=moment - timedelta(days=1))],
        )
        seen: list[str] = []
        connection.set_trace_callback(lambda text: None if text.startswith("--") else seen.append(text))
        assert scopes.searchable_numbers(connection, Scope(occurred_from=moment)).tolist() == [*range(10, 19)]
        connection.set_trace_callback(None)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {seen[0]}")]
    assert "entries_by_time (namespace=? AND <expr>>?)" in plan[0]


def test_the_pages_of_a_user_are_still_read_in_order_of_their_ids(database: Database) -> None:
    """The index for searches is for no other query."""
    scope = Scope(user_id="u")
    with database.writing() as connection:
        records.insert(connection, many(30, user_id="u"))
        for query in (records.page, records.latest):
            seen: list[str] = []
            connection.set_trace_callback(lambda text, seen=seen: seen.append(text))  # type: ignore[misc]
            query(connection, scope, *(("", 5) if query is records.page else (5,)))
            connection.set_trace_callback(None)
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {seen[0]}")]
            assert len(plan) == 1 and "entries_by_user" in plan[0]


def test_a_step_ends_with_a_write(database: Database) -> None:
    for start in range(0, 12, 4):
        with database.writing() as connection:
            records.insert(connection, many(4, start))
    with database.reading() as connection:
        assert [change_feed.step(connection, 0, size) for size in (1, 4, 7, 8, 100)] == [4, 4, 4, 8, 12]
        assert change_feed.step(connection, 4, 3) == 8 and change_feed.step(connection, 12, 3) == 12
        assert len(change_feed.since(connection, 4, until=8)) == 4


def test_the_word_index_is_written_by_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_STEP", 10)
    steps: list[int] = []
    write = words.write_manifest

    def spy(folder: Path, state: dict[str, object]) -> None:
        steps.append(int(str(state["seq"])))
        write(folder, state)

    monkeypatch.setattr(words, "write_manifest", spy)
    with closing(FaissMemoryBackend(tmp_path, HashingEmbedder())) as backend:
        stored = [entry for start in range(0, 40, 5) for entry in backend.store(many(5, start))]
        assert found(backend, "numbat") == sorted(entry.content for entry in stored)
        assert steps == [10, 20, 30, 40]
        backend.update(stored[3].id, {"content": "kakapo sleeps"})
        backend.remove([stored[4].id])
        backend.store(many(30, 100))
        contents = [entry.content for entry in backend.list(Scope(), limit=200)]
        assert found(backend, "sleeps") == sorted(contents)
        assert found(backend, "kakapo") == ["kakapo sleeps"]
    with closing(FaissMemoryBackend(tmp_path, HashingEmbedder())) as again:
        assert found(again, "sleeps") == sorted(contents)
        assert {check.name: check.found for check in again.verify()}["words"] == 0


def test_entries_that_change_while_a_step_is_written_are_found_as_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step reads the entries in several transactions, between which other processes write."""
    monkeypatch.setattr(words, "_BATCH", 5)
    analyze = words._analyze
    with (
        closing(FaissMemoryBackend(tmp_path, HashingEmbedder())) as backend,
        closing(FaissMemoryBackend(tmp_path, HashingEmbedder())) as other,
    ):
        stored = backend.store(many(20))

        def interrupted(*arguments: object) -> object:
            monkeypatch.setattr(words, "_analyze", analyze)
            for n in (1, 12):  # in the first batch, which is being read, and in a later one
                other.update(stored[n].id, {"content": f"kakapo {n}"})
                other.remove([stored[n + 1].id])
            other.store(many(1, 20))
            return analyze(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(words, "_analyze", interrupted)
        found(backend, "numbat")
        assert found(backend, "kakapo") == ["kakapo 1", "kakapo 12"]
        kept = [n for n in range(21) if n not in (1, 2, 12, 13)]
        assert found(backend, "numbat") == sorted(f"numbat {n} sleeps" for n in kept)
        assert {check.name: check.found for check in backend.verify()}["words"] == 0


def found(backend: FaissMemoryBackend, word: str) -> list[str]:
    return sorted(hit.entry.content for hit in backend.search(Query(word, limit=500, mode="lexical")))


OWNERS = ("user", "project", "agent")


def test_the_indexes_of_a_former_schema_are_replaced(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "m.sqlite3")) as database, database.writing() as connection:
        records.insert(connection, many(9, user_id="u"))
    with closing(sqlite3.connect(tmp_path / "m.sqlite3")) as raw, raw:
        for name in ("live", "by_start", "by_end", "by_expiry", *(f"searched_by_{x}" for x in OWNERS)):
            raw.execute(f"DROP INDEX entries_{name}")
        for column in ("valid_from", "valid_to", "expires_at"):
            raw.execute(f"ALTER TABLE entries DROP COLUMN {column}")
        for table in ("events", "trail"):
            raw.execute(f"DROP TABLE {table}")
        raw.execute("CREATE INDEX entries_live ON entries (namespace, tier, kind) WHERE archived_at IS NULL")
        raw.execute("PRAGMA user_version = 10")
    with closing(Database(tmp_path / "m.sqlite3")) as database, database.reading() as connection:
        assert len(scopes.searchable_numbers(connection, Scope(user_id="u"))) == 9
