"""Neighbors of a message, and that a change of a message puts them into the change feed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records.change_feed import neighbor_texts
from agentformer.records.database import Database
from agentformer.testing import make_entry
from agentformer.types import MemoryEntry

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
