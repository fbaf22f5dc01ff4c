"""An entry keeps every value in a row, in JSON, in an export, in a JSON file and over HTTP."""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api.models.memory import Entry
from agentformer.api.models.requests import MemoryChange, NewMemory
from agentformer.archive.format import entry_lines, read_entry_line
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.in_memory.store import Record
from agentformer.memory.backends.local_json.file_format import file_text, parse_file, record_text
from agentformer.memory.validation import CHANGED, STORED
from agentformer.records import entries as records
from agentformer.records.codec import from_micros, from_row, to_micros, to_row
from agentformer.records.entry_json import (
    ENTRY_FIELDS,
    TIMES,
    entry_from_json,
    entry_to_json,
    entry_to_short_json,
    parse_entry,
)
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.tools.result_json import memory_hit_json
from agentformer.types import Hit, Link, MemoryEntry, Source

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
zones = st.integers(-12, 14).map(lambda hours: timezone(timedelta(hours=hours)))
moment = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)
moments = st.none() | moment
names = st.text(max_size=20)
maybe = st.none() | names
entries = st.builds(
    MemoryEntry,
    id=st.uuids().map(str),
    content=st.text(),
    kind=names,
    namespace=names,
    session_id=maybe,
    title=names,
    context=names,
    metadata=st.dictionaries(names, json_values, max_size=4),
    source=st.none()
    | st.builds(Source, names, names, st.none() | st.integers(1, 9999), names, st.integers(0, 9), st.integers(0, 9)),
    parent_id=maybe,
    pair_id=maybe,
    derived_from=st.lists(st.builds(Link, names, names), max_size=3).map(tuple),
    occurred_at=moments,
    created_at=moment,
    updated_at=moment,
    last_accessed=moments,
    access_count=st.integers(0, 2**40),
    salience=st.floats(0, 1),
    archived_at=moments,
    superseded_by=maybe,
    version=st.integers(1, 1000),
)


@given(entry=entries)
def test_an_entry_survives_a_row_of_sqlite(entry: MemoryEntry) -> None:
    row = to_row(entry)
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    columns = ", ".join(f"? AS {name}" for name in row)
    assert from_row(connection.execute(f"SELECT {columns}", list(row.values())).fetchone()) == entry
    connection.close()


@given(entry=entries.filter(lambda entry: entry.id))
def test_an_entry_survives_json(entry: MemoryEntry) -> None:
    values = json.loads(json.dumps(entry_to_json(entry), allow_nan=False))
    assert entry_from_json(values) == entry == parse_entry(values)
    short = json.loads(json.dumps(entry_to_short_json(entry, namespace="ours")))
    assert parse_entry({"id": entry.id, **short}, namespace="ours") == entry
    assert short.items() <= values.items() or entry.source or entry.derived_from


def test_json_leaves_out_defaults_only_in_the_short_form() -> None:
    entry = MemoryEntry("i", "c", source=Source("d", "n", page=2), derived_from=(Link("a"), Link("b", "refutes")))
    assert list(entry_to_json(entry)) == [field.name for field in dataclasses.fields(MemoryEntry)]
    assert entry_to_json(entry)["source"] == {
        **{"document_id": "d", "name": "n", "page": 2},
        **{"label": "", "start": 0, "end": 0},
    }
    assert entry_to_short_json(entry) == {
        "content": "c",
        "source": {"document_id": "d", "name": "n", "page": 2},
        "derived_from": [{"id": "a"}, {"id": "b", "type": "refutes"}],
    }
    assert entry_to_short_json(dataclasses.replace(entry, source=None, derived_from=()), namespace="other") == {
        "content": "c",
        "namespace": "default",
    }


@given(entry=entries.filter(lambda entry: entry.id))
@settings(max_examples=30)
def test_an_entry_is_the_same_in_every_format(entry: MemoryEntry) -> None:
    """Exports, JSON files, HTTP answers and tools show one entry with the same values."""
    values = json.loads(json.dumps(entry_to_json(entry)))
    assert Entry.model_validate(values).model_dump() == values
    assert values.items() <= memory_hit_json(Hit(entry, 1.0)).items()
    later = dataclasses.replace(entry, version=entry.version + 1)
    namespace, records, _ = parse_file(file_text(entry.namespace, [record_text(Record(later, [entry]))]).encode())
    assert (namespace, records[entry.id]) == (entry.namespace, Record(later, [entry]))
    kept = dataclasses.replace(entry, kind="fact", namespace="n", content=entry.content.strip() or "x")
    kept = dataclasses.replace(kept, **dict.fromkeys(("session_id", "parent_id", "pair_id", "superseded_by"), "x"))
    kept = dataclasses.replace(kept, source=None)
    line, former = entry_lines(kept, [kept])
    assert read_entry_line(line.encode()).entry == kept == read_entry_line(former.encode()).entry


