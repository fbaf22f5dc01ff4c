"""Write the hooks and the MCP server of a memory into the configuration of a coding agent, and take them back.

Only entries that call `agentformer hook` with the name of the agent are added, replaced or removed; everything else in
a file stays. A file that is no JSON object (some agents allow comments) is not touched.
"""

from __future__ import annotations

import difflib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import InvalidInput
from agentformer.hooks.events import EVENTS, Agent

SERVER = "agentformer"  # the name of the MCP server
BACKUP = ".before-agentformer"  # ending of the copy of a file
_SECONDS = 5  # an agent ends a hook after this time; a hook ends itself much earlier

# The files of each agent, below the home folder or below a project: the hooks, and the MCP servers. Claude Code keeps
# the servers of a person in a file with its own state, which `claude mcp add` changes.
_FILES: Mapping[Agent, tuple[str, str]] = {
    "claude-code": (".claude/settings.json", ""),
    "codex": (".codex/hooks.json", ""),
    "gemini": (".gemini/settings.json", ".gemini/settings.json"),
    "cursor": (".cursor/hooks.json", ".cursor/mcp.json"),
}


class Change(NamedTuple):
    """The new content of a file, or "" if the file is deleted. `former` is the present content, or ""."""

    file: Path
    former: str
    content: str

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        former, content = self.former.splitlines(keepends=True), self.content.splitlines(keepends=True)
        return "".join(difflib.unified_diff(former, content, str(self.file), str(self.file)))


def installed(agent: Agent, home: Path, program: Sequence[str], place: Sequence[str], *, project: bool) -> list[Change]:
    """Return the changes that add the hooks and the MCP server to the configuration of an agent below `home`. `program`
    is the command of AgentFormer, and `place` are the options that select the memory. Raises `InvalidInput` for a file
    that cannot be changed."""
    return [
        change for change in _changes(agent, home, program, place, project=project) if change.content != change.former
    ]


def uninstalled(agent: Agent, home: Path, *, project: bool) -> list[Change]:
    """Return the changes that take back what `installed` has added."""
    return [change for change in _changes(agent, home, (), (), project=project) if change.content != change.former]


def write(changes: Sequence[Change], *, backup: bool = True) -> None:
    """Write changes. With `backup`, a copy of each present file is kept beside it, as NAME.before-agentformer."""
    for file, former, content in changes:
        file.parent.mkdir(parents=True, exist_ok=True)
        if former and backup:
            shutil.copy2(file, file.with_name(file.name + BACKUP))
        if not content:
            file.unlink(missing_ok=True)
            continue
        partial = file.with_name(file.name + ".part")
        partial.write_text(content, "utf-8")
        if former:
            shutil.copymode(file, partial)
        partial.replace(file)


def _changes(agent: Agent, home: Path, program: Sequence[str], place: Sequence[str], *, project: bool) -> list[Change]:
    hooks, servers = _FILES[agent]
    if project and agent == "claude-code":
        hooks, servers = ".claude/settings.local.json", ".mcp.json"  # the first is not shared with others
    contents: dict[str, dict[str, Any]] = {}
    former = {name: _read(home / name) for name in dict.fromkeys((hooks, servers)) if name}
    for name, text in former.items():
        contents[name] = _parsed(home / name, text)
    _set_hooks(contents[hooks], agent, program, place)
    if servers:
        _set_server(contents[servers], program, place)
    return [Change(home / name, former[name], _dumped(contents[name], former[name])) for name in former]


def _set_hooks(content: dict[str, Any], agent: Agent, program: Sequence[str], place: Sequence[str]) -> None:
    hooks = content.get("hooks", {})
    for event in [*hooks]:
        if isinstance(hooks[event], list):
            hooks[event] = [each for each in hooks[event] if not _is_own(each, agent)]
            if not hooks[event]:
                del hooks[event]
    for event in EVENTS[agent] if program else ():
        command = shlex.join([*program, "hook", event, "--agent", agent, *place])
        hooks.setdefault(event, []).append(_hook(agent, event, command))
    if hooks:
        content["hooks"] = hooks
        if agent == "cursor":
            content.setdefault("version", 1)
    else:
        content.pop("hooks", None)
        if agent == "cursor" and content == {"version": 1}:
            content.clear()


def _hook(agent: Agent, event: str, command: str) -> dict[str, Any]:
    if agent == "cursor":
        return {"command": command}
    hook = {"type": "command", "command": command, "timeout": _SECONDS * (1000 if agent == "gemini" else 1)}
    return {"hooks": [hook]} if EVENTS[agent][event] != "tool" else {"matcher": "*", "hooks": [hook]}


def _is_own(entry: Any, agent: Agent) -> bool:
    """Return whether an entry only calls `agentformer hook` for this agent."""
    if not isinstance(entry, dict):
        return False
    commands = [each.get("command") for each in entry.get("hooks", [entry]) if isinstance(each, dict)]
    return bool(commands) and all(
        isinstance(each, str) and "agentformer" in each and f" --agent {agent} " in f"{each} " and " hook " in each
        for each in commands
    )


def _set_server(content: dict[str, Any], program: Sequence[str], place: Sequence[str]) -> None:
    servers = content.get("mcpServers", {})
    servers.pop(SERVER, None)
    if program:
        servers[SERVER] = {"command": program[0], "args": [*program[1:], "mcp", *place]}
    if servers:
        content["mcpServers"] = servers
    else:
        content.pop("mcpServers", None)


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("AGENT", f"{file} cannot be read ({error}); correct the file, or remove it") from None


def _parsed(file: Path, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise InvalidInput("AGENT", f"{file} is not JSON ({error}); add the hooks by hand (docs/HOOKS.md)") from None
    wrong = [
        name
        for name in ("hooks", "mcpServers")
        if not isinstance(content, dict) or not isinstance(content.get(name, {}), dict)
    ]
    if wrong:
        raise InvalidInput("AGENT", f"{file} has no object `{wrong[0]}` as expected; correct the file")
    return dict(content)


def _dumped(content: Mapping[str, Any], former: str) -> str:
    """Return the JSON of a file, or its present text if the content is equal."""
    if former.strip() and json.loads(former) == content:
        return former
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n" if content else ""
