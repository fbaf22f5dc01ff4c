"""Tests of a backend: the time in which an entry holds, its expiry, and scopes for another moment (`as_of`)."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agentformer.errors import InvalidInput
from agentformer.testing.case import EVERYTHING, BackendCase, by_words, make_entry, raises, unchanged
from agentformer.types import MemoryBackend, MemoryEntry, Scope

_DAY = timedelta(days=1)
_MOMENT = datetime(2024, 5, 1, tzinfo=UTC)
_SOON = timedelta(seconds=0.3)


class Validity(BackendCase):
    """Tests of `valid_from`, `valid_to` and `expires_at`, and of their effect on supersession."""

    def test_only_entries_that_hold_now_are_found(self, tmp_path: Path) -> None:
        """`list`, `count`, `latest` and `search` return an entry only from `valid_from` until before `valid_to`, and
        before `expires_at`. With `include_archived`, they return all entries."""
        now = datetime.now(UTC)
        backend, entries = self.stored(
            tmp_path,
            make_entry("an ibex that holds", valid_from=now - _DAY, valid_to=now + _DAY, expires_at=now + _DAY),
            make_entry("an ibex without times"),
            make_entry("an ibex of tomorrow", valid_from=now + _DAY),
            make_entry("an ibex of yesterday", valid_to=now - _DAY),
            make_entry("an ibex without a day", valid_from=now - _DAY, valid_to=now - _DAY),
            make_entry("an expired ibex", expires_at=now - _DAY),
        )
        self._check(backend, Scope(), entries[:2])
        self._check(backend, EVERYTHING, entries)
        assert list(backend.get([entry.id for entry in entries])) == entries

    def test_a_scope_as_of_a_time_has_the_entries_that_held_then(self, tmp_path: Path) -> None:
        """With `as_of`, `valid_to` is exclusive. An entry without `valid_from` holds from the earlier of `occurred_at`
        and `created_at`, and a document always does. An expired entry is never returned, nor is an entry that will have
        expired at a later `as_of`."""
        far = datetime.now(UTC) + 1000 * _DAY
        backend, entries = self.stored(
            tmp_path,
            make_entry("the first ibex", valid_from=_MOMENT, valid_to=_MOMENT + _DAY),
            make_entry("the second ibex", valid_from=_MOMENT + _DAY, expires_at=far),
            make_entry("an ibex that was told", created_at=_MOMENT),
            make_entry("an ibex that was seen", occurred_at=_MOMENT, created_at=_MOMENT + 2 * _DAY),
            make_entry("an ibex of a plan", occurred_at=far, created_at=_MOMENT),
            make_entry("an ibex of a document", kind="chunk"),
            make_entry("an expired ibex", valid_from=_MOMENT, expires_at=_MOMENT + 9 * _DAY),
        )
        first, second, told, seen, plan, chunk, expired = entries
        always = [told, seen, plan, chunk]
        for at, expected in (
            (_MOMENT - _DAY, [chunk]),
            (_MOMENT - timedelta(microseconds=1), [chunk]),
            (_MOMENT, [first, *always]),
            (_MOMENT + _DAY - timedelta(microseconds=1), [first, *always]),
            (_MOMENT + _DAY, [second, *always]),
            (far - _DAY, [second, *always]),
            (far, always),
        ):
            self._check(backend, Scope(as_of=at), expected)
        self._check(backend, Scope(as_of=far, include_archived=True), [second, *always, expired])

    def test_an_end_before_the_beginning_is_refused(self, tmp_path: Path) -> None:
        """`store` and `update` raise `InvalidInput` for a `valid_to` before `valid_from`, and store nothing."""
        backend, (entry,) = self.stored(tmp_path, make_entry("an ibex", valid_from=_MOMENT))
        with unchanged(backend, entry.id), raises(InvalidInput):
            backend.update(entry.id, {"valid_to": _MOMENT - _DAY})
        with unchanged(backend, entry.id), raises(InvalidInput):
            backend.store([make_entry("an ibex"), make_entry("ibex", valid_from=_MOMENT, valid_to=_MOMENT - _DAY)])
        assert backend.count(EVERYTHING) == 1

    def test_a_search_sees_that_time_passes(self, tmp_path: Path) -> None:
        """An entry enters and leaves the results of a search when the clock reaches its times, although no entry
        changes between the searches."""
        backend = self.start(tmp_path)
        backend.store([make_entry("an ibex")])
        by_words(backend, "ibex")
        at = datetime.now(UTC) + _SOON
        times = ({"valid_from": at}, {"valid_to": at}, {"expires_at": at})
        coming, ending, expiring = (entry.id for entry in backend.store([make_entry("ibex", **each) for each in times]))
        before = {*by_words(backend, "ibex")}, {*self.by_vectors(backend, "ibex")}
        if datetime.now(UTC) < at:
            assert all({ending, expiring} <= found and coming not in found for found in before)
        time.sleep(max(0.0, (at - datetime.now(UTC)).total_seconds()) + 0.01)
        for found in (by_words(backend, "ibex"), self.by_vectors(backend, "ibex")):
            assert coming in found and len(found) == 2

    def test_a_superseded_entry_holds_until_its_successor_does(self, tmp_path: Path) -> None:
        """`update` with a successor ends the validity of the entry at the time from which the successor holds. A scope
        as of an earlier time has the entry. An earlier end stays, and an end is never before `valid_from`."""
        old = make_entry("an old ibex", created_at=_MOMENT)
        ended = make_entry("an ended ibex", created_at=_MOMENT, valid_to=_MOMENT + _DAY)
        late = make_entry("a late ibex", valid_from=_MOMENT + 9 * _DAY)
        new = make_entry("a new ibex", valid_from=_MOMENT + 2 * _DAY, created_at=_MOMENT + 5 * _DAY)
        backend, _ = self.stored(tmp_path, old, ended, late, new)
        ends = [backend.update(each.id, {"superseded_by": new.id}).valid_to for each in (old, ended, late)]
        assert ends == [_MOMENT + 2 * _DAY, _MOMENT + _DAY, _MOMENT + 9 * _DAY]
        for at, expected in ((_MOMENT, [old, ended]), (_MOMENT + _DAY, [old]), (_MOMENT + 2 * _DAY, [new])):
            assert [entry.id for entry in backend.list(Scope(as_of=at))] == sorted(entry.id for entry in expected)
        self._check(backend, Scope(), [new])

    def test_the_end_without_valid_from_is_when_the_successor_was_told(self, tmp_path: Path) -> None:
        """If the successor has no `valid_from`, the validity of the entry ends at the earlier of `occurred_at` and
        `created_at` of the successor."""
        for times in ({"occurred_at": _MOMENT, "created_at": _MOMENT + _DAY}, {"created_at": _MOMENT}):
            new = make_entry("a new ibex", **times)
            backend, (old, _) = self.stored(tmp_path / f"{len(times)}", make_entry("an ibex", created_at=_MOMENT), new)
            assert backend.update(old.id, {"superseded_by": new.id}).valid_to == _MOMENT
            self._check(backend, Scope(), [new])

    def test_an_entry_that_is_superseded_in_advance_holds_until_then(self, tmp_path: Path) -> None:
        """If the successor does not hold yet, the superseded entry is found until it does."""
        later = datetime.now(UTC) + _DAY
        new = make_entry("a new ibex", valid_from=later)
        backend, (old, _) = self.stored(tmp_path, "an old ibex", new)
        old = backend.update(old.id, {"superseded_by": new.id})
        assert old.valid_to == later
        self._check(backend, Scope(), [old])
        self._check(backend, Scope(as_of=later), [new])

    def test_an_entry_that_is_current_again_has_its_former_end(self, tmp_path: Path) -> None:
        """If an entry loses its successor, `valid_to` is what it was before the supersession, and the entry is found
        again. This is so if the successor is removed, archived or moved, or if `update` removes the link."""
        end = datetime.now(UTC) + 9 * _DAY
        for way in ("removed", "archived", "moved", "unlinked"):
            old = make_entry("an old ibex", valid_to=end)
            backend, (_, plain, new) = self.stored(tmp_path / way, old, "a plain ibex", "a newer ibex")
            for each in (old, plain):
                backend.update(each.id, {"superseded_by": new.id})
            self._check(backend, Scope(), [new])
            if way == "removed":
                backend.remove([new.id])
            elif way == "archived":
                backend.update(new.id, {"archived_at": _MOMENT})
            elif way == "moved":
                backend.update(new.id, {"user_id": "another"})
            else:
                for each in (old, plain):
                    backend.update(each.id, {"superseded_by": None})
            freed = backend.get([old.id, plain.id])
            assert [entry.valid_to for entry in freed] == [end, None], way
            assert {entry.id for entry in freed} <= {*by_words(backend, "ibex")}, way

    def test_summarized_entries_can_be_included_alone(self, tmp_path: Path) -> None:
        """With `include_summarized`, a scope also has the archived originals of summaries that hold. It has no other
        archived, superseded or expired entries."""
        past = datetime.now(UTC) - _DAY
        backend, (plain, told, ended, new, old) = self.stored(
            tmp_path,
            make_entry("an ibex"),
            make_entry("an ibex that was told"),
            make_entry("an ibex that was told and ended", valid_to=past),
            make_entry("a new ibex"),
            make_entry("an old ibex"),
        )
        backend.store([make_entry("an archived ibex", archived_at=past), make_entry("expired ibex", expires_at=past)])
        backend.update(old.id, {"superseded_by": new.id})
        summary = backend.consolidate(make_entry("a summary of an ibex", kind="summary"), [told.id, ended.id])
        told = replace(told, archived_at=backend.get([told.id])[0].archived_at, archived_by=summary.id)
        self._check(backend, Scope(include_summarized=True), [plain, told, new, summary])
        self._check(backend, Scope(), [plain, new, summary])

    def _check(self, backend: MemoryBackend, scope: Scope, expected: list[MemoryEntry]) -> None:
        """Check that every kind of read returns exactly the entries `expected`, whose contents contain "ibex"."""
        ids = sorted(entry.id for entry in expected)
        assert [entry.id for entry in backend.list(scope)] == ids
        assert backend.count(scope) == len(ids)
        assert sorted(entry.id for entry in backend.latest(scope)) == ids
        assert by_words(backend, "ibex", scope) == ids
        assert self.by_vectors(backend, "ibex", scope) == ids
