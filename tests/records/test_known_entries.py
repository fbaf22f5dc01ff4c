"""The search for the stored entry that a new entry repeats: what it finds, and how much it reads."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.records import duplicates
from agentformer.records import entries as records
from agentformer.records.duplicates import KnownEntries
from agentformer.records.fields import AFTER_RETRIEVED_TEXT, STORED_BY_KEY
from agentformer.records.sqlite.database import Database
from agentformer.types import MemoryEntry

DAY = datetime(2026, 11, 20, tzinfo=UTC)
ENTRIES = st.builds(
    MemoryEntry,
    id=st.uuids().map(str),
    content=st.sampled_from(["caf\u00e9", "cafe\u0301", "tea"]),
    tier=st.sampled_from(["semantic", "semantic", "semantic", "episodic"]),
    kind=st.sampled_from(["fact", "fact", "fact", "message"]),
    user_id=st.sampled_from([None, None, "aino"]),
    title=st.sampled_from(["", "", "hours"]),
    category=st.sampled_from(["", "", "context"]),
    salience=st.sampled_from([1.0, 1.0, 0.5]),
    parent_id=st.sampled_from([None, None, "p"]),
    occurred_at=st.sampled_from([None, None, DAY]),
    metadata=st.sampled_from([{}, {"a": 1}, {"a": True}, {AFTER_RETRIEVED_TEXT: True}, {STORED_BY_KEY: "k"}]),
    superseded_by=st.sampled_from([None, None, None, "x"]),
)


def repeats(new: MemoryEntry, stored: MemoryEntry) -> bool:
    """The rule, for one pair."""
    same = ("tier", "kind", "user_id")
    details = ("title", "category", "parent_id", "occurred_at")
    if new.kind == "message" or new.tier == "episodic" or stored.superseded_by:
        return False
    if len({"tea" in (new.content, stored.content), new.content == stored.content == "tea"}) == 2:
        return False
    marks = [entry.metadata.get(STORED_BY_KEY) for entry in (new, stored)]
    others = [
        json.dumps({k: v for k, v in entry.metadata.items() if k not in (STORED_BY_KEY, AFTER_RETRIEVED_TEXT)})
        for entry in (new, stored)
    ]
    return (
        marks[0] == marks[1]
        and others[0] in ("{}", others[1])
        and new.salience in (1.0, stored.salience)
        and all(getattr(new, name) == getattr(stored, name) for name in same)
        and all(getattr(new, name) in ("", None, getattr(stored, name)) for name in details)
    )


@given(st.lists(ENTRIES, max_size=12, unique_by=lambda entry: entry.id))
def test_the_entry_with_the_lowest_id_that_fits_is_found(entries: list[MemoryEntry]) -> None:
    known, stored = KnownEntries(), list[MemoryEntry]()
    for entry in entries:
        assert known.find(entry) == min((old.id for old in stored if repeats(entry, old)), default=None)
        known.add(entry)
        stored.append(entry)


def same_texts(count: int) -> list[MemoryEntry]:
    """Entries of one text, of which only the details differ, in many combinations of given details."""
    made = []
    for n in range(count):
        given: dict[str, Any] = {"title": f"t{n}", "category": f"c{n}", "speaker": f"s{n}", "pair_id": f"p{n}"}
        shown = {name: value for index, (name, value) in enumerate(given.items()) if n >> index & 1 or n % 16 == 0}
        entry = MemoryEntry(f"{n:08}", "One text.", created_at=DAY, updated_at=DAY, **shown)
        made.append(dataclasses.replace(entry, metadata={"n": n}))
    return made


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    calls, function = [0], getattr(module, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, counted)
    return calls


def test_entries_of_one_text_are_stored_in_linear_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry of a batch, and each stored entry of the text, is decoded and compared a fixed number of times."""
    counted = (records, "from_row"), *((duplicates, name) for name in ("_details", "_place", "_add_id"))
    work = [count_calls(monkeypatch, module, name) for module, name in counted]
    totals = []
    for count in (100, 400):
        before = sum(calls[0] for calls in work)
        database = Database(tmp_path / str(count) / "x.sqlite3")
        for _ in range(2):  # the second time, all are known
            with database.writing() as connection:
                stored = records.insert_unique(connection, same_texts(count), ())[2]
        database.close()
        assert [entry.id for entry in stored] == [entry.id for entry in same_texts(count)]
        assert {entry.repeat_count for entry in stored} == {1}
        totals.append(sum(calls[0] for calls in work) - before)
    assert totals[1] <= 4.2 * totals[0]


def test_local_json_stores_equal_texts_of_two_spellings_once(tmp_path: Path) -> None:
    store = LocalJsonMemoryBackend(tmp_path)
    entries = [MemoryEntry(f"{n}", text) for n, text in enumerate(("caf\u00e9", "cafe\u0301", "tea", "tea"))]
    assert [entry.id for entry in store.store(entries, unique=True)] == ["0", "0", "2", "2"]
