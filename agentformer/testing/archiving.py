"""Tests of a backend: snapshots, backups, vectors that are copied from another store, and `verify`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderError
from agentformer.records.offers import leases_of, vectors_of
from agentformer.testing.case import (
    EVERYTHING,
    BackendCase,
    CountingEmbedder,
    FlakyEmbedder,
    by_words,
    make_entry,
    raises,
    state,
    unchanged,
)
from agentformer.types import (
    Check,
    CompleteStore,
    MemoryBackend,
    MemoryEntry,
    MemorySnapshot,
    Query,
    Scope,
    StoredVector,
)

Seen = dict[str, tuple[MemoryEntry, list[MemoryEntry]]]
_LOOKS = 3  # calls of `verify` while another thread writes


def _seen(snapshot: MemorySnapshot | MemoryBackend) -> Seen:
    """Return a dictionary: id of each entry in the snapshot -> (entry, list of its former versions). The entries are
    listed in pages of two, so that paging is tested, too."""
    found: Seen = {}
    for namespace in snapshot.namespaces():
        after = ""
        while page := snapshot.list(Scope(namespace, include_archived=True), after=after, limit=2):
            found.update({entry.id: (entry, list(snapshot.history(entry.id))) for entry in page})
            after = page[-1].id
    return found


def _vectors(backend: CompleteStore) -> list[StoredVector]:
    with backend.snapshot() as snapshot:
        return list(snapshot.vectors(snapshot.namespaces()))


def _wrong(backend: CompleteStore, *, repair: bool = False) -> list[Check]:
    return [check for check in backend.verify(repair=repair) if check.found]


class _Filled(BackendCase):
    """Base class of tests that copy a store."""

    def filled(self, folder: Path, *, dense: bool = False) -> CompleteStore:
        """Return a store that holds entries in two namespaces, an entry that was changed twice, and a summary."""
        fields: dict[str, Any] = {"tier": "episodic", "kind": "message", "namespace": "Ä/1"}
        new = (make_entry(f"the quokka said {n}", **fields) for n in range(4))
        backend, messages = self.stored(folder, *new, dense=dense)
        summary = make_entry("the quokka said much", kind="summary", namespace="Ä/1")
        backend.consolidate(summary, [entry.id for entry in messages[:3]])
        (fact,) = backend.store([make_entry("quokkas eat leaves")])
        backend.update(fact.id, {"content": "quokkas eat leaves and grass"})
        backend.update(fact.id, {"content": "quokkas eat grass"})
        return backend


class Snapshots(_Filled):
    """Tests of `snapshot`, which shows a store at one moment."""

    def test_a_snapshot_does_not_see_later_writes(self, tmp_path: Path) -> None:
        """A snapshot shows the store as it was when the snapshot began, also after later writes."""
        backend = self.filled(tmp_path)
        with backend.snapshot() as snapshot:
            before = _seen(snapshot)
        assert len(before) == 6
        assert sorted(len(past) for _, past in before.values()) == [0, 0, 0, 0, 0, 2]
        with backend.snapshot() as snapshot:
            (fact,) = backend.list(Scope())
            (summary,) = backend.list(Scope("Ä/1", kinds=("summary",)))
            backend.update(fact.id, {"content": "changed", "namespace": "moved"})
            backend.restore(summary.id)
            backend.store([make_entry("new"), make_entry("new", namespace="new")])
            backend.remove(Scope("moved"))
            assert _seen(snapshot) == before
            assert sorted(snapshot.namespaces()) == ["default", "Ä/1"] == list(snapshot.namespaces())
        with backend.snapshot() as snapshot:
            assert _seen(snapshot) == _seen(backend)

    def test_a_snapshot_yields_the_vectors_of_live_entries(self, tmp_path: Path) -> None:
        """`entry_vectors` yields the tier, the kind and the vector of each entry in a namespace, in order of id.
        Entries that searches do not return, such as archived entries, are skipped."""
        backend = self.filled(tmp_path, dense=True)
        with backend.snapshot() as snapshot:
            found = list(snapshot.entry_vectors("Ä/1"))
            (fact,) = snapshot.entry_vectors("default")
            thinned = list(snapshot.entry_vectors("Ä/1", every=2))
            stored = {vector.hash: vector.vector.tobytes() for vector in snapshot.vectors(["default", "Ä/1"])}
        live = backend.list(Scope("Ä/1"))
        assert [(entry.id, entry.tier, entry.kind) for entry in found] == [(e.id, e.tier, e.kind) for e in live]
        assert {entry.vector.tobytes() for entry in (*found, fact)} <= {*stored.values()}
        assert len({entry.vector.tobytes() for entry in (*found, fact)}) == 3
        assert len(thinned) < len(found) == 2
        backend.store([make_entry("wombat", namespace="a\0b")])
        with backend.snapshot() as snapshot:
            assert len(list(snapshot.vectors(["a\0b"]))) == 1


class Backups(_Filled):
    """Tests of `backup`, which writes a copy of a store."""

    def test_a_backup_is_an_independent_store(self, tmp_path: Path) -> None:
        """A backup contains the entries of the moment when it was made. A change of the backup does not change the
        store."""
        backend = self.filled(tmp_path / "store")
        before = _seen(backend)
        (tmp_path / "copy").mkdir()
        backend.backup(tmp_path / "copy")
        backend.store([make_entry("quokka of another day")])
        copy = self.start(tmp_path / "copy")
        assert _seen(copy) == before
        for backed in (copy, backend):
            ids = by_words(backed, "quokka", Scope("Ä/1"))
            assert len(ids) == 2 and self.by_vectors(backed, "quokka", Scope("Ä/1")) == ids
        (fact,) = copy.list(Scope())
        copy.update(fact.id, {"content": "quokkas sleep"})
        copy.store([make_entry("a note in the copy")])
        assert by_words(backend, "sleep copy") == []
        assert state(backend, [fact.id]) != state(copy, [fact.id])


class KeptVectors(_Filled):
    """Tests of `keep_vectors`, which stores vectors of another store."""

    def test_kept_vectors_are_not_embedded_again(self, tmp_path: Path) -> None:
        """If `keep_vectors` has added the vector of a text, `store` uses this vector and does not embed the text."""
        first = self.filled(tmp_path / "first", dense=True)
        seen = _seen(first)
        with first.snapshot() as snapshot:
            assert list(snapshot.vectors([])) == []
            vectors = list(snapshot.vectors(snapshot.namespaces()))
            own = list(snapshot.vectors(["default"]))
        hashes = [stored.hash for stored in vectors]
        assert hashes == sorted(set(hashes)) and len(hashes) == 6
        assert [stored.hash in set(hashes) for stored in own] == [True]
        counting = CountingEmbedder()
        second = self.start(tmp_path / "second", counting)
        assert second.keep_vectors(iter(vectors)) == 6
        second.store([entry for entry, _ in seen.values()], former={i: past for i, (_, past) in seen.items()})
        assert counting.documents == []
        assert second.pending(EVERYTHING) == 0
        assert _seen(second) == seen
        assert [(stored.hash, stored.vector.tobytes()) for stored in _vectors(second)] == [
            (stored.hash, stored.vector.tobytes()) for stored in vectors
        ]
        assert self.by_vectors(second, "quokka") == self.by_vectors(first, "quokka")

    def test_vectors_of_another_space_are_not_kept(self, tmp_path: Path) -> None:
        """`keep_vectors` ignores a vector if its embedding space is not the embedding space of the store."""
        vectors = _vectors(self.filled(tmp_path / "first", dense=True))
        counting = CountingEmbedder(HashingEmbedder(dimension=128))
        empty = self.start(tmp_path / "other", counting)
        assert empty.keep_vectors(vectors) == 0
        (entry,) = empty.store([make_entry("quokkas eat grass")])
        assert counting.documents == ["quokkas eat grass"]
        assert empty.keep_vectors(vectors) == 0
        assert self.by_vectors(empty, "quokka") == [entry.id]

    def test_an_invalid_vector_is_refused(self, tmp_path: Path) -> None:
        """`keep_vectors` raises `EmbedderError` for a vector that is not finite, is not of unit length, or has the
        wrong dimension. It also raises this error for a text hash of the wrong length."""
        backend = self.start(tmp_path, dense=True)
        space = HashingEmbedder().space
        unit = np.zeros(space.dimension, np.float32)
        unit[0] = 1.0
        wrong = [(bytes(32), vector) for vector in (unit * 2, unit * 0, unit * np.nan, unit[:-1])]
        for key, vector in (*wrong, (b"short", unit)):
            with raises(EmbedderError):
                backend.keep_vectors([StoredVector(space, key, vector)])

    def test_unused_vectors_are_deleted_when_the_store_is_closed(self, tmp_path: Path) -> None:
        """`close` deletes each vector that `keep_vectors` added, unless an entry has the text of the vector."""
        vectors = _vectors(self.filled(tmp_path / "first", dense=True))
        second = self.start(tmp_path / "second")
        assert second.keep_vectors(vectors) == 6
        second.store([make_entry("quokkas eat grass")])
        second.close()
        assert [space.vectors for space in self.start(tmp_path / "second").spaces()] == [1]


class Verifying(BackendCase):
    """Tests of `verify`, which looks for damage. The stores in these tests have no damage."""

    def test_an_empty_store_is_sound(self, tmp_path: Path) -> None:
        """`verify` finds no damage in an empty store. Each check has its own name and a description."""
        checks = self.start(tmp_path).verify()
        assert checks and all(check.found == check.mended == 0 for check in checks)
        assert len({check.name for check in checks}) == len(checks)
        assert all(check.name and check.asked for check in checks)

    def test_a_used_store_is_sound(self, tmp_path: Path) -> None:
        """`verify` finds no damage after many different writes, some of them without an embedder."""
        embedder = FlakyEmbedder()
        messages = (make_entry(f"the marmot whistles {n} times", session_id="s") for n in range(30))
        backend, stored = self.stored(tmp_path, *messages, embedder=embedder)
        whole = make_entry("whole", kind="document")
        backend.store([whole, make_entry("a part", parent_id=whole.id), make_entry("long " * 900), make_entry(" \n")])
        backend.search(Query("marmot"))
        backend.update(stored[0].id, {"content": "the marmot sleeps"})
        backend.update(stored[1].id, {"superseded_by": stored[0].id})
        summary = backend.consolidate(make_entry("marmots whistle", kind="summary"), [stored[2].id, stored[3].id])
        other = backend.consolidate(make_entry("more of them", kind="summary"), [stored[4].id, stored[5].id])
        backend.restore(other.id)
        backend.remove([stored[3].id, whole.id])
        backend.store([make_entry("the marmot sleeps")], replacing=[Scope(session_id="none")], unique=True)
        assert leases_of(backend).lease("cleaning", "me", 60)
        embedder.down = True
        backend.store([make_entry("stored while the embedder was away")])
        backend.update(stored[6].id, {"content": "changed while the embedder was away"})
        assert _wrong(backend) == []
        embedder.down = False
        vectors_of(backend).embed_pending()
        backend.search(Query("marmot"))
        assert _wrong(backend) == []
        assert not backend.get([summary.id])
        backend.close()
        assert _wrong(self.start(tmp_path, embedder)) == []

    def test_a_repair_of_a_sound_store_changes_nothing(self, tmp_path: Path) -> None:
        """`verify(repair=True)` does not change a store that has no damage."""
        backend, stored = self.stored(tmp_path, *(f"the stoat runs {n} times" for n in range(20)))
        backend.update(stored[0].id, {"content": "the stoat rests"})
        with unchanged(backend, stored[0].id):
            assert _wrong(backend, repair=True) == []
        assert [hit.entry.content for hit in backend.search(Query("rests"))][:1] == ["the stoat rests"]

    def test_a_store_is_sound_during_writes(self, tmp_path: Path) -> None:
        """`verify` finds no damage while another thread writes."""
        old = (make_entry(f"the heron stands {n} times", session_id="old") for n in range(40))
        backend, _ = self.stored(tmp_path, *old)
        done = threading.Event()
        errors: list[Exception] = []

        def write() -> None:
            other = self.open(tmp_path, FlakyEmbedder())
            try:
                while not done.is_set():
                    new = other.store([make_entry(f"a newt number {n}", session_id="new") for n in range(4)])
                    other.update(new[0].id, {"content": "a newt that was renamed"})
                    other.consolidate(make_entry("newts", kind="summary"), [new[1].id, new[2].id])
                    other.search(Query("newt"))
                    other.remove([new[3].id])
                    other.remove(Scope(session_id="new"))
            except Exception as error:  # noqa: BLE001 - the test reports it
                errors.append(error)
            finally:
                other.close()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            seen = [_wrong(backend) for _ in range(_LOOKS)]
        finally:
            done.set()
            writer.join()
        assert not errors and seen == [[]] * _LOOKS
        assert _wrong(backend) == []
