"""Processes that have a store open follow it into its new space; a store opened wrongly is refused."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import agentformer
from agentformer.embedders.guarded import GuardedEmbedder
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable, SpaceMismatch
from agentformer.index.embedding.active import ActiveEmbedder
from agentformer.registry import PARTS
from agentformer.types import EmbeddingSpace, Query, Scope


def opened(folder: Path, embedder: str = "auto") -> agentformer.AgentFormer:
    return agentformer.connect(
        index_dir=folder / "i",
        upload_dir=folder / "u",
        embedder=embedder,
        embed_retry_seconds=0,
        embed_base_url="http://127.0.0.1:1",  # where nobody listens
    )


def test_a_process_that_has_the_store_open_follows_it(tmp_path: Path) -> None:
    with opened(tmp_path, "hashing:64") as here, opened(tmp_path, "hashing:64") as there:
        entry = here.memory.store("The marmot whistles at noon.")
        assert [hit.entry.id for hit in there.memory.search("marmot")] == [entry.id]
        there.reembed("hashing:128")
        hits = here.backend.search(Query("marmot whistles", mode="dense"))
        assert [hit.entry.id for hit in hits] == [entry.id] and not hits.warnings
        assert here.embedder.space.dimension == 128
        other = here.memory.store("A stoat in the snow.")
        assert here.backend.pending(Scope()) == 0
        assert [hit.entry.id for hit in there.memory.search("stoat snow", mode="dense")][:1] == [other.id]


def test_an_entry_embedded_for_the_former_space_is_embedded_for_the_new_one(tmp_path: Path) -> None:
    """A writer that had embedded before the switch, and commits after it."""
    with opened(tmp_path, "hashing:64") as here, opened(tmp_path, "hashing:64") as there:
        here.memory.store("The marmot whistles at noon.")
        embedder = here.embedder.current
        inner = embedder.embed_documents
        moved = threading.Event()

        def slow(texts):  # type: ignore[no-untyped-def]
            rows = inner(texts)
            if not moved.is_set():
                moved.set()
                there.reembed("hashing:128")
            return rows

        embedder.embed_documents = slow  # type: ignore[method-assign]
        entry = here.memory.store("A stoat in the snow.")
        assert moved.is_set()
        assert here.backend.pending(Scope()) == 0
        assert here.backend.status()["vectors"] == 2 + 1  # one of them in the former space
        assert [hit.entry.id for hit in here.memory.search("stoat snow", mode="dense")][:1] == [entry.id]


def test_opening_with_an_embedder_of_another_space_is_refused_with_advice(tmp_path: Path) -> None:
    with opened(tmp_path, "hashing:64") as memory:
        memory.memory.store("The marmot whistles at noon.")
    with pytest.raises(SpaceMismatch) as caught:
        opened(tmp_path, "hashing:128")
    for part in ("hashing:64 (64", "hashing:128 (128", "--embedder hashing:64", "reembed --to hashing:128"):
        assert part in str(caught.value)
    with opened(tmp_path) as memory:
        assert memory.embedder.space.dimension == 64


def test_auto_uses_the_space_that_another_process_created_first(tmp_path: Path) -> None:
    """Both open an empty store; the other one stores first."""
    with opened(tmp_path, "auto") as here, opened(tmp_path, "hashing:64") as there:
        there.memory.store("The marmot whistles at noon.")
        assert here.memory.search("marmot", mode="dense")
        assert here.embedder.space == there.embedder.space


def test_an_unavailable_embedder_of_a_new_space_is_not_loaded_at_each_call() -> None:
    asked: list[EmbeddingSpace] = []

    def resolve(space: EmbeddingSpace) -> GuardedEmbedder:
        asked.append(space)
        raise EmbedderUnavailable("no server")

    following = ActiveEmbedder(GuardedEmbedder(lambda: HashingEmbedder(64)), resolve, seconds=1000)
    assert following.for_space(HashingEmbedder(64).space) is following.current
    for _ in range(3):
        with pytest.raises(EmbedderUnavailable, match="no server"):
            following.for_space(HashingEmbedder(128).space)
    assert len(asked) == 1
    assert following.for_space(HashingEmbedder(64).space).space.dimension == 64
    following.retry_now()
    with pytest.raises(EmbedderUnavailable):
        following.for_space(HashingEmbedder(128).space)
    assert len(asked) == 2


def test_a_store_that_moved_while_its_former_embedder_was_dead_is_followed() -> None:
    first = GuardedEmbedder(lambda: HashingEmbedder(64))
    following = ActiveEmbedder(first, lambda space: GuardedEmbedder(lambda: HashingEmbedder(space.dimension)))
    following.for_space(HashingEmbedder(64).space)
    first._loaded = None  # what a failed call leaves behind
    first._breaker.failed("the server is gone")
    assert following.for_space(HashingEmbedder(128).space).embed_query("a").shape == (128,)


def test_searches_answer_from_the_former_space_while_the_new_embedder_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, "hashing:64") as here, opened(tmp_path, "hashing:64") as there:
        entry = here.memory.store("The marmot whistles at noon.")
        query = Query("the marmot whistles", mode="dense")
        (before,) = here.backend.search(query)
        there.reembed("hashing:128")

        loading, loaded = threading.Event(), threading.Event()
        inner = HashingEmbedder.__init__

        def slow(self: HashingEmbedder, dimension: int = 256) -> None:
            loading.set()
            assert loaded.wait(30)
            inner(self, dimension)

        monkeypatch.setattr(HashingEmbedder, "__init__", slow)
        for _ in range(3):
            hits = here.backend.search(query)
            assert [(hit.entry.id, hit.dense_score) for hit in hits] == [(entry.id, before.dense_score)]
            assert len(hits.warnings) == 1 and "hashing:128 is being loaded" in hits.warnings[0]
        assert loading.wait(30)
        loaded.set()
        assert here.embedder.for_space(HashingEmbedder(128).space).space.dimension == 128
        (after,) = (hits := here.backend.search(query))
        assert after.entry.id == entry.id and after.dense_score != before.dense_score and not hits.warnings


def test_a_search_without_an_index_of_the_former_space_waits_for_the_new_embedder(tmp_path: Path) -> None:
    with opened(tmp_path, "hashing:64") as here, opened(tmp_path, "hashing:64") as there:
        entry = here.memory.store("The marmot whistles at noon.")
        there.reembed("hashing:128")
        hits = here.backend.search(Query("the marmot whistles", mode="dense"))
        assert [hit.entry.id for hit in hits] == [entry.id] and not hits.warnings


@pytest.mark.parametrize("empty", [True, False])
def test_a_memory_that_was_opened_but_not_used_follows_too_also_the_one_that_moves_it(
    tmp_path: Path, empty: bool
) -> None:
    if not empty:
        with opened(tmp_path, "hashing:64") as memory:
            memory.memory.store("The marmot whistles at noon.")
    with opened(tmp_path, "hashing:64") as mover, opened(tmp_path, "hashing:64") as idle:
        mover.reembed("hashing:128")
        for memory in (mover, idle):
            kept = memory.memory.store(f"A stoat in the snow of {memory is idle}.")
            assert kept.id in [hit.entry.id for hit in memory.memory.search("stoat snow", mode="dense", limit=5)]
            assert memory.embedder.space.dimension == 128


@pytest.mark.slow
def test_a_new_memory_whose_embedder_was_away_is_not_taken_over_by_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, "ollama:bge-m3") as memory:
        memory.memory.store("boats")
        assert memory.backend.pending(Scope()) == 1
    with opened(tmp_path) as memory:
        assert memory.memory.reindex() == 1
        assert not memory.backend.spaces()
        (waiting,) = memory.backend.waiting(Scope())
        assert "ollama:bge-m3" in waiting.last_error
    with opened(tmp_path, "hashing:64") as memory:  # who names another one gets it
        assert memory.memory.reindex() == 0
        assert memory.embedder.space.dimension == 64


def test_a_store_whose_embedder_is_not_installed_keeps_texts_and_finds_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTS["embedders"], "plugged", PARTS["embedders"]["hashing"])
    plugged = EmbeddingSpace("plugged", "64", 64, 256, languages="*")
    monkeypatch.setattr(HashingEmbedder, "space", property(lambda self: plugged))
    with opened(tmp_path, "plugged:64") as memory:
        memory.memory.store("The marmot whistles at noon.")
    monkeypatch.undo()
    with opened(tmp_path) as memory:
        memory.memory.store("A stoat in the snow.")
        hits = memory.memory.search("stoat")
        assert [hit.entry.content for hit in hits] == ["A stoat in the snow."]
        assert "plugged:64 cannot be used" in hits.warnings[0] and "known names are" in hits.warnings[0]
