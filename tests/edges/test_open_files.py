"""A server without free file descriptors accepts no connection for a while, and goes on."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
from tests.edges.running import Running, wait_until

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of open files")]

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90))"


@pytest.mark.parametrize("server", ["gunicorn", "waitress"])
def test_a_worker_outlives_too_many_connections(tmp_path: Path, server: str) -> None:
    running = Running(tmp_path, "--server", server, before=LIMITED)
    try:
        before = running.workers()
        connections: list[socket.socket] = [running.connect() for _ in range(150)]
        wait_until(lambda: "Too many open files" in running.told())  # of an attempt to accept one of the last
        for connection in connections:
            connection.close()
        assert running.ask("GET", "/healthz")[0] == 200
        assert running.workers() == before
        assert running.told().count("cannot be accepted now") == 1 and "accept() threw" not in running.told()
    finally:
        running.close()
