"""Updates with history and versions, and consolidation: all or nothing, and never unnoticed."""

from __future__ import annotations

import dataclasses
import threading
from datetime import UTC, datetime
from pathlib import Path

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.testing.case import BackendCase, by_words, raises, state
from agentformer.testing.reference import make_entry
from agentformer.types import Query, Scope

_MOMENT = datetime(2024, 5, 1, tzinfo=UTC)


class Changing(BackendCase):
    def test_an_update_raises_the_version_and_keeps_the_former_states(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (first,) = backend.store([make_entry("first", metadata={"a": 1}, occurred_at=_MOMENT)])
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

    def test_history_is_empty_for_what_never_changed_or_is_not_there(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("a")])
        assert list(backend.history(entry.id)) == [] == list(backend.history("missing"))

    def test_a_stale_version_changes_nothing(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("first gecko")])
        backend.update(entry.id, {"content": "second gecko"})
        before = state(backend, [entry.id])
        for version in (1, 3):
            with raises(Conflict):
                backend.update(entry.id, {"content": "late axolotl"}, expected_version=version)
        assert state(backend, [entry.id]) == before
        assert by_words(backend, "axolotl") == []

    def test_a_stale_version_removes_nothing(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        first, other = backend.store([make_entry("first gecko"), make_entry("another gecko")])
        backend.update(first.id, {"content": "second gecko"})
        before = state(backend, [first.id, other.id])
        with raises(Conflict):
            backend.remove([other.id, first.id], expected_version=1)
        assert state(backend, [first.id, other.id]) == before
        assert backend.remove([first.id], expected_version=2) == 1
        assert backend.remove([first.id], expected_version=2) == 0
        assert by_words(backend, "gecko") == [other.id]

    def test_updating_what_is_not_there_raises(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        with raises(NotFound):
            backend.update("missing", {"content": "x"})
        with raises(NotFound):
            backend.update("missing", {"content": "x"}, expected_version=1)
        assert backend.count(Scope()) == 0

    def test_fields_that_the_store_keeps_cannot_be_changed(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("a")])
        kept = {"id": "x", "version": 9, "created_at": _MOMENT, "updated_at": _MOMENT, "archived_by": "x"}
        counts = dict.fromkeys(("access_count", "match_count", "read_count", "repeat_count"), 1)
        for name, value in {**kept, **counts, "no_such_field": 1}.items():
            with raises(InvalidInput):
                backend.update(entry.id, {"content": "b", name: value})
        assert list(backend.get([entry.id])) == [entry]

    def test_a_changed_text_changes_what_search_finds(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("the heron stands still")])
        backend.update(entry.id, {"content": "a puffin dives"})
        assert by_words(backend, "heron") == []
        assert by_words(backend, "puffin") == [entry.id]
        (hit,) = backend.search(Query("a puffin dives", mode="dense" if self.vectors else "lexical"))
        assert hit.entry.content == "a puffin dives"
        assert abs((hit.dense_score or 0) - 1) < 1e-5 or not self.vectors

    def test_a_changed_place_changes_which_scopes_see_it(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("a wandering albatross", session_id="a")])
        assert self.by_vectors(backend, "albatross") == [entry.id]
        backend.update(entry.id, {"namespace": "elsewhere", "session_id": "b"})
        there = Scope("elsewhere", session_id="b")
        assert by_words(backend, "albatross") == [] == self.by_vectors(backend, "albatross")
        assert by_words(backend, "albatross", there) == [entry.id] == self.by_vectors(backend, "albatross", there)

    def test_superseded_and_archived_entries_leave_the_results(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        old, new, dusty = backend.store([make_entry(f"the {word} okapi") for word in ("old", "new", "dusty")])
        backend.update(old.id, {"superseded_by": new.id})
        backend.update(dusty.id, {"archived_at": _MOMENT})
        assert by_words(backend, "okapi") == [new.id] == self.by_vectors(backend, "okapi")
        everything = Scope(include_archived=True)
        assert by_words(backend, "okapi", everything) == sorted([old.id, new.id, dusty.id])
        backend.update(dusty.id, {"archived_at": None})
        assert by_words(backend, "okapi") == sorted([new.id, dusty.id]) == self.by_vectors(backend, "okapi")

    def test_of_two_writers_with_one_version_one_wins(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("contested")])
        outcomes: list[str] = []
        start = threading.Barrier(4)

        def write(n: int) -> None:
            start.wait()
            try:
                outcomes.append(backend.update(entry.id, {"content": f"writer {n}"}, expected_version=1).content)
            except Conflict:
                outcomes.append("")

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [content for content in outcomes if content]
        assert len(outcomes) == 4 and len(winners) == 1
        assert [(e.content, e.version) for e in backend.get([entry.id])] == [(winners[0], 2)]

    def test_unconditional_updates_of_many_threads_all_count(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("shared")])
        threads = [
            threading.Thread(target=lambda n=n: [backend.update(entry.id, {"project": f"p{n}"}) for _ in range(5)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [e.version for e in backend.get([entry.id])] == [21]
        assert [e.version for e in backend.history(entry.id)] == list(range(1, 21))

    def test_consolidation_stores_the_summary_and_archives_the_originals(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals = backend.store([make_entry(f"the tapir ate {n} leaves") for n in range(3)])
        summary = make_entry("the tapir ate three times", kind="summary")
        stored = backend.consolidate(summary, [entry.id for entry in originals])
        assert stored.id == summary.id and list(backend.get([summary.id])) == [stored]
        archived = backend.get([entry.id for entry in originals])
        assert all(entry.archived_at is not None for entry in archived)
        assert [entry.content for entry in archived] == [entry.content for entry in originals]
        assert by_words(backend, "tapir") == [summary.id] == self.by_vectors(backend, "tapir")
        assert len(by_words(backend, "tapir", Scope(include_archived=True))) == 4

    def test_consolidation_does_nothing_when_an_original_is_not_live(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        live, archived, superseded = backend.store(
            [
                make_entry("live lemur"),
                make_entry("archived lemur", archived_at=_MOMENT),
                make_entry("superseded lemur", superseded_by="x"),
            ]
        )
        before = state(backend, [live.id, archived.id, superseded.id])
        for bad in (archived.id, superseded.id, "missing"):
            with raises(Conflict):
                backend.consolidate(make_entry("summary of lemurs"), [live.id, bad])
            assert state(backend, [live.id, archived.id, superseded.id]) == before
        assert by_words(backend, "lemur lemurs summary") == [live.id]

    def test_consolidation_under_a_taken_id_archives_nothing(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        one, other = backend.store([make_entry("one"), make_entry("other")])
        with raises(Conflict):
            backend.consolidate(make_entry("summary", id=other.id), [one.id])
        assert list(backend.get([one.id, other.id])) == [one, other]

    def test_the_same_entries_are_consolidated_once(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        ids = [entry.id for entry in backend.store([make_entry("one"), make_entry("two")])]
        backend.consolidate(make_entry("first summary"), ids)
        with raises(Conflict):
            backend.consolidate(make_entry("second summary"), ids)
        assert [entry.content for entry in backend.list(Scope())] == ["first summary"]
