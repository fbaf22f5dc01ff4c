"""The embedding queue: nothing waits for an embedder, nothing is lost to it, nothing is embedded twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from agentformer.testing.case import BackendCase, by_words
from agentformer.testing.fakes import CountingEmbedder, FlakyEmbedder
from agentformer.testing.reference import Reference, make_entry
from agentformer.types import Query, Scope


class Queueing(BackendCase):
    def test_without_an_embedder_words_find_what_was_stored(self, tmp_path: Path) -> None:
        self.needs_vectors()
        embedder = FlakyEmbedder(down=True)
        backend = self.start(tmp_path, embedder)
        entries = backend.store([make_entry("the marmot whistles"), make_entry("the stoat runs", namespace="n")])
        assert backend.pending(Scope()) == 1 and backend.pending(Scope("n")) == 1
        assert backend.embed_pending() == 2
        hits = backend.search(Query("marmot"))
        assert [hit.entry.id for hit in hits] == [entries[0].id]
        assert hits.warnings
        assert self.by_vectors(backend, "marmot") == []

    def test_when_the_embedder_returns_vectors_find_it_too(self, tmp_path: Path) -> None:
        self.needs_vectors()
        embedder = FlakyEmbedder(down=True)
        backend = self.start(tmp_path, embedder)
        entries = [make_entry(f"the marmot whistles {n} times") for n in range(300)]
        reference = Reference(backend.store(entries))
        embedder.down = False
        assert backend.embed_pending() == 0
        assert backend.pending(Scope()) == 0
        query = Query("marmot whistles 17 times", limit=10, mode="dense")
        hits = backend.search(query)
        reference.check_dense(query, hits)
        assert hits.warnings == ()
        assert Counter(embedder.documents) == Counter(entry.content for entry in entries)
        assert backend.embed_pending() == 0
        assert len(embedder.documents) == 300

    def test_an_update_while_the_embedder_is_down_is_searched_by_its_new_text_alone(self, tmp_path: Path) -> None:
        self.needs_vectors()
        embedder = FlakyEmbedder()
        backend = self.start(tmp_path, embedder)
        (entry,) = backend.store([make_entry("a heron at dawn")])
        assert self.by_vectors(backend, "heron") == [entry.id]
        embedder.down = True
        backend.update(entry.id, {"content": "a puffin at noon"})
        embedder.down = False
        assert self.by_vectors(backend, "heron") == []
        assert by_words(backend, "puffin") == [entry.id] and by_words(backend, "heron") == []
        assert backend.pending(Scope()) == 1 and backend.embed_pending() == 0
        (hit,) = backend.search(Query("a puffin at noon", mode="dense"))
        assert abs((hit.dense_score or 0) - 1) < 1e-5

    def test_the_queue_survives_reopening(self, tmp_path: Path) -> None:
        self.needs_vectors()
        backend = self.start(tmp_path, FlakyEmbedder(down=True))
        (entry,) = backend.store([make_entry("a patient marmot")])
        backend.close()
        again = self.start(tmp_path)
        assert again.pending(Scope()) == 1
        assert again.embed_pending() == 0
        assert self.by_vectors(again, "marmot") == [entry.id]

    def test_what_was_removed_or_archived_while_waiting_is_not_found(self, tmp_path: Path) -> None:
        self.needs_vectors()
        embedder = FlakyEmbedder(down=True)
        backend = self.start(tmp_path, embedder)
        gone, kept = backend.store([make_entry("gone marmot"), make_entry("kept marmot")])
        backend.remove([gone.id])
        embedder.down = False
        assert backend.embed_pending() == 0
        assert self.by_vectors(backend, "marmot") == [kept.id]
        assert embedder.documents == ["kept marmot"]

    def test_equal_texts_are_embedded_once(self, tmp_path: Path) -> None:
        self.needs_vectors()
        embedder = CountingEmbedder()
        backend = self.start(tmp_path, embedder)
        one, two, _ = backend.store([make_entry("same stoat"), make_entry("same stoat"), make_entry("another stoat")])
        (three,) = backend.store([make_entry("same stoat")])
        assert Counter(embedder.documents) == {"same stoat": 1, "another stoat": 1}
        backend.remove([one.id, three.id])
        hits = backend.search(Query("same stoat", limit=1, mode="dense"))
        assert [(hit.entry.id, round(hit.dense_score or 0, 5)) for hit in hits] == [(two.id, 1.0)]

    def test_a_change_of_other_fields_embeds_nothing(self, tmp_path: Path) -> None:
        self.needs_vectors()
        embedder = CountingEmbedder()
        backend = self.start(tmp_path, embedder)
        (entry,) = backend.store([make_entry("an unchanged stoat")])
        backend.update(entry.id, {"project": "zoo", "salience": 0.5})
        assert embedder.documents == ["an unchanged stoat"]
        assert self.by_vectors(backend, "stoat") == [entry.id]

    def test_progress_tells_windows_done_and_in_all(self, tmp_path: Path) -> None:
        self.needs_vectors()
        told: list[tuple[int, int]] = []
        backend = self.start(tmp_path)
        backend.store(
            [make_entry(f"stoat {n}") for n in range(30)], progress=lambda done, total: told.append((done, total))
        )
        assert told and told[-1] == (30, 30)
        assert told == sorted(told) and {total for _, total in told} == {30}
