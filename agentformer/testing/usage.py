"""Tests of a backend: equal facts are stored once, every use of an entry is counted, and `latest` returns the newest
entries."""

from __future__ import annotations

import dataclasses
import unicodedata
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentformer.errors import Conflict
from agentformer.testing.case import EVERYTHING, BackendCase, by_words, make_entry, raises, run_in_threads, unchanged
from agentformer.types import MemoryEntry, Scope, Use

_NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
_HOUR = timedelta(hours=1)
_FACT: dict[str, Any] = {
    "session_id": "s1",
    "agent_id": "a1",
    "user_id": "u1",
    "project": "p1",
    "title": "Birds",
    "category": "decisions",
    "metadata": {"a": 1, "b": [True]},
    "occurred_at": _NOON,
    "source_type": "ticket",
    "source_id": "7",
}
# Each item changes one field, so that the entry is not a duplicate of `_FACT`.
_DIFFERENCES: tuple[dict[str, Any], ...] = (
    {"content": "The heron nests here. "},
    {"content": "the heron nests here."},
    {"tier": "episodic"},
    {"kind": "decision"},
    {"namespace": "other"},
    {"session_id": "s2"},
    {"session_id": None},
    {"agent_id": "a2"},
    {"user_id": "u2"},
    {"project": None},
    {"title": "Fish"},
    {"category": "context"},
    {"metadata": {"a": 1, "b": [1]}},
    {"metadata": {"a": 2, "b": [True]}},
    {"metadata": {"a": 1, "b": [True], "c": None}},
    {"occurred_at": _NOON + _HOUR},
    {"source_id": "8"},
    {"source_type": "note"},
)


def _fact(**changes: Any) -> MemoryEntry:
    return make_entry(**{"content": "The heron nests here.", **_FACT, **changes})


