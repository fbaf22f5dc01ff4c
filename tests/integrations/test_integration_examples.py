"""Each example of an adapter runs without a network, prints what it says, and has at most 30 lines."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.forked import SERVE, ended, script

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "integrations"
PRINTED = {
    "langchain_store": ("langchain_core", ["['keys']", "['tea']", "Tea is served at four. fact"]),
    "langgraph_store": ("langgraph", ["drink", "['home']", "[('users', 'aino')]"]),
    "anthropic_tool": (
        "anthropic",
        [
            "File created successfully at: /memories/tea.md",
            "Here's the content of /memories/tea.md with line numbers:",
            "     1\tAino prefers green tea.",
            "/memories/tea.md",
        ],
    ),
    "pydantic_ai_toolset": ("pydantic_ai", ["1"]),
    "adk_memory": ("google.adk", ["['I prefer green tea.']"]),
    "llamaindex_retriever": ("llama_index", ["The caretaker keeps the keys. rules.txt 1"]),
    "haystack_store": ("haystack", ["['The caretaker keeps the keys.']"]),
    "openai_client": ("openai", ["vs_handbook rules.txt The caretaker keeps the keys."]),
    "openai_agents_session": (
        "agents",
        [
            "[{'role': 'user', 'content': 'I prefer green tea.'}]",
            "I prefer green tea.",
            "['memory_add', 'memory_search']",
        ],
    ),
}
# The audit hook refuses every connection to another address than this machine's.
OFFLINE = """
import sys
def refuse(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] != "127.0.0.1":
        raise RuntimeError(f"an example may not connect to {arguments[1]}")
sys.addaudithook(refuse)
"""


def test_every_example_is_tested_and_short() -> None:
    files = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.py")}
    assert files.keys() == PRINTED.keys()
    assert max(text.count("\n") for text in files.values()) <= 30


@pytest.mark.process
@pytest.mark.parametrize("name", PRINTED)
def test_the_example_runs_without_a_network(name: str) -> None:
    package, lines = PRINTED[name]
    if not all(find_spec(".".join(package.split(".")[: n + 1])) for n in range(package.count(".") + 1)):
        pytest.skip(f"{package} is not installed; run `make test-integrations`")
    quiet = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}
    imports = (*SERVE, "agentformer.api", "flask")
    done = ended(script(FOLDER / f"{name}.py", before=OFFLINE, imports=imports, env=quiet))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == lines
