"""Each block of docs/MCP_RECIPES.md is run against a server process, with the client that the block uses."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import agentformer

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "MCP_RECIPES.md").read_text("utf-8")
BLOCKS = {
    (title, language): text
    for section in PAGE.split("\n## ")[1:]
    for title in [section.partition("\n")[0]]
    for language, text in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)
}
PACKAGES = {
    "OpenAI Agents SDK": ("agents",),
    "Pydantic AI": ("pydantic_ai", "fastmcp"),
    "LangChain": ("langchain_mcp_adapters",),
    "CrewAI": ("crewai_tools", "mcpadapt"),
    "smolagents": ("smolagents", "mcpadapt"),
}
CLIENTS = [title for title, language in BLOCKS if language == "python"]
# A model for tests in place of a model that needs a network.
TEST_MODEL = """
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel


def answer(messages, info):
    part = messages[-1].parts[-1]
    if part.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(str(part.content))])
    return ModelResponse(parts=[ToolCallPart("agentformer_memory_search", {"query": part.content})])
"""
BOUND = 120


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The paths of the page, and what they stand for: a memory that knows which tea Aino prefers."""
    own = ROOT / ".venv" / "bin" / "agentformer"
    program = str(own) if own.exists() else shutil.which("agentformer")
    if program is None or (not own.exists() and not find_spec("mcp")):
        pytest.skip("there is no agentformer with the extra `mcp`")
    folder = tmp_path_factory.mktemp("memory")
    where = {"index_dir": folder / "i", "upload_dir": folder / "u"}
    with agentformer.connect(embedder="hashing", **where) as af:  # type: ignore[arg-type]
        af.memory.store("Aino prefers green tea.")
    yield {
        "/path/to/.venv/bin/agentformer": program,
        "/path/to/indexes": str(folder / "i"),
        "/path/to/uploads": str(folder / "u"),
        "${workspaceFolder}": str(folder),
    }


def placed(block: str, places: dict[str, str]) -> str:
    for path, real in places.items():
        block = block.replace(path, real)
    return block


def test_every_client_has_a_block() -> None:
    assert {*CLIENTS} == PACKAGES.keys()
    assert [title for title, language in BLOCKS if language == "json"] == ["Claude Code", "Cursor", "VS Code"]


def listed(server: dict[str, Any]) -> dict[str, bool]:
    """The tools that the official client finds, and whether each is read-only."""
    anyio = pytest.importorskip("anyio")
    if not find_spec("mcp.client.client"):
        pytest.skip("the extra `mcp` is not installed")
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def run() -> dict[str, bool]:
        parameters = StdioServerParameters(command=server["command"], args=server["args"], env={**os.environ})
        with anyio.fail_after(BOUND):
            async with Client(stdio_client(parameters)) as client:
                tools = (await client.list_tools()).tools
                return {tool.name: bool(tool.annotations and tool.annotations.read_only_hint) for tool in tools}

    found: dict[str, bool] = anyio.run(run)
    return found


def configured(title: str, places: dict[str, str]) -> dict[str, Any]:
    """The server of a client's configuration."""
    (servers,) = json.loads(placed(BLOCKS[title, "json"], places)).values()
    server: dict[str, Any] = servers["agentformer"]
    return server


@pytest.mark.parametrize("title", ["Cursor", "VS Code"])
def test_a_configuration_starts_a_server_with_its_tools(title: str, places: dict[str, str]) -> None:
    tools = listed(configured(title, places))
    assert "memory_search" in tools
    assert all(tools.values()) == (title == "Cursor")


def test_claude_code_starts_the_server_of_vs_code_without_the_folder_of_a_workspace(places: dict[str, str]) -> None:
    server, other = (configured(title, places) for title in ("Claude Code", "VS Code"))
    assert (server["command"], server["args"]) == (other["command"], other["args"][:-2])
    assert other["args"][-2:] == ["--folder", places["${workspaceFolder}"]]
    _, _, command = placed(BLOCKS["Claude Code", "sh"], places).partition(" -- ")
    assert shlex.split(command) == [server["command"], *server["args"]]


@pytest.mark.parametrize("title", PACKAGES)
def test_a_block_finds_the_memory(title: str, places: dict[str, str], tmp_path: Path) -> None:
    if missing := [name for name in PACKAGES[title] if not find_spec(name)]:
        pytest.skip(f"{missing[0]} is not installed; run `make test-mcp-clients`")
    block = placed(BLOCKS[title, "python"], places)
    if title == "Pydantic AI":
        (tmp_path / ".mcp.json").write_text(placed(BLOCKS["Claude Code", "json"], places))
        assert '"openai:gpt-5"' in block
        block = TEST_MODEL + block.replace('"openai:gpt-5"', "FunctionModel(answer)")
    environment = {
        **os.environ,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "CREWAI_DISABLE_TELEMETRY": "true",
        "OTEL_SDK_DISABLED": "true",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, timeout=BOUND, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "Aino prefers green tea." in done.stdout, done.stdout
