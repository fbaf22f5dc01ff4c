"""`verify`: whatever is done to a store by calls, it is sound, also while others are at it."""

from __future__ import annotations

import threading
from pathlib import Path

from agentformer.testing.case import EVERYTHING, BackendCase
from agentformer.testing.fakes import FlakyEmbedder
from agentformer.testing.reference import make_entry
from agentformer.types import Check, MemoryBackend, Query, Scope

_LOOKS = 3  # while somebody writes


def _wrong(backend: MemoryBackend, *, repair: bool = False) -> list[Check]:
    return [check for check in backend.verify(repair=repair) if check.found]


class Verifying(BackendCase):
    def test_a_new_store_is_sound(self, tmp_path: Path) -> None:
        checks = self.start(tmp_path).verify()
        assert checks and all(check.found == check.mended == 0 for check in checks)
        assert len({check.name for check in checks}) == len(checks)
        assert all(check.name and check.asked for check in checks)

    def test_a_store_that_was_used_in_all_ways_is_sound(self, tmp_path: Path) -> None:
        embedder = FlakyEmbedder()
        backend = self.start(tmp_path, embedder)
        stored = backend.store([make_entry(f"the marmot whistles {n} times", session_id="s") for n in range(30)])
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
        assert backend.lease("cleaning", "me", 60)
        embedder.down = True
        backend.store([make_entry("stored while the embedder was away")])
        backend.update(stored[6].id, {"content": "changed while the embedder was away"})
        assert _wrong(backend) == []
        embedder.down = False
        backend.embed_pending()
        backend.search(Query("marmot"))
        assert _wrong(backend) == []
        assert not backend.get([summary.id])
        backend.close()
        again = self.start(tmp_path, embedder)
        assert _wrong(again) == []

    def test_a_repair_of_a_sound_store_changes_nothing(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        stored = backend.store([make_entry(f"the stoat runs {n} times") for n in range(20)])
        backend.update(stored[0].id, {"content": "the stoat rests"})
        before = list(backend.list(EVERYTHING)), list(backend.history(stored[0].id))
        assert _wrong(backend, repair=True) == []
        assert (list(backend.list(EVERYTHING)), list(backend.history(stored[0].id))) == before
        assert [hit.entry.content for hit in backend.search(Query("rests"))][:1] == ["the stoat rests"]

    def test_a_store_that_others_write_is_sound_at_any_moment(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        backend.store([make_entry(f"the heron stands {n} times", session_id="old") for n in range(40)])
        done = threading.Event()
        errors: list[Exception] = []

        def write() -> None:
            other = self.open(tmp_path, FlakyEmbedder())
            try:
                while not done.is_set():
                    fresh = other.store([make_entry(f"a newt number {n}", session_id="new") for n in range(4)])
                    other.update(fresh[0].id, {"content": "a newt that was renamed"})
                    other.consolidate(make_entry("newts", kind="summary"), [fresh[1].id, fresh[2].id])
                    other.search(Query("newt"))
                    other.remove([fresh[3].id])
                    other.remove(Scope(session_id="new"))
            except Exception as error:  # noqa: BLE001 - the test tells it
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
