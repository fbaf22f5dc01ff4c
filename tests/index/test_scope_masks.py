"""Masks that follow the records are those that are made anew."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentformer.index import scope_masks as scoping
from agentformer.index.scope_masks import ScopeCache, ScopeMask
from agentformer.records import change_feed, codec
from agentformer.records import entries as records
from agentformer.records.codec import now
from agentformer.records.sqlite import scopes
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.types import Scope
from tests.faults.long_form import LONG

START = datetime(2030, 1, 1, tzinfo=UTC)
SCOPES = (
    *(Scope(), Scope(session_id="a"), Scope("other"), Scope(kinds=("note",)), Scope(metadata={"k": 1})),
    *(Scope(as_of=START), Scope(include_summarized=True), Scope(include_archived=True)),
)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("add", "remove", "move", "archive", "page", "time")), st.integers(0, 30), st.integers(0, 7)
    ),
    max_size=12,
)


def stored(database: Database, count: int = 1, **values: object) -> list[int]:
    with database.writing() as connection:
        return records.insert(
            connection, [make_entry(f"entry {n}", created_at=now(), updated_at=now(), **values) for n in range(count)]
        )


def fresh(database: Database, scope: Scope) -> list[int]:
    with database.reading() as connection:
        return scopes.searchable_numbers(connection, scope).tolist()


def allowed(cache: ScopeCache, database: Database, scope: Scope) -> ScopeMask:
    with database.reading() as connection:
        return cache.allowed(connection, scope, change_feed.last_seq(connection))


def inside(allowed: ScopeMask) -> list[int]:
    assert allowed.count == int(allowed.mask.sum())
    return np.flatnonzero(allowed.mask).tolist()


def act(database: Database, action: str, which: int, how: int) -> None:
    """One change, of the entry numbered `which` where there is one. "time" sets one of its times, which are near."""
    values = {"session_id": "ab"[how & 1], "namespace": "other" if how & 2 else "default", "metadata": {"k": how >> 2}}
    if action in ("add", "page"):
        stored(database, 1 + how % 3, kind="page" if action == "page" else ("note", "fact")[how & 1], **values)
        return
    with database.writing() as connection:
        entry = records.by_num(connection, [which]).get(which)
        if entry is None:
            return
        if action == "remove":
            records.remove(connection, [which])
        else:
            archived = entry.created_at if action == "archive" and entry.archived_at is None else None
            times = {("valid_from", "valid_to", "expires_at")[how % 3]: START + timedelta(hours=how)}
            if action == "time" and how < 6:
                entry = replace(entry, **{"valid_from": None, "valid_to": None, **times})
            changed = replace(entry, archived_at=archived, session_id=values["session_id"])
            records.replace(connection, replace(changed, version=entry.version + 1))


@settings(max_examples=100 if LONG else 20, deadline=None)
@given(st.lists(st.tuples(ACTIONS, st.integers(-1, 8)), min_size=1, max_size=5))
def test_a_mask_that_follows_is_the_mask_made_anew(rounds: list[tuple[list[tuple[str, int, int]], int]]) -> None:
    """Entries change, and the clock goes forwards and backwards."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        database = Database(Path(folder) / "records.sqlite3")
        cache = ScopeCache()
        for actions, hours in rounds:
            patch.setattr(codec, "now", lambda at=START + timedelta(hours=hours): at)
            for action in actions:
                act(database, *action)
            for scope in SCOPES:
                assert inside(allowed(cache, database, scope)) == fresh(database, scope)
        database.close()


def test_a_scope_that_stays_the_same_stays_the_same_object(tmp_path: Path) -> None:
    database = Database(tmp_path / "records.sqlite3")
    cache = ScopeCache()
    stored(database, 3, session_id="a")
    own = allowed(cache, database, Scope(session_id="a"))
    stored(database, 3, session_id="b")
    assert allowed(cache, database, Scope(session_id="a")) is own
    stored(database, 1, session_id="a")
    assert allowed(cache, database, Scope(session_id="a")).count == 4
    assert own.count == 3  # who still searches with it sees what he saw
    database.close()


def test_a_mask_changes_when_the_clock_reaches_a_time_and_stays_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(tmp_path / "records.sqlite3")
    cache = ScopeCache()
    stored(database, 3)
    stored(database, 1, valid_to=START)
    stored(database, 1, valid_to=START + timedelta(hours=1), user_id="another")
    monkeypatch.setattr(codec, "now", lambda: START - timedelta(microseconds=1))
    before = allowed(cache, database, Scope())
    assert inside(before) == [1, 2, 3, 4, 5]
    reads = []
    original = scopes.searchable_numbers
    monkeypatch.setattr(scopes, "searchable_numbers", lambda *given: reads.append(given[2:]) or original(*given))
    assert allowed(cache, database, Scope()) is before and reads == []
    monkeypatch.setattr(codec, "now", lambda: START)
    after = allowed(cache, database, Scope())
    assert inside(after) == [1, 2, 3, 5] and reads == [([4],)]  # only this entry is compared again
    assert allowed(cache, database, Scope()) is after and len(reads) == 1
    database.close()


def test_more_changes_than_are_followed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoping, "_MAX_CHANGES", 10)
    database = Database(tmp_path / "records.sqlite3")
    cache = ScopeCache()
    for count in (10, 11, 9, 40):
        stored(database, count)
        assert inside(allowed(cache, database, Scope())) == fresh(database, Scope())
    database.close()


def test_records_put_back_are_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite3"
    database = Database(path)
    stored(database, 3)
    database.close()
    old = path.read_bytes()
    cache = ScopeCache()
    database = Database(path)
    (lost, *_) = stored(database, 3, session_id="a")
    assert lost in inside(allowed(cache, database, Scope()))
    database.close()
    path.write_bytes(old)
    database = Database(path)
    stored(database, 1, kind="page")
    stored(database, 4, namespace="other")
    assert inside(allowed(cache, database, Scope())) == [1, 2, 3]
    database.close()


def test_masks_are_kept_up_to_a_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoping, "_MAX_BYTES", 250)
    database = Database(tmp_path / "records.sqlite3")
    stored(database, 100, session_id="a")
    cache = ScopeCache()
    every = [Scope(), Scope(session_id="a"), Scope(kinds=("fact",))]
    first = [allowed(cache, database, scope) for scope in every]
    assert allowed(cache, database, every[2]) is first[2]
    assert allowed(cache, database, every[0]) is not first[0]  # the oldest went
    assert cache._bytes <= 250
    database.close()
