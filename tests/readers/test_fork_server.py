"""The process that forks the readers of files, on Linux."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentformer.errors import DocumentError
from agentformer.readers import ReadLimits, read
from agentformer.readers.sandbox import process as sandbox
from tests.edges.running import BOUND, wait_until

from .takeover import LINUX, PDF, taken_over, told

pytestmark = [pytest.mark.process, LINUX]
PARENT = "yield attempt(os.getppid)"
TEXT = "A page of text about ships."


def _children(pid: int) -> list[int]:
    return [int(n) for task in Path(f"/proc/{pid}/task").iterdir() for n in (task / "children").read_text().split()]


def _servers() -> list[int]:
    return [pid for pid in _children(os.getpid()) if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture(autouse=True)
def _own_server() -> Iterator[None]:
    """Let no server of another test be used, and end that of this test."""
    sandbox._server.forget()
    yield
    sandbox._server.forget()


def _wait_until_gone(pid: int) -> None:
    """Wait until nothing is left of a process, not even a zombie."""
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def _wait_until_ended(pid: int) -> None:
    """Wait until a process has ended that is nobody's child here: who inherits it may leave it a zombie."""

    def ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(ended)


def test_one_server_forks_the_readers_of_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_over(monkeypatch, PARENT)
    server = int(told())
    assert server in _children(os.getpid())
    assert [told() for _ in range(3)] == [str(server)] * 3
    wait_until(lambda: not _children(server))  # none stays as a zombie


def test_a_fork_has_no_file_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file 3 is the copy of the output that a worker makes."""
    taken_over(monkeypatch, "yield attempt(lambda: [n for n in range(64) if os.path.exists(n)])")
    assert told() == "[0, 1, 2, 3]"


def test_a_fork_has_its_own_group_and_keeps_no_handler_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "import signal\nyield attempt(lambda: os.getpgid(0) == os.getpid(), lambda: signal.getsignal(signal.SIGCHLD))"
    )
    taken_over(monkeypatch, body)
    assert told() == f"True {signal.SIG_DFL!s}"


def test_a_fork_has_no_variable_and_no_folder_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # without tesseract
    monkeypatch.setenv("SECRET", "1")
    taken_over(monkeypatch, "yield attempt(lambda: {'TMPDIR', 'HOME', 'SECRET'} & {*os.environ}, os.getcwd)")
    assert told() == "set() /"


def test_after_the_server_was_killed_another_one_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_over(monkeypatch, PARENT)
    server = int(told())
    os.kill(server, signal.SIGKILL)
    _wait_until_gone(server)
    assert int(told()) != server


def test_a_file_whose_server_is_killed_is_read_by_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no fault of the file, which would else be called too large for the memory."""
    body = "'agentformer.readers.sandbox.fork_server' in sys.modules and time.sleep(600)\nyield attempt(os.getppid)"
    taken_over(monkeypatch, body)
    started: list[object] = []
    has_started = sandbox._Fork.has_started
    monkeypatch.setattr(sandbox._Fork, "has_started", lambda fork: has_started(fork) and not started.append(fork))
    with ThreadPoolExecutor(3) as pool:
        files = [pool.submit(told) for _ in range(3)]
        wait_until(lambda: len(started) == 3)  # a file without this answer would be given to another server
        (server,) = _servers()
        os.kill(server, signal.SIGKILL)
        assert {int(file.result()) for file in files} == {os.getpid()}


def test_an_idle_server_ends_and_the_next_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_over(
        monkeypatch, PARENT, "from agentformer.readers.sandbox import fork_server\nfork_server._IDLE_SECONDS = 0.05"
    )
    server = int(told())
    _wait_until_gone(server)
    assert int(told()) != server


def test_a_file_is_read_where_no_server_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = sandbox._BOOT.replace("main()\n", "'fork_server' in main.__module__ and sys.exit(1)\nmain()\n")
    monkeypatch.setattr(sandbox, "_BOOT", boot)
    assert read(PDF, "a.pdf").pages[0].text == TEXT


def test_where_no_process_can_be_forked_a_new_one_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    full = "def full():\n    raise BlockingIOError\nimport os\nos.fork = full\n"
    monkeypatch.setattr(sandbox, "_BOOT", sandbox._BOOT.replace("main()\n", f"{full}main()\n"))
    assert read(PDF, "a.pdf").pages[0].text == TEXT


def test_a_fork_of_the_asking_process_has_a_server_of_its_own() -> None:
    """The server ends with the process that asked, although the fork lives on."""
    script = f"""
import os, time
from agentformer.errors import DocumentError
from agentformer.readers import ReadLimits, read
read({PDF!r}, "a.pdf")
if not os.fork():
    assert read({PDF!r}, "a.pdf").pages[0].text == {TEXT!r}
    print("read", flush=True)
    time.sleep(600)
time.sleep(600)
"""
    asking = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert asking.stdout
        assert asking.stdout.readline() == "read\n"
        children = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in _children(asking.pid)}
        (server,) = (pid for pid, command in children.items() if b"fork_server" in command)
        (fork,) = (pid for pid in children if pid != server)
        (its_server,) = _children(fork)
        asking.kill()
        asking.wait()
        _wait_until_ended(server)
        assert Path(f"/proc/{its_server}").exists()
        os.kill(fork, signal.SIGKILL)
        _wait_until_ended(its_server)
    finally:
        asking.kill()
        asking.stdout.close()  # type: ignore[union-attr]


def test_a_reader_for_whom_nobody_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_over(monkeypatch, "time.sleep(600)")
    stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, PDF, "a.pdf", limits=ReadLimits(wall_seconds=500.0), stopped=stopped.is_set)
        wait_until(lambda: [n for pid in _servers() for n in _children(pid)] != [])
        stopped.set()
        assert isinstance(reading.exception(BOUND), DocumentError)
    wait_until(lambda: [n for pid in _servers() for n in _children(pid)] == [])
