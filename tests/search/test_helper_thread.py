"""The helper thread of a search: same results and errors, and no wait for a busy thread."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.search import pipeline as search_module
from agentformer.search.helper_thread import HelperThread
from agentformer.testing import make_entry
from agentformer.types import Query, Vector


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Iterator[HelperThread]:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    made = HelperThread()
    yield made
    made.close()


def test_the_result_comes_from_another_thread_and_so_does_an_error(helper: HelperThread) -> None:
    assert helper.start(threading.get_ident)() != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        helper.start(lambda: 1 / 0)()
    assert helper.start(lambda: 7)() == 7


def test_who_finds_the_helper_at_work_does_it_alone(helper: HelperThread) -> None:
    gate = threading.Event()
    first = helper.start(lambda: gate.wait(10))
    assert helper.start(threading.get_ident)() == threading.get_ident()
    gate.set()
    assert first() is True
    assert helper.start(threading.get_ident)() != threading.get_ident()


def test_with_one_cpu_or_after_closing_the_caller_runs_the_task(
    helper: HelperThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert helper.start(lambda: 1)() == 1
    helper.close()
    helper.close()
    assert helper.start(threading.get_ident)() == threading.get_ident()
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert HelperThread().start(threading.get_ident)() == threading.get_ident()


def test_a_thread_that_could_not_be_begun_costs_no_later_search(
    helper: HelperThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        helper.start(lambda: done.append(1))()
    for n in (2, 3):
        helper.start(lambda n=n: done.append(n))()
    assert done == [1, 2, 3]


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_a_helper_of_its_own() -> None:
    script = """
        import os, threading
        os.cpu_count = lambda: 2
        from agentformer.search.helper_thread import HelperThread
        helper = HelperThread()
        assert helper.start(lambda: 1)() == 1
        child = os.fork()
        if child == 0:
            os._exit(0 if helper.start(threading.get_ident)() != threading.get_ident() else 3)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("cores", [1, 2])
def test_words_count_though_their_index_is_discarded_while_the_question_is_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)

    class Embedder(HashingEmbedder):
        def embed_query(self, text: str) -> Vector:
            if "discard" in text:
                backend._delete_indexes()
            return super().embed_query(text)

    backend = FaissMemoryBackend(tmp_path, Embedder())
    backend.store([make_entry(f"numbat {n} under lantern") for n in range(20)])
    backend.search(Query("numbat"))
    for text in ("numbat 7", "discard the numbat 7"):
        assert all(hit.lexical_score for hit in backend.search(Query(text)))
    backend.close()


def test_a_search_finds_the_same_with_and_without_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "_THREAD_WINDOWS", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    asked: list[int] = []
    start = HelperThread.start
    monkeypatch.setattr(HelperThread, "start", lambda self, task: asked.append(1) or start(self, task))
    queries = [Query(f"numbat {n} under lantern {n + 2}", limit=8) for n in range(5)]
    with_help = FaissMemoryBackend(tmp_path, HashingEmbedder())
    with_help.store([make_entry(f"numbat {n % 7} under lantern {n % 11} in room {n}") for n in range(60)])
    with_help.search(queries[0])  # which brings the vectors into memory
    found = [with_help.search(query) for query in queries]
    assert len(asked) >= len(queries)
    with_help.close()
    monkeypatch.setattr(search_module, "_THREAD_WINDOWS", 1_000)
    alone = FaissMemoryBackend(tmp_path, HashingEmbedder())
    assert [list(alone.search(query)) for query in queries] == [list(hits) for hits in found]
    alone.close()
