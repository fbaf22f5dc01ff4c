"""Summaries and their originals: one of the two is live, whatever is called; all can be undone, or forgotten."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.testing.case import EVERYTHING, BackendCase, by_words, raises, state
from agentformer.testing.reference import make_entry
from agentformer.types import Link, MemoryBackend, MemoryEntry, Query, Scope, Use

_MOMENT = datetime(2024, 5, 1, tzinfo=UTC)


def _message(content: str, **fields: object) -> MemoryEntry:
    return make_entry(content, tier="episodic", kind="message", session_id="s", **fields)


def _summary(originals: Sequence[MemoryEntry], content: str = "tapir: a summary", **fields: object) -> MemoryEntry:
    links = tuple(Link(entry.id) for entry in originals)
    return make_entry(content, kind="summary", session_id="s", derived_from=links, **fields)


class Summarising(BackendCase):
    def summed_up(self, backend: MemoryBackend, size: int = 3) -> tuple[Sequence[MemoryEntry], MemoryEntry]:
        """Originals as they were stored, and the summary that now stands for them."""
        originals = backend.store([_message(f"the tapir ate {n} leaves") for n in range(size)])
        return originals, backend.consolidate(_summary(originals), [entry.id for entry in originals])

    def check_live(self, backend: MemoryBackend, live: Sequence[str]) -> None:
        """These, and no others, are what list, count and search see of the tapir."""
        assert [entry.id for entry in backend.list(Scope(), limit=1000)] == sorted(live)
        assert backend.count(Scope()) == len(live)
        assert by_words(backend, "tapir") == sorted(live) == self.by_vectors(backend, "tapir")

    def test_originals_tell_which_summary_stands_for_them_and_change_in_nothing_else(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        archived = list(backend.get([entry.id for entry in originals]))
        assert [entry.archived_by for entry in archived] == [summary.id] * 3
        assert summary.archived_by is None and summary.archived_at is None
        assert [dataclasses.replace(entry, archived_at=None, archived_by=None) for entry in archived] == list(originals)
        assert [list(backend.history(entry.id)) for entry in originals] == [[], [], []]
        self.check_live(backend, [summary.id])

    def test_consolidation_holds_to_the_versions_that_were_read(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        one, two = backend.store([_message("one tapir"), _message("two tapirs")])
        backend.update(two.id, {"content": "two tapirs, on reflection"})
        ids = [one.id, two.id]
        before = state(backend, ids)
        for versions in ({one.id: 1, two.id: 1}, {two.id: 1}, {one.id: 2}):
            with raises(Conflict):
                backend.consolidate(_summary([one, two]), ids, versions=versions)
            assert state(backend, ids) == before
        backend.touch([Use(one.id, _MOMENT, reads=1)])  # a use is no change
        stored = backend.consolidate(_summary([one, two]), ids, versions={one.id: 1, two.id: 2})
        self.check_live(backend, [stored.id])

    def test_a_summary_that_stands_for_others_is_not_summed_up_again(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        (other,) = backend.store([_message("another tapir")])
        ids = [*(entry.id for entry in originals), summary.id, other.id]
        before = state(backend, ids)
        with raises(Conflict):
            backend.consolidate(_summary([summary, other]), [other.id, summary.id])
        assert state(backend, ids) == before

    def test_of_two_who_sum_up_the_same_one_wins(self, tmp_path: Path) -> None:
        backends = [self.start(tmp_path), self.start(tmp_path)]
        originals = backends[0].store([_message(f"the tapir ate {n} leaves") for n in range(4)])
        start = threading.Barrier(4)
        outcomes: list[str] = []

        def clean(n: int) -> None:
            chosen = originals[n % 2 : n % 2 + 3]  # they overlap
            start.wait()
            try:
                outcomes.append(backends[n % 2].consolidate(_summary(chosen), [e.id for e in chosen]).id)
            except Conflict:
                outcomes.append("")

        threads = [threading.Thread(target=clean, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [outcome for outcome in outcomes if outcome]
        assert len(outcomes) == 4 and len(winners) == 1
        by = [entry.archived_by for entry in backends[1].get([entry.id for entry in originals])]
        assert by.count(winners[0]) == 3 and by.count(None) == 1

    def test_restoring_gives_the_originals_back_as_they_were(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        query = Query("tapir leaves", Scope(include_archived=True), limit=50)
        restored = backend.restore(summary.id)
        assert list(restored) == sorted(originals, key=lambda entry: entry.id)
        assert list(backend.get([entry.id for entry in originals])) == list(originals)
        self.check_live(backend, [entry.id for entry in originals])
        (archived,) = backend.get([summary.id])
        assert archived.archived_at is not None and archived.derived_from == summary.derived_from
        assert {hit.entry.id for hit in backend.search(query)} == {summary.id, *(entry.id for entry in originals)}
        assert list(self.start(tmp_path).get([entry.id for entry in originals])) == list(originals)

    def test_restored_entries_can_be_summed_up_anew(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, first = self.summed_up(backend)
        backend.restore(first.id)
        second = backend.consolidate(_summary(originals, "tapir: anew"), [entry.id for entry in originals])
        self.check_live(backend, [second.id])
        with raises(Conflict):
            backend.restore(first.id)
        self.check_live(backend, [second.id])
        assert list(backend.restore(second.id)) == list(originals)

    def test_what_cannot_be_restored_changes_nothing(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        (plain,) = backend.store([make_entry("a plain fact of no tapir")])
        backend.restore(summary.id)
        ids = [*(entry.id for entry in originals), summary.id, plain.id]
        before = state(backend, ids)
        for entry_id, error in ((summary.id, Conflict), (plain.id, InvalidInput), ("missing", NotFound)):
            with raises(error):
                backend.restore(entry_id)
        with raises(InvalidInput):
            backend.restore(originals[0].id)
        assert state(backend, ids) == before

    def test_archiving_by_hand_parts_no_summary_from_its_originals(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        ids = [*(entry.id for entry in originals), summary.id]
        before = state(backend, ids)
        for entry_id, at in ((originals[0].id, None), (originals[1].id, _MOMENT), (summary.id, _MOMENT)):
            with raises(InvalidInput):
                backend.update(entry_id, {"archived_at": at})
            assert state(backend, ids) == before

    def test_other_updates_of_an_original_leave_it_archived(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        changed = backend.update(originals[1].id, {"content": "the tapir ate no leaves"})
        assert changed.archived_by == summary.id and changed.archived_at is not None
        self.check_live(backend, [summary.id])
        backend.restore(summary.id)
        assert [entry.content for entry in backend.get([changed.id])] == ["the tapir ate no leaves"]
        self.check_live(backend, [entry.id for entry in originals])

    def test_a_summary_goes_with_an_original_and_the_others_come_back(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        assert backend.remove([originals[1].id]) == 2
        assert list(backend.get([summary.id, originals[1].id])) == []
        assert list(backend.list(EVERYTHING)) == [originals[0], originals[2]]
        self.check_live(backend, [originals[0].id, originals[2].id])
        with raises(NotFound):
            backend.restore(summary.id)

    def test_originals_come_back_when_their_summary_goes(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        assert backend.remove([summary.id]) == 1
        assert list(backend.list(EVERYTHING)) == list(originals)
        self.check_live(backend, [entry.id for entry in originals])

    def test_a_restored_summary_goes_with_any_of_its_originals(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        backend.restore(summary.id)
        assert backend.remove([originals[0].id]) == 2
        assert list(backend.get([summary.id])) == []
        assert list(backend.list(EVERYTHING)) == list(originals[1:])

    def test_forgetting_a_scope_leaves_nothing_of_it(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        backend.update(originals[0].id, {"content": "the tapir ate one leaf"})
        backend.update(summary.id, {"content": "tapir: a better summary"})
        part = make_entry("a tapir footnote", parent_id=summary.id)
        bystander = make_entry("a zebra", session_id="t")
        backend.store([part, bystander])
        assert backend.remove(Scope(session_id="s")) == 5
        ids = [*(entry.id for entry in originals), summary.id, part.id]
        assert list(backend.get(ids)) == [] and [list(backend.history(i)) for i in ids] == [[]] * 5
        assert by_words(backend, "tapir", EVERYTHING) == []
        assert [entry.id for entry in backend.list(EVERYTHING)] == [bystander.id]
        assert self.by_vectors(backend, "zebra", EVERYTHING) == [bystander.id]

    def test_replacing_an_original_dissolves_its_summary_too(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        kept = _message("the tapir sleeps")
        gone = _message("the tapir eats", source_type="chat", source_id="1")
        backend.store([kept, gone])
        backend.consolidate(_summary([kept, gone]), [kept.id, gone.id])
        new = _message("the tapir eats twice", source_type="chat", source_id="1")
        scope = Scope(source_type="chat", source_id="1", include_archived=True)
        backend.store([new], replacing=[scope])
        assert [entry.id for entry in backend.list(EVERYTHING)] == sorted([kept.id, new.id])
        self.check_live(backend, [kept.id, new.id])

    def test_a_summary_that_goes_with_a_replaced_original_makes_nothing_known(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        new = _summary([])  # says what the summary says that is about to be dissolved
        (stored,) = backend.store([new], unique=True, replacing=[Scope(kinds=("message",), include_archived=True)])
        assert stored.id == new.id != summary.id and stored.repeat_count == 0
        assert list(backend.list(EVERYTHING)) == [stored]
        assert list(backend.get([summary.id, *(entry.id for entry in originals)])) == []
        self.check_live(backend, [new.id])

    def test_removing_everything_at_once_counts_each_entry_once(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals, summary = self.summed_up(backend)
        assert backend.remove([summary.id, *(entry.id for entry in originals)]) == 4
        assert backend.count(EVERYTHING) == 0 and backend.namespaces() == []

    def test_summary_and_originals_may_live_in_other_namespaces(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        originals = backend.store([_message("the tapir ate", namespace="a"), _message("a tapir slept", namespace="b")])
        summary = backend.consolidate(_summary(originals, namespace="c"), [entry.id for entry in originals])
        assert [by_words(backend, "tapir", Scope(name)) for name in "abc"] == [[], [], [summary.id]]
        assert list(backend.restore(summary.id)) == list(originals)
        assert [by_words(backend, "tapir", Scope(name)) for name in "abc"] == [*([e.id] for e in originals), []]
