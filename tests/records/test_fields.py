"""The limits of values, histories and leases, with a value on each side of each limit."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from agentformer.errors import InvalidInput
from agentformer.records import fields, meta
from agentformer.records.codec import from_micros, to_micros
from agentformer.records.entries import check_histories, history_problem
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.testing import make_entry


def nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value  # type: ignore[no-any-return]


def test_values_are_accepted_up_to_each_limit() -> None:
    cases: list[tuple[Callable[[Any], Any], list[Any], list[Any]]] = [  # function, accepted values, refused values
        (
            fields.content,
            ["x", "\u200bx", "x" * 1_000_000],
            ["", " ", "\u200b", " \u00ad\u2060\ufe0f", "x" * 1_000_001, None, 1, "\ud800"],
        ),
        (lambda value: fields.text("t", value, 3), ["", "xyz"], ["wxyz", None, "\ud800"]),
        (lambda value: fields.text("t", value, None), ["x" * 1_000_001], [1]),
        (lambda value: fields.name("n", value), ["x", "x" * 200], ["", " ", "x" * 201, None]),
        (lambda value: fields.optional_name("n", value), [None, "x"], ["", 1]),
        (lambda value: fields.names("n", value), [(), ("a", "b")], ["a", 5, ("",)]),
        (fields.kind, ["fact", "x"], ["message", "summary", "document", "", None]),
        (lambda value: fields.limit("limit", value), [1, 10_000], [0, 10_001, True, 1.0, "1"]),
        (lambda value: fields.flag("f", value), [True, False], [1, 0, None]),
        (fields.salience, [0.0, 1.0], [-0.01, 1.01, True, "1"]),
        (fields.tier, ["core", "semantic"], ["other", None]),
        (
            fields.metadata,
            [{}, {f"k{n}": n for n in range(100)}, nested(99), {"a": [1.5, None, "x"]}],
            [{f"k{n}": n for n in range(101)}, nested(100), {1: 2}, [], {"a": float("nan")}, {"a": 10**400}],
        ),
    ]
    for function, accepted, refused in cases:
        for value in accepted:
            assert function(value) == value
        for value in refused:
            with pytest.raises(InvalidInput):
                function(value)
    assert fields.metadata(None) == {} and fields.salience(1) == 1.0


def test_only_the_program_sets_reserved_metadata() -> None:
    former = {fields.RETRIEVED: True, "site": "north"}
    assert fields.changed_metadata(former, {"site": "south"}) == {"site": "south", fields.RETRIEVED: True}
    assert fields.changed_metadata(former, {fields.RETRIEVED: True}) == {fields.RETRIEVED: True}
    assert fields.program_metadata({"a": 1}, {fields.RETRIEVED: True}) == {"a": 1, fields.RETRIEVED: True}
    assert fields.stored_metadata(fields.ProgramMetadata({fields.RETRIEVED: True})) == {fields.RETRIEVED: True}
    for refused in ({fields.RETRIEVED: False}, {fields.WORDS_CHANGED: True}):
        with pytest.raises(InvalidInput, match="only AgentFormer sets"):
            fields.changed_metadata(former, refused)


def test_a_period_contains_its_days_completely() -> None:
    noon = datetime(2026, 5, 8, 12, tzinfo=timezone(timedelta(hours=3)))
    day = datetime(2026, 5, 8, tzinfo=UTC)
    for value, since, until in [
        (None, None, None),
        ("2026-05-08", day, day + timedelta(days=1)),
        (date(2026, 5, 8), day, day + timedelta(days=1)),
        (noon, noon, noon),
        ("2026-05-08T12:00:00+03:00", noon, noon),
        (date.max, datetime(9999, 12, 31, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
    ]:
        assert (fields.period(value, None)[0], fields.period(None, value)[1]) == (since, until), value
    for wrong in ("2026-05-08T12:00:00", datetime(2026, 5, 8), "soon", 5):
        with pytest.raises(InvalidInput, match=r"^--until: .*; or give a day, such as 2026-11-20"):
            fields.period(None, wrong, "--")
    with pytest.raises(InvalidInput) as refused:
        fields.moment("at", "x" * 10_000)
    assert len(str(refused.value)) < 200
    for first, last in (("2026-05-09", "2026-05-08"), (noon, noon), (date(2026, 5, 9), noon)):
        with pytest.raises(InvalidInput, match=f"^until: must be after since, but {re.escape(str(last))} is not after"):
            fields.period(first, last)


def test_a_moment_is_stored_to_the_microsecond() -> None:
    for moment in (
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 0, 1, UTC),
        datetime.max.replace(tzinfo=UTC),
    ):
        assert from_micros(to_micros(moment)) == moment
    assert to_micros(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000_000
    assert (to_micros(None), from_micros(None)) == (None, None)


def test_the_versions_of_a_history_rise_and_are_lower_than_the_current_version() -> None:
    for current, numbers, valid in [
        (3, [], True),
        (3, [1, 2], True),
        (3, [2], True),
        (3, [0], False),
        (3, [1, 1], False),
        (3, [2, 1], False),
        (3, [1, 3], False),
    ]:
        versions = [make_entry("x", id="a", version=number) for number in numbers]
        assert (history_problem("a", current, versions) == "") is valid, numbers
    assert "has the id b" in history_problem("a", 3, [make_entry("x", id="b", version=1)])


def test_former_versions_belong_to_a_stored_entry() -> None:
    entry, former = make_entry("x", id="a", version=3), [make_entry("x", id="a", version=1)]
    assert check_histories([entry], {"a": former, "b": []}, unique=False) == {"a": former}
    assert check_histories([entry], None, unique=True) == {}
    for histories, unique in (({"b": former}, False), ({"a": [entry]}, False), ({"a": former}, True)):
        with pytest.raises(InvalidInput, match=r"^former"):
            check_histories([entry], histories, unique=unique)


def test_a_lease_ends_at_its_end_or_if_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(":memory:", factory=SqliteConnection)
    connection.row_factory = sqlite3.Row
    connection.execute("CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT, ends_at INTEGER, micros INTEGER)")

    def take(holder: str, micros: int) -> bool:
        monkeypatch.setattr(meta, "now", lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros))
        return meta.take_lease(connection, "clean", holder, 0.001)

    assert take("one", 0)
    assert not take("two", 999)
    assert take("one", 999)  # extended to 1999
    assert not take("two", 1_998)
    assert take("two", 1_999)  # until 2999
    assert not take("one", 1_999)
    assert take("one", 1_998)  # more time is left than the lease was given
    meta.release_lease(connection, "clean", "two")
    assert not take("two", 2_000)
    meta.release_lease(connection, "clean", "one")
    assert take("two", 2_000)
