"""Metadata equality in SQL agrees with a reference in Python for any JSON value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentformer.records import entries as records
from agentformer.records.codec import now
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.testing.case import json_equal
from agentformer.types import Scope
from tests.faults.long_form import LONG

# SQLite's JSON functions end a text at its first NUL.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63, 2**64, 2**64 + 1, 2.0**64, -(2.0**63), "a\0b", "a\0"]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(characters, max_size=8),
    st.sampled_from(["true", "1", "1.0", "null", "[]", '{"a":1}']),
)
plain = st.none() | st.booleans() | st.integers(-5, 5) | st.text(characters, max_size=4)
keys = st.text(characters, max_size=3)
nested = st.recursive(plain, lambda i: st.lists(i, max_size=3) | st.dictionaries(keys, i, max_size=3), max_leaves=5)
values = scalars | nested


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(tmp_path_factory.mktemp("scopes") / "m.sqlite3")
    yield database
    database.close()


def found(database: Database, stored: list[Any], asked: Any) -> list[Any]:
    """Return the values of `stored` that a scope with the value `asked` matches."""
    moment = now()
    try:
        with database.writing() as connection:
            records.insert(
                connection,
                [
                    make_entry("", metadata={"k": v, "n": n}, created_at=moment, updated_at=moment)
                    for n, v in enumerate(stored)
                ],
            )
            page = records.page(connection, Scope(metadata={"k": asked}), "", 1000)
            raise _Undo
    except _Undo:
        return [stored[entry.metadata["n"]] for entry in page]


class _Undo(Exception):
    pass


@given(stored=st.lists(values, min_size=1, max_size=5), data=st.data())
@settings(max_examples=300 if LONG else 100)
def test_metadata_filters_match_equal_json_values_only(
    database: Database, stored: list[Any], data: st.DataObject
) -> None:
    asked = data.draw(st.sampled_from(stored) | values)
    assert found(database, stored, asked) == [value for value in stored if json_equal(value, asked)]


@given(key=st.text(characters, max_size=6))
def test_any_text_can_be_a_metadata_key(database: Database, key: str) -> None:
    moment = now()
    with database.writing() as connection:
        (num,) = records.insert(
            connection, [make_entry("", metadata={key: 1, key + "x": 2}, created_at=moment, updated_at=moment)]
        )
        assert num in records.numbers(connection, Scope(metadata={key: 1}))
        assert num not in records.numbers(connection, Scope(metadata={key: 2}))
        records.remove(connection, [num])


def test_integers_too_large_for_sqlite_are_matched(database: Database) -> None:
    assert found(database, [2**70, 1], 2**70) == [2**70]
    assert found(database, [1], -(2**70)) == []
    assert found(database, [2**64, 2**64 + 1, [2**64]], 2**64 + 1) == [2**64 + 1]
    assert found(database, [2**64, 2**64 + 1], 2.0**64) == [2**64]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_json_does_not_hide_other_entries(tmp_path: Path, value: float) -> None:
    """It is refused or stored; in both cases the other entries are found."""
    database = Database(tmp_path / "m.sqlite3")
    moment = now()
    for metadata in ({"k": 1}, {"k": value}):
        try:
            with database.writing() as connection:
                records.insert(connection, [make_entry("", metadata=metadata, created_at=moment, updated_at=moment)])
        except ValueError:
            assert metadata["k"] != 1
    with database.reading() as connection:
        assert [entry.metadata for entry in records.page(connection, Scope(metadata={"k": 1}), "", 10)] == [{"k": 1}]
    database.close()
