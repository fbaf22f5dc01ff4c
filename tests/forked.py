"""Processes that are forks of one which has imported their modules already.

A server imports for more than a second of processor time, and the tests start over a hundred of them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

SERVE = (
    "agentformer.api.serving.gunicorn",
    "agentformer.api.serving.waitress",
    "agentformer.cli.commands.serve",
    "agentformer.embedders.hashing",
    "agentformer.embedders.late_interaction",
    "agentformer.embedders.recent",
    "agentformer.index.embedding.queue",
    "agentformer.index.vectors.follower",
    "agentformer.index.words.index",
    "agentformer.memory.backends.faiss.backend",
    "agentformer.memory.backends.faiss.verifier",
    "agentformer.memory.recall",
    "agentformer.rag.answer.answerer",
    "agentformer.readers.text_and_csv",
    "agentformer.rerankers.guarded",
    "agentformer.search.pipeline",
    "agentformer.search.newest_facts",
    "agentformer.search.relevance",
    "agentformer.text.prompt_quoting",
    "agentformer.text.word_forms",
    "chardet",
    "faiss",
    "fasttext",
    "tantivy",
)
MCP = ("agentformer.mcp_server.http", "agentformer.mcp_server.stdio", *SERVE[2:])
STORE = ("agentformer.factory", "agentformer.testing", "agentformer.cli", *SERVE[3:])


def start(code: str, imports: tuple[str, ...], **options: Any) -> subprocess.Popen[str] | Forked:
    """Start a process that runs `code`, like `python -c`; its standard output is a pipe. Where a fork does not
    keep all that was imported, it is a new process. The options are those of `Forked`."""
    if sys.platform == "linux":
        return Forked(code, imports, **options)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, **{"text": True, **options})


def program(
    code: str,
    *arguments: object,
    imports: tuple[str, ...] = STORE,
    cwd: Path | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
    stderr: IO[str] | int = subprocess.PIPE,
    **options: Any,
) -> subprocess.Popen[str] | Forked:
    """Start a process that runs `code` with these arguments and with `env` added to the environment."""
    argv = ["agentformer", *map(str, arguments)]
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment = {**os.environ, **quiet, **env}
    code = f"import sys\nsys.argv = {argv!r}\n{code}"
    return start(code, imports, cwd=cwd or Path.cwd(), env=environment, stderr=stderr, **options)


def script(path: Path, *arguments: object, before: str = "", **options: Any) -> subprocess.Popen[str] | Forked:
    """Start a process that runs `before` and then a file of Python, as `program` does."""
    code = f"import runpy\nsys.path.insert(0, {str(path.parent)!r})\n{before}\n"
    return program(f"{code}runpy.run_path({str(path)!r}, run_name='__main__')", *arguments, **options)


def command(*arguments: object, before: str = "", **options: Any) -> subprocess.Popen[str] | Forked:
    """Start a process that runs `before` and then the command line `agentformer`, as `program` does."""
    return program(f"{before}\nfrom agentformer.cli import main\nmain()", *arguments, **options)


def ended(process: subprocess.Popen[str] | Forked, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a process, like `subprocess.run`."""
    out, errors = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess([], process.returncode or 0, out, errors)


def on_terminal(terminal: int) -> str:
    """Return code that makes this terminal the input and output of its process."""
    return (
        "import os, sys\n"
        "os.setsid()\n"
        f"terminal = os.open({os.ttyname(terminal)!r}, os.O_RDWR | os.O_NOCTTY)\n"
        "for number in range(3):\n"
        "    os.dup2(terminal, number)\n"
        "sys.stdin, sys.stdout, sys.stderr = (\n"
        "    open(number, mode, encoding='utf-8', closefd=False) for number, mode in enumerate('rww')\n"
        ")\n"
        "os.close(terminal)\n"
    )


class Forked:
    """A process that imports `imports` before it is forked and then runs `code`, with those methods of
    `subprocess.Popen` that tests use. `stdin` is empty or a pipe; `stderr` is a file or a pipe."""

    def __init__(
        self,
        code: str,
        imports: tuple[str, ...],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stderr: IO[str] | int,
        stdin: int = subprocess.DEVNULL,
        text: bool = True,
    ) -> None:
        self.returncode: int | None = None
        self._end, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        from_in, into_in = os.pipe()
        out, into_out = os.pipe()
        error, into_error = os.pipe() if stderr == subprocess.PIPE else (None, os.dup(_number(stderr)))
        read, write = ("r", "w") if text else ("rb", "wb")
        self.stdin = os.fdopen(into_in, write)
        self.stdout = os.fdopen(out, read)
        self.stderr = None if error is None else os.fdopen(error, read)
        if stdin == subprocess.DEVNULL:
            self.stdin.close()
        standard = [from_in, into_out, into_error]
        socket.send_fds(_forker()[0], [b"."], [end.fileno(), *standard])
        for number in standard:
            os.close(number)
        end.close()
        order = {"code": code, "imports": imports, "cwd": str(cwd), "env": dict(env)}
        self._end.sendall(json.dumps(order).encode())
        self.pid = int(self._end.recv(20))

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *error: object) -> None:
        self.communicate()

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
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write to its input and close it. Return the rest of its output and errors, once it has ended; nothing at a
        second call."""
        with contextlib.suppress(BrokenPipeError):
            if given:
                self.stdin.write(given)
            self.stdin.close()
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe and not pipe.closed]
        with ThreadPoolExecutor() as pool:
            reads = [pool.submit(pipe.read) for pipe in pipes]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        for pipe in pipes:
            pipe.close()
        out, errors, *_ = [*(read.result() for read in reads), None, None]
        return out, errors


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
        byte, numbers, _, _ = socket.recv_fds(control, 1, 4)
        if not byte:
            os._exit(0)
        end = socket.socket(fileno=numbers[0])
        order = json.loads(end.recv(1 << 20))
        for name in order["imports"]:
            with contextlib.suppress(ImportError):  # the new process reports it
                importlib.import_module(name)
        gc.freeze()  # else the end of each process looks for cycles in all that was imported
        if os.fork() == 0:
            control.close()
            code = _run(order, end, numbers[1:])
            if code is not None:
                return code
            os._exit(0)
        end.close()
        for number in numbers[1:]:
            os.close(number)


def _run(order: dict[str, Any], end: socket.socket, standard: list[int]) -> str | None:
    """Fork once more: return the code in the process that runs it, and None in its parent after its end, which the
    parent reports."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        for number in standard:
            os.close(number)
        end.sendall(f"{pid}\n".encode())
        end.sendall(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        return None
    end.close()
    if "multiprocessing.process" in sys.modules:  # a child of the server is none of this process, which would join it
        vars(sys.modules["multiprocessing.process"])["_children"].clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place, number in enumerate(standard):
        os.dup2(number, place)
        os.close(number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    return str(order["code"])