class Duplicates(BackendCase):
    """Tests of `store` with `unique=True`, which does not store an entry that only repeats an existing entry."""

    def test_a_duplicate_is_counted_and_not_stored(self, tmp_path: Path) -> None:
        """`store` with `unique` returns an equal stored entry, and raises its `repeat_count` by one."""
        backend = self.start(tmp_path)
        (first,) = backend.store([_fact()], unique=True)
        (again,) = backend.store([_fact()], unique=True)
        (bare,) = backend.store([_fact(title="", category="", metadata={}, occurred_at=None)], unique=True)
        assert first.id == again.id == bare.id
        assert [first.repeat_count, again.repeat_count, bare.repeat_count] == [0, 1, 2]
        (known,) = backend.list(EVERYTHING)
        assert (known.repeat_count, known.access_count) == (2, 2)
        assert known == dataclasses.replace(
            first, repeat_count=2, access_count=2, last_accessed=known.last_accessed
        )  # the version and `updated_at` did not change
        assert list(backend.history(first.id)) == []
        assert list(self.start(tmp_path).get([first.id])) == [known]
        assert by_words(backend, "heron") == [first.id] == self.by_vectors(backend, "heron")

    def test_an_entry_with_any_difference_is_stored(self, tmp_path: Path) -> None:
        """With `unique`, an entry is stored if one of its fields differs from the field of the stored entry."""
        backend = self.start(tmp_path)
        (first,) = backend.store([_fact()], unique=True)
        for changes in _DIFFERENCES:
            new = _fact(**changes)
            (stored,) = backend.store([new], unique=True)
            assert stored.id == new.id, changes
            assert list(backend.get([first.id])) == [first], changes
        assert backend.count(EVERYTHING) + backend.count(Scope("other")) == 1 + len(_DIFFERENCES)

    def test_duplicates_within_a_call_are_stored_once(self, tmp_path: Path) -> None:
        """Of two equal entries in one call, the first is stored, and the second raises its `repeat_count`."""
        backend = self.start(tmp_path)
        one, twin, other = _fact(), _fact(), _fact(content="The stork does not.")
        stored = backend.store([one, twin, other], unique=True)
        assert [entry.id for entry in stored] == [one.id, one.id, other.id]
        assert [(e.id, e.repeat_count) for e in backend.list(EVERYTHING)] == [(one.id, 1), (other.id, 0)]
        assert by_words(backend, "heron stork") == [one.id, other.id] == self.by_vectors(backend, "heron stork")

    def test_two_spellings_of_a_text_are_one_fact(self, tmp_path: Path) -> None:
        """With `unique`, a text in the Unicode form NFD equals the same text in the form NFC, in either order. The
        entry keeps the spelling that was stored first."""
        text = "Pesä on jyrkänteellä."
        spellings = [unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)]
        for n, texts in enumerate((spellings, spellings[::-1])):
            backend = self.start(tmp_path / str(n))
            stored = [backend.store([_fact(content=text)], unique=True)[0] for text in texts]
            both = backend.store([_fact(content=text) for text in texts], unique=True)
            assert len({entry.id for entry in (*stored, *both)}) == 1
            assert [(e.content, e.repeat_count) for e in backend.list(EVERYTHING)] == [(texts[0], 3)]

    def test_the_same_entry_can_be_stored_again(self, tmp_path: Path) -> None:
        """If a new entry has the id and the content of a stored entry, the `repeat_count` of the stored entry is
        raised."""
        backend = self.start(tmp_path)
        entry = _fact()
        for times in (2, 1):
            assert [stored.id for stored in backend.store([entry] * times, unique=True)] == [entry.id] * times
        assert [(e.id, e.repeat_count) for e in backend.list(EVERYTHING)] == [(entry.id, 2)]
        assert by_words(backend, "heron") == [entry.id] == self.by_vectors(backend, "heron")

    def test_concurrent_duplicates_are_stored_once(self, tmp_path: Path) -> None:
        """A fact that several threads store is stored once. Each further call raises its `repeat_count`."""
        backends = [self.start(tmp_path), self.start(tmp_path)]

        def write(n: int) -> list[str]:
            return [backends[n % 2].store([_fact()], unique=True)[0].id for _ in range(3)]

        ids = [entry_id for written in run_in_threads(8, write) for entry_id in written]
        assert len(ids) == 24 and len(set(ids)) == 1
        assert [(e.id, e.repeat_count, e.version) for e in backends[0].list(EVERYTHING)] == [(ids[0], 23, 1)]

    def test_archived_entries_are_no_duplicates(self, tmp_path: Path) -> None:
        """With `unique`, a new entry is stored even if it equals an archived, superseded or summarized entry."""
        newer = make_entry("a newer fact", user_id=_fact().user_id)
        backend, _ = self.stored(tmp_path, newer, _fact(archived_at=_NOON), _fact(superseded_by=newer.id))
        first, second = _fact(), _fact()
        assert [entry.id for entry in backend.store([first], unique=True)] == [first.id]
        backend.consolidate(make_entry("A summary of birds.", kind="summary"), [first.id])
        assert [entry.id for entry in backend.store([second], unique=True)] == [second.id]

    def test_replaced_entries_are_no_duplicates(self, tmp_path: Path) -> None:
        """With `unique`, a new entry is stored even if it equals an entry that the same call replaces."""
        backend, (old,) = self.stored(tmp_path, _fact())
        new = _fact()
        (stored,) = backend.store([new], unique=True, replacing=[Scope(source_type="ticket", source_id="7")])
        assert stored.id == new.id and stored.repeat_count == 0
        assert [entry.id for entry in backend.list(EVERYTHING)] == [new.id]
        assert list(backend.get([old.id])) == [] and by_words(backend, "heron") == [new.id]

    def test_messages_and_entries_without_unique_are_no_duplicates(self, tmp_path: Path) -> None:
        """Without `unique`, every entry is stored. With `unique`, every message is stored."""
        backend, _ = self.stored(tmp_path, _fact())
        backend.store([_fact(), _fact()])
        for _ in range(2):
            backend.store([make_entry("Yes.", kind="message", tier="episodic")], unique=True)
        assert [entry.repeat_count for entry in backend.list(Scope())] == [0] * 5

    def test_an_existing_id_with_other_content_is_a_conflict(self, tmp_path: Path) -> None:
        """`store` with `unique` raises `Conflict` if a new entry has the id, but not the content, of a stored entry."""
        backend, (known,) = self.stored(tmp_path, _fact())
        with unchanged(backend, known.id), raises(Conflict):
            backend.store([_fact(), make_entry("Something else.", id=known.id)], unique=True)


