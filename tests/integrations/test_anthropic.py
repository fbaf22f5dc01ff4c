"""The memory tool does what Anthropic's tool over files does, command by command."""

from __future__ import annotations

import asyncio
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic.lib.tools", reason="anthropic is not installed; run `make test-integrations`")

from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

from agentformer import AgentFormer
from agentformer.integrations.anthropic import AgentFormerMemoryTool, AsyncAgentFormerMemoryTool
from tests.integrations.conftest import ticks_during

PATHS = (
    "/memories/a.md",
    "/memories/b.md",
    "/memories/d/c.md",
    "/memories/d/e/f.md",
    "/memories/.hidden",
    "/memories/z/g",
)
TEXTS = ("tea\ncake\ntea\n", "one line", "", "a\nb\nc\nd\ne\nf\ng\n", " \n", "ä\nö\n" * 900)


def outcome(tool: Any, command: dict[str, Any]) -> str:
    try:
        result = str(tool.call(command))
    except ToolError as error:
        result = f"error: {error}"
    return re.sub(r"^[\d.]+[BKMG]\t(?=\S*(?:/|/memories|/d|/e|/z)$)", "SIZE\t", result, flags=re.M)  # of a directory


def random_command(choose: random.Random) -> dict[str, Any]:
    path = choose.choice(PATHS)
    kind = choose.choice(("create", "create", "view", "str_replace", "insert", "delete", "rename"))
    anywhere = choose.choice((path, path, "/memories", "/memories/d", "/memories/../x", "/etc", "/memories/no"))
    if kind == "create":
        return {"command": kind, "path": path, "file_text": choose.choice(TEXTS)}
    if kind == "view":
        view = choose.choice((None, None, [2, 3], [2, -1], [1, 99]))
        return {"command": kind, "path": anywhere, **({"view_range": view} if view else {})}
    if kind == "str_replace":
        old, new = choose.choice(("tea", "one", "c", "nothing")), choose.choice(("milk", "x\ny"))
        return {"command": kind, "path": path, "old_str": old, "new_str": new}
    if kind == "insert":
        return {"command": kind, "path": path, "insert_line": choose.randrange(-1, 5), "insert_text": "new\n"}
    if kind == "delete":
        return {"command": kind, "path": choose.choice((path, "/memories"))}
    return {"command": kind, "old_path": path, "new_path": choose.choice(PATHS)}


