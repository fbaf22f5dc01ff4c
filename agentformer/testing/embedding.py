"""Tests of a backend: embedding of entries that have no vectors yet, and the move of all vectors to another embedding
space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, EmbedderUnavailable, SpaceMismatch, TextTooLong
from agentformer.testing.case import (
    BackendCase,
    CountingEmbedder,
    FlakyEmbedder,
    Reference,
    by_words,
    make_entry,
    raises,
)
from agentformer.types import CompleteStore, Matrix, MemoryEntry, Query, Scope

_TEXTS = [f"the marmot whistles {n} times at the {['stoat', 'heron', 'puffin'][n % 3]}" for n in range(150)]


class _DiesAfter(CountingEmbedder):
    def __init__(self, batches: int, request_texts: int = 64) -> None:
        super().__init__(HashingEmbedder(64))
        self.batches = batches
        self.request_texts = request_texts

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Embed a batch. Raise `EmbedderUnavailable` if the allowed number of batches is used up."""
        if not self.batches:
            raise EmbedderUnavailable("the embedder was switched off by a test")
        self.batches -= 1
        return super().embed_documents(texts)


class _Picky(CountingEmbedder):
    """An embedder that raises an error for each batch with the word "bad". `asked` counts the batches."""

    asked = 0

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Count the batch. Raise `TextTooLong` if a text contains the word "bad"."""
        self.asked += 1
        if any("bad" in text for text in texts):
            raise TextTooLong('the text contains the word "bad", which this model refuses')
        return super().embed_documents(texts)


class _Calling(CountingEmbedder):
    """An embedder whose space differs from the space of the default embedder. It calls a given function before each
    batch."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(HashingEmbedder(64))
        self._call = call

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        self._call()
        return super().embed_documents(texts)


def _spaces(backend: CompleteStore) -> list[tuple[str, int]]:
    return [(space.state, space.vectors) for space in backend.spaces()]


class Pending(BackendCase):
    """Tests of pending entries: stored entries that have no vector yet."""

    def test_without_an_embedder_words_find_new_entries(self, tmp_path: Path) -> None:
        """While the embedder is unavailable, search finds new entries by words and returns a warning. These entries can
        be embedded later, even after the store was closed and opened again."""
        new = "the marmot whistles", make_entry("the stoat runs", namespace="n")
        backend, entries = self.stored(tmp_path, *new, embedder=FlakyEmbedder(down=True), dense=True)
        assert backend.pending(Scope()) == 1 and backend.pending(Scope("n")) == 1
        assert backend.embed_pending() == 2
        hits = backend.search(Query("marmot"))
        assert [hit.entry.id for hit in hits] == [entries[0].id]
        assert hits.warnings
        assert self.by_vectors(backend, "marmot") == []
        backend.close()
        again = self.start(tmp_path)
        assert again.pending(Scope()) == 1
        assert again.embed_pending() == 0
        assert self.by_vectors(again, "marmot") == [entries[0].id]

    def test_embed_pending_embeds_every_entry_once(self, tmp_path: Path) -> None:
        """`embed_pending` embeds every pending entry once. After that, dense search finds all of these entries."""
        embedder = FlakyEmbedder(down=True)
        texts = [f"the marmot whistles {n} times" for n in range(300)]
        backend, entries = self.stored(tmp_path, *texts, embedder=embedder, dense=True)
        embedder.down = False
        assert backend.embed_pending() == 0
        assert backend.pending(Scope()) == 0
        query = Query("marmot whistles 17 times", limit=10, mode="dense")
        hits = backend.search(query)
        Reference(entries).check_dense(query, hits)
        assert hits.warnings == ()
        assert Counter(embedder.documents) == Counter(texts)
        assert backend.embed_pending() == 0
        assert len(embedder.documents) == 300

    def test_an_update_without_an_embedder_removes_the_old_vector(self, tmp_path: Path) -> None:
        """If the embedder is unavailable, an update of the text still removes the vector of the former text."""
        embedder = FlakyEmbedder()
        backend, (entry,) = self.stored(tmp_path, "a heron at dawn", embedder=embedder, dense=True)
        assert self.by_vectors(backend, "heron") == [entry.id]
        embedder.down = True
        backend.update(entry.id, {"content": "a puffin at noon"})
        embedder.down = False
        assert self.by_vectors(backend, "heron") == []
        assert by_words(backend, "puffin") == [entry.id] and by_words(backend, "heron") == []
        assert backend.pending(Scope()) == 1 and backend.embed_pending() == 0
        (hit,) = backend.search(Query("a puffin at noon", mode="dense"))
        assert abs((hit.dense_score or 0) - 1) < 1e-5

    def test_removed_entries_are_not_embedded(self, tmp_path: Path) -> None:
        """If an entry is removed before it is embedded, `embed_pending` does not embed this entry."""
        embedder = FlakyEmbedder(down=True)
        backend, (removed, kept) = self.stored(tmp_path, "removed marmot", "kept marmot", embedder=embedder, dense=True)
        backend.remove([removed.id])
        embedder.down = False
        assert backend.embed_pending() == 0
        assert self.by_vectors(backend, "marmot") == [kept.id]
        assert embedder.documents == ["kept marmot"]

    def test_only_new_texts_are_embedded(self, tmp_path: Path) -> None:
        """Entries with the same text share one vector. An update that does not change the text embeds nothing."""
        embedder = CountingEmbedder()
        texts = "same stoat", "same stoat", "another stoat"
        backend, (one, two, _) = self.stored(tmp_path, *texts, embedder=embedder, dense=True)
        (three,) = backend.store([make_entry("same stoat")])
        backend.update(two.id, {"project": "zoo", "salience": 0.5})
        assert Counter(embedder.documents) == {"same stoat": 1, "another stoat": 1}
        backend.remove([one.id, three.id])
        hits = backend.search(Query("same stoat", limit=1, mode="dense"))
        assert [(hit.entry.id, round(hit.dense_score or 0, 5)) for hit in hits] == [(two.id, 1.0)]

    def test_progress_reports_finished_and_all_windows(self, tmp_path: Path) -> None:
        """`progress` is called with the number of finished windows, which never decreases, and with the number of all
        windows. A window is a piece of text that the embedder can read at once."""
        reports: list[tuple[int, int]] = []
        backend = self.start(tmp_path, dense=True)
        backend.store([make_entry(f"stoat {n}") for n in range(30)], progress=lambda *report: reports.append(report))
        assert reports and reports[-1] == (30, 30)
        assert reports == sorted(reports) and {total for _, total in reports} == {30}

    def test_replacing_by_the_same_text_keeps_its_vector(self, tmp_path: Path) -> None:
        """If a new entry has the text of an entry that it replaces, the vector of this text is used again."""
        backend, _ = self.stored(tmp_path, "a sentence that stays the same", dense=True)
        (new,) = backend.store([make_entry("a sentence that stays the same")], replacing=[Scope()])
        assert backend.pending(Scope()) == 0
        assert self.by_vectors(backend, "a sentence that stays the same") == [new.id]


