"""The command line in this process, with a memory of its own for each test."""

from __future__ import annotations

import json
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


@pytest.fixture
def where(tmp_path: Path) -> tuple[str, ...]:
    return ("--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing")


@pytest.fixture
def run(where: tuple[str, ...]) -> Invoke:
    """A command, and for one of a group the command's name after it: `run("core show", "persona")`."""

    def run(command: str, *arguments: str, said: bytes | str | None = None) -> Result:
        return CliRunner(env=UNCLEANED).invoke(main, [*command.split(), *where, *arguments], input=said)

    return run


@pytest.fixture
def empty_memory(tmp_path: Path) -> None:
    """A memory without entries, for commands that refuse to create a memory."""
    agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing").close()


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
