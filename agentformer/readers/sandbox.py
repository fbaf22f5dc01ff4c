"""Parses a file in a process of its own: a parser that crashes, hangs or eats memory takes nothing with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentformer.errors import CorruptDocument, DocumentTooLarge
from agentformer.readers.limits import ReadOptions
from agentformer.readers.sniffing import PDF
from agentformer.readers.wire import document_from_json, error_from_json, options_to_json, to_line
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
from agentformer.readers.worker import main
main()
"""
_PACKAGE = Path(__file__).resolve().parent.parent
_STARTUP_SECONDS = 20.0  # a cold disk: imports are not the file's fault
# Each thread of a numeric library reserves address space, which counts against the child's limit.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class _Outcome:
    lines: tuple[dict[str, Any], ...]
    timed_out: bool
    returncode: int


def read_isolated(data: bytes, options: ReadOptions) -> DocumentText:
    """The document as the child read it. What it had read before it crashed or ran out of time is used."""
    outcome = _run(data, options)
    drafts = [line["document"] for line in outcome.lines if "document" in line]
    failure = next((line for line in outcome.lines if "error" in line), None)
    if failure is not None and not drafts:
        raise error_from_json(failure)
    if drafts:
        return document_from_json(drafts[-1])
    if outcome.timed_out or -outcome.returncode == getattr(signal, "SIGXCPU", 0):
        raise DocumentTooLarge(f"reading took longer than {options.limits.wall_seconds:g} s; split the file")
    if options.media_type == PDF and len(options.engines) > 1 and outcome.returncode < 0:
        return read_isolated(data, replace(options, engines=options.engines[1:]))
    if -outcome.returncode == getattr(signal, "SIGKILL", 9):
        raise DocumentTooLarge("the system ended the reader for lack of memory; split the file")
    raise CorruptDocument("the file makes its parser crash; it is damaged or hostile: get it again or convert it")


def _run(data: bytes, options: ReadOptions) -> _Outcome:
    command = [sys.executable, "-I", "-c", _BOOT, json.dumps([[p for p in sys.path if p] or [""], str(_PACKAGE)])]
    process = subprocess.Popen(  # noqa: S603 (our own interpreter and code; the file comes on stdin)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | _ENVIRONMENT,
        start_new_session=True,  # so that tesseract, its child, ends with it
    )
    timed_out = False
    try:
        out, _ = process.communicate(
            to_line(options_to_json(options)) + data, timeout=options.limits.wall_seconds + _STARTUP_SECONDS
        )
    except subprocess.TimeoutExpired:
        timed_out = True
        _kill(process)
        out, _ = process.communicate()
    finally:
        if process.poll() is None:
            _kill(process)
            process.wait()
    return _Outcome(tuple(_parsed(out.splitlines())), timed_out, process.returncode)


def _parsed(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:  # cut off by the kill
            continue
        if isinstance(value, dict):
            yield value


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):
        process.kill()
