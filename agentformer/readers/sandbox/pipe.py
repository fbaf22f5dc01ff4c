"""Gives a child process its input and takes what it says, within a time and a number of bytes, whatever it does: it may
never read, never end, close its output and go on, or leave a process behind that holds it open."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from agentformer.readers.sandbox.protocol import Frames

_PIECE = 1 << 16
_LOOK = 0.25  # seconds between looks whether the child itself is gone
_LAST_SECONDS = 2.0  # to end after closing its output; an interpreter takes 0.05


def exchange(
    process: subprocess.Popen[bytes], given: Sequence[bytes], frames: Frames, *, start: float, seconds: float
) -> bool:
    """Talk with `process` until it has said all, or a bound is reached; then it is ended with its group. It has `start`
    seconds until it is ready, and `seconds` from then on. True where time ran out. Raises what `frames` raises."""
    try:
        if sys.platform == "win32":
            return _communicate(process, given, frames, start + seconds)
        timed_out = _talk(process, given, frames, start, seconds)
        if not frames.done and not timed_out:  # it ends now by itself, and tells by its exit status why
            last = time.monotonic() + _LAST_SECONDS
            while not (gone := _gone(process)) and time.monotonic() < last:
                time.sleep(0.005)
            timed_out = not gone
        return timed_out
    finally:
        _end(process)


def _talk(
    process: subprocess.Popen[bytes], given: Sequence[bytes], frames: Frames, start: float, seconds: float
) -> bool:
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
            if left <= 0:
                return True
            gone = _gone(process)
            ready = [key.fileobj for key, _ in selector.select(0 if gone else min(left, _LOOK))]
            if process.stdin in ready and not _give(process.stdin.fileno(), todo):
                selector.unregister(process.stdin)
                process.stdin.close()
            if process.stdout in ready:
                data = os.read(process.stdout.fileno(), _PIECE)
                if not data:
                    return False
                frames.feed(data)
            elif gone:  # what it left behind may hold the pipe open for ever
                return False
    return False


def _give(pipe: int, todo: list[memoryview]) -> bool:
    """Write what the pipe takes now; False when there is no more to give, or nobody who reads."""
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


def _gone(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended. It stays a zombie, so that its group's number is not given to others before `_end`."""
    if sys.platform != "win32" and hasattr(os, "waitid"):
        try:
            return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # this process ignores SIGCHLD: the system has taken the zombie, and its status
            return True
    return process.poll() is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group, and let go of its pipes."""
    try:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe and not pipe.closed:
            pipe.close()


def _communicate(process: subprocess.Popen[bytes], given: Sequence[bytes], frames: Frames, seconds: float) -> bool:
    """Where pipes cannot be waited for: what is said is bounded by the child's own honesty until it has ended."""
    try:
        out, _ = process.communicate(b"".join(given), timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    frames.feed(out)
    return False
