"""Calls that wait at the same moment become one call, and no call is lost."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from agentformer.embedders.batching import Batcher
from agentformer.embedders.guarded import GuardedEmbedder
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable
from agentformer.types import Matrix

SECONDS = 30.0


class Model:
    """Doubles numbers. The first batch waits until `go` is set. `batches` are the items of each batch."""

    def __init__(self) -> None:
        self.go, self.running = threading.Event(), threading.Event()
        self.batches: list[list[int]] = []
        self.error: Exception | None = None

    def run(self, items: Sequence[int]) -> list[int]:
        self.batches.append([*items])
        self.running.set()
        assert self.go.wait(SECONDS)
        if self.error is not None and len(items) > 1:
            raise self.error
        return [2 * item for item in items]


class Crowd:
    """Calls in threads, with their results or errors by item."""

    def __init__(self, call: Callable[[int], int]) -> None:
        self._call = call
        self.told: dict[int, object] = {}
        self.threads: dict[int, threading.Thread] = {}

    def ask(self, number: int, item: int) -> None:
        def work() -> None:
            try:
                self.told[number] = self._call(item)
            except BaseException as error:
                self.told[number] = error

        self.threads[number] = threading.Thread(target=work, daemon=True)
        self.threads[number].start()

    def join(self) -> dict[int, object]:
        for thread in self.threads.values():
            thread.join(SECONDS)
            assert not thread.is_alive()
        return self.told


def wait_for(count: int, batcher: Batcher[int, int]) -> None:
    """Wait until this number of calls are in the queue."""
    for _ in range(3_000):
        if len(batcher._waiting) == count:
            return
        threading.Event().wait(0.01)
    pytest.fail(f"{len(batcher._waiting)} calls wait, not {count}")


@pytest.fixture
def model() -> Model:
    return Model()


def crowded(model: Model, items: Sequence[int], most: int = 16) -> tuple[Batcher[int, int], Crowd]:
    """Start a call whose batch waits, and one call for each item, which wait behind it."""
    batcher = Batcher[int, int](model.run, most=most)
    crowd = Crowd(batcher)
    crowd.ask(-1, 0)
    assert model.running.wait(SECONDS)
    for number, item in enumerate(items):
        crowd.ask(number, item)
        wait_for(number + 1, batcher)
    return batcher, crowd


def test_a_single_call_runs_alone_and_in_its_own_thread(model: Model) -> None:
    model.go.set()
    batcher = Batcher[int, int](model.run, most=16)
    assert [batcher(item) for item in (1, 2)] == [2, 4] and model.batches == [[1], [2]]
    assert threading.active_count() == len(threading.enumerate())


def test_calls_that_wait_become_one_batch_with_equal_items_once(model: Model) -> None:
    batcher, crowd = crowded(model, [5, 6, 5, 7])
    model.go.set()
    assert crowd.join() == {-1: 0, 0: 10, 1: 12, 2: 10, 3: 14}
    assert model.batches == [[0], [5, 6, 7]] and not batcher._running


def test_a_batch_is_bounded(model: Model) -> None:
    _, crowd = crowded(model, range(1, 8), most=3)
    model.go.set()
    assert crowd.join() == {-1: 0, **{n: 2 * (n + 1) for n in range(7)}}
    assert model.batches == [[0], [1, 2, 3], [4, 5, 6], [7]]


def test_the_error_of_a_batch_reaches_each_of_its_calls_and_no_other(model: Model) -> None:
    batcher, crowd = crowded(model, [5, 6])
    model.error = EmbedderUnavailable("the model is gone")
    model.go.set()
    assert crowd.join() == {-1: 0, 0: model.error, 1: model.error}
    assert batcher(9) == 18


@pytest.mark.parametrize("interrupted", [-1, 0, 1])
def test_the_others_go_on_when_a_call_is_interrupted(model: Model, interrupted: int) -> None:
    batcher, crowd = crowded(model, [5, 6, 7])
    thread = crowd.threads[interrupted].ident
    assert thread is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))
    model.go.set()
    told = crowd.join()
    assert isinstance(told.pop(interrupted), KeyboardInterrupt)
    assert told == {n: 2 * item for n, item in {-1: 0, 0: 5, 1: 6, 2: 7}.items() if n != interrupted}
    assert batcher(9) == 18 and not batcher._waiting


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.process
def test_a_forked_process_does_not_wait_for_a_batch_of_its_parent(model: Model) -> None:
    batcher, crowd = crowded(model, [5])
    child = os.fork()
    if not child:
        model.go.set()
        os._exit(batcher(9))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 18
    model.go.set()
    assert crowd.join() == {-1: 0, 0: 10}


class Batched(HashingEmbedder):
    """Counts the queries of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.running = threading.Event(), threading.Event()
        self.calls: list[int] = []

    def embed_query(self, text: str) -> np.ndarray:
        self.calls.append(1)
        self.running.set()
        assert self.go.wait(SECONDS)
        return super().embed_query(text)

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        self.calls.append(len(texts))
        return np.stack([super(Batched, self).embed_query(text) for text in texts])


def test_the_guard_embeds_waiting_queries_in_one_call() -> None:
    model = Batched()
    guarded = GuardedEmbedder(lambda: model)
    rows: dict[str, np.ndarray] = {}

    def ask(text: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: rows.update({text: guarded.embed_query(text)}), daemon=True)
        thread.start()
        return thread

    threads = [ask("first")]
    assert model.running.wait(SECONDS)
    for number, text in enumerate(("second", "third"), 1):
        threads.append(ask(text))
        wait_for(number, guarded._queries)  # type: ignore[arg-type]
    model.go.set()
    for thread in threads:
        thread.join(SECONDS)
    assert model.calls == [1, 2]
    for text, row in rows.items():
        assert np.array_equal(row, HashingEmbedder().embed_query(text))
    assert len(rows) == 3 and guarded.usage.snapshot()["calls"] == 2
