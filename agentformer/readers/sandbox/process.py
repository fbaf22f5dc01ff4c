"""Read a file in a child process. If a parser crashes, hangs or uses too much memory, only the child process ends."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge
from agentformer.readers.formats import MIB, PDF, RECOGNISED, ReadLimits, ReadOptions
from agentformer.readers.sandbox import protocol
from agentformer.readers.sandbox.protocol import FORKED, ORDER_BYTES, STATUS
from agentformer.types import DocumentText, Stopped

_PIECE = 1 << 16
_POLL_SECONDS = 0.25  # seconds between checks whether the child has ended
_LAST_SECONDS = 2.0  # seconds in which a child must end after it has closed its output; usually it takes 0.05


def exchange(
    process: _Process | _Fork,
    given: Sequence[bytes],
    frames: protocol.Frames,
    *,
    start: float,
    seconds: float,
    stopped: Stopped | None = None,
) -> bool:
    """Send the bytes in `given` to the process, and pass its output to `frames`. At the end, kill the process with its
    process group. Return whether the process ran out of time: it has `start` seconds until it is ready, and then
    `seconds` for its work, and less if `stopped` returns True. Raises `Overrun` if the output is too large, and
    `NoFrame` if it is invalid. The process is not trusted: it may never read or end, close its output, or start another
    process that keeps the output open."""
    try:
        if sys.platform == "win32":
            return _communicate(process, given, frames, start + seconds)
        timed_out = _transfer(process, given, frames, start, seconds, stopped)
        if not frames.done and not timed_out:  # the process is about to end, and its exit status shows the reason
            last = time.monotonic() + _LAST_SECONDS
            while not (exited := process.has_exited()) and time.monotonic() < last:
                time.sleep(0.005)
            timed_out = not exited
        return timed_out
    finally:
        process.end()


def _transfer(
    process: _Process | _Fork,
    given: Sequence[bytes],
    frames: protocol.Frames,
    start: float,
    seconds: float,
    stopped: Stopped | None = None,
    *,
    lasting: bool = False,
) -> bool:
    """Exchange data with the process, as `exchange` does, but do not kill the process. Stop when `frames` has the whole
    answer, or the process has ended. Return whether the process ran out of time. The standard input of a `lasting`
    process stays open for further requests."""
    assert process.stdin and process.stdout
    deadline, ready_seen = time.monotonic() + start + seconds, False
    todo = [memoryview(piece) for piece in given if piece]
    with selectors.DefaultSelector() as selector:
        for pipe, event in ((process.stdin, selectors.EVENT_WRITE), (process.stdout, selectors.EVENT_READ)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, event)
        while not frames.done:
            if frames.ready and not ready_seen:
                deadline, ready_seen = min(deadline, time.monotonic() + seconds), True
            left = deadline - time.monotonic()
            if left <= 0 or (stopped and stopped()):
                return True
            exited = process.has_exited()
            ready = [key.fileobj for key, _ in selector.select(0 if exited else min(left, _POLL_SECONDS))]
            if process.stdin in ready and not _write_some(process.stdin.fileno(), todo):
                selector.unregister(process.stdin)
                if not lasting:
                    process.stdin.close()
            if process.stdout in ready:
                data = os.read(process.stdout.fileno(), _PIECE)
                if not data:
                    return False
                frames.feed(data)
            elif exited:  # another process that the child started may keep the pipe open
                return False
    return False


def _write_some(pipe: int, todo: list[memoryview]) -> bool:
    """Write as many bytes as the pipe accepts now. Return whether bytes remain and the pipe is open."""
    try:
        while todo:
            todo[0] = todo[0][os.write(pipe, todo[0][: 16 * _PIECE]) :]
            if not todo[0]:
                todo.pop(0)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class _Process(subprocess.Popen[bytes]):
    """A child process that is a new process."""

    def has_exited(self) -> bool:
        """Return whether the process has ended. On POSIX systems, an ended process stays a zombie until `end`, so that
        no new process gets the id of its group."""
        if sys.platform != "win32" and hasattr(os, "waitid"):
            try:
                return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            except ChildProcessError:  # this process ignores SIGCHLD: the system has reaped the child
                return True
        return self.poll() is not None

    def end(self) -> None:
        """End the process and its process group, and close the pipes of the process."""
        try:
            if sys.platform == "win32":
                self.kill()
            else:
                os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout):
            if pipe and not pipe.closed:
                pipe.close()


class _Fork:
    """A child process that the fork server starts when it gets the order. `lost` is True if the server was killed, and
    the process with it."""

    def __init__(self) -> None:
        self._given, to_child = os.pipe()
        from_child, self._output = os.pipe()
        self.stdin = os.fdopen(to_child, "wb", buffering=0)
        self.stdout = os.fdopen(from_child, "rb", buffering=0)
        self.returncode = 0
        self.lost = False
        self._connection, self._its_connection = socket.socketpair()
        self._exited = False

    def order(self, orders: socket.socket, order: bytes) -> None:
        """Send the order to the server, with the other ends of the pipes. Raises `OSError` if the server has ended."""
        with self._its_connection as connection:
            try:
                socket.send_fds(orders, [order], [self._given, self._output, connection.fileno()])
            finally:
                os.close(self._given)
                os.close(self._output)

    def has_started(self) -> bool:
        """Wait until the server has answered, and return whether the process was started."""
        self._connection.settimeout(_STARTUP_SECONDS)
        started = self._connection.recv(len(FORKED)) == FORKED
        self._connection.settimeout(None)
        return started

    def has_exited(self) -> bool:
        """Return whether the process has ended."""
        return self._exited or self._read_status(socket.MSG_DONTWAIT)

    def end(self) -> None:
        """End the process and its process group, and close the pipes of the process."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)  # the server kills the process
        if not self._exited:
            self._read_status()
        for file in (self._connection, self.stdin, self.stdout):
            file.close()

    def _read_status(self, flags: int = 0) -> bool:
        """Read the exit code, and return whether there is one. If the server is gone, the process counts as killed."""
        status = b""
        try:
            status = self._connection.recv(STATUS.size, flags)
        except BlockingIOError:
            return False
        except OSError:
            pass
        self.lost = not status
        self.returncode = STATUS.unpack(status)[0] if status else -getattr(signal, "SIGKILL", 9)
        self._exited = True
        return True


