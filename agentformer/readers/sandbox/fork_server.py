"""A process that has imported the parsers, and forks a reader for each file (on Linux).

A new process imports for a quarter of a second, which takes longer than reading a usual file. A fork takes a hundredth
of that. The server reads no file. A reader gives up its rights after the fork, before it reads its file, as a new
process does (`worker.restrict`).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from agentformer.errors import DocumentError
from agentformer.readers.formats import PDF, ReadOptions
from agentformer.readers.sandbox import worker
from agentformer.readers.sandbox.protocol import FORKED, ORDER_BYTES, STATUS

_IDLE_SECONDS = 60.0  # the server ends after so many seconds without a reader


@dataclass
class _Reader:
    """A forked reader. `connection` leads to the caller, who ends the reader by closing it."""

    connection: socket.socket
    pid: int
    reported: bool = False
    ending: bool = False


class _Server:
    """Forks readers, ends them, and reports how they ended. `orders` is the connection to the parent process. A reader
    that has ended stays a zombie until its caller ends it, so that no other process gets the id of its group."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._readers: list[_Reader] = []
        self._woken, wake = os.pipe()
        for pipe in (self._woken, wake):
            os.set_blocking(pipe, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only a handled signal writes to the pipe
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake)
        self._selector.register(orders, selectors.EVENT_READ, self._accept)
        self._accepting = True

    def serve(self) -> None:
        """Serve until there is no reader and the parent process has closed the connection, or is idle."""
        while self._accepting or self._readers:
            events = self._selector.select(None if self._readers else _IDLE_SECONDS)
            if not events:
                return
            for key, _ in events:
                act: Callable[[], None] = key.data
                act()

    def _accept(self) -> None:
        """Fork a reader. An order has the pipes and the connection of the reader, and what it needs before its file."""
        order, files, _, _ = socket.recv_fds(self._orders, ORDER_BYTES, 3)
        if not order:
            self._selector.unregister(self._orders)
            self._accepting = False
            return
        asked = json.loads(order)
        with suppress(DocumentError):  # the reader reports it
            worker.parser_of(
                ReadOptions("", asked["media_type"], page=asked["page"], attached=tuple(asked["attached"]))
            )
        gc.freeze()
        given, output, connection = files[0], files[1], socket.socket(fileno=files[2])
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # the caller starts a process of its own
            connection.close()
        else:
            if not pid:
                _read(server, asked, given, output)
            reader = _Reader(connection, pid)
            self._readers.append(reader)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._end(reader))
            with suppress(OSError):
                connection.send(FORKED)
        os.close(given)
        os.close(output)
        if asked["media_type"] == PDF:  # for the next file with a doubtful page, while this one is read
            with suppress(ImportError):
                importlib.import_module("pypdf")

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, 1 << 10)
        for reader in [*self._readers]:
            self._report(reader)

    def _end(self, reader: _Reader) -> None:
        """Kill a reader with its process group. The connection is readable when the caller has closed it."""
        self._selector.unregister(reader.connection)
        reader.ending = True
        for kill in (os.killpg, os.kill):  # a new fork has no group yet
            with suppress(ProcessLookupError, PermissionError):
                kill(reader.pid, signal.SIGKILL)
        self._report(reader)

    def _report(self, reader: _Reader) -> None:
        """If a reader has ended, send its exit code to its caller, once. Remove it if its caller has ended it, too."""
        ended = os.waitid(os.P_PID, reader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if not ended:
            return
        if not reader.reported:
            reader.reported = True
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            with suppress(OSError):
                reader.connection.send(STATUS.pack(code))
        if reader.ending:
            os.waitpid(reader.pid, 0)
            reader.connection.close()
            self._readers.remove(reader)


def _read(server: int, asked: dict[str, Any], given: int, output: int) -> NoReturn:
    """Be the reader: keep only the pipes, and run the worker. This is the new process, which ends with its server."""
    status = 1
    try:
        worker.end_with_parent()
        if os.getppid() != server:  # killed before the call
            os._exit(status)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(given, 0)
        os.dup2(output, 1)
        for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 (numbers, not paths)
            if int(number) > 2:
                with suppress(OSError):
                    os.close(int(number))
        os.environ.update(asked["environment"])
        if asked["folder"]:
            os.chdir(asked["folder"])
        worker.main()
        status = 0
    finally:
        os._exit(status)


def main() -> None:
    """Run the server. The program's second argument is the number of the file of the connection."""
    os.chdir("/")  # so that the working folder of the parent process can be removed
    worker.programs()  # cached for all readers
    _Server(socket.socket(fileno=int(sys.argv[2]))).serve()