class Reembedding(BackendCase):
    """Tests of `reembed`, `spaces` and `prune_spaces`. `reembed` moves a store to the embedding space of another
    embedder."""

    def test_after_reembed_everything_is_found_in_the_new_space(self, tmp_path: Path) -> None:
        """`reembed` embeds every text once. Dense search then uses the vectors of the new embedding space."""
        backend, entries = self.stored(tmp_path, *_TEXTS, dense=True)
        target = CountingEmbedder(HashingEmbedder(64))
        reports: list[tuple[int, int]] = []
        moved = backend.reembed(target, progress=lambda *report: reports.append(report))
        assert moved.switched and moved.entries == len(entries) == moved.embedded and not moved.failed
        assert moved.former == HashingEmbedder().space and moved.space == target.space
        assert moved.overlap is not None and 0.3 < moved.overlap <= 1 and moved.sample > 0
        assert reports[-1] == (len(entries), len(entries)) and reports == sorted(reports)
        assert Counter(target.documents) == Counter(_TEXTS)
        backend.close()
        self._check_dense(tmp_path, entries, 64, _TEXTS[17], "heron", "puffin 44")

    def test_searches_and_writes_use_the_old_space_until_the_switch(self, tmp_path: Path) -> None:
        """While `reembed` is unfinished, search uses the old embedding space. Entries that are stored or updated during
        this time are found in the new space after `reembed`."""
        backend, entries = self.stored(tmp_path, *_TEXTS, dense=True)
        with raises(EmbedderUnavailable):
            backend.reembed(_DiesAfter(1))
        assert [space for space, _ in _spaces(backend)] == ["active", "building"]
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
        self._check_dense(tmp_path, live, 64, "a wolverine at dusk", "a lynx in the snow")

    def test_an_interrupted_reembed_embeds_nothing_twice(self, tmp_path: Path) -> None:
        """If `reembed` was interrupted, the next call embeds only the texts that the first call did not embed."""
        backend, _ = self.stored(tmp_path, *_TEXTS, dense=True)
        first = _DiesAfter(2)
        with raises(EmbedderUnavailable):
            backend.reembed(first)
        backend.close()
        second = CountingEmbedder(HashingEmbedder(64))
        moved = self.start(tmp_path).reembed(second)
        assert moved.switched and first.documents and second.documents
        assert Counter(first.documents + second.documents) == Counter(_TEXTS)

    def test_pending_entries_have_vectors_after_reembed(self, tmp_path: Path) -> None:
        """`reembed` also embeds entries that were stored while the embedder was unavailable."""
        backend, (entry,) = self.stored(tmp_path, "a patient marmot", embedder=FlakyEmbedder(down=True), dense=True)
        assert backend.pending(Scope()) == 1
        moved = backend.reembed(HashingEmbedder(64))
        assert moved.switched and moved.former is None and moved.overlap is None
        assert backend.pending(Scope()) == 0
        backend.close()
        assert self.by_vectors(self.start(tmp_path, HashingEmbedder(64)), "marmot") == [entry.id]

    def test_one_reembed_at_a_time(self, tmp_path: Path) -> None:
        """While a `reembed` is unfinished, a `reembed` to another embedding space raises `Conflict`. After
        `abandon_reembedding`, this second `reembed` succeeds."""
        backend, _ = self.stored(tmp_path, *_TEXTS, dense=True)
        with raises(EmbedderUnavailable):
            backend.reembed(_DiesAfter(1))
        with raises(Conflict):
            backend.reembed(HashingEmbedder(32))
        assert backend.abandon_reembedding() and not backend.abandon_reembedding()
        assert backend.reembed(HashingEmbedder(32)).switched
        assert [space for space, _ in _spaces(backend)] == ["kept", "kept", "active"]

    def test_a_running_reembed_cannot_be_abandoned(self, tmp_path: Path) -> None:
        """While `reembed` runs, `abandon_reembedding` raises `Conflict`."""
        backend, entries = self.stored(tmp_path, *_TEXTS, dense=True)
        there = self.start(tmp_path)
        refusals: list[Exception] = []

        def abandon() -> None:
            with raises(Conflict) as errors:
                there.abandon_reembedding()
            refusals.extend(errors)

        assert backend.reembed(_Calling(abandon)).switched and refusals
        assert _spaces(backend) == [("kept", len(entries)), ("active", len(entries))]
        backend.close()
        self._check_dense(tmp_path, entries, 64, _TEXTS[5])

    def test_entries_that_fail_during_reembed_have_vectors_after_it(self, tmp_path: Path) -> None:
        """While `reembed` runs, it also embeds entries that cannot be embedded in the old space."""
        former = FlakyEmbedder()
        backend, stored = self.stored(tmp_path, *_TEXTS[:80], embedder=former, dense=True)
        former.down = True
        stored += backend.store([make_entry(text) for text in _TEXTS[80:]])
        assert backend.reembed(_Calling(backend.embed_pending)).switched
        assert backend.pending(Scope()) == 0
        backend.close()
        again = self.start(tmp_path, HashingEmbedder(64))
        assert self.by_vectors(again, "marmot") == sorted(entry.id for entry in stored)

    def test_reembed_embeds_the_new_text_of_a_refused_entry(self, tmp_path: Path) -> None:
        """If an entry is changed while the embedder refuses its former text, `reembed` embeds the new text."""
        backend, (entry,) = self.stored(tmp_path, "a bad heron", dense=True)

        class Changing(_Picky):
            def embed_documents(self, texts: Sequence[str]) -> Matrix:
                if not self.asked:
                    backend.update(entry.id, {"content": "a heron"})
                return super().embed_documents(texts)

        assert backend.reembed(Changing(HashingEmbedder(64))).failed == backend.pending(Scope()) == 0

    def test_a_new_space_is_not_confused_with_a_pruned_one(self, tmp_path: Path) -> None:
        """Search in a new space does not use files of a deleted space that remain on the disk."""
        backend, entries = self.stored(tmp_path, *_TEXTS, dense=True)
        backend.reembed(HashingEmbedder(64))
        backend.close()
        backend = self.start(tmp_path, HashingEmbedder(64))
        backend.search(Query("heron", mode="dense"))
        backend.close()  # the files of this space stay on the disk
        backend = self.start(tmp_path, HashingEmbedder(64))
        backend.reembed(HashingEmbedder())
        backend.prune_spaces()
        backend.close()
        backend = self.start(tmp_path)
        backend.reembed(HashingEmbedder(72))
        backend.close()
        self._check_dense(tmp_path, entries, 72, _TEXTS[5])

    def test_a_refused_text_blocks_no_other_text(self, tmp_path: Path) -> None:
        """If the embedder refuses a text, all other texts are still embedded. `store` does not try the refused text
        again. `embed_pending` tries it again by default."""
        embedder = _Picky()
        backend, (good, bad, other) = self.stored(
            tmp_path, "a stoat", "a bad heron", "a puffin", embedder=embedder, dense=True
        )
        assert [item.entry_id for item in backend.waiting(Scope())] == [bad.id]
        embedder.asked = 0
        for n in range(3):
            backend.store([make_entry(f"stoat {n}")])
        assert embedder.asked == 3
        assert backend.embed_pending(refused=False) == 0 and embedder.asked == 3
        assert backend.embed_pending() == 1 and embedder.asked > 3
        assert {good.id, other.id} <= set(self.by_vectors(backend, "stoat"))

    def test_finished_requests_are_kept(self, tmp_path: Path) -> None:
        """If a request to the embedder fails, the vectors of the earlier requests remain stored."""
        dies = _DiesAfter(3, request_texts=4)
        backend, _ = self.stored(tmp_path, *_TEXTS[:40], embedder=dies, dense=True)
        assert backend.pending(Scope()) == 40 and len(dies.documents) == 12
        dies.batches = 1000
        assert backend.embed_pending() == 0
        assert Counter(dies.documents) == Counter(_TEXTS[:40])

    def test_reembed_to_a_former_space_embeds_only_new_texts(self, tmp_path: Path) -> None:
        """`reembed` to a former space uses the stored vectors of this space and embeds only new texts."""
        backend, entries = self.stored(tmp_path, *_TEXTS, dense=True)
        backend.reembed(HashingEmbedder(64))
        backend.close()
        backend, _ = self.stored(tmp_path, "a wolverine at dusk", embedder=HashingEmbedder(64))
        embedder = CountingEmbedder()
        moved = backend.reembed(embedder)
        assert embedder.documents == ["a wolverine at dusk"] and moved.reused == len(entries)

    def test_former_spaces_stay_until_they_are_pruned(self, tmp_path: Path) -> None:
        """`reembed` to the current embedding space does nothing. `reembed` to another space keeps the vectors of the
        former space until `prune_spaces` deletes them."""
        backend, entries = self.stored(tmp_path, *_TEXTS, dense=True)
        embedder = CountingEmbedder()
        assert not backend.reembed(embedder).switched and not embedder.documents
        assert _spaces(backend) == [("active", len(entries))]
        backend.reembed(HashingEmbedder(64))
        assert _spaces(backend) == [("kept", len(entries)), ("active", len(entries))]
        assert backend.prune_spaces() == len(entries)
        assert _spaces(backend) == [("active", len(entries))]
        assert backend.prune_spaces() == 0

    def test_another_embedder_is_refused_with_advice(self, tmp_path: Path) -> None:
        """If a store is opened with the embedder of another space, `store` and `search` raise `SpaceMismatch`. The
        message names two solutions: the option `--embedder` and the command `reembed`."""
        backend, _ = self.stored(tmp_path, *_TEXTS, dense=True)
        backend.close()
        other = self.start(tmp_path, HashingEmbedder(64))
        for call in (lambda: other.store([make_entry("x")]), lambda: other.search(Query("heron"))):
            with raises(SpaceMismatch) as errors:
                call()
            message = str(errors[0])
            assert "hashing:256" in message and "--embedder" in message and "reembed --to hashing:64" in message

    def test_waiting_reports_attempts_and_errors(self, tmp_path: Path) -> None:
        """For each pending entry, `waiting` returns the number of attempts to embed it, and the last error."""
        new = "a stoat", make_entry("a heron", namespace="n")
        backend, (one, other) = self.stored(tmp_path, *new, embedder=FlakyEmbedder(down=True), dense=True)
        backend.embed_pending()
        (waiting,) = backend.waiting(Scope())
        assert waiting.entry_id == one.id and waiting.attempts == 2 and "switched off" in waiting.last_error
        assert [item.entry_id for item in backend.waiting([other.id, one.id])] == sorted([one.id, other.id])
        assert not backend.waiting(["missing"]) and len(backend.waiting([one.id, other.id], limit=1)) == 1

    def _check_dense(self, folder: Path, entries: Sequence[MemoryEntry], dimension: int, *texts: str) -> None:
        """Open the store with an embedder of this dimension. Check that dense search for each of `texts` returns the
        hits of the exact reference."""
        embedder = HashingEmbedder(dimension)
        backend, reference = self.start(folder, embedder), Reference(entries, embedder)
        for text in texts:
            query = Query(text, limit=10, mode="dense")
            reference.check_dense(query, backend.search(query))
