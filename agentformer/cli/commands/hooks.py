"""The commands for coding agents: install and uninstall their hooks, `hooks` for what is captured, and `hook`, which an
agent runs."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from agentformer.cli.group import examples, main, reported
from agentformer.cli.inputs import confirm
from agentformer.cli.output import plural, print_json, say
from agentformer.hooks.agent_formats import AGENTS, Agent
from agentformer.hooks.companion import SOURCE
from agentformer.hooks.installing import Change, installed, uninstalled, write
from agentformer.hooks.recall import opened
from agentformer.hooks.spool import Spool
from agentformer.types import Scope

_HOME = Path("~/.agentformer")
_ISOLATED = "AGENTFORMER_ENV_FILE=none"  # settings of the repository in which an agent works do not count
_FOLDER = click.Path(path_type=Path)
_agent = click.argument("agent", type=click.Choice(AGENTS))
_project = click.option("--project", is_flag=True, help="Write the files of this folder, and not those of the user.")
_yes = click.option("--yes", is_flag=True, help="Do not ask before a file is changed.")
_index_dir = click.option("--index-dir", type=_FOLDER, default=_HOME / "indexes", show_default=True, help="The memory.")
_upload_dir = click.option(
    "--upload-dir", type=_FOLDER, default=_HOME / "uploads", show_default=True, help="Its original files."
)


@main.command(epilog=examples("agentformer install claude-code", "agentformer install cursor --project"))
@_agent
@_project
@_yes
@_index_dir
@_upload_dir
@reported
def install(agent: Agent, project: bool, yes: bool, index_dir: Path, upload_dir: Path) -> None:
    """Give a coding agent this memory: hooks that recall and capture, and tools over MCP.

    The command shows what it changes, and asks first. It keeps a copy of each file, and `uninstall` takes the change
    back.
    """
    place = ["--index-dir", str(index_dir.expanduser().absolute())]
    place += ["--upload-dir", str(upload_dir.expanduser().absolute())]
    program = _program()
    _apply(installed(agent, _home(project), program, place, project=project), yes, backup=True)
    served = shlex.join([*program, "mcp", *place])
    if agent == "claude-code" and not project:
        say(f"For the tools, also run: claude mcp add --scope user -e {_ISOLATED} agentformer -- {served}")
    if agent == "codex":
        say(f"For the tools, also run: codex mcp add agentformer --env {_ISOLATED} -- {served}")


@main.command(epilog=examples("agentformer uninstall claude-code"))
@_agent
@_project
@_yes
@reported
def uninstall(agent: Agent, project: bool, yes: bool) -> None:
    """Take back what `install` has added to the files of a coding agent. The memory stays."""
    _apply(uninstalled(agent, _home(project), project=project), yes, backup=False)


@main.command(epilog=examples("agentformer hooks list", "agentformer hooks off", "agentformer hooks forget"))
@click.argument("action", type=click.Choice(["status", "on", "off", "list", "forget"]), default="status")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@_yes
@_index_dir
@_upload_dir
@reported
def hooks(action: str, as_json: bool, yes: bool, index_dir: Path, upload_dir: Path) -> None:
    """Show, switch off, list or forget what the hooks of coding agents capture."""
    spool = Spool(index_dir.expanduser().absolute())
    if action in ("on", "off"):
        spool.switch(action == "on")
    if action in ("status", "on", "off"):
        waiting, aside = sum(1 for _ in spool.waiting()), len(spool.set_aside())
        if as_json:
            print_json({"capturing": spool.on, "waiting": waiting, "set_aside": aside})
            return
        say(f"capturing is {'on' if spool.on else 'off'}; {plural(waiting, 'event')} waiting")
        if aside:
            say(f"{plural(aside, 'event')} could not be stored; see the files *.bad in {spool.folder}")
        return
    with _isolated(), opened(index_dir.expanduser(), upload_dir.expanduser()) as af:
        scope: dict[str, Any] = {"source_type": SOURCE}
        count = af.memory.count(**scope)
        if action == "forget":
            if not yes:
                confirm(plural(count, "captured entry"))
            for file in [*(event.file for event in spool.waiting()), *spool.set_aside()]:
                file.unlink(missing_ok=True)
            say(f"forgot {plural(af.memory.remove(Scope(**scope)), 'entry')}")
            return
        after = ""
        while page := af.memory.list(after=after or None, limit=200, **scope):
            after = page[-1].id
            for entry in page:
                if as_json:
                    print_json({"id": entry.id, "role": entry.role, "project": entry.project, "content": entry.content})
                else:
                    say(f"{entry.id}  {entry.role or 'tool'}: {' '.join(entry.content.split())[:100]}")


@main.command(
    context_settings={"ignore_unknown_options": True},
    epilog=examples("agentformer hook UserPromptSubmit --agent claude-code --index-dir memory < event.json"),
)
@click.argument("event")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def hook(event: str, options: tuple[str, ...]) -> None:
    """Answer one event of a coding agent, which is read from standard input as JSON.

    `install` writes this command into the configuration of the agent. OPTIONS are --agent NAME, --index-dir PATH,
    --upload-dir PATH, --budget TOKENS and --deadline SECONDS. The exit code is always 0.
    """
    from agentformer.cli.hook import main as answer  # usually called by `cli.start`, without the other commands

    answer([event, *options])


@contextmanager
def _isolated() -> Iterator[None]:
    """Read no file `.env` while the memory is opened: it belongs to the repository in which the agent works."""
    name, _, value = _ISOLATED.partition("=")
    former = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if former is None:
            del os.environ[name]
        else:
            os.environ[name] = former


def _home(project: bool) -> Path:
    return Path.cwd() if project else Path.home()


def _program() -> list[str]:
    """Return the command that runs this copy of AgentFormer."""
    program = shutil.which(sys.argv[0]) or shutil.which("agentformer")
    return [str(Path(program).absolute())] if program else [sys.executable, "-P", "-m", "agentformer.cli"]


def _apply(changes: list[Change], yes: bool, *, backup: bool) -> None:
    if not changes:
        say("nothing to change")
        return
    for change in changes:
        say(change.diff)
    if not yes and not click.confirm(f"Change {plural(len(changes), 'file')}?", err=True):
        raise SystemExit(2)
    write(changes, backup=backup)
    for change in changes:
        say(f"{'changed' if change.content else 'removed'} {change.file}")
