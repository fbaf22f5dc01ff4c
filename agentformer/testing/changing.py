"""Tests of a backend: updates of entries with versions and history, and leases."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.testing.case import EVERYTHING, BackendCase, by_words, make_entry, raises, run_in_threads, unchanged
from agentformer.types import Link, Query, Scope

_MOMENT = datetime(2024, 5, 1, tzinfo=UTC)
_LONG = 3600.0  # seconds; no test waits for its end
_SHORT = 0.01


class Changing(BackendCase):
    """Tests of `update`, which changes fields of an entry, and of `history`, which returns the former versions."""

    def test_an_update_raises_the_version_and_keeps_the_former_state(self, tmp_path: Path) -> None:
        """Each update raises the version by one, and adds the former state to the history."""
        backend, (first,) = self.stored(tmp_path, make_entry("first", metadata={"a": 1}, occurred_at=_MOMENT))
        second = backend.update(first.id, {"content": "second", "metadata": {"b": [None, True]}})
        third = backend.update(first.id, {"salience": 0.5, "tier": "core"}, expected_version=2)
        assert second.updated_at is not None and first.updated_at is not None
        assert second.updated_at >= first.updated_at
        assert second == dataclasses.replace(
            first, content="second", metadata={"b": [None, True]}, version=2, updated_at=second.updated_at
        )
        assert third == dataclasses.replace(second, salience=0.5, tier="core", version=3, updated_at=third.updated_at)
        assert list(backend.get([first.id])) == [third]
        assert list(backend.history(first.id)) == [first, second]

    def test_history_is_empty_for_an_unchanged_or_missing_entry(self, tmp_path: Path) -> None:
        """`history` returns an empty list for an entry that was never changed, and for an id that does not exist."""
        backend, (entry,) = self.stored(tmp_path, "a")
        assert list(backend.history(entry.id)) == [] == list(backend.history("missing"))

    def test_a_call_with_a_stale_version_changes_nothing(self, tmp_path: Path) -> None:
        """`update` and `remove` raise `Conflict` if `expected_version` is not the current version."""
        backend, (entry, other) = self.stored(tmp_path, "first gecko", "another gecko")
        backend.update(entry.id, {"content": "second gecko"})
        for version in (1, 3):
            with unchanged(backend, entry.id, other.id), raises(Conflict):
                backend.update(entry.id, {"content": "late axolotl"}, expected_version=version)
        with unchanged(backend, entry.id, other.id), raises(Conflict):
            backend.remove([other.id, entry.id], expected_version=1)
        assert by_words(backend, "axolotl") == []
        assert backend.remove([entry.id], expected_version=2) == 1
        assert backend.remove([entry.id], expected_version=2) == 0
        assert by_words(backend, "gecko") == [other.id]

    def test_updating_a_missing_entry_raises(self, tmp_path: Path) -> None:
        """`update` raises `NotFound` if no entry has the id."""
        backend = self.start(tmp_path)
        for version in (None, 1):
            with raises(NotFound):
                backend.update("missing", {"content": "x"}, expected_version=version)
        assert backend.count(Scope()) == 0

    def test_fields_set_by_the_store_cannot_be_changed(self, tmp_path: Path) -> None:
        """`update` raises `InvalidInput` if the changes contain a field that the store sets, such as the id, the
        version, a use count or a time of storing, or an unknown field."""
        backend, (entry,) = self.stored(tmp_path, "a")
        kept = {"id": "x", "version": 9, "created_at": _MOMENT, "updated_at": _MOMENT, "archived_by": "x"}
        counts = dict.fromkeys(("access_count", "match_count", "read_count", "repeat_count"), 1)
        for name, value in {**kept, **counts, "no_such_field": 1}.items():
            with raises(InvalidInput):
                backend.update(entry.id, {"content": "b", name: value})
        assert list(backend.get([entry.id])) == [entry]

    def test_an_updated_text_is_found_and_the_former_is_not(self, tmp_path: Path) -> None:
        """After an update, search finds the new text and not the former text."""
        backend, (entry,) = self.stored(tmp_path, "the heron stands still")
        backend.update(entry.id, {"content": "a puffin dives"})
        assert by_words(backend, "heron") == []
        assert by_words(backend, "puffin") == [entry.id]
        (hit,) = backend.search(Query("a puffin dives", mode="dense" if self.vectors else "lexical"))
        assert hit.entry.content == "a puffin dives"
        assert abs((hit.dense_score or 0) - 1) < 1e-5 or not self.vectors

    def test_an_entry_moved_to_another_namespace_is_found_there(self, tmp_path: Path) -> None:
        """After an update of namespace or session, search finds the entry only with the new values."""
        backend, (entry,) = self.stored(tmp_path, make_entry("a wandering albatross", session_id="a"))
        assert self.by_vectors(backend, "albatross") == [entry.id]
        backend.update(entry.id, {"namespace": "elsewhere", "session_id": "b"})
        there = Scope("elsewhere", session_id="b")
        assert by_words(backend, "albatross") == [] == self.by_vectors(backend, "albatross")
        assert by_words(backend, "albatross", there) == [entry.id] == self.by_vectors(backend, "albatross", there)

    def test_superseded_and_archived_entries_are_not_found(self, tmp_path: Path) -> None:
        """Search finds archived and superseded entries only if the scope has `include_archived`."""
        backend, (old, new, dusty) = self.stored(tmp_path, *(f"the {word} okapi" for word in ("old", "new", "dusty")))
        backend.update(old.id, {"superseded_by": new.id})
        backend.update(dusty.id, {"archived_at": _MOMENT})
        assert by_words(backend, "okapi") == [new.id] == self.by_vectors(backend, "okapi")
        assert by_words(backend, "okapi", EVERYTHING) == sorted([old.id, new.id, dusty.id])
        backend.update(dusty.id, {"archived_at": None})
        assert by_words(backend, "okapi") == sorted([new.id, dusty.id]) == self.by_vectors(backend, "okapi")

    def test_one_of_several_updates_of_the_same_version_wins(self, tmp_path: Path) -> None:
        """Of concurrent updates with the same `expected_version`, one succeeds, and the others raise `Conflict`."""
        backend, (entry,) = self.stored(tmp_path, "contested")
        outcomes: list[str] = []

        def write(n: int) -> None:
            try:
                outcomes.append(backend.update(entry.id, {"content": f"writer {n}"}, expected_version=1).content)
            except Conflict:
                outcomes.append("")

        run_in_threads(4, write)
        winners = [content for content in outcomes if content]
        assert len(outcomes) == 4 and len(winners) == 1
        assert [(e.content, e.version) for e in backend.get([entry.id])] == [(winners[0], 2)]

    def test_concurrent_updates_are_all_applied(self, tmp_path: Path) -> None:
        """Every concurrent update without `expected_version` is applied, and raises the version by one."""
        backend, (entry,) = self.stored(tmp_path, "shared")
        run_in_threads(4, lambda n: [backend.update(entry.id, {"project": f"p{n}"}) for _ in range(5)])
        assert [e.version for e in backend.get([entry.id])] == [21]
        assert [e.version for e in backend.history(entry.id)] == list(range(1, 21))


class Superseding(BackendCase):
    """Tests of `superseded_by`, the id of the successor of an entry. An entry is hidden only while its successor
    exists."""

    def test_both_ends_of_a_supersession_are_checked(self, tmp_path: Path) -> None:
        """`update` raises `NotFound` if the successor does not exist. It raises `InvalidInput` if the successor is the
        entry itself, or belongs to another namespace or another user. It raises `Conflict` if one of the two entries is
        already superseded, or if the successor is archived. Nothing is changed."""
        elsewhere, another = make_entry("a", namespace="elsewhere"), make_entry("b", user_id="another")
        dusty = make_entry("c", archived_at=_MOMENT)
        backend, (old, new, *_) = self.stored(tmp_path, "old", "new", elsewhere, another, dusty)
        refused: list[tuple[str, type[Exception]]] = [("missing", NotFound), (dusty.id, Conflict)]
        refused += [(entry_id, InvalidInput) for entry_id in (old.id, elsewhere.id, another.id)]
        for successor, error in refused:
            with unchanged(backend, old.id), raises(error):
                backend.update(old.id, {"superseded_by": successor})
        backend.update(old.id, {"superseded_by": new.id})
        third = backend.store([make_entry("third")])[0]
        for entry_id, successor in ((old.id, third.id), (third.id, old.id), (new.id, old.id)):
            with unchanged(backend, old.id, new.id, third.id), raises(Conflict):
                backend.update(entry_id, {"superseded_by": successor})

    def test_no_cycle_of_any_length_is_stored(self, tmp_path: Path) -> None:
        """A chain of superseded entries cannot become a cycle. Search always finds the last entry of the chain."""
        backend, entries = self.stored(tmp_path, *(f"the {n}. okapi" for n in range(4)))
        ids = [entry.id for entry in entries]
        for old, new in pairwise(ids):
            backend.update(old, {"superseded_by": new})
        for first in ids[:-1]:
            with unchanged(backend, *ids), raises(Conflict):
                backend.update(ids[-1], {"superseded_by": first})
        backend.update(ids[0], {"superseded_by": None})
        backend.update(ids[-1], {"superseded_by": ids[0]})
        with raises(Conflict):
            backend.update(ids[0], {"superseded_by": ids[1]})
        assert by_words(backend, "okapi") == [ids[0]]

    def test_an_entry_whose_successor_is_removed_is_found_again(self, tmp_path: Path) -> None:
        """If the successor of an entry is removed, the entry is found again. This is so if the successor is removed by
        its id, by a scope, together with its parent, or because another entry replaces it. The superseded version of
        the entry is kept in its history."""
        for way in ("id", "scope", "part", "replaced"):
            whole = make_entry("a whole")
            successor = make_entry("a new tapir", session_id=way, parent_id=whole.id)
            backend, (old, *_) = self.stored(tmp_path / way, "an old tapir", whole, successor)
            superseded = backend.update(old.id, {"superseded_by": successor.id})
            assert by_words(backend, "tapir") == [successor.id]
            assert old.id not in self.by_vectors(backend, "tapir")
            if way == "replaced":
                backend.store([make_entry("a heron")], replacing=[Scope(session_id=way)], unique=True)
            else:
                backend.remove({"id": [successor.id], "part": [whole.id]}.get(way, Scope(session_id=way)))
            assert by_words(backend, "tapir") == [old.id] and old.id in self.by_vectors(backend, "tapir")
            (freed,) = backend.get([old.id])
            expected = dataclasses.replace(old, version=3, updated_at=freed.updated_at)
            assert freed == expected and list(backend.history(old.id)) == [old, superseded]

    def test_an_entry_whose_successor_moves_away_is_found_again(self, tmp_path: Path) -> None:
        """If a successor gets another namespace or another user, the entry that it superseded is found again. If a
        superseded entry moves, it is found in its new namespace or for its new user."""
        for change in ({"namespace": "elsewhere"}, {"user_id": "another"}):
            for moved in (0, 1):
                backend, (old, new) = self.stored(tmp_path / f"{[*change]}{moved}", "an old tapir", "a new tapir")
                backend.update(old.id, {"superseded_by": new.id})
                backend.update((old, new)[moved].id, change)
                assert [entry.superseded_by for entry in backend.get([old.id, new.id])] == [None, None]

    def test_an_entry_whose_successor_is_archived_alone_is_found_again(self, tmp_path: Path) -> None:
        """The successor of an entry can be archived in three ways. If `update` archives it, or if it is a summary that
        `restore` archives, the entry is found again. If a new summary replaces the successor, the entry stays hidden,
        because searches find the summary."""
        for way in ("archived", "restored", "summarized"):
            backend, (old, new, other) = self.stored(tmp_path / way, "an old tapir", "a new tapir", "a heron")
            summary = make_entry("a tapir summary", kind="summary", derived_from=(Link(other.id),))
            backend.consolidate(summary, [other.id])
            backend.update(old.id, {"superseded_by": summary.id if way == "restored" else new.id})
            if way == "archived":
                backend.update(new.id, {"archived_at": _MOMENT})
            elif way == "restored":
                backend.restore(summary.id)
            else:
                backend.consolidate(make_entry("more on it", kind="summary", derived_from=(Link(new.id),)), [new.id])
            found = by_words(backend, "tapir")
            expected = {"archived": [old.id, summary.id], "restored": [old.id, new.id], "summarized": [summary.id]}
            assert found == sorted(expected[way]), way

    def test_a_chain_of_archived_successors_hides_nothing(self, tmp_path: Path) -> None:
        """In a chain, each entry is superseded by the next. If the last entry is archived or removed, the nearest
        earlier entry that is not archived is found again."""
        for hidden in (False, True):
            for way in ("archived", "removed"):
                backend, entries = self.stored(tmp_path / f"{hidden}{way}", *(f"the {n}. okapi" for n in range(3)))
                first, second, third = (entry.id for entry in entries)
                backend.update(first, {"superseded_by": second})
                backend.update(second, {"superseded_by": third})
                if hidden:
                    backend.update(second, {"archived_at": _MOMENT})
                assert by_words(backend, "okapi") == [third]
                if way == "archived":
                    backend.update(third, {"archived_at": _MOMENT})
                else:
                    backend.remove([third])
                assert by_words(backend, "okapi") == [first if hidden else second]

    def test_a_superseded_entry_that_is_archived_hides_nothing_when_it_is_current_again(self, tmp_path: Path) -> None:
        """In a chain of three, the second entry is archived. If the third no longer supersedes the second, the first
        entry is found again, because an archived entry hides nothing."""
        backend, entries = self.stored(tmp_path, *(f"the {n}. okapi" for n in range(3)))
        first, second, third = (entry.id for entry in entries)
        backend.update(first, {"superseded_by": second})
        backend.update(second, {"superseded_by": third, "archived_at": _MOMENT})
        backend.update(second, {"superseded_by": None})
        assert by_words(backend, "okapi") == [first, third]

    def test_a_stored_entry_is_superseded_only_by_an_entry_that_is_found(self, tmp_path: Path) -> None:
        """`store` drops the `superseded_by` of a new entry if all its successors are archived, so searches find the new
        entry. The same happens if the archived successors supersede each other in a cycle."""
        gone = make_entry("the gone okapi", archived_at=_MOMENT)
        first = make_entry("the first okapi", superseded_by=gone.id)
        ring = make_entry("the ring okapi", archived_at=_MOMENT)
        back = make_entry("the back okapi", archived_at=_MOMENT, superseded_by=ring.id)
        ring = dataclasses.replace(ring, superseded_by=back.id)
        before = make_entry("the okapi before", superseded_by=ring.id)
        backend, stored = self.stored(tmp_path, first, gone, before, ring, back)
        assert list(backend.get([entry.id for entry in stored])) == stored
        assert by_words(backend, "okapi") == sorted([first.id, before.id])

    def test_a_stored_entry_is_superseded_only_by_an_entry_that_exists(self, tmp_path: Path) -> None:
        """`store` drops the `superseded_by` of an entry if the entry with this id is missing or belongs to another
        namespace or user, or if the successors would form a cycle. Otherwise the entry would never be found."""
        first, second, third = (make_entry(f"the {n}. gnu") for n in range(3))
        one = dataclasses.replace(first, superseded_by=second.id)
        two = dataclasses.replace(second, superseded_by=third.id)
        three = dataclasses.replace(third, superseded_by=first.id)
        lost = make_entry("a lost gnu", superseded_by="missing")
        other = make_entry("another gnu", superseded_by=first.id, user_id="another")
        backend, stored = self.stored(tmp_path, one, two, three, lost, other)
        assert list(backend.get([entry.id for entry in stored])) == stored
        links = [entry.superseded_by for entry in stored]
        assert links.count(None) == 3 and links[3:] == [None, None]
        assert len(by_words(backend, "gnu")) == 3

    def test_two_entries_never_supersede_each_other(self, tmp_path: Path) -> None:
        """If several threads try to make two entries supersede each other, one of the entries stays visible."""
        backends = [self.start(tmp_path), self.start(tmp_path)]
        for n in range(5):
            ids = [entry.id for entry in backends[0].store([make_entry(f"one {n}"), make_entry(f"two {n}")])]

            def write(k: int, ids: Sequence[str] = ids) -> None:
                with suppress(Conflict):
                    backends[k % 2].update(ids[k % 2], {"superseded_by": ids[1 - k % 2]})

            run_in_threads(4, write)
            assert [entry.superseded_by for entry in backends[0].get(ids)].count(None) == 1


class Parts(BackendCase):
    """Tests of the parts of an entry: the entries with its id as `parent_id`, which are removed together with it."""

    def test_parts_of_the_same_owner_are_removed_with_an_entry(self, tmp_path: Path) -> None:
        """The parts of an entry, and the parts of these parts, are removed with the entry. An entry of another
        namespace, user or project is kept, even if it has the id of the removed entry as `parent_id`."""
        whole = make_entry("whole", user_id="aino", project="p")
        part = make_entry("part", user_id="aino", project="p", parent_id=whole.id)
        deep = make_entry("deep part", user_id="aino", project="p", parent_id=part.id)
        owners = ({"user_id": "bo", "project": "p"}, {"project": "p"}, {"user_id": "aino"})
        kept = [make_entry("kept", parent_id=entry.id, **owner) for owner in owners for entry in (whole, part)]
        kept.append(make_entry("kept", user_id="aino", project="p", parent_id=whole.id, namespace="other"))
        for way in ([whole.id], Scope(user_id="aino", project="p"), "replaced"):
            backend, _ = self.stored(tmp_path / str(type(way)), whole, part, deep, *kept)
            if isinstance(way, str):
                backend.store([make_entry("new")], replacing=[Scope(user_id="aino", project="p")])
            else:
                assert backend.remove(way) == 3
            assert not backend.get([whole.id, part.id, deep.id])
            assert [entry.id for entry in backend.get([entry.id for entry in kept])] == [entry.id for entry in kept]


class Leases(BackendCase):
    """Tests of `lease` and `release`. A lease is a named lock that ends after a given time."""

    def test_only_one_holder_has_a_lease_until_its_release(self, tmp_path: Path) -> None:
        """Only one holder has a lease, even if several backends have the store open. Only this holder can release the
        lease. After that, another holder can take the lease."""
        one, other = self.start(tmp_path), self.start(tmp_path)
        assert one.lease("clean", "A", _LONG) is True
        assert other.lease("clean", "B", _LONG) is False
        assert one.lease("clean", "B", _LONG) is False
        one.release("clean", "B")
        one.release("no such lease", "A")
        assert not one.lease("clean", "B", _LONG) and one.lease("clean", "A", _LONG)
        one.release("clean", "A")
        assert other.lease("clean", "B", _LONG) is True
        assert one.lease("clean", "A", _LONG) is False

    def test_a_lease_expires_unless_the_holder_prolongs_it(self, tmp_path: Path) -> None:
        """After a lease has expired, another holder can take the lease. If the holder calls `lease` again before the
        end, the lease lasts longer."""
        backend = self.start(tmp_path)
        names = ("prolonged", "expired")
        assert all(backend.lease(name, "A", _SHORT) for name in names)
        assert backend.lease("prolonged", "A", _LONG)
        time.sleep(3 * _SHORT)
        assert [backend.lease(name, "B", _LONG) for name in names] == [False, True]
        assert not backend.lease("expired", "A", _LONG)

    def test_leases_with_other_names_are_independent(self, tmp_path: Path) -> None:
        """Leases with different names can have different holders, and are released separately."""
        backend = self.start(tmp_path)
        names = ("clean", "clean:s1", "siivous ä 日本", "")
        assert all(backend.lease(name, "A", _LONG) for name in names)
        assert not any(backend.lease(name, "B", _LONG) for name in names)
        backend.release("clean:s1", "A")
        assert [backend.lease(name, "B", _LONG) for name in names] == [False, True, False, False]

    def test_a_lease_outlives_the_backend_that_took_it(self, tmp_path: Path) -> None:
        """A lease remains in force after the backend that took the lease is closed."""
        backend = self.start(tmp_path)
        assert backend.lease("clean", "A", _LONG)
        backend.close()
        assert not self.start(tmp_path).lease("clean", "B", _LONG)

    def test_one_of_many_threads_gets_the_lease(self, tmp_path: Path) -> None:
        """If many threads ask for the same lease at the same time, only one thread gets the lease."""
        backends = [self.start(tmp_path), self.start(tmp_path)]
        outcomes = run_in_threads(8, lambda n: backends[n % 2].lease("clean", f"holder {n}", _LONG))
        assert sorted(outcomes) == [False] * 7 + [True]

    def test_a_lease_blocks_no_other_call(self, tmp_path: Path) -> None:
        """Entries can be read and written while a lease is held."""
        backend = self.start(tmp_path)
        assert backend.lease("clean", "A", _LONG)
        (entry,) = backend.store([make_entry("a")])
        assert list(backend.list(Scope())) == [entry]
        assert backend.namespaces() == ["default"] and backend.remove(Scope()) == 1
        assert not backend.lease("clean", "B", _LONG)
