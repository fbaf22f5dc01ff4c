"""The files that `agentformer install` writes for coding agents, and the plugin: their forms, and the way back."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentformer.cli.commands import main
from agentformer.cli.hook import _options
from agentformer.errors import InvalidInput
from agentformer.hooks.agent_formats import AGENTS, EVENTS, Agent
from agentformer.hooks.installing import BACKUP, installed, uninstalled, write

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ["/opt/agent former/bin/agentformer"]
PLACE = ["--index-dir", "/home/anna/memory/indexes", "--upload-dir", "/home/anna/memory/uploads"]


def files(home: Path) -> dict[str, Any]:
    return {
        str(file.relative_to(home)): json.loads(file.read_text("utf-8"))
        for file in home.rglob("*.json")
        if not file.name.endswith(BACKUP)
    }


def commands(hooks: Any, agent: Agent) -> dict[str, str]:
    """Return the command of each event, and check the form that the agent documents."""
    found = {}
    for event, entries in hooks.items():
        (entry,) = entries
        if agent == "cursor":
            found[event] = entry["command"]
            continue
        assert entry.keys() <= {"matcher", "hooks"}
        (hook,) = entry["hooks"]
        assert hook.keys() == {"type", "command", "timeout"}
        assert hook["type"] == "command"
        assert hook["timeout"] == (5000 if agent == "gemini" else 5)
        found[event] = hook["command"]
    return found


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("project", [False, True])
def test_installing_twice_and_taking_back_leaves_what_was_there(tmp_path: Path, agent: Agent, project: bool) -> None:
    write(installed(agent, tmp_path, PROGRAM, PLACE, project=project))
    once = files(tmp_path)
    (hooks,) = [content["hooks"] for content in once.values() if "hooks" in content]
    found = commands(hooks, agent)
    assert found.keys() == EVENTS[agent].keys()
    for event, command in found.items():
        program, name, *options = shlex.split(command)
        assert (program, name) == (PROGRAM[0], "hook")
        assert _options(options).event == event
        assert _options(options).agent == agent
    servers = [content["mcpServers"] for content in once.values() if "mcpServers" in content]
    assert len(servers) == (agent in ("gemini", "cursor") or (agent == "claude-code" and project))
    assert installed(agent, tmp_path, PROGRAM, PLACE, project=project) == []
    write(uninstalled(agent, tmp_path, project=project), backup=False)
    assert files(tmp_path) == {}


@pytest.mark.parametrize("agent", AGENTS)
def test_what_others_have_written_stays(tmp_path: Path, agent: Agent) -> None:
    event = next(iter(EVENTS[agent]))
    other = {"command": "say done"} if agent == "cursor" else {"hooks": [{"type": "command", "command": "say done"}]}
    (first,) = [c.file for c in installed(agent, tmp_path, PROGRAM, PLACE, project=False) if '"hooks"' in c.content]
    first.parent.mkdir(parents=True)
    mine = {"other": {"å": 1}, "version": 1, "hooks": {event: [other]}, "mcpServers": {"x": {"command": "x"}}}
    first.write_text(json.dumps(mine), "utf-8")
    first.chmod(0o600)
    write(installed(agent, tmp_path, PROGRAM, PLACE, project=False))
    changed = json.loads(first.read_text("utf-8"))
    assert changed["hooks"][event][0] == other
    assert len(changed["hooks"][event]) == 2
    assert changed["other"] == {"å": 1}
    assert first.stat().st_mode & 0o777 == 0o600
    assert json.loads(first.with_name(first.name + BACKUP).read_text("utf-8")) == mine
    write(uninstalled(agent, tmp_path, project=False), backup=False)
    assert json.loads(first.read_text("utf-8")) == mine


def test_the_first_copy_stays_and_a_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "dot" / "g.json"
    target.parent.mkdir()
    target.write_text('{"mine": 1}', "utf-8")
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "settings.json").symlink_to(target)
    for place in (PLACE, ["--index-dir", "/other", "--upload-dir", "/other"]):
        write(installed("gemini", tmp_path, PROGRAM, place, project=False))
    assert (tmp_path / ".gemini" / "settings.json").is_symlink()
    assert "hooks" in json.loads(target.read_text("utf-8"))
    assert json.loads(target.with_name("g.json" + BACKUP).read_text("utf-8")) == {"mine": 1}


@pytest.mark.parametrize("link", [".cursor", ".cursor/hooks.json", ".cursor/mcp.json"])
def test_a_link_in_a_project_is_refused(tmp_path: Path, link: str) -> None:
    project, precious = tmp_path / "repository", tmp_path / "precious"
    (project / link).parent.mkdir(parents=True, exist_ok=True)
    precious.mkdir() if link == ".cursor" else precious.write_text("{}", "utf-8")
    (project / link).symlink_to(precious)
    with pytest.raises(InvalidInput, match="is a link"):
        installed("cursor", project, PROGRAM, PLACE, project=True)


def test_files_that_a_repository_has_prepared_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine", "utf-8")
    project = tmp_path / "repository"
    (project / ".cursor").mkdir(parents=True)
    (project / ".cursor" / "mcp.json").write_text('{"evil": 1}', "utf-8")
    for name in (f"mcp.json{BACKUP}", "mcp.json.part", "hooks.json.part"):
        (project / ".cursor" / name).symlink_to(precious)
    write(installed("cursor", project, PROGRAM, PLACE, project=True))
    assert precious.read_text("utf-8") == "mine"


@pytest.mark.parametrize(
    "command",
    [
        "/opt/log.sh agentformer hook Stop --agent gemini ; /opt/mine.sh",
        "my-agentformer hook Stop --agent gemini --mine yes",
        "agentformer hook Stop --agent gemini && rm -rf x",
        "agentformer hook Stop",
    ],
)
def test_only_our_own_commands_are_removed(tmp_path: Path, command: str) -> None:
    mine = {
        "hooks": {"AfterAgent": [{"hooks": [{"type": "command", "command": command}]}, {"hooks": []}]},
        "mcpServers": {"agentformer": {"command": "my-own-server", "args": ["mcp"]}},
    }
    file = tmp_path / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps(mine), "utf-8")
    assert uninstalled("gemini", tmp_path, project=False) == []
    with pytest.raises(InvalidInput, match="another server named agentformer"):
        installed("gemini", tmp_path, PROGRAM, PLACE, project=False)


@pytest.mark.parametrize(
    "text",
    [
        '{"hooks": {"AfterAgent": "x"}}',
        '{"hooks": null}',
        '{"hooks": []}',
        "[]",
        "{ // comment\n}",
        '{"mcpServers": 5}',
        "\ufeff{",
    ],
)
def test_a_file_of_another_form_is_not_touched(tmp_path: Path, text: str) -> None:
    file = tmp_path / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_text(text, "utf-8")
    with pytest.raises(InvalidInput, match=r"settings\.json"):
        installed("gemini", tmp_path, PROGRAM, PLACE, project=False)
    assert file.read_text("utf-8") == text


def test_the_command_shows_the_change_and_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = CliRunner().invoke(main, ["install", "cursor"], input="n\n")
    assert asked.exit_code == 2
    assert "+" in asked.output
    assert files(tmp_path) == {}
    done = CliRunner().invoke(main, ["install", "cursor", "--yes"])
    assert done.exit_code == 0
    assert "beforeSubmitPrompt" in (tmp_path / ".cursor" / "hooks.json").read_text("utf-8")
    assert str(tmp_path / ".agentformer" / "indexes") in done.output
    assert CliRunner().invoke(main, ["uninstall", "cursor", "--yes"]).exit_code == 0
    assert files(tmp_path) == {}


def test_an_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "hooks.json").write_text("// comment", "utf-8")
    done = CliRunner().invoke(main, ["install", "cursor", "--yes"])
    assert done.exit_code == 2
    assert "is not JSON" in done.output


def test_what_is_captured_can_be_listed_switched_off_and_forgotten(tmp_path: Path) -> None:
    import agentformer

    place = ["--index-dir", str(tmp_path / "i"), "--upload-dir", str(tmp_path / "u")]
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        af.memory.add_message("s1", "user", "Tea is at five.", source_type="hook", source_id="1")
        af.memory.store("The kettle is red.")
    environ = dict(os.environ)
    listed = CliRunner().invoke(main, ["hooks", "list", *place])
    assert "user: Tea is at five." in listed.output
    assert "kettle" not in listed.output
    assert "off" in CliRunner().invoke(main, ["hooks", "off", *place]).output
    assert json.loads(CliRunner().invoke(main, ["hooks", "--json", *place]).output)["capturing"] is False
    assert "forgot 1 entry" in CliRunner().invoke(main, ["hooks", "forget", "--yes", *place]).output
    assert dict(os.environ) == environ, "a command leaves the process as it was"
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        assert [entry.content for entry in af.memory.list()] == ["The kettle is red."]


def test_the_plugin_of_claude_code_has_the_documented_form() -> None:
    plugin = ROOT / "plugins" / "claude-code"
    market = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text("utf-8"))
    (entry,) = market["plugins"]
    manifest = json.loads((plugin / ".claude-plugin" / "plugin.json").read_text("utf-8"))
    assert (ROOT / entry["source"]).resolve() == plugin
    assert entry["name"] == manifest["name"]
    assert market["name"] and market["owner"]["name"]
    hooks = json.loads((plugin / "hooks" / "hooks.json").read_text("utf-8"))["hooks"]
    found = commands(hooks, "claude-code")
    assert found.keys() == EVENTS["claude-code"].keys()
    for event, command in found.items():
        program, name, *options = shlex.split(command)
        assert (program, name, _options(options).event) == ("agentformer", "hook", event)
    (server,) = json.loads((plugin / ".mcp.json").read_text("utf-8"))["mcpServers"].values()
    assert (server["command"], server["env"]) == ("agentformer", {"AGENTFORMER_ENV_FILE": "none"})
    for file in [*plugin.glob("commands/*.md"), *plugin.glob("skills/*/SKILL.md")]:
        head = file.read_text("utf-8").split("---")[1]
        assert "description: " in head, file
    assert sorted(file.stem for file in plugin.glob("commands/*.md")) == ["forget", "recall", "remember"]
