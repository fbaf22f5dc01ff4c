"""Training of the vector index: the backend contract on a trained index, the switch to it, and failures."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.vectors import IndexOptions, follower, training
from agentformer.index.vectors import snapshot as snapshots
from agentformer.index.vectors.training import Interrupted
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, FaissOptions
from agentformer.testing import Reference, make_entry
from agentformer.testing.changing import Changing
from agentformer.testing.embedding import Pending
from agentformer.testing.searching import Scopes, Searching
from agentformer.types import Embedder, Hits, MemoryEntry, Query, Scope
from tests.faults.long_form import LONG
from tests.forked import start

pytestmark = pytest.mark.usefixtures("few_queries")
PLAN = IndexOptions(train_at=4, exact_rows=2, target_recall=1.0, train_after=0)
TIMEOUT = 60.0  # seconds, after which a test fails instead of hanging


def index_of(backend: FaissMemoryBackend) -> Any:
    return backend._open().vectors


def settle(backend: FaissMemoryBackend) -> dict[str, Any]:
    """Wait for the end of the training."""
    deadline = time.monotonic() + TIMEOUT
    while backend.status()["index"]["training"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return dict(backend.status()["index"])


class Settled(FaissMemoryBackend):
    """A backend that trains its index, if that is needed, before it answers."""

    def search(self, query: Query) -> Hits:
        if query.mode != "lexical":
            index_of(self).train_now(self._database)
        return super().search(query)


@pytest.mark.slow
class TestTrained(Scopes, Searching):
    """Every search by the trained stage, from four rows on, and trained anew whenever the store has doubled."""

    # Lists and searches by words do not ask this index; `TestFaiss` runs their tests.
    test_words_find_the_entries_that_hold_them = test_words_rank_the_better_match_higher = None
    test_metadata_is_compared_as_json = test_metadata_keys_are_plain_text = test_numbers_are_compared_by_value = None
    test_reading_does_not_change_decay = None

    def open(self, folder: Path, embedder: Embedder) -> FaissMemoryBackend:
        return Settled(folder, embedder, FaissOptions(index=PLAN))


@pytest.mark.slow
class TestSwitching(Changing, Pending):
    """Trainings begin and end at any moment of the suite."""

    def open(self, folder: Path, embedder: Embedder) -> FaissMemoryBackend:
        return FaissMemoryBackend(folder, embedder, FaissOptions(index=PLAN))


def entries(count: int, first: int = 0) -> list[MemoryEntry]:
    return [make_entry(f"numbat {n % 7} under lantern {n % 11} in room {n}") for n in range(first, first + count)]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[FaissMemoryBackend]:
    made = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))
    yield made
    made.close()


QUERY = Query("numbat 3 under lantern 5", limit=12, mode="dense")


def test_status_counts_the_rows_in_the_records_before_an_older_snapshot_is_opened(tmp_path: Path) -> None:
    with closing(FaissMemoryBackend(tmp_path / "m", HashingEmbedder())) as first:
        first.store(entries(3))
        first.search(QUERY)
    with closing(FaissMemoryBackend(tmp_path / "m", HashingEmbedder())) as second:
        second.store(entries(4))  # the snapshot has three rows
        status = second.status()
        assert (status["index"]["rows"], status["windows"], status["index"]["in_memory"]) == (7, 7, False)


def test_status_describes_the_index(backend: FaissMemoryBackend, tmp_path: Path) -> None:
    assert backend.status()["index"] == {"in_memory": False}
    backend.store(entries(3))
    backend.search(QUERY)
    exact = backend.status()["index"]
    assert (exact["stage"], exact["rows"], exact["recall"], exact["in_memory"]) == ("exact", 3, None, True)
    backend.store(entries(300))
    backend.search(QUERY)
    trained = settle(backend)
    assert (trained["stage"], trained["rows"], trained["dead"], trained["problem"]) == ("inverted", 303, 0, None)
    assert (
        trained["recall"] == 1.0 and trained["probes"] == trained["lists"] > 1 and trained["memory_bytes"] > 303 * 256
    )
    backend.close()
    again = FaissMemoryBackend(tmp_path, HashingEmbedder())
    told = again.status()["index"]
    again.close()
    assert told["stage"] == "inverted" and not told["in_memory"] and told["trained_at"] == trained["trained_at"]


@contextmanager
def always_found(backend: FaissMemoryBackend, threads: int) -> Iterator[MemoryEntry]:
    """An entry that threads search for all the time, and that each search must find first."""
    anchor = backend.store([make_entry("the zirconium ledger of Quetzalcoatl")])[0]
    ended, wrong = threading.Event(), list[str]()

    def ask() -> None:
        while not ended.is_set():
            hits = backend.search(Query("zirconium ledger of Quetzalcoatl", limit=5, mode="dense"))
            if not hits or hits[0].entry.id != anchor.id:
                wrong.append(f"{[hit.entry.content for hit in hits]}")

    asking = [threading.Thread(target=ask) for _ in range(threads)]
    for thread in asking:
        thread.start()
    try:
        yield anchor
    finally:
        ended.set()
        for thread in asking:
            thread.join(TIMEOUT)
    assert not wrong


@pytest.mark.slow
def test_searches_and_changes_go_on_during_the_switch(tmp_path: Path) -> None:
    backend = FaissMemoryBackend(
        tmp_path,
        HashingEmbedder(),
        FaissOptions(index=IndexOptions(train_at=60, exact_rows=2, target_recall=1.0, train_after=0)),
    )
    kept = backend.store(entries(50))
    stages = set()
    with always_found(backend, threads=2) as anchor:
        for n in range(6):
            fresh = backend.store(entries(20, first=50 + 20 * n))
            mine = make_entry(f"a pangolin named Cassiopeia {n}")
            backend.store([mine])
            found = backend.search(Query(mine.content, limit=1, mode="dense"))
            assert found[0].entry.id == mine.id  # at once
            kept += backend.get([mine.id])
            assert backend.remove([fresh[0].id]) == 1
            kept += fresh[1:]
            gone = backend.search(Query(fresh[0].content, limit=400, mode="dense"))
            assert fresh[0].id not in [hit.entry.id for hit in gone]
            stages.add(backend.status()["index"]["stage"])
    settle(backend)
    stages.add(backend.status()["index"]["stage"])
    assert stages == {"exact", "inverted"}
    reference = Reference([*kept, anchor])
    reference.check_dense(QUERY, backend.search(QUERY))
    backend.close()


def test_a_failed_training_leaves_exact_search_and_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr("agentformer.index.vectors.index.train_ivf", fail)
    monkeypatch.setattr(training, "_FAILED_SECONDS", 0.0)
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))
    reference = Reference(backend.store(entries(30)))
    with caplog.at_level(logging.WARNING, "agentformer"):
        for _ in range(3):
            reference.check_dense(QUERY, backend.search(QUERY))
            told = settle(backend)
    assert (told["stage"], told["problem"]) == ("exact", "std::bad_alloc")
    assert caplog.text.count("Training the vector index failed") == 1
    backend.close()


def test_a_full_disk_leaves_the_trained_index_without_its_snapshot(
    backend: FaissMemoryBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    reference = Reference(backend.store(entries(30)))
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "agentformer"):
        patch.setattr("os.fsync", fail)
        backend.search(QUERY)
        assert settle(backend)["stage"] == "inverted"
    assert "No space left" in caplog.text
    reference.check_dense(QUERY, backend.search(QUERY))


def test_while_another_process_trains_searches_stay_exact(tmp_path: Path, backend: FaissMemoryBackend) -> None:
    reference = Reference(backend.store(entries(30)))
    with FileLock(tmp_path / training.LOCK_FILE):
        reference.check_dense(QUERY, backend.search(QUERY))
        assert settle(backend)["stage"] == "exact"
        assert not (tmp_path / snapshots.INDEX_FILE).exists()


def test_the_next_start_finds_the_trained_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))
    reference = Reference(one.store(entries(30)))
    one.search(QUERY)
    trained = settle(one)["trained_at"]
    other = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))  # the first one is still open
    monkeypatch.setattr(follower.VectorIndex, "train", None)
    reference.check_dense(QUERY, other.search(QUERY))
    assert other.status()["index"]["trained_at"] == trained
    one.close()
    other.close()


def test_an_entry_removed_during_a_training_is_in_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))
    backend.store(entries(30))
    backend.store([make_entry("hers", user_id="x")])
    written: list[bool] = []
    save = snapshots.save

    def slow(folder: Path, *rest: Any, **more: Any) -> None:
        save(folder, *rest, **more)
        backend.remove(Scope(user_id="x"))  # in the moment after the file was written
        save(folder, *rest, **more)
        written.append(True)

    monkeypatch.setattr(snapshots, "save", slow)
    backend.search(QUERY)
    settle(backend)
    assert written and not (tmp_path / snapshots.INDEX_FILE).exists()
    monkeypatch.undo()
    backend.close()


def test_an_entry_stored_between_reading_the_rows_and_training_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    build = follower.VectorIndex.train

    def late(*rest: Any) -> None:
        begun.set()
        assert go_on.wait(TIMEOUT)
        build(*rest)

    monkeypatch.setattr(follower.VectorIndex, "train", late)
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))
    kept = backend.store(entries(30))
    backend.search(QUERY)
    assert begun.wait(TIMEOUT)
    kept += backend.store([make_entry("the zirconium ledger of Quetzalcoatl")])
    question = Query(kept[-1].content, limit=40, mode="dense")
    reference = Reference(kept)
    reference.check_dense(question, backend.search(question))
    go_on.set()
    assert settle(backend)["stage"] == "inverted"
    reference.check_dense(question, backend.search(question))
    backend.close()
    again = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))
    reference.check_dense(question, again.search(question))
    again.close()


def test_a_single_search_starts_no_training_and_reindexing_runs_one(tmp_path: Path) -> None:
    backend = FaissMemoryBackend(
        tmp_path,
        HashingEmbedder(),
        FaissOptions(index=IndexOptions(train_at=4, exact_rows=2, train_after=3600)),
    )
    reference = Reference(backend.store(entries(30)))
    reference.check_dense(QUERY, backend.search(QUERY))
    told = backend.status()["index"]
    assert (told["stage"], told["training"]) == ("exact", False)
    backend.embed_pending(refused=False)  # what goes on in the background
    assert backend.status()["index"]["stage"] == "exact"
    backend.embed_pending()
    assert backend.status()["index"]["stage"] == "inverted"
    backend.close()


def test_closing_stops_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def slow(*rest: Any) -> None:
        begun.set()
        stopped = rest[-1]
        while not stopped():
            time.sleep(0.005)
        raise Interrupted

    monkeypatch.setattr("agentformer.index.vectors.index.train_ivf", slow)
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))
    reference = Reference(backend.store(entries(30)))
    backend.search(QUERY)
    assert begun.wait(TIMEOUT)
    backend.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "agentformer-index"]
    again = FaissMemoryBackend(tmp_path, HashingEmbedder())
    reference.check_dense(QUERY, again.search(QUERY))
    again.close()


IMPORTS = (
    "agentformer.index.vectors.follower",
    "agentformer.index.words.index",
    "agentformer.search.pipeline",
    "faiss",
    "tantivy",
)
CHILD = """
import os, signal, sys, time
from pathlib import Path
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.vectors import IndexOptions
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, FaissOptions
from agentformer.types import Query

