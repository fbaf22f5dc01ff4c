"""What is stored only once, what is counted, and what comes newest: all that use leaves behind."""

from __future__ import annotations

import dataclasses
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentformer.errors import Conflict
from agentformer.testing.case import EVERYTHING, BackendCase, by_words, raises, state
from agentformer.testing.reference import make_entry
from agentformer.types import MemoryEntry, Scope, Use

_MOMENT = datetime(2024, 5, 1, 12, tzinfo=UTC)
_HOUR = timedelta(hours=1)
_FACT: dict[str, Any] = {
    "session_id": "s1",
    "agent_id": "a1",
    "user_id": "u1",
    "project": "p1",
    "title": "Birds",
    "category": "decisions",
    "metadata": {"a": 1, "b": [True]},
    "occurred_at": _MOMENT,
    "source_type": "ticket",
    "source_id": "7",
}
# Each makes another entry of `_FACT`: something added, or in another place.
_OTHERWISE: tuple[dict[str, Any], ...] = (
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
    {"occurred_at": _MOMENT + _HOUR},
    {"source_id": "8"},
    {"source_type": "note"},
)


def _fact(**changes: Any) -> MemoryEntry:
    return make_entry(**{"content": "The heron nests here.", **_FACT, **changes})


class Using(BackendCase):
    def test_what_is_known_is_not_stored_again(self, tmp_path: Path) -> None:
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
        )  # neither version nor `updated_at` moved
        assert list(backend.history(first.id)) == []
        assert list(self.start(tmp_path).get([first.id])) == [known]
        assert by_words(backend, "heron") == [first.id] == self.by_vectors(backend, "heron")

    def test_whatever_is_told_otherwise_is_stored(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (first,) = backend.store([_fact()], unique=True)
        for changes in _OTHERWISE:
            new = _fact(**changes)
            (stored,) = backend.store([new], unique=True)
            assert stored.id == new.id, changes
            assert list(backend.get([first.id])) == [first], changes
        assert backend.count(EVERYTHING) + backend.count(Scope("other")) == 1 + len(_OTHERWISE)

    def test_a_batch_repeats_nothing_of_its_own(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        one, twin, other = _fact(), _fact(), _fact(content="The stork does not.")
        stored = backend.store([one, twin, other], unique=True)
        assert [entry.id for entry in stored] == [one.id, one.id, other.id]
        assert [(e.id, e.repeat_count) for e in backend.list(EVERYTHING)] == [(one.id, 1), (other.id, 0)]
        assert by_words(backend, "heron stork") == [one.id, other.id] == self.by_vectors(backend, "heron stork")

    def test_the_very_same_entry_stored_again_comes_back(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        entry = _fact()
        assert [stored.id for stored in backend.store([entry, entry], unique=True)] == [entry.id] * 2
        assert [stored.id for stored in backend.store([entry], unique=True)] == [entry.id]
        assert [(e.id, e.repeat_count) for e in backend.list(EVERYTHING)] == [(entry.id, 2)]
        assert by_words(backend, "heron") == [entry.id] == self.by_vectors(backend, "heron")

    def test_of_many_threads_with_the_same_fact_one_stores_it(self, tmp_path: Path) -> None:
        backends = [self.start(tmp_path), self.start(tmp_path)]
        start = threading.Barrier(8)
        ids: list[str] = []

        def write(n: int) -> None:
            start.wait()
            for _ in range(3):
                ids.extend(entry.id for entry in backends[n % 2].store([_fact()], unique=True))

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 24 and len(set(ids)) == 1
        assert [(e.id, e.repeat_count, e.version) for e in backends[0].list(EVERYTHING)] == [(ids[0], 23, 1)]

    def test_only_live_entries_make_a_fact_known(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        archived, superseded = _fact(archived_at=_MOMENT), _fact(superseded_by="x")
        backend.store([archived, superseded])
        new = _fact()
        assert [entry.id for entry in backend.store([new], unique=True)] == [new.id]
        backend.remove([new.id])
        summed = _fact()
        backend.store([summed])
        backend.consolidate(make_entry("A summary of birds.", kind="summary"), [summed.id])
        newer = _fact()
        assert [entry.id for entry in backend.store([newer], unique=True)] == [newer.id]

    def test_what_is_replaced_makes_nothing_known(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (old,) = backend.store([_fact()])
        new = _fact()
        (stored,) = backend.store([new], unique=True, replacing=[Scope(source_type="ticket", source_id="7")])
        assert stored.id == new.id and stored.repeat_count == 0
        assert [entry.id for entry in backend.list(EVERYTHING)] == [new.id]
        assert list(backend.get([old.id])) == [] and by_words(backend, "heron") == [new.id]

    def test_messages_are_kept_each_time(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        for _ in range(2):
            backend.store([make_entry("Yes.", kind="message", tier="episodic")], unique=True)
        assert backend.count(Scope()) == 2

    def test_without_being_asked_everything_is_stored(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        backend.store([_fact()])
        backend.store([_fact(), _fact()])
        assert [entry.repeat_count for entry in backend.list(Scope())] == [0, 0, 0]

    def test_a_taken_id_is_a_conflict_and_counts_nothing(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (known,) = backend.store([_fact()])
        before = state(backend, [known.id])
        with raises(Conflict):
            backend.store([_fact(), make_entry("Something else.", id=known.id)], unique=True)
        assert state(backend, [known.id]) == before

    def test_uses_are_counted_without_changing_the_entry(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        entry, other = backend.store([make_entry("a"), make_entry("b")])
        backend.touch([Use(entry.id, _MOMENT, matches=2, reads=1)])
        backend.touch([Use(entry.id, _MOMENT + _HOUR, others=3), Use("missing", _MOMENT, reads=1)])
        expected = dataclasses.replace(
            entry, match_count=2, read_count=1, access_count=6, last_accessed=_MOMENT + _HOUR
        )
        assert list(backend.get([entry.id, other.id])) == [expected, other]
        assert list(backend.history(entry.id)) == []
        assert list(self.start(tmp_path).get([entry.id])) == [expected]

    def test_the_last_access_never_moves_back(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("a")])
        for at, last in ((_MOMENT, _MOMENT), (_MOMENT - _HOUR, _MOMENT), (_MOMENT + _HOUR, _MOMENT + _HOUR)):
            backend.touch([Use(entry.id, at, reads=1)])
            assert [e.last_accessed for e in backend.get([entry.id])] == [last]
        assert [e.read_count for e in backend.get([entry.id])] == [3]

    def test_one_entry_may_be_used_several_times_in_one_call(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("a")])
        backend.touch([Use(entry.id, _MOMENT + _HOUR, reads=1), Use(entry.id, _MOMENT, matches=1)])
        backend.touch([])
        (used,) = backend.get([entry.id])
        assert (used.read_count, used.match_count, used.access_count) == (1, 1, 2)
        assert used.last_accessed == _MOMENT + _HOUR

    def test_an_update_keeps_the_counts_and_uses_do_not_hinder_it(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("a")])
        backend.touch([Use(entry.id, _MOMENT, reads=2)])
        changed = backend.update(entry.id, {"content": "b"}, expected_version=1)
        assert (changed.version, changed.read_count, changed.access_count) == (2, 2, 2)
        backend.touch([Use(entry.id, _MOMENT, reads=1)])
        assert backend.update(entry.id, {"content": "c"}, expected_version=2).read_count == 3

    def test_uses_counted_by_many_threads_all_count(self, tmp_path: Path) -> None:
        backends = [self.start(tmp_path), self.start(tmp_path)]
        (entry,) = backends[0].store([make_entry("a")])
        threads = [
            threading.Thread(
                target=lambda n=n: [backends[n % 2].touch([Use(entry.id, _MOMENT, reads=1)]) for _ in range(5)]
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [(e.read_count, e.version) for e in backends[0].get([entry.id])] == [(20, 1)]

    def test_the_latest_come_newest_first(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        times: tuple[tuple[datetime | None, datetime], ...] = (
            (_MOMENT, _MOMENT + 9 * _HOUR),  # happened, stored
            (None, _MOMENT + 2 * _HOUR),
            (_MOMENT + 3 * _HOUR, _MOMENT),
            (_MOMENT, _MOMENT),
            (_MOMENT - _HOUR, _MOMENT + 5 * _HOUR),
        )
        first, second, third, fourth, fifth = backend.store(
            [make_entry(f"{n}", occurred_at=at, created_at=stored) for n, (at, stored) in enumerate(times)]
        )
        expected = [third, second, fourth, first, fifth]
        assert list(backend.latest(Scope())) == expected
        assert list(backend.latest(Scope(), limit=2)) == expected[:2]
        assert list(backend.latest(Scope(occurred_to=_MOMENT + _HOUR))) == [fourth, first, fifth]
        assert list(backend.latest(Scope("other"))) == []

    def test_the_latest_are_of_the_scope_and_live(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        entries = backend.store(
            [make_entry(f"{n}", session_id="ab"[n % 2], occurred_at=_MOMENT + n * _HOUR) for n in range(300)]
        )
        backend.update(entries[298].id, {"archived_at": _MOMENT})
        backend.update(entries[296].id, {"superseded_by": "x"})
        scope = Scope(session_id="a")
        assert [e.content for e in backend.latest(scope, limit=3)] == ["294", "292", "290"]
        archived = dataclasses.replace(scope, include_archived=True)
        assert [e.content for e in backend.latest(archived, limit=3)] == ["298", "296", "294"]
        assert len(backend.latest(scope)) == 100 and len(backend.latest(scope, limit=1000)) == 148
