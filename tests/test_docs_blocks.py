"""The code of the documentation does what it shows: Python runs, commands parse, and those of the first pages run."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import agentformer
from agentformer.cli import main
from agentformer.events import Filter
from tests.readers.conftest import make_pdf

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
BOUND = 120.0  # seconds for one block of the shell
_BLOCK = re.compile(
    r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
# Pages whose every block runs, in order, in one folder. The blocks of the other pages need parts that are not here.
WHOLE = ("README.md", "docs/index.md", "docs/TUTORIAL.md", "docs/DOCUMENTS.md")
PREPARED = ("EVENTS.md", "FOLDERS.md", "MEMORY.md", "MIGRATING.md", "PERFORMANCE.md", "RETRIEVAL.md")
ELSEWHERE = {  # pages whose Python needs a model, a server or a framework, and the tests that run the same calls
    "AGENT.md": "agent/test_loop.py",
    "EVALUATION.md": "evaluation/test_run.py",
    "HTTP.md": "edges/test_http_uploads.py",
    "MCP_RECIPES.md": "integrations/test_mcp_recipes.py",
    "OPENAI.md": "edges/test_openai_files.py",
    "OPTIMIZE.md": "evaluation/test_optimizing.py",
}
NOT_RUN = re.compile(
    r"^(make |pip |uvx |uv tool|docker |export |curl |AGENTFORMER_LLM|agentformer serve|\.venv/bin/agentformer serve)",
    re.MULTILINE,
)


def blocks(page: Path, language: str) -> Iterator[tuple[str, str, str]]:
    """Yield the title, the text and the shown output of each block of a language."""
    for found, title, text, output in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if found == language:
            yield title, text, output


def commands() -> Iterator[tuple[str, str]]:
    """Yield the page and the line of each call of `agentformer` in a block of the shell."""
    for page in PAGES:
        for _, text, _ in blocks(page, "sh"):
            for line in text.replace("\\\n", " ").splitlines():
                if call := re.match(r"(?:[A-Z_]+=\S* )*(?:\.venv/bin/)?agentformer (.*)", line):
                    yield page.name, call[1]


def problem(line: str) -> str:
    """Return what is wrong with the command or an option of a line, or "". Files need not exist."""
    words = shlex.split(line, comments=True)
    words = words[: next((n for n, word in enumerate(words) if word in ("|", "&&", ">", "&", "||")), len(words))]
    command: click.Command | None = main
    if words[:1] == ["hook"]:  # has a parser of its own (cli/hook.py)
        return ""
    context = click.Context(main)
    try:
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            name, command, words = command.resolve_command(context, words)
            context = click.Context(command or main, parent=context, info_name=name)
        assert command is not None
        command.make_parser(context).parse_args([*words])
    except click.ClickException as error:
        return error.format_message()
    return ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a reader has at hand."""
    keys = "The caretaker holds the keys. They hang in the blue cupboard."
    (tmp_path / "handbook.pdf").write_bytes(make_pdf([["Welcome to the reading room."], [keys]]))
    (tmp_path / "notes.txt").write_text("Tea is served at four.\nAino likes honey in her tea.\n", encoding="utf-8")
    for name in ("notes", "project", "src/shop"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "tea.md").write_text("Tea is served at four.", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AGENTFORMER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AGENTFORMER_EMBEDDER", "hashing")
    return tmp_path


def test_the_commands_of_all_pages_have_these_options() -> None:
    lines = [*commands()]
    assert len(lines) > 150
    assert [(page, line, found) for page, line in lines if (found := problem(line))] == []


def test_a_wrong_command_or_option_is_noticed() -> None:
    assert problem("aks 'Who?'") and problem("ask --colour red 'Who?'") and not problem("ask 'Who?' # why")


def shown(text: str) -> list[str]:
    """Return the lines of an output that a page shows."""
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("name", WHOLE)
def test_the_blocks_of_a_first_page_run_and_print_what_is_shown(name: str, folder: Path) -> None:
    run(ROOT / name, folder, ("python", "sh"))


@pytest.mark.parametrize("name", PREPARED)
def test_the_python_of_a_page_runs(name: str, folder: Path) -> None:
    run(ROOT / "docs" / name, folder, ("python",))


def test_each_page_with_python_is_run_here_or_elsewhere() -> None:
    pages = {page.name for page in PAGES if [*blocks(page, "python")]}
    assert pages == {*(Path(name).name for name in WHOLE), *PREPARED, *ELSEWHERE}
    assert [path for path in ELSEWHERE.values() if not (ROOT / "tests" / path).is_file()] == []


def run(page: Path, folder: Path, languages: tuple[str, ...]) -> None:
    """Run the blocks of a page in order. A block that opens no memory gets an open one."""
    values: dict[str, Any] = {"agentformer": agentformer, **prepared()}
    with contextlib.ExitStack() as opened:
        for language, title, code, output in _BLOCK.findall(page.read_text(encoding="utf-8")):
            if language not in languages:
                continue
            if language == "sh":
                check_shell(code, output)
            elif title:
                (folder / title).write_text(code, encoding="utf-8")
            elif "init_app(app" not in code:  # `app` is the reader's own application
                if "connect(" not in code:
                    values["af"] = opened.enter_context(agentformer.connect())
                    values["memory"] = values["af"].memory
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, page.name, "exec"), values)  # the code of our own pages
                assert shown(printed.getvalue())[: len(shown(output))] == shown(output)


def prepared() -> dict[str, Any]:
    """Return the objects of a reader that the examples of some pages name."""
    texts = SimpleNamespace(
        _dict={"1": SimpleNamespace(page_content="Tea is served at four.", metadata={"source": "tea.md"})}
    )
    return {
        "Filter": Filter,
        "my_own_search": lambda text: ["17"],
        "store": SimpleNamespace(docstore=texts),
    }


def check_shell(code: str, output: str) -> None:
    """Run the lines of a block that need no server and no installation, and compare what they print with the page."""
    lines = [line.replace(".venv/bin/", "") for line in code.replace("\\\n", " ").splitlines()]
    script = "\n".join(line for line in lines if not NOT_RUN.match(line))
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=BOUND, env=environ
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    assert not output or shown(done.stdout) == shown(output)
