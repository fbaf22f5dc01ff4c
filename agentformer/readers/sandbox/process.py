"""Parses a file in a process of its own: a parser that crashes, hangs or eats memory takes nothing with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge
from agentformer.readers.media_type import PDF
from agentformer.readers.sandbox.limits import MIB, ReadLimits, ReadOptions
from agentformer.readers.sandbox.pipe import exchange
from agentformer.readers.sandbox.protocol import (
    NOT_STARTED,
    Frames,
    NoFrame,
    Overrun,
    draft_from_bytes,
    error_from_bytes,
    options_to_json,
    to_line,
)
from agentformer.types import DocumentText

# The child gets this process's module path, and the package as a bare namespace: running the package's own
# `__init__` would import the whole application to read one file. `-I` keeps the working folder off the path.
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
_PACKAGE = Path(__file__).resolve().parents[2]
_STARTUP_SECONDS = 20.0  # a cold disk: imports are not the file's fault
# Each thread of a numeric library reserves address space, which counts against the child's limit.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1", "MKL_NUM_THREADS": "1"}
# All that a reader is told of this process's environment, which may hold keys of remote services.
_TOLD = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TESSDATA_PREFIX", "SYSTEMROOT")
_CRASH = "the file makes its parser crash; it is damaged or hostile: get it again or convert it"
_AT_ONCE = threading.BoundedSemaphore(8)  # readers of this process; each may take `memory_bytes`


@dataclass(frozen=True, slots=True)
class _Outcome:
    draft: bytes
    error: bytes
    timed_out: bool
    returncode: int
    ready: bool
    fault: DocumentError | None = None

    @property
    def crashed(self) -> bool:
        """Ended by a signal that a parser earns itself, before it had said anything. 0 means that nobody knows how it
        ended, because this process ignores SIGCHLD: a reader that ends in order has said so."""
        said = self.draft or self.error or self.fault or self.timed_out
        return self.ready and not said and self.returncode <= 0


def read_isolated(data: bytes, options: ReadOptions) -> DocumentText:
    """The document as the child read it. What it had read before it crashed or ran out of time is used; of a PDF that
    makes one engine crash, what the others can read in the time that is left."""
    until = time.monotonic() + options.limits.wall_seconds
    outcome = _attempt(data, options)
    if outcome.crashed and options.media_type == PDF and len(options.engines) > 1:
        limits = replace(options.limits, wall_seconds=max(1.0, until - time.monotonic()))
        outcome = _attempt(data, replace(options, engines=options.engines[1:], limits=limits))
    if outcome.draft:
        return draft_from_bytes(outcome.draft, options.limits)
    raise _error(outcome, options.limits)


def _attempt(data: bytes, options: ReadOptions) -> _Outcome:
    with _AT_ONCE, _folder(options) as folder:
        return _run(data, replace(options, folder=folder))


def _error(outcome: _Outcome, limits: ReadLimits) -> DocumentError:
    if outcome.error:
        return error_from_bytes(outcome.error)
    if outcome.fault:
        return outcome.fault
    if outcome.timed_out:
        return DocumentTooLarge(f"reading took longer than {limits.wall_seconds:g} s; split the file")
    if -outcome.returncode == getattr(signal, "SIGKILL", 9):
        return DocumentTooLarge("the system ended the reader for lack of memory; split the file")
    return CorruptDocument(_CRASH) if outcome.ready else DocumentError(NOT_STARTED)


@contextmanager
def _folder(options: ReadOptions) -> Iterator[str]:
    """A folder for tesseract's files, which goes with the reader; "" where none is needed or can be had."""
    folder = ""
    if options.ocr and options.media_type == PDF and shutil.which("tesseract"):
        try:
            folder = tempfile.mkdtemp(prefix="agentformer-read-")
        except OSError:  # no room: pages without text stay so
            folder = ""
    try:
        yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _run(data: bytes, options: ReadOptions) -> _Outcome:
    command = [sys.executable, "-I", "-c", _BOOT, json.dumps([_module_path(), str(_PACKAGE)])]
    process = subprocess.Popen(  # noqa: S603 (our own interpreter and code; the file comes on stdin)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd=options.folder or None,
        env=_environment(options.folder),
        start_new_session=True,  # so that tesseract, its child, ends with it
    )
    frames = Frames(options.limits.output_bytes)
    timed_out = False
    fault: DocumentError | None = None
    try:
        given = (to_line(options_to_json(options)), data)
        timed_out = exchange(process, given, frames, start=_STARTUP_SECONDS, seconds=options.limits.wall_seconds)
    except Overrun:
        most = options.limits.output_bytes // MIB
        fault = DocumentTooLarge(f"reading gives more than {most} MiB; split the file")
    except NoFrame:
        fault = CorruptDocument(_CRASH) if frames.ready else DocumentError(NOT_STARTED)
    timed_out = timed_out or -process.returncode == getattr(signal, "SIGXCPU", 0)
    return _Outcome(frames.draft, frames.error, timed_out, process.returncode, frames.ready, fault)


def _module_path() -> list[str]:
    """`sys.path` for a process that works in another folder; what is no folder or file there is a mark of importers."""
    found = [os.path.abspath(p) if os.path.exists(p) else p for p in sys.path if p]  # noqa: PTH100, PTH110
    return found or [""]


def _environment(folder: str) -> dict[str, str]:
    told = {name: os.environ[name] for name in _TOLD if name in os.environ}
    return told | _ENVIRONMENT | (dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder) if folder else {})