class Uses(BackendCase):
    """Tests of `touch`, which counts uses of entries, and of `latest`, which returns the newest entries."""

    def test_touch_counts_uses_without_a_new_version(self, tmp_path: Path) -> None:
        """`touch` changes use counts and `last_accessed`, but not version, history and `updated_at`."""
        backend, (entry, other) = self.stored(tmp_path, "a", "b")
        backend.touch([Use(entry.id, _NOON, matches=2, reads=1)])
        backend.touch([Use(entry.id, _NOON + _HOUR, others=3), Use("missing", _NOON, reads=1)])
        expected = dataclasses.replace(entry, match_count=2, read_count=1, access_count=6, last_accessed=_NOON + _HOUR)
        assert list(backend.get([entry.id, other.id])) == [expected, other]
        assert list(backend.history(entry.id)) == []
        assert list(self.start(tmp_path).get([entry.id])) == [expected]

    def test_last_accessed_never_moves_back(self, tmp_path: Path) -> None:
        """`touch` also counts a use that is older than `last_accessed`, but does not change `last_accessed`."""
        backend, (entry,) = self.stored(tmp_path, "a")
        for at, last in ((_NOON, _NOON), (_NOON - _HOUR, _NOON), (_NOON + _HOUR, _NOON + _HOUR)):
            backend.touch([Use(entry.id, at, reads=1)])
            assert [e.last_accessed for e in backend.get([entry.id])] == [last]
        assert [e.read_count for e in backend.get([entry.id])] == [3]

    def test_several_uses_of_one_entry_are_added(self, tmp_path: Path) -> None:
        """If one call of `touch` lists several uses of an entry, all of these uses are counted."""
        backend, (entry,) = self.stored(tmp_path, "a")
        backend.touch([Use(entry.id, _NOON + _HOUR, reads=1), Use(entry.id, _NOON, matches=1)])
        backend.touch([])
        (used,) = backend.get([entry.id])
        counts = (used.read_count, used.match_count, used.access_count)
        assert (*counts, used.last_accessed) == (1, 1, 2, _NOON + _HOUR)

    def test_many_uses_are_counted_like_few(self, tmp_path: Path) -> None:
        """If one call of `touch` lists many entries, each entry is counted, including an entry with an unusual id and
        an entry that is listed twice. Missing entries are skipped."""
        strange = make_entry("b", id='"quoted", ä')
        backend, entries = self.stored(tmp_path, *(make_entry(f"a {n}") for n in range(30)), strange)
        uses = [Use(entry.id, _NOON, matches=n, reads=1) for n, entry in enumerate(entries)]
        backend.touch([*uses, Use("missing", _NOON, reads=1), Use(strange.id, _NOON + _HOUR, others=4)])
        found = backend.get([entry.id for entry in entries])
        assert [(e.match_count, e.read_count, e.access_count, e.last_accessed) for e in found] == [
            *((n, 1, n + 1, _NOON) for n in range(30)),
            (30, 1, 35, _NOON + _HOUR),
        ]
        backend.touch([Use(entry.id, _NOON - _HOUR, reads=1) for entry in entries])
        assert {e.last_accessed for e in backend.get([entries[0].id, strange.id])} == {_NOON, _NOON + _HOUR}

    def test_an_update_keeps_the_counts(self, tmp_path: Path) -> None:
        """`update` does not change the use counts. `touch` does not change the version, so an `update` with the same
        `expected_version` still succeeds."""
        backend, (entry,) = self.stored(tmp_path, "a")
        backend.touch([Use(entry.id, _NOON, reads=2)])
        changed = backend.update(entry.id, {"content": "b"}, expected_version=1)
        assert (changed.version, changed.read_count, changed.access_count) == (2, 2, 2)
        backend.touch([Use(entry.id, _NOON, reads=1)])
        assert backend.update(entry.id, {"content": "c"}, expected_version=2).read_count == 3

    def test_concurrent_uses_are_all_counted(self, tmp_path: Path) -> None:
        """If several threads call `touch` at the same time, every use is counted."""
        backends = [self.start(tmp_path), self.start(tmp_path)]
        (entry,) = backends[0].store([make_entry("a")])

        def touch(number: int) -> None:
            for _ in range(5):
                backends[number % 2].touch([Use(entry.id, _NOON, reads=1)])

        run_in_threads(4, touch)
        assert [(e.read_count, e.version) for e in backends[0].get([entry.id])] == [(20, 1)]

    def test_latest_returns_the_newest_first(self, tmp_path: Path) -> None:
        """`latest` returns the newest entry first, by `occurred_at`, or else by `created_at`."""
        times: tuple[tuple[datetime | None, datetime], ...] = (
            (_NOON, _NOON + 9 * _HOUR),  # happened, stored
            (None, _NOON + 2 * _HOUR),
            (_NOON + 3 * _HOUR, _NOON),
            (_NOON, _NOON),
            (_NOON - _HOUR, _NOON + 5 * _HOUR),
        )
        backend, entries = self.stored(
            tmp_path, *(make_entry("a", occurred_at=at, created_at=stored) for at, stored in times)
        )
        expected = [entries[n] for n in (2, 1, 3, 0, 4)]
        assert list(backend.latest(Scope())) == expected
        assert list(backend.latest(Scope(), limit=2)) == expected[:2]
        assert list(backend.latest(Scope(occurred_to=_NOON + _HOUR))) == expected[2:]
        assert list(backend.latest(Scope("other"))) == []

    def test_latest_respects_the_scope(self, tmp_path: Path) -> None:
        """`latest` returns only entries of the scope. `include_archived` adds archived and superseded entries."""
        made = (make_entry(f"{n}", session_id="ab"[n % 2], occurred_at=_NOON + n * _HOUR) for n in range(300))
        backend, entries = self.stored(tmp_path, *made)
        backend.update(entries[298].id, {"archived_at": _NOON})
        backend.update(entries[296].id, {"superseded_by": entries[299].id})
        scope = Scope(session_id="a")
        assert [e.content for e in backend.latest(scope, limit=3)] == ["294", "292", "290"]
        archived = dataclasses.replace(scope, include_archived=True)
        assert [e.content for e in backend.latest(archived, limit=3)] == ["298", "296", "294"]
        assert len(backend.latest(scope)) == 100 and len(backend.latest(scope, limit=1000)) == 148
