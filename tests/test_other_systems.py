"""The main job on a system without what only Linux and POSIX have: Windows in what it lacks, on this machine.

A process that has imported Python's own modules and the libraries claims to be on Windows and loses `fcntl`, `resource`
and `os.fork` before it imports this package. What the libraries do stays that of this system.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentformer.records.integrity import files
from agentformer.settings import access

pytestmark = pytest.mark.process
BOUND = 120.0  # seconds for all commands
# Runs each command line of standard input. `start` replaces the program of the readers by one that has lost as much.
PROGRAM = r"""
import asyncio, ctypes, json, logging.handlers, multiprocessing, os, signal, socket, sqlite3, subprocess, sys, tempfile
import zoneinfo
import click, faiss, filelock, numpy, pydantic, pypdf, pypdfium2, tantivy, Stemmer, lxml.etree
from pydantic import TypeAdapter

LOST = ("fork", "forkpty", "killpg", "waitid", "mknod", "getuid", "geteuid", "sched_getaffinity",
        "O_NOFOLLOW", "WNOHANG", "setsid", "pread", "register_at_fork")  # filelock needs O_NONBLOCK and fchmod here

def lose():
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None
    for name in LOST:
        if hasattr(os, name):
            delattr(os, name)
    for name in ("SIGKILL", "SIGHUP", "SIGXCPU"):
        delattr(signal, name)
    opened = open
    def without_proc(path, *rest, **options):
        if str(path).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "no such file", str(path))
        return opened(path, *rest, **options)
    import builtins, io
    builtins.open = io.open = without_proc
    sys.platform = "win32"

if __name__ == "__main__":
    program = sys.argv[1]
    lose()
    from agentformer.readers.sandbox import process
    lost = f"source = open({program!r}).read()\nexec(source.partition('if __name__')[0])\nlose()\n"
    process._BOOT = lost + process._BOOT
    from agentformer.cli.commands import main
    codes = []
    for line in json.load(sys.stdin):
        try:
            main(line, prog_name="agentformer", standalone_mode=True)
        except SystemExit as end:
            codes.append(end.code or 0)
    print("codes", json.dumps(codes))
"""


def run(folder: Path, lines: list[list[str]], **environ: str) -> tuple[list[int], str]:
    """Return the exit codes of command lines, and what they printed."""
    (program := folder / "program.py").write_text(PROGRAM)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTFORMER_")}
    done = subprocess.run(
        [sys.executable, str(program), str(program)],
        input=json.dumps(lines).encode(),
        cwd=folder,
        env={**kept, "AGENTFORMER_EMBEDDER": "hashing", **environ},
        capture_output=True,
        timeout=BOUND,
    )
    printed = done.stdout.decode("utf-8", "replace")
    assert "codes" in printed, printed + done.stderr.decode("utf-8", "replace")
    before, _, codes = printed.rpartition("codes ")
    return json.loads(codes), before + done.stderr.decode("utf-8", "replace")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "käsikirja.txt").write_text("The caretaker holds the keys. They hang in the blue cupboard.", "utf-8")
    return tmp_path


def test_documents_and_memories_without_what_only_posix_has(folder: Path) -> None:
    lines = [
        ["ingest", "käsikirja.txt"],
        ["ask", "Who holds the keys?"],
        ["remember", "Aino prefers tea."],
        ["recall", "What does Aino drink?"],
        ["sync", "."],
        ["doctor"],
        ["export", "--to", "exported"],
        ["backup", "saved"],
        ["import", "exported", "--index-dir", "other/i", "--upload-dir", "other/u"],
        ["remove", "käsikirja.txt"],
    ]
    codes, printed = run(folder, lines)
    assert dict(zip([line[0] for line in lines], codes, strict=True)) == {line[0]: 0 for line in lines}, printed
    assert "The caretaker holds the keys." in printed and "Aino prefers tea." in printed


def test_names_of_files_where_the_locale_is_not_utf_8(folder: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    codes, printed = run(folder, [["ingest", "."], ["list", "--json"], ["ask", "Who holds the keys?"]], **locale)
    assert codes == [0, 0, 0], printed
    assert "k\\u00e4sikirja.txt" in printed or "käsikirja.txt" in printed


def test_a_home_that_cannot_be_written(folder: Path) -> None:
    (folder / "home").write_text("")  # a file: root may write to any folder
    home = {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home" / "cache")}
    codes, printed = run(folder, [["ingest", "käsikirja.txt"], ["ask", "Who holds the keys?"]], **home)
    assert codes == [0, 0] and "The caretaker holds the keys." in printed


def test_an_open_file_is_replaced_when_the_other_program_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, tries = os.replace, []

    def refuse(source: Path, target: Path) -> None:
        tries.append(target)
        if len(tries) < 3:
            raise PermissionError(13, "the file is used by another process")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(access, "_PAUSES", (0.0,) * 3)
    (new := tmp_path / "new").write_text("b")
    with pytest.raises(PermissionError):  # here, an open file can be replaced, so the refusal has another reason
        access.replace_file(new, tmp_path / "file")
    tries.clear()
    monkeypatch.setattr(sys, "platform", "win32")
    access.replace_file(new, tmp_path / "file")
    assert len(tries) == 3 and (tmp_path / "file").read_text() == "b"
    tries.clear()
    monkeypatch.setattr(access, "_PAUSES", (0.0,))
    (new := tmp_path / "new").write_text("c")
    with pytest.raises(PermissionError):  # the other program keeps the file open
        access.replace_file(new, tmp_path / "file")
    assert len(tries) == 2 and (tmp_path / "file").read_text() == "b"


@pytest.mark.parametrize(
    ("handle", "waited", "error", "runs"), [(7, 0x102, 0, True), (7, 0, 0, False), (0, 0, 5, True), (0, 0, 87, False)]
)
def test_a_process_is_looked_up_on_windows_without_a_signal(
    monkeypatch: pytest.MonkeyPatch, handle: int, waited: int, error: int, runs: bool
) -> None:
    kernel = SimpleNamespace(
        OpenProcess=lambda rights, inherit, process: handle,
        WaitForSingleObject=lambda given, ms: waited,
        CloseHandle=lambda given: True,
        GetLastError=lambda: error,
    )
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setattr(os, "kill", None)
    assert files.process_exists(4711) is runs


def test_the_cache_of_the_disk_is_written_where_the_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    control = SimpleNamespace(F_FULLFSYNC=51, fcntl=lambda handle, command: asked.append(command))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(access, "fcntl", control, raising=False)
    with (tmp_path / "file").open("w") as file:
        access.sync_file(file.fileno())
        assert asked == [51]
        control.fcntl = lambda handle, command: (_ for _ in ()).throw(OSError(45, "not supported"))
        access.sync_file(file.fileno())  # falls back to fsync