def _communicate(process: _Process, given: Sequence[bytes], frames: protocol.Frames, seconds: float) -> bool:
    """Exchange data with the process on Windows, where a program cannot wait for several pipes. The size of the output
    is checked only after the process has ended. Return whether the process ran out of time."""
    try:
        out, _ = process.communicate(b"".join(given), timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    frames.feed(out)
    return False


# The child gets this process's module path, and the package as a bare namespace, so that the package's `__init__` is
# not run. `-I` keeps the working folder off the path.
_BOOT = """
import json, sys, types
path, package = json.loads(sys.argv[1])
sys.path[:] = path
root = types.ModuleType("agentformer")
root.__path__ = [package]
sys.modules["agentformer"] = root
from agentformer.readers.sandbox.worker import main
main()
"""
_WORKER = "sandbox.worker"  # the module that the program runs
_FORKS = sys.platform == "linux"
_PACKAGE = Path(__file__).resolve().parents[2]
_STARTUP_SECONDS = 20.0  # imports from a cold disk
# Threads of numeric libraries reserve address space, which counts against the child's limit.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1", "MKL_NUM_THREADS": "1"}
# The only environment variables that a reader gets, because other variables may contain keys.
_PASSED_ENVIRONMENT = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TESSDATA_PREFIX", "SYSTEMROOT"),
)
_CRASH = "the parser crashed because the file is damaged or malicious; download the file again or convert it"
_READERS = threading.BoundedSemaphore(8)  # concurrent readers of this process; each may use `memory_bytes`


