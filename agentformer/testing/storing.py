"""Storing, reading, listing and removing: what went in comes out, wholly or not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from agentformer.errors import Conflict
from agentformer.testing.case import EVERYTHING, BackendCase, by_words, raises, state
from agentformer.testing.reference import make_entry
from agentformer.types import Link, MemoryEntry, Query, Scope, Source

_MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123_456, tzinfo=UTC)


def _full() -> MemoryEntry:
    """An entry with a value of its own in every field."""
    return make_entry(
        "Työkalu 🛠 on\nlaatikossa\u0000.",
        tier="episodic",
        kind="our own kind",
        namespace="käyttäjä/1",
        session_id="s-1",
        agent_id="agentti",
        user_id="käyttäjä",
        project="hanke",
        title="otsikko",
        context="esittely",
        metadata={"a": [1, {"b": None}], "true": True, "one": 1, "half": 0.5, "text": "ä", "": {}},
        source=Source("document", "nimi.pdf", 3, "iii", 10, 20),
        source_type="ticket",
        source_id="T-1",
        parent_id="parent",
        pair_id="pair",
        derived_from=(Link("one"), Link("two", "contradicts")),
        role="assistant",
        speaker="Äänekäs",
        raw="  Työkalu 🛠\u202e on\r\nlaatikossa\u0000. ",
        category="decisions",
        occurred_at=_MOMENT,
        created_at=_MOMENT + timedelta(microseconds=1),
        updated_at=_MOMENT + timedelta(seconds=1),
        last_accessed=_MOMENT.astimezone(timezone(timedelta(hours=2))),
        access_count=3,
        match_count=2,
        read_count=1,
        repeat_count=4,
        salience=0.25,
        archived_at=_MOMENT + timedelta(days=1),
        archived_by="summary",
        superseded_by="newer",
        version=7,
    )


class Storing(BackendCase):
    def test_every_field_comes_back_as_it_was(self, tmp_path: Path) -> None:
        entry = _full()
        stored = self.start(tmp_path).store([entry])
        assert list(stored) == [entry]
        assert list(self.start(tmp_path).get([entry.id])) == [entry]

    def test_a_message_comes_back_as_it_was_said(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        said = [
            ("user", "Matti", None),
            ("assistant", "", ""),
            ("tool", "日本語", "a\tb\x00\u2028\ufeff"),
            ("", "x", " "),
        ]
        messages = [
            make_entry("a normalised message", tier="episodic", kind="message", role=role, speaker=speaker, raw=raw)
            for role, speaker, raw in said
        ]
        backend.store(messages)
        again = self.start(tmp_path).get([message.id for message in messages])
        assert [(entry.role, entry.speaker, entry.raw) for entry in again] == said

    def test_storing_gives_times_to_entries_without(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        before = datetime.now(UTC)
        (stored,) = backend.store([make_entry("a")])
        after = datetime.now(UTC)
        assert stored.created_at is not None and before <= stored.created_at <= after
        assert stored.updated_at is not None and before <= stored.updated_at <= after
        assert stored.occurred_at is None and stored.version == 1
        assert list(backend.get([stored.id])) == [stored]

    def test_store_returns_entries_in_order_and_takes_none(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        entries = [make_entry(f"entry {i}") for i in range(5)][::-1]
        assert [entry.id for entry in backend.store(entries)] == [entry.id for entry in entries]
        assert list(backend.store([])) == []
        assert backend.count(Scope()) == 5

    def test_one_conflicting_id_stores_nothing(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (old, _) = backend.store([make_entry("the first owner of this id"), make_entry("bystander", session_id="s")])
        before = state(backend, [old.id])
        fresh = [make_entry("newcomer one"), make_entry("usurper", id=old.id), make_entry("newcomer two")]
        with raises(Conflict):
            backend.store(fresh, replacing=[Scope(session_id="s")])
        assert state(backend, [old.id]) == before
        assert by_words(backend, "newcomer usurper") == []
        assert by_words(backend, "owner bystander") == self.by_vectors(backend, "owner bystander")
        assert len(by_words(backend, "owner bystander")) == 2

    def test_one_id_twice_in_a_batch_stores_nothing(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        entry = make_entry("twice")
        with raises(Conflict):
            backend.store([make_entry("once"), entry, entry])
        assert backend.count(EVERYTHING) == 0

    def test_replacing_removes_the_scope_with_its_parts(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        old = make_entry("old document", kind="document", metadata={"name": "a.txt"})
        part = make_entry("old chunk", kind="chunk", parent_id=old.id)
        inner = make_entry("old remark on the chunk", parent_id=part.id)
        other = make_entry("other document", kind="document", metadata={"name": "b.txt"})
        kept = make_entry("other chunk", kind="chunk", parent_id=other.id)
        backend.store([old, part, inner, other, kept])
        new = make_entry("new document", kind="document", metadata={"name": "a.txt"})
        chunk = make_entry("new chunk", kind="chunk", parent_id=new.id)
        backend.store([new, chunk], replacing=[Scope(kinds=("document",), metadata={"name": "a.txt"})])
        assert [e.id for e in backend.list(EVERYTHING)] == sorted([other.id, kept.id, new.id, chunk.id])
        assert by_words(backend, "chunk") == sorted([kept.id, chunk.id])
        assert self.by_vectors(backend, "chunk") == sorted([kept.id, chunk.id])

    def test_replacing_spares_the_new_batch(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        backend.store([make_entry("former state")])
        new = [make_entry("present state"), make_entry("present addition")]
        backend.store(new, replacing=[Scope(), Scope()])
        assert sorted(e.content for e in backend.list(EVERYTHING)) == ["present addition", "present state"]

    def test_replacing_text_by_the_same_text_leaves_it_found_by_vectors(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        backend.store([make_entry("a sentence that stays the same")])
        (new,) = backend.store([make_entry("a sentence that stays the same")], replacing=[Scope()])
        assert backend.pending(Scope()) == 0
        assert self.by_vectors(backend, "a sentence that stays the same") == [new.id]

    def test_get_keeps_the_order_asked_for_and_leaves_missing_out(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        entries = [make_entry(f"entry {i}") for i in range(1200)]
        backend.store(entries)
        ids = [entry.id for entry in entries[::-1]]
        ids.insert(600, "missing")
        assert [entry.id for entry in backend.get(ids)] == ids[:600] + ids[601:]
        assert list(backend.get([])) == []

    def test_get_gives_archived_entries(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        gone = make_entry("archived", archived_at=_MOMENT)
        backend.store([gone])
        assert [entry.id for entry in backend.get([gone.id])] == [gone.id]

    def test_list_pages_by_id_without_gap_or_repetition(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        entries = [make_entry(f"entry {i}", session_id="ab"[i % 2]) for i in range(25)]
        backend.store(entries[::-1])
        scope = Scope(session_id="b")
        pages, after = [], ""
        while page := [entry.id for entry in backend.list(scope, after=after, limit=5)]:
            pages.append(page)
            after = page[-1]
        assert [len(page) for page in pages] == [5, 5, 2]
        assert [i for page in pages for i in page] == sorted(e.id for e in entries if e.session_id == "b")

    def test_namespaces_are_those_that_hold_an_entry(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        assert list(backend.namespaces()) == []
        b = make_entry("x", namespace="b")
        backend.store([b, make_entry("x", namespace="a"), make_entry("y", namespace="b", archived_at=_MOMENT)])
        assert list(backend.namespaces()) == ["a", "b"]
        backend.remove(Scope("b"))
        assert list(backend.namespaces()) == ["a"]

    def test_remove_by_ids_takes_parts_along_and_counts_them(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        whole = make_entry("whole wombat", kind="document")
        part = make_entry("part wombat", parent_id=whole.id)
        inner = make_entry("inner wombat", parent_id=part.id)
        other = make_entry("other wombat")
        backend.store([whole, part, inner, other])
        assert backend.remove([whole.id, part.id, "missing"]) == 3
        assert backend.remove([whole.id]) == 0
        assert [entry.id for entry in backend.list(EVERYTHING)] == [other.id]
        assert by_words(backend, "wombat") == [other.id] == self.by_vectors(backend, "wombat")

    def test_remove_by_scope_takes_archived_ones_and_nothing_outside(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        inside = [make_entry("in", session_id="s"), make_entry("archived", session_id="s", archived_at=_MOMENT)]
        outside = [make_entry("out", session_id="t"), make_entry("elsewhere", session_id="s", namespace="n")]
        backend.store(inside + outside)
        assert backend.remove(Scope(session_id="s")) == 2
        assert backend.count(EVERYTHING) == 1
        assert backend.count(Scope("n")) == 1

    def test_what_was_removed_can_be_stored_anew_without_its_past(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        (entry,) = backend.store([make_entry("former quagga")])
        backend.update(entry.id, {"content": "second quagga"})
        backend.remove([entry.id])
        assert list(backend.get([entry.id])) == [] and list(backend.history(entry.id)) == []
        backend.store([make_entry("third zebra", id=entry.id)])
        assert list(backend.history(entry.id)) == []
        assert by_words(backend, "quagga") == []
        assert by_words(backend, "zebra") == [entry.id]

    def test_reopening_sees_everything(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        entries = backend.store([make_entry(f"numbat {i} lives here") for i in range(30)])
        changed = backend.update(entries[3].id, {"content": "numbat moved away"})
        query = Query("numbat lives", limit=50)
        before = backend.search(query)
        backend.close()
        again = self.start(tmp_path)
        assert list(again.list(EVERYTHING)) == sorted([*entries[:3], changed, *entries[4:]], key=lambda e: e.id)
        assert list(again.history(changed.id)) == [entries[3]]
        assert list(again.search(query)) == list(before)
        assert len(before) == 30

    def test_another_opening_sees_each_acknowledged_write(self, tmp_path: Path) -> None:
        one, other = self.start(tmp_path), self.start(tmp_path)
        assert by_words(other, "kakapo") == [] == self.by_vectors(other, "kakapo")
        (entry,) = one.store([make_entry("a kakapo")])
        assert list(other.get([entry.id])) == [entry]
        assert by_words(other, "kakapo") == [entry.id] == self.by_vectors(other, "kakapo")
        other.update(entry.id, {"content": "a takahe"})
        assert by_words(one, "kakapo") == [] and by_words(one, "takahe") == [entry.id]
        one.remove([entry.id])
        assert self.by_vectors(other, "takahe") == [] == by_words(other, "takahe")

    def test_closing_twice_does_no_harm(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        backend.store([make_entry("a")])
        backend.close()
        backend.close()
        assert self.start(tmp_path).count(Scope()) == 1