@pytest.mark.slow
def test_random_commands_have_the_results_of_the_tool_over_files(af: AgentFormer, tmp_path: Path) -> None:
    choose = random.Random(2)
    ours, theirs = AgentFormerMemoryTool(af), BetaLocalFilesystemMemoryTool(str(tmp_path / "files"))
    succeeded = 0
    for _ in range(600):
        command = random_command(choose)
        expected = outcome(theirs, command)
        for folder in sorted((tmp_path / "files" / "memories").rglob("*"), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()  # a directory of ours exists while a file is in it
        assert outcome(ours, command) == expected, command
        succeeded += not expected.startswith("error")
    assert succeeded > 150


def test_a_file_has_a_history_and_is_found(af: AgentFormer) -> None:
    tool = AgentFormerMemoryTool(af, user_id="aino")
    tool.call({"command": "create", "path": "/memories/tea.md", "file_text": "Aino prefers green tea."})
    tool.call({"command": "str_replace", "path": "/memories/tea.md", "old_str": "green", "new_str": "black"})
    tool.call({"command": "rename", "old_path": "/memories/tea.md", "new_path": "/memories/drinks/tea.md"})
    (hit,) = af.memory.search("Which tea does Aino prefer?", user_id="aino", limit=1)
    assert (hit.entry.title, hit.entry.content) == ("/memories/drinks/tea.md", "Aino prefers black tea.")
    assert [entry.content.split()[2] for entry in af.memory.history(hit.entry.id)] == ["green", "black"]
    assert "tea.md" not in AgentFormerMemoryTool(af, user_id="pekka").call({"command": "view", "path": "/memories"})
    assert tool.clear_all_memory() == "All memory cleared" and af.memory.count() == 0


def test_the_event_loop_is_never_blocked(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    slow = af.memory.upsert
    monkeypatch.setattr(af.memory, "upsert", lambda *a, **k: (time.sleep(0.02), slow(*a, **k))[1])
    tool = AsyncAgentFormerMemoryTool(af)
    assert ticks_during(lambda n: tool.call({"command": "create", "path": f"/memories/{n}", "file_text": "x"})) >= 10
    assert str(asyncio.run(tool.call({"command": "view", "path": "/memories"}))).count("/memories/") == 20


def test_a_tool_without_an_owner_has_only_the_files_of_nobody(af: AgentFormer) -> None:
    command: dict[str, Any] = {"command": "create", "path": "/memories/a.md"}
    owners: list[dict[str, Any]] = [{}, {"user_id": "aino"}, {"user_id": "aino", "project": "north"}]
    tools = [AgentFormerMemoryTool(af, **owner) for owner in owners]
    for tool, owner in zip(tools, owners, strict=True):
        assert "successfully" in str(tool.call({**command, "file_text": f"text of {owner}"}))
    tools[0].clear_all_memory()
    shown = [outcome(tool, {"command": "view", "path": "/memories/a.md"}) for tool in tools]
    assert "does not exist" in shown[0]
    assert all(f"text of {owner}" in text for owner, text in zip(owners[1:], shown[1:], strict=True))


def test_commands_of_several_instances_run_one_after_the_other(af: AgentFormer) -> None:
    def call(command: dict[str, Any]) -> str:
        return outcome(AgentFormerMemoryTool(af, user_id="aino"), {"path": "/memories/a.md", **command})

    with ThreadPoolExecutor(8) as pool:
        created = [*pool.map(lambda n: call({"command": "create", "file_text": f"v{n}\n"}), range(8))]
        insert = {"command": "insert", "insert_line": 0}
        inserted = [*pool.map(lambda n: call({**insert, "insert_text": f"line {n}\n"}), range(8))]
    assert sum(text.startswith("File created") for text in created) == 1
    assert all("edited" in text for text in inserted)
    (entry,) = af.memory.list(source_type="anthropic_memory")
    assert sorted(entry.content.splitlines()[:-1]) == [f"line {n}" for n in range(8)]


def test_a_command_waits_for_another_process(af: AgentFormer) -> None:
    tool = AgentFormerMemoryTool(af)
    assert af.backend.lease(tool._lease, "another process", 60)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(tool.call, {"command": "create", "path": "/memories/a.md", "file_text": "x"})
        assert af.memory.count() == 0 and not waiting.done()
        af.backend.release(tool._lease, "another process")
        assert str(waiting.result(timeout=60)).startswith("File created")


def test_a_file_is_not_renamed_into_a_file(af: AgentFormer) -> None:
    tool = AgentFormerMemoryTool(af)
    for name in "ab":
        tool.call({"command": "create", "path": f"/memories/{name}", "file_text": name})
    for old in "ab":
        renamed = outcome(tool, {"command": "rename", "old_path": f"/memories/{old}", "new_path": "/memories/a/b"})
        assert renamed == "error: The path /memories/a/b is inside a file"
    assert "/memories/b" in str(tool.call({"command": "view", "path": "/memories"}))


def test_a_directory_cannot_be_edited_as_in_the_tool_over_files(af: AgentFormer, tmp_path: Path) -> None:
    tools = AgentFormerMemoryTool(af), BetaLocalFilesystemMemoryTool(str(tmp_path / "files"))
    for path in ("/memories", "/memories/d", "/memories/no"):
        replace = {"command": "str_replace", "path": path, "old_str": "tea", "new_str": "x"}
        insert = {"command": "insert", "path": path, "insert_line": 0, "insert_text": "x"}
        for command in (replace, insert):
            ours, theirs = (outcome(tool, command) for tool in tools)
            assert ours == theirs and ours.startswith("error: "), command
        for tool in tools:
            outcome(tool, {"command": "create", "path": "/memories/d/a.md", "file_text": "tea"})


def test_entries_of_another_program_are_no_files(af: AgentFormer) -> None:
    af.memory.store("x", source_type="anthropic_memory", source_id="1", title="notes")
    tool = AgentFormerMemoryTool(af)
    assert "notes" not in str(tool.call({"command": "view", "path": "/memories"}))
    tool.clear_all_memory()
    assert af.memory.count() == 1
