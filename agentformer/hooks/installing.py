"""Write the hooks and the MCP server of a memory into the configuration of a coding agent, and take them back.

Only entries that call `agentformer hook` with the name of the agent are added, replaced or removed; everything else in
a file stays. A file that is no JSON object (some agents allow comments) is not touched.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import InvalidInput
from agentformer.hooks.agent_formats import EVENTS, Agent

SERVER = "agentformer"  # the name of the MCP server
_OPTIONS = {"--agent", "--index-dir", "--upload-dir", "--budget", "--deadline", "--idle"}
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
    return _changes(agent, home, program, place, project=project)


def uninstalled(agent: Agent, home: Path, *, project: bool) -> list[Change]:
    """Return the changes that take back what `installed` has added."""
    return _changes(agent, home, (), (), project=project)


def write(changes: Sequence[Change], *, backup: bool = True) -> None:
    """Write changes. With `backup`, a copy of each file as it was before the first change is kept beside it, as
    NAME.before-agentformer."""
    for file, former, content in changes:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        if former and backup:
            with contextlib.suppress(FileExistsError):
                kept = os.open(file.with_name(file.name + BACKUP), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(kept, "w", encoding="utf-8") as out:
                    out.write(former)
        if not content:
            file.unlink(missing_ok=True)
            continue
        number, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # follows no link
        with os.fdopen(number, "w", encoding="utf-8") as written:
            written.write(content)
        Path(partial).chmod(stat.S_IMODE(file.stat().st_mode) if former else 0o600)
        Path(partial).replace(file)


def _changes(agent: Agent, home: Path, program: Sequence[str], place: Sequence[str], *, project: bool) -> list[Change]:
    """Return the changes of the files of an agent. Without `program`, our hooks and our server are only removed."""
    hooks, servers = _FILES[agent]
    if project and agent == "claude-code":
        hooks, servers = ".claude/settings.local.json", ".mcp.json"  # the first is not shared with others
    places = {name: _place(home, name, project=project) for name in dict.fromkeys((hooks, servers)) if name}
    former = {name: _read(place) for name, place in places.items()}
    contents = {name: _parsed(places[name], text) for name, text in former.items()}
    _set_hooks(contents[hooks], agent, program, place)
    if servers:
        _set_server(contents[servers], places[servers], program, place)
    changes = [Change(places[name], text, _dumped(contents[name], text)) for name, text in former.items()]
    return [change for change in changes if change.content != change.former]


def _place(home: Path, name: str, *, project: bool) -> Path:
    """Return the path of a file. A link of the user is followed, so that it stays a link. In a project, a link could
    lead to any file of the user, so it is refused."""
    place = home / name
    if not project:
        return place.resolve()
    for part in (place, *place.parents):
        if part == home:
            break
        if part.is_symlink():
            raise InvalidInput("AGENT", f"{part} is a link; remove it, or install without --project")
    return place


def _set_hooks(content: dict[str, Any], agent: Agent, program: Sequence[str], place: Sequence[str]) -> None:
    """Replace our hooks in the content of a file, and remove the lists and objects that are empty after that."""
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
    hooks = entry.get("hooks", [entry]) if isinstance(entry, dict) else None
    if not isinstance(hooks, list) or not hooks:
        return False
    commands = [each.get("command") if isinstance(each, dict) else None for each in hooks]
    return all(isinstance(each, str) and _calls_us(each, agent) for each in commands)


def _calls_us(command: str, agent: Agent) -> bool:
    """Return whether a command is `agentformer hook EVENT --agent AGENT` with our options, and nothing else."""
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    at = words.index("hook") if "hook" in words else 0
    options = words[at + 2 :]
    named = dict(zip(options[::2], options[1::2], strict=False))
    known = len(options) % 2 == 0 and named.keys() <= _OPTIONS
    return known and named.get("--agent") == agent and _is_program(words[:at])


def _is_program(words: Sequence[str]) -> bool:
    """Return whether words are a command that runs AgentFormer."""
    if len(words) == 1:
        return Path(words[0]).name in ("agentformer", "agentformer.exe")
    return [*words[1:]] == ["-P", "-m", "agentformer.cli"]


def _set_server(content: dict[str, Any], file: Path, program: Sequence[str], place: Sequence[str]) -> None:
    """Replace our server in the content of a file. Another server of this name stays; adding ours is then an error."""
    servers = content.get("mcpServers", {})
    present = servers.get(SERVER)
    words = [present.get("command"), *(present.get("args") or [])] if isinstance(present, dict) else [present]
    own = "mcp" in words and all(isinstance(word, str) for word in words) and _is_program(words[: words.index("mcp")])
    if present is not None and own:
        del servers[SERVER]
    elif present is not None and program:
        raise InvalidInput("AGENT", f"{file} has another server named {SERVER}; rename or remove it")
    if program:
        # A server that an agent starts in a repository must not read the settings of that repository.
        isolated = {"AGENTFORMER_ENV_FILE": "none"}
        servers[SERVER] = {"command": program[0], "args": [*program[1:], "mcp", *place], "env": isolated}
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
    """Return the content of a file, or {} if it is empty. Raises `InvalidInput` if nothing can be added to it."""
    try:
        content = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise InvalidInput("AGENT", f"{file} is not JSON ({error}); add the hooks by hand (docs/HOOKS.md)") from None
    hooks = content.get("hooks") if isinstance(content, dict) else None
    if isinstance(hooks, dict) and (event := next((n for n, each in hooks.items() if not isinstance(each, list)), "")):
        raise InvalidInput("AGENT", f"{file} has no list of hooks for {event} as expected; correct the file")
    for name in ("hooks", "mcpServers"):
        if not isinstance(content, dict) or not isinstance(content.get(name, {}), dict):
            raise InvalidInput("AGENT", f"{file} has no object `{name}` as expected; correct the file")
    return dict(content)


def _dumped(content: Mapping[str, Any], former: str) -> str:
    """Return the JSON of a file, or its present text if the content is equal."""
    if former.strip() and json.loads(former) == content:
        return former
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n" if content else ""
