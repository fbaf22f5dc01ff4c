"""What waits for an embedder is tried again in the background, and never by two at once."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import agentformer
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreError
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.background import EmbedRetry
from agentformer.testing import FlakyEmbedder, make_entry
from agentformer.types import Matrix, Scope


def wait_for(what: object, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def test_an_embedder_that_comes_back_gets_what_waited(tmp_path: Path) -> None:
    embedder = FlakyEmbedder(down=True)
    backend = FaissMemoryBackend(tmp_path, embedder)
    worker = EmbedRetry(backend, 0.02)
    worker.start()
    backend.store([make_entry(f"stoat {n}") for n in range(5)])
    assert wait_for(lambda: backend.waiting(Scope())[0].attempts >= 3)
    embedder.down = False
    assert wait_for(lambda: backend.pending(Scope()) == 0)
    assert len(embedder.documents) == 5
    worker.close()
    backend.close()


def test_nothing_runs_where_it_is_switched_off(tmp_path: Path) -> None:
    backend = FaissMemoryBackend(tmp_path, FlakyEmbedder(down=True))
    before = threading.active_count()
    worker = EmbedRetry(backend, 0)
    worker.start()
    assert threading.active_count() == before
    worker.close()
    backend.close()


@pytest.mark.parametrize("error", [StoreError("the disk is away"), OSError("of a kind that nobody foresaw")])
def test_a_failing_store_does_not_end_the_thread(error: Exception) -> None:
    calls: list[int] = []

    class Failing:
        pending = waiting = spaces = reembed = abandon_reembedding = prune_spaces = keep_vectors = None  # never called

        def embed_pending(self, *, refused: bool) -> int:
            assert not refused
            calls.append(1)
            raise error

    worker = EmbedRetry(Failing(), 0.001)  # type: ignore[arg-type]
    worker.start()
    assert wait_for(lambda: len(calls) >= 3)
    worker.close()


class Slow(HashingEmbedder):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        time.sleep(0.2)
        self.texts += texts
        return super().embed_documents(texts)


@pytest.mark.slow
def test_many_that_catch_up_at_once_embed_each_text_once(tmp_path: Path) -> None:
    down = FaissMemoryBackend(tmp_path, FlakyEmbedder(down=True))
    down.store([make_entry(f"stoat {n}") for n in range(100)])
    down.close()
    embedder = Slow()
    backends = [FaissMemoryBackend(tmp_path, embedder) for _ in range(4)]
    left: list[int] = []
    threads = [threading.Thread(target=lambda b=backend: left.append(b.embed_pending())) for backend in backends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert left == [0] * 4
    assert Counter(embedder.texts) == {f"stoat {n}": 1 for n in range(100)}
    for backend in backends:
        backend.close()


@pytest.mark.slow
def test_a_memory_that_is_dropped_without_closing_leaves_no_thread(tmp_path: Path) -> None:
    """Neither that which embeds, nor those which clean; and the store itself is let go."""
    before = set(threading.enumerate())
    af = agentformer.connect(
        index_dir=tmp_path / "i",
        upload_dir=tmp_path / "u",
        embedder="hashing",
        llm_model="echo",
        clean_every=10,
        embed_retry_seconds=3600,
        cleanup_interval=3600,
    )
    for number in range(10):
        af.memory.add_message("monday", "user", f"Boat {number} lies in the harbour.")
    backend = weakref.ref(af.backend)
    assert wait_for(lambda: backend().count(Scope(kinds=("summary",))) == 1)
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert {"agentformer-embedding", "agentformer-clock"} <= names
    del af

    def gone() -> bool:
        gc.collect()
        return backend() is None and not set(threading.enumerate()) - before

    assert wait_for(gone), set(threading.enumerate()) - before
