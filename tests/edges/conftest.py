"""The command line in this process, with a memory of its own for each test."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import agentformer
from agentformer.cli import main

Invoke = Callable[..., Result]
Shown = Callable[..., Any]
Copy = Callable[..., Result]

UNCLEANED = {"AGENTFORMER_CLEAN_EVERY": "0"}  # unless a test says so


def folders_of(folder: Path) -> tuple[str, ...]:
    """Where the memory in a folder is, for a command."""
    return ("--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u", "--embedder", "hashing")


def copy_memory(template: Path, folder: Path, fill: Callable[[Path], object]) -> None:
    """Make a memory like the one that `fill` has made in `template`. One whose entries are in a database is filled."""
    if os.environ.get("AGENTFORMER_BACKEND"):
        fill(folder)
    else:
        shutil.copytree(template, folder, dirs_exist_ok=True)


@pytest.fixture
def where(tmp_path: Path) -> tuple[str, ...]:
    return folders_of(tmp_path)


@pytest.fixture
def run(where: tuple[str, ...]) -> Invoke:
    """A command, and for one of a group the command's name after it: `run("core show", "persona")`."""

    def run(command: str, *arguments: str, said: bytes | str | None = None) -> Result:
        return CliRunner(env=UNCLEANED).invoke(main, [*command.split(), *where, *arguments], input=said)

    return run


def _empty(folder: Path) -> None:
    agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing").close()


@pytest.fixture(scope="session")
def empty_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    _empty(folder)
    return folder


@pytest.fixture
def empty_memory(empty_template: Path, tmp_path: Path) -> None:
    """A memory without entries, for commands that refuse to create a memory."""
    copy_memory(empty_template, tmp_path, _empty)


@pytest.fixture
def shown(run: Invoke) -> Shown:
    """What a command prints with --json; it must succeed."""

    def shown(*arguments: str, said: bytes | str | None = None) -> Any:
        done = run(*arguments, "--json", said=said)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return shown


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A command on another memory, which is empty at first."""

    def copy(*arguments: str, **environment: str) -> Result:
        folders = ("--index-dir", f"{tmp_path}/ci", "--upload-dir", f"{tmp_path}/cu", "--embedder", "hashing")
        return CliRunner(env={**UNCLEANED, **environment}).invoke(main, [*arguments, *folders])

    return copy
