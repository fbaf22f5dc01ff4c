"""Neighbors of a message, and that a change of a message puts them into the change feed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records.change_feed import neighbor_texts
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.types import MemoryEntry, Query

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "memory.sqlite3")
    yield opened
    opened.close()


def message(text: str, minute: int, **fields: object) -> MemoryEntry:
    at = NOON + timedelta(minutes=minute)
    values = {"kind": "message", "session_id": "s", "occurred_at": at, "created_at": at, "updated_at": at, **fields}
    return make_entry(text, **values)


def store(database: Database, *entries: MemoryEntry) -> list[int]:
    with database.writing() as connection:
        return records.insert(connection, entries)


def around(database: Database, entry: MemoryEntry) -> list[str]:
    with database.reading() as connection:
        return neighbor_texts(connection, entry)


def changed(database: Database, since: int) -> set[int]:
    with database.reading() as connection:
        return set(change_feed.entries_since(connection, since))


def newest(database: Database) -> int:
    with database.reading() as connection:
        return change_feed.last_seq(connection)


def test_the_feed_of_an_empty_store_is_at_change_0(database: Database) -> None:
    with database.reading() as connection:
        assert change_feed.last_seq(connection) == 0


def test_neighbors_are_the_two_messages_before_and_after_by_time(database: Database) -> None:
    messages = [message(text, minute) for minute, text in enumerate("abcdefg")]
    store(database, *messages[::-1])
    assert around(database, messages[3]) == ["c", "b", "e", "f"]
    assert around(database, messages[0]) == ["b", "c"]
    assert around(database, messages[6]) == ["f", "e"]


def test_messages_of_other_places_are_not_neighbors(database: Database) -> None:
    first, second = message("first", 0), message("second", 2)
    others = [
        message("other", 1, **fields)
        for fields in (
            {"session_id": "t"},
            {"namespace": "n"},
            {"user_id": "u"},
            {"agent_id": "a"},
            {"project": "p"},
            {"kind": "event"},
            {"superseded_by": "x"},
        )
    ]
    store(database, first, *others, second)
    assert around(database, first) == ["second"]
    assert [around(database, other) for other in others[:-1]] == [[]] * 6


def test_a_fact_of_a_session_has_no_neighbors(database: Database) -> None:
    fact = message("a fact", 1, kind="fact")
    store(database, message("before", 0), fact, message("after", 2))
    assert around(database, fact) == []


def test_a_new_message_puts_its_neighbors_into_the_feed(database: Database) -> None:
    nums = store(database, *(message(text, 10 * minute) for minute, text in enumerate("abcdef")))
    before = newest(database)
    (last,) = store(database, message("g", 100))
    assert changed(database, before) == {last, nums[4], nums[5]}
    before = newest(database)
    (between,) = store(database, message("between c and d", 25))
    assert changed(database, before) == {between, *nums[1:5]}


def test_a_removed_or_changed_message_puts_its_neighbors_into_the_feed(database: Database) -> None:
    messages = [message(text, minute) for minute, text in enumerate("abcdefg")]
    nums = store(database, *messages)
    before = newest(database)
    with database.writing() as connection:
        records.replace(connection, dataclasses.replace(messages[3], content="another", version=2))
    assert changed(database, before) == set(nums[1:6])
    before = newest(database)
    with database.writing() as connection:
        records.remove(connection, [nums[0]])
    assert changed(database, before) == set(nums[:3])


def test_a_moved_message_puts_old_and_new_neighbors_into_the_feed(database: Database) -> None:
    messages = [message(text, minute) for minute, text in enumerate("abcdefghij")]
    nums = store(database, *messages)
    before = newest(database)
    with database.writing() as connection:
        records.replace(connection, dataclasses.replace(messages[0], occurred_at=NOON + timedelta(hours=1), version=2))
    assert changed(database, before) == {nums[0], nums[1], nums[2], nums[8], nums[9]}
    assert around(database, messages[1]) == ["c", "d"]


def tokens(database: Database) -> dict[int, bytes]:
    with database.reading() as connection:
        return dict(connection.execute("SELECT seq, token FROM points").fetchall())


def listed(database: Database) -> set[int]:
    with database.reading() as connection:
        return {row[0] for row in connection.execute("SELECT entry FROM changes")}


def test_the_old_part_of_the_feed_keeps_only_what_an_index_needs(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "KEPT", 25)
    monkeypatch.setattr(change_feed, "_PIECE", 10)
    nums = [store(database, make_entry(f"note {number}", created_at=NOON, updated_at=NOON))[0] for number in range(60)]
    with database.writing() as connection:
        records.remove(connection, nums[:20:2])  # their changes are the newest ones now
    for number in range(20):
        store(database, make_entry(f"later {number}", created_at=NOON, updated_at=NOON))
    before, last = tokens(database), newest(database)
    assert change_feed.compact(database, 1) is None
    assert len(before) - len(tokens(database)) == 9, "one piece at a time"
    change_feed.compact(database, 99)
    after = tokens(database)
    end = (last - 25) // 10 * 10
    assert [seq for seq in sorted(after) if seq <= end] == [*range(10, end + 1, 10)]
    assert all(after[seq] != before[seq] for seq in after if seq <= end), "an index of this change is rebuilt"
    assert {seq: token for seq, token in after.items() if seq > end} == {s: t for s, t in before.items() if s > end}
    assert newest(database) == last
    removed, kept = {*nums[:20:2]}, {*nums} - {*nums[:20:2]}
    assert kept <= listed(database) and removed <= listed(database), "newer than the part that was compacted"
    for number in range(40):
        store(database, make_entry(f"much later {number}", created_at=NOON, updated_at=NOON))
    change_feed.compact(database, 99)
    assert kept <= listed(database) and not removed & listed(database)


def test_an_index_that_missed_a_deleted_change_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "KEPT", 5)
    monkeypatch.setattr(change_feed, "_PIECE", 10)
    with (
        closing(FaissMemoryBackend(tmp_path, HashingEmbedder())) as late,
        closing(FaissMemoryBackend(tmp_path, HashingEmbedder())) as backend,
    ):
        heron, *_ = backend.store([make_entry("a heron"), make_entry("a stork")])
        for mode in ("lexical", "dense"):
            assert heron.id in [hit.entry.id for hit in late.search(Query("heron", mode=mode))]
        backend.remove([heron.id])
        backend.store([make_entry(f"boat {number}") for number in range(30)])
        change_feed.compact(backend.feed, 99)
        with backend.feed.reading() as connection:
            assert len(change_feed.entries_since(connection, 0)) == 31, "the change of the heron is deleted"
        for mode in ("lexical", "dense"):
            found = late.search(Query("heron", mode=mode))
            assert heron.id not in [hit.entry.id for hit in found]
        assert [hit.entry.content for hit in late.search(Query("boat 7", mode="lexical", limit=1))] == ["boat 7"]
        assert sum(check.found for check in late.verify()) == 0
