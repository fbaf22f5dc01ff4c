"""A store moves to another embedding space: nothing is missed, nothing mixed, nothing embedded twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, EmbedderUnavailable, InvalidInput, SpaceMismatch, TextTooLong
from agentformer.testing.case import BackendCase, raises
from agentformer.testing.fakes import CountingEmbedder, FlakyEmbedder
from agentformer.testing.reference import Reference, make_entry
from agentformer.types import Matrix, MemoryBackend, MemoryEntry, Query, Scope

_TEXTS = [f"the marmot whistles {n} times at the {['stoat', 'heron', 'puffin'][n % 3]}" for n in range(150)]


class _DiesAfter(CountingEmbedder):
    """An embedder whose server goes away after some batches."""

    def __init__(self, batches: int, request_texts: int = 64) -> None:
        super().__init__(HashingEmbedder(64))
        self.batches = batches
        self.request_texts = request_texts

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        if not self.batches:
            raise EmbedderUnavailable("the embedder was switched off by a test")
        self.batches -= 1
        return super().embed_documents(texts)


class _Picky(CountingEmbedder):
    """Refuses what holds the word "bad"; counts how often it is asked."""

    asked = 0

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        self.asked += 1
        if any("bad" in text for text in texts):
            raise TextTooLong("a text that this model does not take")
        return super().embed_documents(texts)


def _mismatch(call: Callable[[], object]) -> str:
    try:
        call()
    except SpaceMismatch as error:
        return str(error)
    raise AssertionError("nothing was refused")


class Moving(BackendCase):
    def test_a_backend_without_vectors_says_so(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        backend.store([make_entry("a stoat")])
        if self.vectors:
            assert [(state.state, state.vectors) for state in backend.spaces()] == [("active", 1)]
        else:
            assert not backend.spaces() and not backend.prune_spaces()
            with raises(InvalidInput):
                backend.reembed(HashingEmbedder(64))

    def test_after_a_move_all_is_found_in_the_new_space_alone(self, tmp_path: Path) -> None:
        backend, entries = self._filled(tmp_path)
        target = CountingEmbedder(HashingEmbedder(64))
        told: list[tuple[int, int]] = []
        moved = backend.reembed(target, progress=lambda done, total: told.append((done, total)))
        assert moved.switched and moved.entries == len(entries) == moved.embedded and not moved.failed
        assert moved.former == HashingEmbedder().space and moved.space == target.space
        assert moved.overlap is not None and 0.3 < moved.overlap <= 1 and moved.sample > 0
        assert told[-1] == (len(entries), len(entries)) and told == sorted(told)
        assert Counter(target.documents) == Counter(_TEXTS)
        backend.close()
        again = self.start(tmp_path, HashingEmbedder(64))
        for text in (_TEXTS[17], "heron", "puffin 44"):
            query = Query(text, limit=10, mode="dense")
            Reference(entries, HashingEmbedder(64)).check_dense(query, again.search(query))

    def test_searches_and_writes_go_on_in_the_present_space_until_the_switch(self, tmp_path: Path) -> None:
        backend, entries = self._filled(tmp_path)
        with raises(EmbedderUnavailable):
            backend.reembed(_DiesAfter(1))
        assert [state.state for state in backend.spaces()] == ["active", "building"]
        query = Query(_TEXTS[3], limit=10, mode="dense")
        Reference(entries).check_dense(query, backend.search(query))
        backend.store([make_entry("a wolverine at dusk")])
        backend.update(entries[0].id, {"content": "a lynx in the snow"})
        backend.remove([entries[1].id])
        assert self.by_vectors(backend, "wolverine")
        target = CountingEmbedder(HashingEmbedder(64))
        assert backend.reembed(target).switched
        assert {"a wolverine at dusk", "a lynx in the snow"} <= set(target.documents)
        backend.close()
        again = self.start(tmp_path, HashingEmbedder(64))
        kept = [again.get([entry.id])[0] for entry in entries if entry.id != entries[1].id]
        live = [*kept, *(e for e in again.list(Scope(), limit=1000) if e.content == "a wolverine at dusk")]
        for text in ("a wolverine at dusk", "a lynx in the snow"):
            query = Query(text, limit=10, mode="dense")
            Reference(live, HashingEmbedder(64)).check_dense(query, again.search(query))

    def test_an_interrupted_move_embeds_nothing_twice(self, tmp_path: Path) -> None:
        backend, _ = self._filled(tmp_path)
        first = _DiesAfter(2)
        with raises(EmbedderUnavailable):
            backend.reembed(first)
        backend.close()
        second = CountingEmbedder(HashingEmbedder(64))
        moved = self.start(tmp_path).reembed(second)
        assert moved.switched and first.documents and second.documents
        assert Counter(first.documents + second.documents) == Counter(_TEXTS)

    def test_what_was_stored_without_an_embedder_has_vectors_after_a_move(self, tmp_path: Path) -> None:
        self.needs_vectors()
        backend = self.start(tmp_path, FlakyEmbedder(down=True))
        (entry,) = backend.store([make_entry("a patient marmot")])
        assert backend.pending(Scope()) == 1
        moved = backend.reembed(HashingEmbedder(64))
        assert moved.switched and moved.former is None and moved.overlap is None
        assert backend.pending(Scope()) == 0
        backend.close()
        assert self.by_vectors(self.start(tmp_path, HashingEmbedder(64)), "marmot") == [entry.id]

    def test_one_move_at_a_time_and_it_can_be_given_up(self, tmp_path: Path) -> None:
        backend, _ = self._filled(tmp_path)
        with raises(EmbedderUnavailable):
            backend.reembed(_DiesAfter(1))
        with raises(Conflict):
            backend.reembed(HashingEmbedder(32))
        assert backend.abandon_reembedding() and not backend.abandon_reembedding()
        assert backend.reembed(HashingEmbedder(32)).switched
        assert [state.state for state in backend.spaces()] == ["kept", "kept", "active"]

    def test_a_move_that_is_given_up_while_it_runs_changes_nothing(self, tmp_path: Path) -> None:
        backend, entries = self._filled(tmp_path)
        there = self.start(tmp_path)
        refusals: list[str] = []

        class Abandoned(CountingEmbedder):
            def embed_documents(self, texts: Sequence[str]) -> Matrix:
                try:
                    there.abandon_reembedding()
                except Conflict as error:
                    refusals.append(str(error))
                return super().embed_documents(texts)

        assert backend.reembed(Abandoned(HashingEmbedder(64))).switched and refusals
        assert [state.state for state in backend.spaces()] == ["kept", "active"]
        backend.close()
        query = Query(_TEXTS[5], limit=10, mode="dense")
        again = self.start(tmp_path, HashingEmbedder(64))
        Reference(entries, HashingEmbedder(64)).check_dense(query, again.search(query))

    def test_what_is_tried_for_in_vain_during_a_move_has_its_vectors_after_it(self, tmp_path: Path) -> None:
        self.needs_vectors()
        former = FlakyEmbedder()
        backend = self.start(tmp_path, former)
        stored = [*backend.store([make_entry(text) for text in _TEXTS[:80]])]
        former.down = True
        stored += backend.store([make_entry(text) for text in _TEXTS[80:]])

        class Meanwhile(CountingEmbedder):
            def embed_documents(self, texts: Sequence[str]) -> Matrix:
                backend.embed_pending()
                return super().embed_documents(texts)

        assert backend.reembed(Meanwhile(HashingEmbedder(64))).switched
        assert backend.pending(Scope()) == 0
        backend.close()
        again = self.start(tmp_path, HashingEmbedder(64))
        assert self.by_vectors(again, "marmot") == sorted(entry.id for entry in stored)

    def test_a_space_that_was_pruned_leaves_nothing_that_a_new_one_could_be_taken_for(self, tmp_path: Path) -> None:
        backend, entries = self._filled(tmp_path)
        backend.reembed(HashingEmbedder(64))
        backend.close()
        backend = self.start(tmp_path, HashingEmbedder(64))
        backend.search(Query("heron", mode="dense"))
        backend.close()  # with whatever it keeps of that space on disk
        backend = self.start(tmp_path, HashingEmbedder(64))
        backend.reembed(HashingEmbedder())
        backend.prune_spaces()
        backend.close()
        backend = self.start(tmp_path)
        backend.reembed(HashingEmbedder(72))
        backend.close()
        again = self.start(tmp_path, HashingEmbedder(72))
        query = Query(_TEXTS[5], limit=10, mode="dense")
        Reference(entries, HashingEmbedder(72)).check_dense(query, again.search(query))

    def test_a_text_that_the_model_refuses_holds_up_no_other_and_is_tried_again_only_when_asked(
        self, tmp_path: Path
    ) -> None:
        self.needs_vectors()
        embedder = _Picky()
        backend = self.start(tmp_path, embedder)
        good, bad, other = backend.store([make_entry("a stoat"), make_entry("a bad heron"), make_entry("a puffin")])
        assert [item.entry_id for item in backend.waiting(Scope())] == [bad.id]
        embedder.asked = 0
        for n in range(3):
            backend.store([make_entry(f"stoat {n}")])
        assert embedder.asked == 3
        assert backend.embed_pending(refused=False) == 0 and embedder.asked == 3
        assert backend.embed_pending() == 1 and embedder.asked > 3
        assert {good.id, other.id} <= set(self.by_vectors(backend, "stoat"))

    def test_what_is_finished_is_kept_by_the_request(self, tmp_path: Path) -> None:
        self.needs_vectors()
        dies = _DiesAfter(3, request_texts=4)
        backend = self.start(tmp_path, dies)
        backend.store([make_entry(text) for text in _TEXTS[:40]])
        assert backend.pending(Scope()) == 40 and len(dies.documents) == 12
        dies.batches = 1000
        assert backend.embed_pending() == 0
        assert Counter(dies.documents) == Counter(_TEXTS[:40])

    def test_a_move_to_the_present_space_does_nothing(self, tmp_path: Path) -> None:
        backend, _ = self._filled(tmp_path)
        embedder = CountingEmbedder()
        moved = backend.reembed(embedder)
        assert not moved.switched and not embedder.documents
        assert len(backend.spaces()) == 1

    def test_going_back_embeds_only_what_is_new(self, tmp_path: Path) -> None:
        backend, entries = self._filled(tmp_path)
        backend.reembed(HashingEmbedder(64))
        backend.close()
        backend = self.start(tmp_path, HashingEmbedder(64))
        backend.store([make_entry("a wolverine at dusk")])
        embedder = CountingEmbedder()
        moved = backend.reembed(embedder)
        assert embedder.documents == ["a wolverine at dusk"] and moved.reused == len(entries)

    def test_former_spaces_stay_until_they_are_pruned(self, tmp_path: Path) -> None:
        backend, entries = self._filled(tmp_path)
        backend.reembed(HashingEmbedder(64))
        assert [(s.state, s.vectors) for s in backend.spaces()] == [("kept", len(entries)), ("active", len(entries))]
        assert backend.prune_spaces() == len(entries)
        assert [(s.state, s.vectors) for s in backend.spaces()] == [("active", len(entries))]
        assert backend.prune_spaces() == 0

    def test_a_store_that_was_opened_with_another_embedder_is_refused_with_the_ways_on(self, tmp_path: Path) -> None:
        backend, _ = self._filled(tmp_path)
        backend.close()
        other = self.start(tmp_path, HashingEmbedder(64))
        for call in (lambda: other.store([make_entry("x")]), lambda: other.search(Query("heron"))):
            message = _mismatch(call)
            assert "hashing:256" in message and "--embedder" in message and "reembed --to hashing:64" in message

    def test_what_waits_tells_why(self, tmp_path: Path) -> None:
        self.needs_vectors()
        backend = self.start(tmp_path, FlakyEmbedder(down=True))
        one, other = backend.store([make_entry("a stoat"), make_entry("a heron", namespace="n")])
        backend.embed_pending()
        (waiting,) = backend.waiting(Scope())
        assert waiting.entry_id == one.id and waiting.attempts == 2 and "switched off" in waiting.last_error
        assert [item.entry_id for item in backend.waiting([other.id, one.id])] == sorted([one.id, other.id])
        assert not backend.waiting(["missing"]) and len(backend.waiting([one.id, other.id], limit=1)) == 1

    def _filled(self, folder: Path) -> tuple[MemoryBackend, list[MemoryEntry]]:
        self.needs_vectors()
        backend = self.start(folder)
        return backend, list(backend.store([make_entry(text) for text in _TEXTS]))
