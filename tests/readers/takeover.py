"""A real child process in which the parser is code of the test: what a file could do that has taken a parser over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentformer.readers import ReadLimits, read
from agentformer.readers.sandbox import process as sandbox

from .conftest import make_pdf

PDF = make_pdf([["A page of text about ships."]])
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the system refuses calls on Linux only")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither these limits nor groups of processes")
ATTEMPT = """
def attempt(*does):
    told = []
    for do in does:
        try:
            told.append(str(do()))
        except BaseException as error:
            told.append(type(error).__name__)
    return DocumentText("text/html", (Page(1, " ".join(told)),))
"""


def taken_over(monkeypatch: pytest.MonkeyPatch, body: str, before: str = "") -> None:
    """From now on `body` is what the child runs as its parser; `before` comes first, when nothing is limited yet."""
    parser = (
        "import ctypes, os, socket, subprocess, sys, time\n"
        "from agentformer.readers.sandbox import worker\n"
        "from agentformer.types import DocumentText, Page\n"
        "LIBC = ctypes.CDLL(None, use_errno=True) if os.name == 'posix' else None\n"
        f"{ATTEMPT}\n{before}\n"
        f"def parse(data, options):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
        "worker.adapter_for = lambda media_type: types.SimpleNamespace(parse=parse)\n"
        "main()\n"
    )
    monkeypatch.setattr(sandbox, "_BOOT", sandbox._BOOT.replace("main()\n", parser))


def told(**limits: float) -> str:
    """What the parser says."""
    return read(PDF, "a.pdf", limits=ReadLimits(**{"wall_seconds": 20.0, **limits})).pages[0].text  # type: ignore[arg-type]


def with_tesseract(monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """From now on `home`/bin has a tesseract, so readers get folders: in the one that is returned."""
    tools, folders = home / "bin", home / "tmp"
    tools.mkdir()
    folders.mkdir()
    (tools / "tesseract").write_text("#!/bin/sh\n")
    (tools / "tesseract").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    return folders


def asked(code: str) -> bool:
    """What a fresh process says of its system."""
    boot = sandbox._BOOT.split("from agentformer")[0] + code
    paths = json.dumps([[p for p in sys.path if p], str(sandbox._PACKAGE)])
    ran = subprocess.run([sys.executable, "-I", "-c", boot, paths], capture_output=True, text=True)
    return ran.stdout.strip() == "True"


def has_filter() -> bool:
    code = "from agentformer.readers.sandbox.linux import refuse_calls; print(refuse_calls(starts_programs=False))"
    return sys.platform == "linux" and asked(code)


def confines_files() -> bool:
    code = "from agentformer.readers.sandbox.linux import confine_files; print(confine_files((), ()))"
    return sys.platform == "linux" and asked(code)
