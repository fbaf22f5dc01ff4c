"""Processes that are forks of one which has imported their modules already.

A server imports for more than a second of processor time, and the tests start over a hundred of them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

SERVE = (
    "agentformer.api.serving.gunicorn",
    "agentformer.api.serving.waitress",
    "agentformer.cli.commands.serve",
    "agentformer.memory.backends.faiss.indexes",
    "faiss",
    "tantivy",
)
MCP_HTTP = ("agentformer.mcp_server.http", *SERVE[2:])


def start(code: str, imports: tuple[str, ...], **options: Any) -> subprocess.Popen[str] | Forked:
    """Start a process that runs `code`, like `python -c`; its standard output is a pipe of text. Where a fork does not
    keep all that was imported, it is a new process. The options are those of `Forked`."""
    if sys.platform == "linux":
        return Forked(code, imports, **options)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)


class Forked:
    """A process that imports `imports` before it is forked and then runs `code`, with those methods of
    `subprocess.Popen` that tests use. `stderr` is a file or `subprocess.PIPE`."""

    def __init__(
        self, code: str, imports: tuple[str, ...], *, cwd: Path, env: Mapping[str, str], stderr: IO[str] | int
    ) -> None:
        self.returncode: int | None = None
        self._end, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, into_out = os.pipe()
        error, into_error = os.pipe() if stderr == subprocess.PIPE else (None, os.dup(_number(stderr)))
        self.stdout = os.fdopen(out)
        self.stderr = None if error is None else os.fdopen(error)
        socket.send_fds(_forker()[0], [b"."], [end.fileno(), into_out, into_error])
        for number in (into_out, into_error):
            os.close(number)
        end.close()
        order = {"code": code, "imports": imports, "cwd": str(cwd), "env": dict(env)}
        self._end.sendall(json.dumps(order).encode())
        self.pid = int(self._end.recv(20))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; minus the signal's number, if a signal ended it."""
        if self.returncode is None:
            self._end.settimeout(timeout)
            try:
                self.returncode = int(self._end.recv(20))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("a forked process", timeout or 0) from None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str | None]:
        """Return what is left of its output and errors, after its end; nothing at a second call."""
        self.wait(timeout)
        if self.stdout.closed:
            return "", None
        with self.stdout, self.stderr or contextlib.nullcontext() as errors, self._end:
            return self.stdout.read(), errors and errors.read()


def _number(stderr: IO[str] | int) -> int:
    return stderr if isinstance(stderr, int) else stderr.fileno()


@cache
def _forker() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process that forks, and the connection to it. It ends with this process."""
    ours, its = socket.socketpair()
    program = f"import tests.forked as forked\nexec(forked.next_code({its.fileno()}), {{'__name__': '__main__'}})"
    root = str(Path(__file__).resolve().parents[1])
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    forker = subprocess.Popen([sys.executable, "-c", program], pass_fds=[its.fileno()], cwd=root, **quiet)
    its.close()
    return ours, forker


def next_code(orders: int) -> str:
    """Fork for each order that comes. Return in the new process only, with the code that it shall run."""
    control = socket.socket(fileno=orders)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the processes of the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the system forgets ended children
    while True:
        byte, numbers, _, _ = socket.recv_fds(control, 1, 3)
        if not byte:
            os._exit(0)
        end = socket.socket(fileno=numbers[0])
        order = json.loads(end.recv(1 << 20))
        for name in order["imports"]:
            with contextlib.suppress(ImportError):  # the new process reports it
                importlib.import_module(name)
        if os.fork() == 0:
            control.close()
            code = _run(order, end, numbers[1:])
            if code is not None:
                return code
            os._exit(0)
        end.close()
        for number in numbers[1:]:
            os.close(number)


def _run(order: dict[str, Any], end: socket.socket, outputs: list[int]) -> str | None:
    """Fork once more: return the code in the process that runs it, and None in its parent after its end, which the
    parent reports."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        for number in outputs:
            os.close(number)
        end.sendall(f"{pid}\n".encode())
        end.sendall(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        return None
    end.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard, number in enumerate(outputs, 1):
        os.dup2(number, standard)
        os.close(number)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    return str(order["code"])
