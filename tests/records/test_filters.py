"""The JSON form of filters, their checks, and the agreement of SQL with the reference on random filters."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentformer.errors import InvalidInput
from agentformer.records import entries as records
from agentformer.records.codec import now
from agentformer.records.filters import COMPARISONS, GROUPS, both, parse, to_json
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.testing.case import admitted_by, filtered_values, is_true
from agentformer.testing.filtering import random_entries, random_filter
from agentformer.types import Condition, Group, MemoryEntry, Scope, Where
from tests.faults.long_form import LONG


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(tmp_path_factory.mktemp("filters") / "m.sqlite3")
    moment = now()
    entries = random_entries(random.Random(1), 200)
    with database.writing() as connection:
        records.insert(connection, [replace(e, created_at=moment, updated_at=moment) for e in entries])
    yield database
    database.close()


@pytest.fixture(scope="module")
def everything(database: Database) -> list[tuple[MemoryEntry, dict[str, Any]]]:
    """Each entry with the values that a filter compares."""
    with database.reading() as connection:
        return [(entry, filtered_values(entry)) for entry in records.page(connection, Scope(), "", 1000)]


def matches(database: Database, where: Where, entry: MemoryEntry) -> bool:
    """Return whether the entry, stored alone in a namespace, is found with this filter."""
    moment = now()
    with database.writing() as connection:
        records.insert(connection, [replace(entry, namespace="one", created_at=moment, updated_at=moment)])
        count = records.count(connection, Scope("one", where=where))
        connection.execute("DELETE FROM entries WHERE namespace = 'one'")
    return bool(count)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=400 if LONG else 60, deadline=None)
def test_sql_and_the_reference_agree_on_random_filters(
    database: Database, everything: list[tuple[MemoryEntry, dict[str, Any]]], seed: int
) -> None:
    tree = random_filter(random.Random(seed))
    parsed = parse(tree)
    assert parsed is not None and parse(to_json(parsed)) == parsed == parse(parsed)
    with database.reading() as connection:
        found = records.page(connection, Scope(where=tree), "", 1000)
    assert [entry.id for entry in found] == [entry.id for entry, values in everything if is_true(tree, values)]


numbers = st.integers(-(2**53), 2**53) | st.floats(-(2.0**53), 2.0**53)
scalars = (
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)


@given(stored=scalars, compared=scalars, kind=st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte"]))
@settings(max_examples=400 if LONG else 150, deadline=None)
def test_any_two_values_compare_equally_in_sql_and_in_the_reference(
    database: Database, stored: Any, compared: Any, kind: str
) -> None:
    tree = {"type": kind, "key": "k", "value": compared}
    if kind not in ("eq", "ne") and (compared is None or isinstance(compared, bool)):
        with pytest.raises(InvalidInput, match="must be a number or a text"):
            parse(tree)
        return
    entry = make_entry("", metadata={"k": stored})
    assert matches(database, tree, entry) == admitted_by(tree, entry)


def test_the_short_form_is_equality_of_every_key() -> None:
    assert parse({"year": 2026}) == Condition("eq", "year", 2026)
    both_keys = (Condition("eq", "year", 2026), Condition("eq", "type", "report"))
    assert parse({"year": 2026, "type": "report"}) == Group("and", both_keys)
    assert parse({}) is None is parse(None)
    assert both({"year": 2026}, {"type": "eq", "key": "type", "value": "report"}) == Group("and", both_keys)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"type": "eq", "kye": "y", "value": 1}, ["lacks the key 'key'", "has the unknown key 'kye'"]),
        ({"type": "eq", "key": "y", "values": 1}, ["lacks the key 'value'", "has the unknown key 'values'"]),
        ({"type": "eq", "key": "y", "value": 1, "more": 1}, ["has the unknown key 'more'"]),
        ({"type": "and", "filter": [{"y": 1}]}, ["lacks the key 'filters'", "has the unknown key 'filter'"]),
        ({"type": "and", "filters": [{"y": 1}], "key": "y"}, ["has the unknown key 'key'"]),
        ({"type": "eq", "filters": [{"y": 1}]}, ["lacks the key 'key'", "has the unknown key 'filters'"]),
        *(({"type": name}, ["lacks the key 'key' and lacks the key 'value'"]) for name in COMPARISONS),
        *(({"type": name}, ["lacks the key 'filters'"]) for name in GROUPS),
    ],
)
def test_an_object_of_the_type_of_an_operator_is_never_the_short_form(tree: dict[str, Any], said: list[str]) -> None:
    for place, whole in (("where", tree), ("where.filters[0]", {"type": "not", "filters": [tree]})):
        with pytest.raises(InvalidInput) as error:
            parse(whole)
        assert error.value.field == place
        assert all(part in str(error.value) for part in said)
        assert f'write {{"type": "eq", "key": "type", "value": "{tree["type"]}"}}' in str(error.value)


def test_a_metadata_key_type_with_the_name_of_an_operator_is_compared_by_a_condition(database: Database) -> None:
    entry = make_entry("text", metadata={"type": "and"})
    assert matches(database, Condition("eq", "type", "and"), entry)
    assert parse({"type": "eq", "key": "type", "value": "and"}) == Condition("eq", "type", "and")
    assert parse({"type": ["and"]}) == Condition("eq", "type", ["and"])
    assert parse({"type": "AND", "year": 1}) == Group(
        "and", (Condition("eq", "type", "AND"), Condition("eq", "year", 1))
    )


def test_an_absent_key_matches_only_ne_nin_and_not_exists(database: Database) -> None:
    entry = make_entry("text")
    for key in ("absent", "$session_id"):
        matching = {
            kind
            for kind, value in (
                *(("eq", "x"), ("ne", "x"), ("gt", "x"), ("gte", "x"), ("lt", "x"), ("lte", "x")),
                *(("in", ["x"]), ("nin", ["x"]), ("exists", False)),
            )
            if matches(database, {"type": kind, "key": key, "value": value}, entry)
        }
        assert matching == {"ne", "nin", "exists"}
        assert not matches(database, Condition("exists", key, True), entry)


def test_a_metadata_key_that_looks_like_a_field_is_reached_by_its_prefix(database: Database) -> None:
    entry = make_entry("text", metadata={"$kind": "own", "kind": "other"})
    for key, value in (("$kind", "fact"), ("kind", "other"), ("$metadata.$kind", "own"), ("$metadata.kind", "other")):
        assert matches(database, Condition("eq", key, value), entry)


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        ("year", "where"),
        ({"type": "like", "key": "a", "value": 1}, "where.type"),
        ({"type": "xor", "filters": [{"a": 1}]}, "where.type"),
        ({"type": "and", "filters": []}, "where.filters"),
        ({"type": "not", "filters": [{"a": 1}, {"b": 1}]}, "where.filters"),
        ({"type": "or", "filters": [{"a": 1}, {"type": "in", "key": "b", "value": 1}]}, "where.filters[1].value"),
        ({"type": "eq", "key": "a"}, "where"),
        ({"type": "gt", "key": "a", "value": None}, "where.value"),
        ({"type": "gt", "key": "a", "value": 2**63}, "where.value"),
        ({"type": "exists", "key": "a", "value": 1}, "where.value"),
        ({"type": "eq", "key": "$nothing", "value": 1}, "where.key"),
        ({"type": "eq", "key": "$created_at", "value": "yesterday"}, "where.value"),
        ({"type": "eq", "key": "$created_at", "value": None}, "where.value"),
        ({"type": "in", "key": "a", "value": [*range(501)]}, "where"),
        ({"type": "eq", "key": "", "value": 1}, "where.key"),
        ({"type": "eq", "key": "a", "value": float("nan")}, "where.value"),
        ({"type": "eq", "key": "a", "value": 10**5_000}, "where.value"),
        ({"type": "in", "key": "a", "value": [10**5_000]}, "where.value"),
        ({"type": "gt", "key": "a", "value": 10**5_000}, "where.value"),
        ({"type": "gt", "key": "a", "value": 1e300}, "where.value"),
        ({"type": "eq", "key": "a", "value": "\ud800"}, "where.value"),
    ],
)
def test_an_invalid_filter_is_refused_with_its_place(tree: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse(tree)
    assert error.value.field == field


def test_a_filter_that_is_nested_too_deep_is_refused() -> None:
    tree: dict[str, Any] = {"a": 1}
    for _ in range(25):
        tree = {"type": "not", "filters": [tree]}
    with pytest.raises(InvalidInput, match="levels deep"):
        parse(tree)


@pytest.mark.parametrize(
    "where",
    [
        {"tpye": "eq", "key": "y", "value": 1},
        {"type": "EQ", "key": "y", "value": 1},
        {"filters": [{"type": "eq", "key": "y", "value": 1}]},
        {"type": "nand", "filters": [{"type": "eq", "key": "y", "value": 1}]},
    ],
)
def test_what_looks_like_a_condition_or_a_group_is_not_the_short_form(where: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse({"type": "not", "filters": [where]})
    assert caught.value.field == "where.filters[0].type"