options = FaissOptions(index=IndexOptions(4, 2, 1.0, 0.0))
backend = FaissMemoryBackend(Path(folder), HashingEmbedder(), options)
def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if moment == "train":
    import agentformer.index.vectors.training as training
    gather, left = training._add_to_lists, iter(range(3))
    training._add_to_lists = lambda *rest: gather(*rest) if next(left, None) is not None else kill()
elif moment == "index":
    import agentformer.index.vectors.snapshot as snapshots
    write = snapshots._HashingWriter.write
    snapshots._HashingWriter.write = lambda self, data: kill() if self.size else write(self, data)
elif moment == "description":
    import agentformer.index.vectors.snapshot as snapshots
    snapshots.write_atomically = kill
elif moment == "switch":
    from agentformer.index.vectors.index import VectorIndex
    VectorIndex._catch_up = kill
backend.search(Query("numbat", limit=3, mode="dense"))
if moment == "exit":
    sys.exit(0)  # without closing, in the middle of a training
time.sleep(60)
"""


@pytest.mark.process
@pytest.mark.fault
@pytest.mark.parametrize("moment", ["index", "exit", *(["train", "description", "switch"] if LONG else [])])
def test_a_store_killed_during_a_training_answers_exactly(tmp_path: Path, moment: str) -> None:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))
    reference = Reference(backend.store(entries(400)))
    backend.close()
    assert (tmp_path / snapshots.INDEX_FILE).exists()  # of the exact stage
    code = f"folder, moment = {str(tmp_path)!r}, {moment!r}{CHILD}"
    child = start(code, IMPORTS, cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE)
    assert child.communicate(timeout=TIMEOUT) == ("", "")
    assert child.returncode == (0 if moment == "exit" else -signal.SIGKILL)
    again = Settled(tmp_path, HashingEmbedder(), FaissOptions(index=PLAN))
    reference.check_dense(QUERY, again.search(QUERY))
    assert settle(again)["stage"] == "inverted"
    again.close()
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".rag")]
    assert not left
