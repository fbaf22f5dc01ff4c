"""Tests of a backend: `consolidate` archives entries (the originals) and stores a summary of them. Searches return
either the summary or its originals, and `restore` reverses a consolidation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.records.offers import checks_of
from agentformer.testing.case import EVERYTHING, BackendCase, by_words, make_entry, raises, run_in_threads, unchanged
from agentformer.types import Link, MemoryBackend, MemoryEntry, Query, Scope, Use

_MOMENT = datetime(2024, 5, 1, tzinfo=UTC)


def _message(content: str, **fields: object) -> MemoryEntry:
    return make_entry(content, tier="episodic", kind="message", session_id="s", **fields)


def _summary(originals: Sequence[MemoryEntry], content: str = "tapir: a summary", **fields: object) -> MemoryEntry:
    links = tuple(Link(entry.id) for entry in originals)
    return make_entry(content, kind="summary", session_id="s", derived_from=links, **fields)


class Summaries(BackendCase):
    """Tests of `consolidate` and `restore`, and of removing summaries and originals. `consolidate` archives entries,
    the originals, and stores a summary of them. `restore` reverses a consolidation."""

    def summarized(self, folder: Path) -> tuple[MemoryBackend, Sequence[MemoryEntry], MemoryEntry]:
        """Store three entries and a summary that replaces them. Return the backend, the entries and the summary."""
        backend, originals = self.stored(folder, *(_message(f"the tapir ate {n} leaves") for n in range(3)))
        return backend, originals, backend.consolidate(_summary(originals), [entry.id for entry in originals])

    def check_live(self, backend: MemoryBackend, live: Sequence[str]) -> None:
        """Check that `list`, `count` and `search` return exactly the entries with these ids."""
        assert [entry.id for entry in backend.list(Scope(), limit=1000)] == sorted(live)
        assert backend.count(Scope()) == len(live)
        assert by_words(backend, "tapir") == sorted(live) == self.by_vectors(backend, "tapir")

    def test_archived_originals_name_their_summary(self, tmp_path: Path) -> None:
        """`consolidate` changes only `archived_at` and `archived_by` (the id of the summary) of the originals."""
        backend, originals, summary = self.summarized(tmp_path)
        archived = list(backend.get([entry.id for entry in originals]))
        assert [entry.archived_by for entry in archived] == [summary.id] * 3
        assert summary.archived_by is None and summary.archived_at is None
        assert [dataclasses.replace(entry, archived_at=None, archived_by=None) for entry in archived] == list(originals)
        assert [list(backend.history(entry.id)) for entry in originals] == [[], [], []]
        self.check_live(backend, [summary.id])

    def test_consolidation_checks_versions(self, tmp_path: Path) -> None:
        """If the version of an original differs from the expected version, `consolidate` raises `Conflict`."""
        backend, (one, two) = self.stored(tmp_path, _message("one tapir"), _message("two tapirs"))
        backend.update(two.id, {"content": "two tapirs, on reflection"})
        ids = [one.id, two.id]
        for versions in ({one.id: 1, two.id: 1}, {two.id: 1}, {one.id: 2}):
            with unchanged(backend, *ids), raises(Conflict):
                backend.consolidate(_summary([one, two]), ids, versions=versions)
        backend.touch([Use(one.id, _MOMENT, reads=1)])  # counting a use does not raise the version
        stored = backend.consolidate(_summary([one, two]), ids, versions={one.id: 1, two.id: 2})
        self.check_live(backend, [stored.id])

    def test_a_summary_is_not_summarized(self, tmp_path: Path) -> None:
        """If one of the entries to summarize is a summary, `consolidate` raises `Conflict`."""
        backend, originals, summary = self.summarized(tmp_path)
        (other,) = backend.store([_message("another tapir")])
        with unchanged(backend, *(entry.id for entry in originals), summary.id, other.id), raises(Conflict):
            backend.consolidate(_summary([summary, other]), [other.id, summary.id])

    def test_one_of_several_overlapping_summaries_wins(self, tmp_path: Path) -> None:
        """Of concurrent calls of `consolidate` for overlapping groups, one succeeds, and the others raise
        `Conflict`."""
        backends = [self.start(tmp_path), self.start(tmp_path)]
        originals = backends[0].store([_message(f"the tapir ate {n} leaves") for n in range(4)])
        outcomes: list[str] = []

        def clean(n: int) -> None:
            chosen = originals[n % 2 : n % 2 + 3]  # they overlap
            try:
                outcomes.append(backends[n % 2].consolidate(_summary(chosen), [e.id for e in chosen]).id)
            except Conflict:
                outcomes.append("")

        run_in_threads(4, clean)
        winners = [outcome for outcome in outcomes if outcome]
        assert len(outcomes) == 4 and len(winners) == 1
        by = [entry.archived_by for entry in backends[1].get([entry.id for entry in originals])]
        assert by.count(winners[0]) == 3 and by.count(None) == 1

    def test_restore_returns_the_originals_unchanged(self, tmp_path: Path) -> None:
        """`restore` makes the originals of a summary current again, without other changes, and archives the summary."""
        backend, originals, summary = self.summarized(tmp_path)
        query = Query("tapir leaves", Scope(include_archived=True), limit=50)
        restored = backend.restore(summary.id)
        assert list(restored) == sorted(originals, key=lambda entry: entry.id)
        assert list(backend.get([entry.id for entry in originals])) == list(originals)
        self.check_live(backend, [entry.id for entry in originals])
        (archived,) = backend.get([summary.id])
        assert archived.archived_at is not None and archived.derived_from == summary.derived_from
        assert {hit.entry.id for hit in backend.search(query)} == {summary.id, *(entry.id for entry in originals)}
        assert list(self.start(tmp_path).get([entry.id for entry in originals])) == list(originals)

    def test_restored_entries_can_be_summarized_again(self, tmp_path: Path) -> None:
        """After `restore`, another summary can replace the same originals."""
        backend, originals, first = self.summarized(tmp_path)
        backend.restore(first.id)
        second = backend.consolidate(_summary(originals, "tapir: anew"), [entry.id for entry in originals])
        self.check_live(backend, [second.id])
        with raises(Conflict):
            backend.restore(first.id)
        self.check_live(backend, [second.id])
        assert list(backend.restore(second.id)) == list(originals)

    def test_an_invalid_restore_changes_nothing(self, tmp_path: Path) -> None:
        """`restore` raises an error and changes nothing if the id is unknown, is not the id of a summary, or is the id
        of a summary that was already restored."""
        backend, originals, summary = self.summarized(tmp_path)
        (plain,) = backend.store([make_entry("a plain fact of no tapir")])
        with unchanged(backend, *(entry.id for entry in originals), summary.id), raises(InvalidInput):
            backend.restore(originals[0].id)  # it is archived, and is not a summary
        backend.restore(summary.id)
        wrong: dict[str, type[Exception]] = {summary.id: Conflict, "missing": NotFound}
        for entry_id, error in {**wrong, plain.id: InvalidInput, originals[0].id: InvalidInput}.items():
            with unchanged(backend, *(entry.id for entry in originals), summary.id, plain.id), raises(error):
                backend.restore(entry_id)

    def test_archived_at_of_a_summary_and_its_originals_cannot_be_changed(self, tmp_path: Path) -> None:
        """`update` raises `InvalidInput` if it would change `archived_at` or the namespace of a summary or original."""
        backend, originals, summary = self.summarized(tmp_path)
        for entry_id, at in ((originals[0].id, None), (originals[1].id, _MOMENT), (summary.id, _MOMENT)):
            for changes in ({"archived_at": at}, {"namespace": "elsewhere"}):
                with unchanged(backend, *(entry.id for entry in originals), summary.id), raises(InvalidInput):
                    backend.update(entry_id, changes)
            backend.update(entry_id, {"namespace": summary.namespace, "title": "changed"})

    def test_a_summary_and_its_originals_have_the_same_namespace(self, tmp_path: Path) -> None:
        """`consolidate` raises `Conflict` if an original belongs to another namespace than the summary."""
        backend, (here, there) = self.stored(tmp_path, "a tapir", make_entry("a heron", namespace="elsewhere"))
        for namespace in ("default", "elsewhere"):
            summary = make_entry("both", kind="summary", namespace=namespace, derived_from=(Link(here.id),))
            with unchanged(backend, here.id, there.id, summary.id), raises(Conflict):
                backend.consolidate(summary, [here.id, there.id])
        assert not any(check.found for check in checks_of(backend))

    def test_an_updated_original_stays_archived(self, tmp_path: Path) -> None:
        """An updated original stays archived, and `restore` returns its changed content."""
        backend, originals, summary = self.summarized(tmp_path)
        changed = backend.update(originals[1].id, {"content": "the tapir ate no leaves"})
        assert changed.archived_by == summary.id and changed.archived_at is not None
        self.check_live(backend, [summary.id])
        backend.restore(summary.id)
        assert [entry.content for entry in backend.get([changed.id])] == ["the tapir ate no leaves"]
        self.check_live(backend, [entry.id for entry in originals])

    def test_removing_an_original_removes_its_summary(self, tmp_path: Path) -> None:
        """`remove` of an original also removes its summary, and restores the other originals."""
        backend, originals, summary = self.summarized(tmp_path)
        assert backend.remove([originals[1].id]) == 2
        assert list(backend.get([summary.id, originals[1].id])) == []
        assert list(backend.list(EVERYTHING)) == [originals[0], originals[2]]
        self.check_live(backend, [originals[0].id, originals[2].id])
        with raises(NotFound):
            backend.restore(summary.id)

    def test_removing_a_summary_restores_its_originals(self, tmp_path: Path) -> None:
        """If a summary is removed, the originals of this summary become current again."""
        backend, originals, summary = self.summarized(tmp_path)
        assert backend.remove([summary.id]) == 1
        assert list(backend.list(EVERYTHING)) == list(originals)
        self.check_live(backend, [entry.id for entry in originals])

    def test_removing_a_restored_original_removes_its_archived_summary(self, tmp_path: Path) -> None:
        """`remove` of a restored original also removes the archived summary, which repeats the text of the original."""
        backend, originals, summary = self.summarized(tmp_path)
        backend.restore(summary.id)
        assert backend.remove([originals[0].id]) == 2
        assert list(backend.get([summary.id])) == []
        assert list(backend.list(EVERYTHING)) == list(originals[1:])

    def test_removing_a_scope_removes_its_summaries(self, tmp_path: Path) -> None:
        """`remove` of a scope also removes the summaries of its entries. No histories remain."""
        backend, originals, summary = self.summarized(tmp_path)
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

    def test_replacing_an_original_removes_its_summary(self, tmp_path: Path) -> None:
        """If `store` with `replacing` removes an original, the summary of this original is removed, too."""
        kept = _message("the tapir sleeps")
        removed = _message("the tapir eats", source_type="chat", source_id="1")
        backend, _ = self.stored(tmp_path, kept, removed)
        backend.consolidate(_summary([kept, removed]), [kept.id, removed.id])
        new = _message("the tapir eats twice", source_type="chat", source_id="1")
        backend.store([new], replacing=[Scope(source_type="chat", source_id="1", include_archived=True)])
        assert [entry.id for entry in backend.list(EVERYTHING)] == sorted([kept.id, new.id])
        self.check_live(backend, [kept.id, new.id])

    def test_a_removed_summary_is_no_duplicate(self, tmp_path: Path) -> None:
        """A new entry is not a duplicate of a summary with the same text if the same call removes this summary."""
        backend, originals, summary = self.summarized(tmp_path)
        new = _summary([])  # the same text as the summary that this call removes
        (stored,) = backend.store([new], unique=True, replacing=[Scope(kinds=("message",), include_archived=True)])
        assert stored.id == new.id != summary.id and stored.repeat_count == 0
        assert list(backend.list(EVERYTHING)) == [stored]
        assert list(backend.get([summary.id, *(entry.id for entry in originals)])) == []
        self.check_live(backend, [new.id])

    def test_removing_a_summary_with_its_originals_counts_each_once(self, tmp_path: Path) -> None:
        """If a summary and its originals are removed in one call, the returned count includes each entry once."""
        backend, originals, summary = self.summarized(tmp_path)
        assert backend.remove([summary.id, *(entry.id for entry in originals)]) == 4
        assert backend.count(EVERYTHING) == 0 and backend.namespaces() == []

    def test_an_invalid_consolidation_changes_nothing(self, tmp_path: Path) -> None:
        """`consolidate` raises `Conflict` and changes nothing if an original is archived, superseded or missing, or if
        the id of the summary already exists."""
        archived = make_entry("archived lemur", archived_at=_MOMENT)
        other = make_entry("other lemur")
        superseded = make_entry("superseded lemur", superseded_by=other.id)
        backend, (live, *_) = self.stored(tmp_path, "live lemur", other, archived, superseded)
        ids = [live.id, other.id, archived.id, superseded.id]
        for bad in (archived.id, superseded.id, "missing"):
            with unchanged(backend, *ids), raises(Conflict):
                backend.consolidate(make_entry("summary of lemurs"), [live.id, bad])
        with unchanged(backend, *ids), raises(Conflict):
            backend.consolidate(make_entry("summary", id=other.id), [live.id])
        assert by_words(backend, "lemur lemurs summary") == sorted([live.id, other.id])
