"""The help: every command has examples that parse, docs/CLI.md is up to date, and shells complete commands."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from agentformer.cli import main
from agentformer.cli.group import SECTIONS, first_sentence
from tests import forked

ROOT = Path(__file__).parent.parent.parent
COMMON = ["--json", "--embedder", "--index-dir", "--upload-dir", "--help"]
WITHOUT_MEMORY = {"completion", "install", "uninstall", "hooks", "hook"}  # or in a folder of its own


def commands(group: click.Group = main, name: str = "") -> Iterator[tuple[str, click.Command]]:
    for below, command in group.commands.items():
        yield f"{name} {below}".strip(), command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {below}".strip())


LEAVES = [(name, each) for name, each in commands() if not isinstance(each, click.Group)]


def examples(command: click.Command) -> list[str]:
    return [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("agentformer ")]


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_command_has_examples_and_all_of_them_parse(
    name: str, command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("questions.txt", "questions.jsonl"):
        (tmp_path / file).touch()
    (tmp_path / "backup").mkdir()
    lines = examples(command)
    assert any(shlex.split(line)[1 : 1 + len(name.split())] == name.split() for line in lines), "no example of its own"
    for line in lines:
        words = shlex.split(line, comments=True)
        ends = [n for n, word in enumerate(words) if word in ("|", ">", "<", "&&")]
        parse(words[1 : min(ends, default=len(words))])


def parse(words: list[str], group: click.Group = main, parent: click.Context | None = None) -> None:
    """Raises a usage error where the words are no command line."""
    if "--help" in words:
        words = [word for word in words if word != "--help"]
    command = group.commands[words[0]]
    if isinstance(command, click.Group) and len(words) > 1 and not words[1].startswith("-"):
        parse(words[1:], command, parent)
    else:
        command.make_context(words[0], words[1:], parent)


def test_options_stand_in_one_order_and_say_what_they_do() -> None:
    for name, command in LEAVES:
        options = [each for each in command.get_params(click.Context(command)) if isinstance(each, click.Option)]
        spelled = [next(word for word in each.opts if word.startswith("--")) for each in options]
        assert all(each.help for each in options), "an option without a help text"
        if name not in WITHOUT_MEMORY:
            assert [each for each in spelled if each in COMMON] == COMMON
            place = [each for each in spelled if each in ("--namespace", "--session", "--agent", "--user", "--project")]
            assert place == sorted(place, key=["--namespace", "--session", "--agent", "--user", "--project"].index)


def test_the_list_of_commands_has_each_in_one_section_and_in_short() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(main.commands) == set(listed)
    for name, command in main.commands.items():
        assert len(first_sentence(command)) <= 120, name


@pytest.mark.process
def test_the_reference_in_docs_is_up_to_date_and_one_that_is_not_is_noticed(tmp_path: Path) -> None:
    def script(root: Path, *arguments: str, columns: str) -> subprocess.CompletedProcess[str]:
        path = root / "scripts" / "cli_reference.py"
        return forked.ended(forked.script(path, *arguments, cwd=ROOT, env={"COLUMNS": columns}))

    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "cli_reference.py"), "--check"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "40", "LC_ALL": "C", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "scripts" / "cli_reference.py", tmp_path / "scripts")
    (tmp_path / "docs" / "CLI.md").write_text("old")
    assert script(tmp_path, "--check", columns="200").returncode == 1
    assert script(tmp_path, columns="200").returncode == 0
    made = (tmp_path / "docs" / "CLI.md").read_text(encoding="utf-8")
    assert made == (ROOT / "docs" / "CLI.md").read_text(encoding="utf-8")
    for name, _ in commands():
        assert f"\n## agentformer {name}\n" in made


@pytest.mark.process
def test_bash_completes_commands_options_and_choices(tmp_path: Path) -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).stdout
    (tmp_path / "agentformer").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agentformer.cli "$@"\n')
    (tmp_path / "agentformer").chmod(0o755)
    (tmp_path / "script").write_text(script)

    def completed(*words: str) -> list[str]:
        line = " ".join(map(shlex.quote, words))
        asked = f"source script; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _agentformer_completion agentformer"
        done = subprocess.run(
            ["bash", "-c", f'{asked}; printf "%s\\n" "${{COMPREPLY[@]}}"'],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.split()

    assert completed("agentformer", "rec") == ["recall"]
    assert completed("agentformer", "ingest", "--me") == ["--metadata"]
    assert completed("agentformer", "recall", "x", "--tier", "ep") == ["episodic"]
    assert completed("agentformer", "core", "re") == ["remove", "replace"]


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_that_it_reads(shell: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0 and "_AGENTFORMER_COMPLETE" in done.stdout
    if program := shutil.which(shell):
        (tmp_path / "script").write_text(done.stdout)
        subprocess.run([program, "-n", str(tmp_path / "script")], timeout=60, check=True)
    assert CliRunner().invoke(main, ["completion", "powershell"]).exit_code == 2
