"""A server that is told of new settings, restarted under a socket that systemd keeps, or left by its terminal."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
import pty

from tests.edges.running import BOUND, Running, Serve, wait_until

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="the server of Linux")]

# A process of its own session has no terminal, as one that systemd starts.
DETACHED = "import os\nif os.getpid() != os.getsid(0): os.setsid()\nos.environ.pop('LISTEN_PID', None)"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    running: list[Running] = []

    def start(*options: str, before: str = DETACHED, **more: str) -> Running:
        running.append(Running(tmp_path, *options, before=before, **more))
        return running[-1]

    yield start
    for each in running:
        each.close()


def test_new_settings_take_over_without_a_refused_request(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text("AGENTFORMER_MAX_QUESTION_CHARS=100\n")
    running = serve(AGENTFORMER_ENV_FILE=str(file))
    assert running.upload("a.txt", "The caretaker keeps the keys.")[0] == 201
    question = "Who keeps the keys? " + "x" * 150
    former = running.workers()
    assert running.post("/api/rag/query", question=question)[0] == 413
    stopped, failed = threading.Event(), []

    def ask() -> None:
        while not stopped.is_set():
            try:
                assert running.ask("GET", "/healthz")[0] == 200
            except (OSError, http.client.HTTPException, AssertionError) as error:
                failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    file.write_text("AGENTFORMER_MAX_QUESTION_CHARS=1000\nAGENTFORMER_PORT=1\n")
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "new workers take over" in running.told())
    wait_until(lambda: not set(former) & set(running.workers()))
    assert running.post("/api/rag/query", question=question)[0] == 200
    for setting in ("TRUSTED_PROXIES=nonsense", "ALLOWED_HOSTS=a/b", "CORS_ORIGINS=x"):
        file.write_text(f"AGENTFORMER_{setting}\n")
        running.process.send_signal(signal.SIGHUP)
        name = setting.partition("=")[0].lower()
        wait_until(lambda name=name: f"the settings are not read again: {name}" in running.told())  # type: ignore[misc]
    file.write_text("AGENTFORMER_MAX_QUESTION_CHARS=none\n")
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "the settings are not read again: max_question_chars" in running.told())
    assert running.post("/api/rag/query", question=question)[0] == 200, "the former settings hold"
    stopped.set()
    asking.join(BOUND)
    assert not failed
    assert running.end() == 0


def test_a_server_ends_with_its_terminal(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.argv = ['agentformer', 'serve', '--port', '0', '--embedder', 'hashing', '--index-dir', "
        f"'{tmp_path}/i', '--upload-dir', '{tmp_path}/u']; from agentformer.cli import main; main()"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", script])
    said = b""
    while b"serving on" not in said:
        said += os.read(terminal, 1_000)
    os.kill(process, signal.SIGHUP)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)


def test_a_restart_under_the_socket_of_systemd_refuses_no_connection(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    code = (
        "import os, sys\nos.dup2(int(sys.argv[1]), 3, inheritable=True)\n"
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n"
        "from agentformer.cli import main\n"
        f"main(['serve', '--embedder', 'hashing', '--index-dir', '{tmp_path}/i', '--upload-dir', '{tmp_path}/u'])"
    )

    def start() -> subprocess.Popen[str]:
        number = listener.fileno()
        command = [sys.executable, "-c", code, str(number)]
        return subprocess.Popen(
            command, pass_fds=[number], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def health() -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)) as connection:
            connection.request("GET", "/healthz")
            return connection.getresponse().status

    with listener:
        for _ in range(2):
            process = start()
            try:
                assert health() == 200, "connections wait in the socket while nobody serves"
                assert process.stdout is not None and f"serving on http://127.0.0.1:{port}" in process.stdout.readline()
            finally:
                process.terminate()
                assert process.wait(BOUND) == 0