def test_a_value_of_another_type_is_refused_with_the_name_of_its_field() -> None:
    for field in ENTRY_FIELDS:
        fine = {"id": "i", "content": "c"}
        for wrong in (["x"], {"x": 1}, True, -1.5):
            if field.name == "metadata" and isinstance(wrong, dict):
                continue
            with pytest.raises(InvalidInput) as refused:
                parse_entry({**fine, field.name: wrong})
            assert refused.value.field.partition(".")[0] == field.name


def test_names_of_callers_follow_the_list_of_fields() -> None:
    assert [field.name for field in ENTRY_FIELDS] == [field.name for field in dataclasses.fields(MemoryEntry)]
    assert set(NewMemory.model_fields) == set(STORED)
    assert set(MemoryChange.model_fields) == {field.name for field in ENTRY_FIELDS if field.changeable} == set(CHANGED)
    assert [*TIMES[:4]] == ["occurred_at", "valid_from", "valid_to", "expires_at"]
    assert [*TIMES[4:]] == ["created_at", "updated_at", "last_accessed", "archived_at"]


@given(at=moment)
def test_times_are_exact_to_the_microsecond(at: datetime) -> None:
    assert from_micros(to_micros(at)) == at


def test_none_stays_none() -> None:
    assert to_micros(None) is None and from_micros(None) is None
    assert from_micros(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert to_micros(datetime(1970, 1, 1, 2, 0, 1, 5, timezone(timedelta(hours=2)))) == 1_000_005


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(tmp_path_factory.mktemp("db") / "m.sqlite3")
    yield database
    database.close()


@pytest.mark.slow
@given(batch=st.lists(entries, max_size=4, unique_by=lambda entry: entry.id))
def test_a_batch_survives_the_database(batch: list[MemoryEntry], database: Database) -> None:
    with database.writing() as connection:
        connection.execute("DELETE FROM entries")
        records.insert(connection, batch)
    with database.reading() as connection:
        assert records.get(connection, [entry.id for entry in batch]) == batch


def at(page: Any, start: Any = 0, end: Any = 1) -> Source:
    return Source("d", "n", page, "l", start, end)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("page", {"source": at("07")}),
    ("page", {"source": at("1e2")}),
    ("page", {"source": at(1.5)}),
    ("page", {"source": at(math.inf)}),
    ("page", {"source": at(2**63)}),
    ("span_start", {"source": at(1, "00")}),
    ("span_end", {"source": at(1, 0, b"1")}),
    ("version", {"version": "1"}),
    ("salience", {"salience": "0.5"}),
    ("salience", {"salience": math.nan}),
    ("raw", {"raw": b"abc"}),
    ("user_id", {"user_id": ["aino"]}),
    ("content", {"content": "half \ud83d of a pair"}),
    ("title", {"title": "\udc00"}),
    ("archived_by", {"archived_by": "\ud800"}),
    ("metadata", {"metadata": {"name": "\udfff"}}),
    ("derived_from", {"derived_from": (Link("\ud800"),)}),
]


@pytest.mark.parametrize(("field", "wrong"), WRONG)
def test_a_value_that_no_column_holds_is_refused(field: str, wrong: dict[str, Any], tmp_path: Path) -> None:
    with closing(FaissMemoryBackend(tmp_path, HashingEmbedder(64))) as backend:
        with pytest.raises(InvalidInput) as refused:
            backend.store([make_entry(**{"content": "x", **wrong})])
        assert refused.value.field == field
        assert not backend.namespaces()


def test_numpy_numbers_are_stored_as_numbers(tmp_path: Path) -> None:
    with closing(FaissMemoryBackend(tmp_path, HashingEmbedder(64))) as backend:
        given = make_entry("x", source=at(np.int64(3), np.uint8(0), 7.0), salience=np.float32(0.1), user_id=np.int32(4))
        backend.store([given, make_entry("y", salience=np.float16(1), derived_from=(Link("ä", "日本"),))])
        backend.update(given.id, {"content": "z"})
        (entry,) = backend.get([given.id])
        assert (entry.source, entry.salience, entry.user_id) == (at(3, 0, 7), float(np.float32(0.1)), "4")
        assert [check.findings for check in backend.verify() if check.found] == []
