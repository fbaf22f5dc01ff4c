"""Tests of a backend: entries are read back unchanged, and a failed call changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from agentformer.errors import Conflict, Forbidden, InvalidInput
from agentformer.records.offers import size_of
from agentformer.testing.case import EVERYTHING, BackendCase, by_words, make_entry, raises, run_in_threads, unchanged
from agentformer.types import AbsentDocument, Link, MemoryEntry, Query, Scope, Source

_MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123_456, tzinfo=UTC)


def _full() -> MemoryEntry:
    """Return an entry with a value in every field. The values differ from the defaults."""
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
        valid_from=_MOMENT - timedelta(days=3),
        valid_to=_MOMENT + timedelta(days=3, microseconds=7),
        expires_at=_MOMENT + timedelta(days=5),
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


def _with_history(content: str = "the third quokka", **values: object) -> tuple[MemoryEntry, list[MemoryEntry]]:
    """Return an entry at version 4, and a list with the versions 1 and 3 of the same entry."""
    entry = make_entry(content, version=4, **values)
    return entry, [
        dataclasses.replace(entry, content="the first quokka\u0000", version=1, metadata={"ä": [1, None]}),
        dataclasses.replace(entry, content="the second quokka", version=3, namespace="elsewhere"),
    ]


class Storing(BackendCase):
    """Tests of `store`, `get`, `list` and `remove`."""

    def test_every_field_is_read_back_unchanged(self, tmp_path: Path) -> None:
        """An entry with a value in every field is read back unchanged."""
        entry = _full()
        successor = make_entry("newer", id="newer", namespace=entry.namespace, user_id=entry.user_id)
        stored = self.start(tmp_path).store([entry, successor])
        assert stored[0] == entry
        assert list(self.start(tmp_path).get([entry.id])) == [entry]

    def test_a_message_keeps_role_speaker_and_raw_text(self, tmp_path: Path) -> None:
        """The role, the speaker and the raw text of a message are read back unchanged."""
        tool = ("tool", "日本語", "a\tb\x00\u2028\ufeff")
        message_fields = [("user", "Matti", None), ("assistant", "", ""), tool, ("", "x", " ")]
        messages = [
            make_entry("a normalised message", tier="episodic", kind="message", role=role, speaker=speaker, raw=raw)
            for role, speaker, raw in message_fields
        ]
        self.stored(tmp_path, *messages)
        again = self.start(tmp_path).get([message.id for message in messages])
        assert [(entry.role, entry.speaker, entry.raw) for entry in again] == message_fields

    def test_storing_sets_missing_times(self, tmp_path: Path) -> None:
        """If an entry has no creation time or no update time, `store` sets this time to the current time."""
        before = datetime.now(UTC)
        backend, (stored,) = self.stored(tmp_path, "a")
        after = datetime.now(UTC)
        for moment in (stored.created_at, stored.updated_at):
            assert moment is not None and before <= moment <= after
        assert stored.occurred_at is None and stored.version == 1
        assert list(backend.get([stored.id])) == [stored]

    def test_store_returns_entries_in_order(self, tmp_path: Path) -> None:
        """`store` returns the entries in the order of its argument, and accepts an empty list."""
        backend = self.start(tmp_path)
        entries = [make_entry(f"entry {i}") for i in range(5)][::-1]
        assert [entry.id for entry in backend.store(entries)] == [entry.id for entry in entries]
        assert list(backend.store([])) == []
        assert backend.count(Scope()) == 5

    def test_the_size_is_that_of_all_entries_and_files(self, tmp_path: Path) -> None:
        """`size_of` counts entries and the bytes of texts and files, and adds later entries to an earlier size."""
        report = make_entry("report.pdf", kind="document", metadata={"bytes": 1_000, "sha256": "a"})
        odd = make_entry("odd.pdf", kind="document", metadata={"bytes": "many"}, namespace="b\u00e5t")
        backend, (first, *_) = self.stored(tmp_path, "p\u00f6ll\u00f6 \u65e5", report, odd)
        backend.update(first.id, {"archived_at": datetime.now(UTC)})
        of_both, one = size_of(backend, []), size_of(backend, [first.namespace])
        assert of_both[:2] == (3, 11 + 10 + 1_000 + 7) and one[:2] == (2, 11 + 10 + 1_000)
        assert size_of(backend, ["nothing"])[:2] == (0, 0)
        backend.store([make_entry("tea"), make_entry("other", namespace="c")])
        assert size_of(backend, [first.namespace], one)[:2] in ((3, one.bytes + 3), one[:2])
        backend.remove([report.id])
        assert size_of(backend, [])[:2] == (4, 11 + 7 + 3 + 5)

    def test_an_existing_or_repeated_id_stores_nothing(self, tmp_path: Path) -> None:
        """If an id already exists or is given twice, `store` raises `Conflict` and stores none of the entries."""
        backend, (old, _) = self.stored(tmp_path, "the first owner of this id", make_entry("bystander", session_id="s"))
        new_entries = [make_entry("newcomer one"), make_entry("usurper", id=old.id), make_entry("newcomer two")]
        with unchanged(backend, old.id), raises(Conflict):
            backend.store(new_entries, replacing=[Scope(session_id="s")])
        with unchanged(backend, old.id), raises(Conflict):
            backend.store([*new_entries[::2], new_entries[0]])
        assert by_words(backend, "newcomer usurper") == []
        assert by_words(backend, "owner bystander") == self.by_vectors(backend, "owner bystander")
        assert len(by_words(backend, "owner bystander")) == 2

    def test_replacing_removes_the_scope_with_its_parts(self, tmp_path: Path) -> None:
        """`store` removes the entries of a scope in `replacing`, and their parts, such as the chunks of a document."""
        old = make_entry("old document", kind="document", metadata={"name": "a.txt"})
        part = make_entry("old chunk", kind="chunk", parent_id=old.id)
        inner = make_entry("old remark on the chunk", parent_id=part.id)
        other = make_entry("other document", kind="document", metadata={"name": "b.txt"})
        kept = make_entry("other chunk", kind="chunk", parent_id=other.id)
        backend, _ = self.stored(tmp_path, old, part, inner, other, kept)
        new = make_entry("new document", kind="document", metadata={"name": "a.txt"})
        chunk = make_entry("new chunk", kind="chunk", parent_id=new.id)
        backend.store([new, chunk], replacing=[Scope(kinds=("document",), metadata={"name": "a.txt"})])
        assert [e.id for e in backend.list(EVERYTHING)] == sorted([other.id, kept.id, new.id, chunk.id])
        assert by_words(backend, "chunk") == sorted([kept.id, chunk.id])
        assert self.by_vectors(backend, "chunk") == sorted([kept.id, chunk.id])

    def test_replacing_accepts_ids(self, tmp_path: Path) -> None:
        """`store` removes the entries whose ids are in `replacing`, even if the call stores no entry. Missing ids are
        ignored."""
        old, part = make_entry("old document", kind="document"), make_entry("old chunk", kind="chunk")
        part = dataclasses.replace(part, parent_id=old.id)
        backend, (_, _, kept) = self.stored(tmp_path, old, part, "kept")
        (new,) = backend.store([make_entry("new")], replacing=[[old.id, "missing"], Scope(session_id="none")])
        assert [entry.id for entry in backend.list(EVERYTHING)] == sorted([kept.id, new.id])
        assert list(backend.store([], replacing=[[kept.id]])) == []
        assert [entry.id for entry in backend.list(EVERYTHING)] == [new.id]

    def test_no_writer_comes_between_a_check_and_the_store(self, tmp_path: Path) -> None:
        """`store` calls the function `check` before it writes, and no other writer comes in between. Several threads
        store an entry in the same scope, and `check` raises an error if the scope is not empty. Only one call succeeds.
        """
        backend = self.start(tmp_path)
        scope = Scope(session_id="s")
        conflicts: list[Conflict] = []

        def check(ids: Callable[[Scope], Collection[str]]) -> None:
            if ids(scope):
                raise Conflict("not empty")

        def store(number: int) -> None:
            try:
                backend.store([make_entry(f"writer {number}", session_id="s")], check=check)
            except Conflict as error:
                conflicts.append(error)

        run_in_threads(4, store)
        assert (backend.count(scope), len(conflicts)) == (1, 3)

    def test_replacing_keeps_the_new_entries(self, tmp_path: Path) -> None:
        """`store` with `replacing` keeps the new entries, even if they are inside the replaced scope."""
        backend, _ = self.stored(tmp_path, "former state")
        new = [make_entry("present state"), make_entry("present addition")]
        backend.store(new, replacing=[Scope(), Scope()])
        assert sorted(e.content for e in backend.list(EVERYTHING)) == ["present addition", "present state"]

    def test_get_returns_entries_in_order_without_missing_ones(self, tmp_path: Path) -> None:
        """`get` returns entries in the order of the given ids, and skips missing ids."""
        backend, entries = self.stored(tmp_path, *(f"entry {i}" for i in range(1200)))
        ids = [entry.id for entry in entries[::-1]]
        ids.insert(600, "missing")
        assert [entry.id for entry in backend.get(ids)] == ids[:600] + ids[601:]
        assert list(backend.get([])) == []

    def test_list_pages_by_id_without_gap_or_repetition(self, tmp_path: Path) -> None:
        """`list` with `after` and `limit` returns every entry of the scope once, in the order of ids."""
        entries = [make_entry(f"entry {i}", session_id="ab"[i % 2]) for i in range(25)]
        backend, _ = self.stored(tmp_path, *entries[::-1])
        scope = Scope(session_id="b")
        pages, after = [], ""
        while page := [entry.id for entry in backend.list(scope, after=after, limit=5)]:
            pages.append(page)
            after = page[-1]
        assert [len(page) for page in pages] == [5, 5, 2]
        assert [i for page in pages for i in page] == sorted(e.id for e in entries if e.session_id == "b")

    def test_a_check_can_refuse_to_store(self, tmp_path: Path) -> None:
        """`check` can read which entries are stored. If it raises an error, nothing is stored or removed."""
        backend, (first,) = self.stored(tmp_path, make_entry("first", session_id="s"))
        found: list[set[str]] = []

        def check(ids: Callable[[Scope], Collection[str]]) -> None:
            found.append({*ids(Scope(session_id="s"))})
            if len(found[-1]) > 1:
                raise Forbidden("too many entries")

        for unique in (False, True):
            stored = backend.store([make_entry("second", session_id="s")], unique=unique, check=check)
            with unchanged(backend, first.id), raises(Forbidden):
                backend.store([make_entry("third")], replacing=[Scope()], unique=unique, check=check)
            assert found[-2:] == [{first.id}, {first.id, stored[0].id}]
            backend.remove([entry.id for entry in stored])

    def test_namespaces_with_entries_are_listed(self, tmp_path: Path) -> None:
        """`namespaces` returns each namespace that has at least one entry. Archived entries count, too."""
        backend = self.start(tmp_path)
        assert list(backend.namespaces()) == []
        archived = make_entry("y", namespace="b", archived_at=_MOMENT)
        backend.store([make_entry("x", namespace="b"), make_entry("x", namespace="a"), archived])
        assert list(backend.namespaces()) == ["a", "b"]
        backend.remove(Scope("b"))
        assert list(backend.namespaces()) == ["a"]

    def test_remove_by_ids_removes_and_counts_parts(self, tmp_path: Path) -> None:
        """`remove` also removes and counts the parts of the given entries, such as the chunks of a document."""
        whole = make_entry("whole wombat", kind="document")
        part = make_entry("part wombat", parent_id=whole.id)
        inner = make_entry("inner wombat", parent_id=part.id)
        other = make_entry("other wombat")
        backend, _ = self.stored(tmp_path, whole, part, inner, other)
        assert backend.remove([whole.id, part.id, "missing"]) == 3
        assert backend.remove([whole.id]) == 0
        assert [entry.id for entry in backend.list(EVERYTHING)] == [other.id]
        assert by_words(backend, "wombat") == [other.id] == self.by_vectors(backend, "wombat")

    def test_remove_by_scope_includes_archived_entries(self, tmp_path: Path) -> None:
        """`remove` with a scope also removes the archived entries of the scope. Entries outside the scope remain."""
        inside = [make_entry("in", session_id="s"), make_entry("archived", session_id="s", archived_at=_MOMENT)]
        outside = [make_entry("out", session_id="t"), make_entry("elsewhere", session_id="s", namespace="n")]
        backend, _ = self.stored(tmp_path, *inside, *outside)
        assert backend.remove(Scope(session_id="s")) == 2
        assert backend.count(EVERYTHING) == 1
        assert backend.count(Scope("n")) == 1

    def test_a_removed_id_can_be_stored_again_without_history(self, tmp_path: Path) -> None:
        """After an entry is removed, a new entry with the same id can be stored. The new entry has no history."""
        backend, (entry,) = self.stored(tmp_path, "former quagga")
        backend.update(entry.id, {"content": "second quagga"})
        backend.remove([entry.id])
        assert list(backend.get([entry.id])) == [] and list(backend.history(entry.id)) == []
        backend.store([make_entry("third zebra", id=entry.id)])
        assert list(backend.history(entry.id)) == []
        assert by_words(backend, "quagga") == []
        assert by_words(backend, "zebra") == [entry.id]

    def test_reopening_sees_everything(self, tmp_path: Path) -> None:
        """After a store is opened again, its entries, histories and search results are the same."""
        backend, entries = self.stored(tmp_path, *(f"numbat {i} lives here" for i in range(30)))
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
        """A write is visible to every backend with the same store as soon as the call has returned."""
        one, other = self.start(tmp_path), self.start(tmp_path)
        assert by_words(other, "kakapo") == [] == self.by_vectors(other, "kakapo")
        (entry,) = one.store([make_entry("a kakapo")])
        assert list(other.get([entry.id])) == [entry]
        assert by_words(other, "kakapo") == [entry.id] == self.by_vectors(other, "kakapo")
        other.update(entry.id, {"content": "a takahe"})
        assert by_words(one, "kakapo") == [] and by_words(one, "takahe") == [entry.id]
        one.remove([entry.id])
        assert self.by_vectors(other, "takahe") == [] == by_words(other, "takahe")

    def test_closing_twice_is_allowed(self, tmp_path: Path) -> None:
        """A second call of `close` does nothing."""
        backend, _ = self.stored(tmp_path, "a")
        backend.close()
        backend.close()
        assert self.start(tmp_path).count(Scope()) == 1

    def test_an_entry_is_stored_with_its_history(self, tmp_path: Path) -> None:
        """`history` returns the former versions that `store` received in `former`, until the entry is removed."""
        backend = self.start(tmp_path)
        entry, states = _with_history()
        other = make_entry("a numbat", version=2)
        _, stored = backend.store([other, entry], former={entry.id: states, other.id: []})
        assert list(self.start(tmp_path).history(entry.id)) == states
        assert list(backend.history(other.id)) == []
        assert backend.update(entry.id, {"title": "quokka"}, expected_version=4).version == 5
        assert list(backend.history(entry.id)) == [*states, stored]
        assert by_words(backend, "first second") == []
        assert self.by_vectors(backend, "the third quokka", Scope(kinds=(entry.kind,)))[:1] != []
        backend.remove([entry.id])
        backend.store([entry])
        assert list(backend.history(entry.id)) == []

    def test_an_invalid_history_stores_nothing(self, tmp_path: Path) -> None:
        """`store` raises `InvalidInput` if the versions in `former` are not ascending, or belong to another entry."""
        backend = self.start(tmp_path)
        entry, states = _with_history()
        stranger = dataclasses.replace(states[0], id="another")
        pasts = (
            {entry.id: states[::-1]},
            {entry.id: [states[0], states[0]]},
            {entry.id: [dataclasses.replace(entry, version=4)]},
            {entry.id: [dataclasses.replace(entry, version=0)]},
            {entry.id: [stranger]},
            {"another": [stranger]},
            {entry.id: [dataclasses.replace(states[0], metadata={"not": object()})]},
        )
        for past in pasts:
            with raises(InvalidInput):
                backend.store([make_entry("a bystander"), entry], former=past)
        with raises(InvalidInput):
            backend.store([entry], former={entry.id: states}, unique=True)
        assert backend.count(EVERYTHING) == 0
        backend.store([entry], former={})
        with raises(Conflict):
            backend.store([entry], former={entry.id: states})
        assert list(backend.history(entry.id)) == []


class AbsentDocuments(BackendCase):
    """Tests of the list of documents that are not stored although their original files may exist. `announce` adds to
    the list, `absent_documents` returns it, and `forget_absent` deletes from it."""

    def test_documents_are_absent_before_they_are_stored_and_after_they_are_removed(self, tmp_path: Path) -> None:
        """An announced document is in the list until it is stored. A removed document is in the list until
        `forget_absent` deletes it from the list. A failed call changes nothing. Entries that are not documents with an
        original file are ignored."""
        first, second, third = (
            make_entry(f"{n}.txt", kind="document", namespace=f"n{n % 2}", metadata={"sha256": str(n)})
            for n in range(3)
        )
        backend, (fact, bare) = self.stored(tmp_path, "a fact", make_entry("bare.txt", kind="document"))
        backend.announce([first, second, fact, bare], "one")
        announced = [AbsentDocument(first.id, "0", "one"), AbsentDocument(second.id, "1", "one")]
        assert list(backend.absent_documents()) == announced
        with raises(Conflict):
            backend.store([first, first])
        assert list(self.start(tmp_path).absent_documents()) == announced and list(backend.namespaces()) == ["default"]
        backend.store([first, second, third])
        assert list(backend.absent_documents()) == []
        backend.update(first.id, {"content": "changed.txt"})
        backend.remove(Scope())
        backend.store([], replacing=[[first.id], Scope(second.namespace)])
        backend.remove([third.id])
        removed = [AbsentDocument(entry.id, sha256) for entry, sha256 in ((first, "0"), (second, "1"), (third, "2"))]
        assert list(backend.absent_documents()) == removed and list(backend.namespaces()) == []
        backend.announce([second], "two")
        backend.forget_absent(removed[:2])
        assert list(self.start(tmp_path).absent_documents()) == [AbsentDocument(second.id, "1", "two"), removed[2]]
        backend.forget_absent([AbsentDocument(second.id, "1", "two"), removed[2]])
        assert list(backend.absent_documents()) == []
