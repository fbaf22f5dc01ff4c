"""What stands beside a message, and that it is announced with one that comes, goes or changes."""

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


def stored(database: Database, *entries: MemoryEntry) -> list[int]:
    with database.writing() as connection:
        return records.insert(connection, entries)


def around(database: Database, entry: MemoryEntry) -> list[str]:
    with database.reading() as connection:
        return neighbor_texts(connection, entry)


def announced(database: Database, since: int) -> set[int]:
    with database.reading() as connection:
        return set(change_feed.entries_since(connection, since))


def newest(database: Database) -> int:
    with database.reading() as connection:
        return change_feed.last_seq(connection)


def test_the_two_before_and_the_two_after_by_time_and_not_by_the_order_of_storing(database: Database) -> None:
    said = [message(text, minute) for minute, text in enumerate("abcdefg")]
    stored(database, *said[::-1])
    assert around(database, said[3]) == ["c", "b", "e", "f"]
    assert around(database, said[0]) == ["b", "c"]
    assert around(database, said[6]) == ["f", "e"]


@pytest.mark.parametrize(
    "apart",
    [{"session_id": "t"}, {"namespace": "n"}, {"user_id": "u"}, {"agent_id": "a"}, {"project": "p"}, {"kind": "event"}],
    ids=str,
)
def test_what_is_of_another_place_is_no_neighbour(database: Database, apart: dict[str, str]) -> None:
    first, other, second = message("first", 0), message("other", 1, **apart), message("second", 2)
    stored(database, first, other, second)
    assert around(database, first) == ["second"]
    assert around(database, other) == []


def test_a_fact_of_a_session_has_no_neighbours(database: Database) -> None:
    fact = message("a fact", 1, kind="fact")
    stored(database, message("before", 0), fact, message("after", 2))
    assert around(database, fact) == []


def test_a_message_that_comes_announces_those_beside_it_and_no_others(database: Database) -> None:
    nums = stored(database, *(message(text, 10 * minute) for minute, text in enumerate("abcdef")))
    before = newest(database)
    (last,) = stored(database, message("g", 100))
    assert announced(database, before) == {last, nums[4], nums[5]}
    before = newest(database)
    (between,) = stored(database, message("between c and d", 25))
    assert announced(database, before) == {between, *nums[1:5]}


def test_a_message_that_goes_or_changes_announces_those_beside_it(database: Database) -> None:
    said = [message(text, minute) for minute, text in enumerate("abcdefg")]
    nums = stored(database, *said)
    before = newest(database)
    with database.writing() as connection:
        records.replace(connection, dataclasses.replace(said[3], content="another", version=2))
    assert announced(database, before) == set(nums[1:6])
    before = newest(database)
    with database.writing() as connection:
        records.remove(connection, [nums[0]])
    assert announced(database, before) == set(nums[:3])


def test_a_message_that_moves_announces_those_at_both_places(database: Database) -> None:
    said = [message(text, minute) for minute, text in enumerate("abcdefghij")]
    nums = stored(database, *said)
    before = newest(database)
    with database.writing() as connection:
        records.replace(connection, dataclasses.replace(said[0], occurred_at=NOON + timedelta(hours=1), version=2))
    assert announced(database, before) == {nums[0], nums[1], nums[2], nums[8], nums[9]}
    assert around(database, said[1]) == ["c", "d"]
