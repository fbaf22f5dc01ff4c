"""Metadata equality, against Python's own idea of it, with any JSON value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentformer.records import entries as records
from agentformer.records.codec import now
from agentformer.records.database import Database
from agentformer.testing import make_entry
from agentformer.testing.reference import json_equal
from agentformer.types import Scope

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["true", "1", "1.0", "null", "[]", '{"a":1}']),
)
plain = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4)
nested = st.recursive(
    plain, lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(max_size=3), i, max_size=3), max_leaves=5
)
values = scalars | nested


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(tmp_path_factory.mktemp("scopes") / "m.sqlite3")
    yield database
    database.close()


def found(database: Database, stored: list[Any], asked: Any) -> list[Any]:
    """The values of `stored` that a scope asking for `asked` sees."""
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
@settings(max_examples=300)
def test_equal_values_are_found_and_others_are_not(database: Database, stored: list[Any], data: st.DataObject) -> None:
    asked = data.draw(st.sampled_from(stored) | values)
    assert found(database, stored, asked) == [value for value in stored if json_equal(value, asked)]


@given(key=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6))
def test_any_text_is_a_key(database: Database, key: str) -> None:
    moment = now()
    with database.writing() as connection:
        (num,) = records.insert(
            connection, [make_entry("", metadata={key: 1, key + "x": 2}, created_at=moment, updated_at=moment)]
        )
        assert num in records.numbers(connection, Scope(metadata={key: 1}))
        assert num not in records.numbers(connection, Scope(metadata={key: 2}))
        records.remove(connection, [num])


def test_numbers_too_large_for_sqlite_are_found_too(database: Database) -> None:
    assert found(database, [2**70, 1], 2**70) == [2**70]
    assert found(database, [1], -(2**70)) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_json_does_not_spoil_the_others(tmp_path: Path, value: float) -> None:
    """It is refused, or kept; either way the entries beside it are found."""
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
