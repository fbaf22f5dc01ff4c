"""Readers of files that are forks of a process which has imported the parsers already.

A reader imports for a third of a second of processor time, and the tests start hundreds of them. After the fork, it
does what a new process does: it gives up its rights and reads. If a test changes the program or the module path of
readers, each is a new process. All readers of servers and commands are new processes too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentformer.readers.code.symbols import _WORKER
from agentformer.readers.formats import ADAPTERS
from agentformer.readers.sandbox import process

ROOT = Path(__file__).resolve().parents[1]
_NEW = subprocess.Popen
_BOOTS = (process._BOOT, process._BOOT.replace("sandbox.worker", _WORKER))
_SET_CHILD_SUBREAPER = 36
_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def forked_readers() -> Iterator[None]:
    """Let this process fork its readers. Where a fork does not keep what was imported, each is a new process."""
    if sys.platform != "linux":
        yield
        return
    owner, path, usual = os.getpid(), process._module_path(), process.subprocess

    def popen(args: list[str], **options: Any) -> subprocess.Popen[bytes]:
        boot, given = args[-2:]
        forked = boot in _BOOTS and json.loads(given)[0] == path and os.getpid() == owner
        return (_Forked if forked else _NEW)(args, **options)

    process.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": popen})  # type: ignore[assignment]
    try:
        yield
    finally:
        process.subprocess = usual


class _Forked(_NEW[bytes]):
    """A child of this process, which another process has forked: the system gives it to this one as its next ancestor
    that takes orphans."""

    def _execute_child(self, args: list[str], *how: Any) -> None:
        executable, _, _, _, cwd, env, _, _, _, *pipes = how[:15]
        sys.audit("subprocess.Popen", executable, args, cwd, env)
        order = {"boot": args[-2], "argument": args[-1], "cwd": cwd, "env": env}
        read_end, write_end = pipes[0], pipes[3]
        with _one_at_a_time:
            forker = _forker(os.getpid())[0]
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(forker, [json.dumps(order).encode()], [read_end, write_end])
                self.pid = int(forker.recv(20))
            finally:
                ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self._child_created = True
        self._close_pipe_fds(*pipes)


@cache
def _forker(owner: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process that forks, and the connection to it. It ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = process._BOOT.rpartition("from ")[0]  # the bare namespace of the package, as a reader has it
    program = f"{path}from tests import forked_readers\nexec(forked_readers.next_boot({its.fileno()}))"
    given = json.dumps([[str(ROOT), *process._module_path()], str(process._PACKAGE)])
    forker = subprocess.Popen(
        [sys.executable, "-I", "-c", program, given],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=process._environment(""),
        pass_fds=[its.fileno()],
    )
    its.close()
    return ours, forker


def next_boot(orders: int) -> str:
    """Fork for each order that comes. Return in the new process only, with the program that it shall run."""
    control = socket.socket(fileno=orders)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the tests
    for module in (*ADAPTERS.values(), "agentformer.readers.sandbox.worker", f"agentformer.readers.{_WORKER}"):
        with contextlib.suppress(ImportError):  # the reader reports it
            importlib.import_module(module)
    gc.freeze()
    while True:
        order, standard, _, _ = socket.recv_fds(control, 1 << 20, 2)
        if not order:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()  # ends at once, so that the reader is an orphan
        if not between:
            os.close(told)
            parent = os.getpid()
            if pid := os.fork():
                os.write(tell, str(pid).encode())
                os._exit(0)
            while os.getppid() == parent:  # a reader asks to end with its parent, which must not be this one
                time.sleep(0.0005)
            os.close(tell)
            control.close()
            return _prepared(json.loads(order), standard)
        os.waitpid(between, 0)
        control.send(os.read(told, 20))
        for number in (told, tell, *standard):
            os.close(number)


def _prepared(order: dict[str, Any], standard: list[int]) -> str:
    """Make this process what a new one would be."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place, number in enumerate(standard):
        os.dup2(number, place)
        os.close(number)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    os.chdir(order["cwd"] or ".")
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["-c", order["argument"]]
    return str(order["boot"])
