"""Workers of one server share the processors and the connections."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
from gunicorn.config import Config
from gunicorn.http.parser import RequestParser

from agentformer.api import concurrency
from agentformer.api.concurrency import ConnectionCounts
from agentformer.api.serving import Settling
from agentformer.api.serving.gunicorn import _Worker, share_processors


@pytest.mark.skipif(sys.platform != "linux", reason="counts the processors that Linux allows")
@pytest.mark.parametrize(
    ("workers", "given", "expected"), [(1, None, None), (2, None, "4"), (3, None, "2"), (20, None, "1"), (2, "7", "7")]
)
def test_each_worker_gets_its_share_unless_the_user_has_set_one(
    monkeypatch: pytest.MonkeyPatch, workers: int, given: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    share_processors(workers)
    assert os.environ.get("OMP_NUM_THREADS") == expected


def test_a_worker_leaves_a_connection_to_a_worker_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, now = ConnectionCounts(), 100.0
    monkeypatch.setattr(concurrency.time, "monotonic", lambda: now)
    assert counts.free_slot(()) == 0
    assert counts.free_slot({0, 2}) == 1
    counts.set(0, 3)
    assert not counts.should_defer(0)  # there is no other worker
    counts.set(1, 3)
    assert not counts.should_defer(0)
    counts.set(1, 2)
    assert counts.should_defer(0)
    assert not counts.should_defer(1)
    now = 100.04
    assert counts.should_defer(0)
    now = 100.06
    assert not counts.should_defer(0)  # the other worker is blocked
    now = 101.0
    assert counts.should_defer(0)  # another connection
    counts.leave(1)
    assert not counts.should_defer(0)


@pytest.mark.process
def test_processes_share_the_counts_of_connections() -> None:
    counts = ConnectionCounts()
    counts.set(0, 5)
    if (child := os.fork()) == 0:
        counts.set(1, 2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert counts.should_defer(0)


@pytest.mark.process
def test_the_modules_of_a_model_are_loaded_before_the_fork_only_for_a_local_model() -> None:
    code = """
import sys
from agentformer.factory import load_shared_modules
from agentformer.settings import Settings
load_shared_modules(Settings(embedder="openai:text-embedding-3-small"))
assert "faiss" in sys.modules and "openvino" not in sys.modules and "tokenizers" not in sys.modules
load_shared_modules(Settings(embedder="minilm:int8"))
assert "torch" not in sys.modules
import threading
assert threading.active_count() == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("paused", "rest", "kept"), [(True, b"", True), (False, b"", True), (False, b"x", False)])
def test_a_connection_is_kept_after_a_whole_body_even_if_the_thread_was_paused(
    monkeypatch: pytest.MonkeyPatch, paused: bool, rest: bytes, kept: bool
) -> None:
    """Under load, the system can pause a thread between the calculation of a deadline and the first look at it. `rest`
    is a part of the body that the client does not send."""
    pauses = [1.0] if paused else []
    looked = SimpleNamespace(monotonic=lambda: time.monotonic() + (pauses.pop() if pauses else 0.0))
    server, client = socket.socketpair()
    with server, client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\nbody" % len(b"body" + rest))
        parser = RequestParser(Config(), server, ("127.0.0.1", 1))
        next(parser)
        monkeypatch.setattr("gunicorn.http.parser.time", looked)
        assert _Worker._keepalive_after(None, SimpleNamespace(parser=parser), True) is kept  # type: ignore[arg-type]


def test_a_server_freezes_what_is_loaded_after_its_first_requests_and_not_before() -> None:
    def is_visited(wanted: object) -> bool:
        return any(each is wanted for each in gc.get_objects())

    settling, loaded = Settling(), [object()]
    try:
        for _ in range(499):
            settling.count()
        assert is_visited(loaded)
        settling.count()
        assert not is_visited(loaded)
        later = [object()]
        settling.count()
        assert is_visited(later)
    finally:
        gc.unfreeze()