@dataclass(frozen=True, slots=True)
class _Outcome:
    frames: protocol.Frames
    timed_out: bool
    returncode: int
    fault: DocumentError | None

    @property
    def crashed(self) -> bool:
        """True if the parser ended without a document and without an error. This can be a crash even if the return code
        is 0: if this process ignores SIGCHLD, the real return code is unknown and 0 is reported."""
        output = self.frames.draft or self.frames.error or self.fault or self.timed_out
        return self.frames.ready and not output and self.returncode <= 0


def read_isolated(data: bytes, options: ReadOptions) -> DocumentText:
    """Read a document in a child process, which sends drafts: documents with the text that was found so far. If the
    process crashes or runs out of time, the last draft is returned. If PDFium crashes before the first draft of a PDF
    file, pypdf reads the file in the remaining time. Raises `DocumentError` if there is no draft."""
    until = time.monotonic() + options.limits.wall_seconds
    outcome = _run(data, options)
    if outcome.crashed and options.media_type == PDF and len(options.engines) > 1:
        limits = replace(options.limits, wall_seconds=max(1.0, until - time.monotonic()))
        outcome = _run(data, replace(options, engines=options.engines[1:], limits=limits))
    if outcome.frames.draft:
        return protocol.draft_from_bytes(outcome.frames.draft, options.limits)
    raise _error(outcome, options.limits)


def image_isolated(data: bytes, options: ReadOptions) -> protocol.PageImage:
    """Return the image of the page `options.page` of a PDF from a child process. Raises `DocumentError` on failure."""
    outcome = _run(data, replace(options, ocr=False))
    if outcome.frames.draft:
        return protocol.image_from_bytes(outcome.frames.draft)
    raise _error(outcome, options.limits)


def _error(outcome: _Outcome, limits: ReadLimits) -> DocumentError:
    """Return why a reader failed. An error that it reported itself comes before the way in which it ended."""
    if outcome.frames.error:
        return protocol.error_from_bytes(outcome.frames.error)
    if outcome.fault:
        return outcome.fault
    if outcome.timed_out:
        return DocumentTooLarge(
            f"reading took longer than {limits.wall_seconds:g} s; split the file or raise the setting read_seconds"
        )
    if -outcome.returncode == getattr(signal, "SIGKILL", 9):
        return DocumentTooLarge("the system ended the reader because memory was low; free memory or split the file")
    return CorruptDocument(_CRASH) if outcome.frames.ready else DocumentError(protocol.NOT_STARTED)


@contextmanager
def _folder(options: ReadOptions) -> Iterator[str]:
    """Yield a temporary folder for tesseract, or "" if OCR is not needed or the folder cannot be created."""
    folder = ""
    if options.ocr and options.media_type in RECOGNISED and shutil.which("tesseract"):
        with suppress(OSError):  # the disk may be full; scanned pages then have no text
            folder = tempfile.mkdtemp(prefix="agentformer-read-")
    try:
        yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _run(data: bytes, options: ReadOptions, *, alone: bool = False) -> _Outcome:
    """Read a file in a child process: a fork, or with `alone` a new process. If the fork server is killed meanwhile,
    which is no fault of the file, a new process reads it again."""
    frames, limits = protocol.Frames(options.limits.output_bytes), options.limits
    timed_out = False
    fault: DocumentError | None = None
    with _READERS, _folder(options) as folder:
        process = (_server.fork(options, folder) if _FORKS and not alone else None) or _start(_BOOT, folder)
        given = (protocol.to_line(protocol.options_to_json(replace(options, folder=folder))), data)
        try:
            seconds, stopped = limits.wall_seconds, options.stopped
            timed_out = exchange(process, given, frames, start=_STARTUP_SECONDS, seconds=seconds, stopped=stopped)
        except protocol.Overrun:
            fault = DocumentTooLarge(
                f"the text of the file takes more than {limits.output_bytes // MIB} MiB; split the file"
            )
        except protocol.NoFrame:
            fault = CorruptDocument(_CRASH) if frames.ready else DocumentError(protocol.NOT_STARTED)
    if isinstance(process, _Fork) and process.lost and not frames.draft:
        return _run(data, options, alone=True)
    timed_out = timed_out or -process.returncode == getattr(signal, "SIGXCPU", 0)
    return _Outcome(frames, timed_out, process.returncode, fault)


class _ForkServer:
    """The connection to the fork server (`sandbox.fork_server`). The server is started when the first file is read, and
    again if it has ended because it was idle. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started_as: tuple[object, ...] = ()
        self._orders: socket.socket | None = None

    def fork(self, options: ReadOptions, folder: str) -> _Fork | None:
        """Return a child process for a file, or None if the server cannot start. It works in `folder` if given."""
        about = {"media_type": options.media_type, "attached": options.attached, "page": options.page}
        order = protocol.to_line({**about, "folder": folder, "environment": _environment(folder)})
        if _WORKER not in _BOOT or len(order) > ORDER_BYTES:
            return None
        for _ in range(2):  # the server may just have ended
            child = _Fork()
            with suppress(OSError):
                with self._lock:
                    child.order(self._running(), order)
                if child.has_started():
                    return child
            child.end()
            with self._lock:
                self.forget()
        return None

    def forget(self) -> None:
        """Close the connection. The server ends when its readers have ended."""
        if self._orders:
            self._orders.close()
        self._orders = None

    def forget_in_child(self) -> None:
        """Close the copy of the connection in a fork of this process, so that the server ends with this process."""
        self.forget()
        self._lock = threading.Lock()

    def _running(self) -> socket.socket:
        """Return the connection to the server. A server that was started with another program, module path or
        environment is replaced."""
        started_as = (_BOOT, _module_path(), _environment(""))
        if self._orders is None or self._started_as != started_as:
            self.forget()
            self._orders, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._started_as = started_as
            with its_end:
                boot = _BOOT.replace(_WORKER, "sandbox.fork_server")
                server = _start(boot, "", str(its_end.fileno()), pass_fds=[its_end.fileno()])
            for pipe in (server.stdin, server.stdout):
                assert pipe
                pipe.close()
            threading.Thread(target=server.wait, name="agentformer-readers", daemon=True).start()  # leaves no zombie
        return self._orders


_server = _ForkServer()
if _FORKS:
    os.register_at_fork(after_in_child=_server.forget_in_child)


class LastingWorker:
    """A child process that answers one request after another. `module` is its module in `agentformer.readers`. Not
    thread-safe, and not for Windows, where a program cannot wait for pipes."""

    def __init__(self, module: str) -> None:
        self._process = _start(_BOOT.replace(_WORKER, module))
        self._ready = False

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def exchange(self, request: bytes, frames: protocol.Frames, *, seconds: float) -> None:
        """Send a request, and pass the answer to `frames`. Return early if the child process ends, or if it needs more
        than `seconds`. Raises `Overrun` if the answer is too large, and `NoFrame` if it is invalid."""
        _transfer(self._process, [request], frames, 0.0 if self._ready else _STARTUP_SECONDS, seconds, lasting=True)
        self._ready = self._ready or frames.ready

    def end(self) -> None:
        """End the child process."""
        self._process.end()


def _start(boot: str, folder: str = "", *arguments: str, pass_fds: Sequence[int] = ()) -> _Process:
    """Start a child process, and return it. `boot` is its Python program. `folder` is its working folder; if `folder`
    is "", the child process has the working folder of this process. The caller must write the file to the standard
    input of the child process."""
    return _Process(
        [sys.executable, "-I", "-c", boot, json.dumps([_module_path(), str(_PACKAGE)]), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd=folder or None,
        env=_environment(folder),
        pass_fds=pass_fds,
        start_new_session=True,  # tesseract, its child, ends with the group
    )


def _module_path() -> list[str]:
    """Return the entries of `sys.path` as absolute paths, because the child process runs in another folder."""
    return [os.path.abspath(p) if os.path.exists(p) else p for p in sys.path if p] or [""]  # noqa: PTH100, PTH110


def _environment(folder: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ENVIRONMENT if name in os.environ}
    return passed | _ENVIRONMENT | (dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder) if folder else {})
