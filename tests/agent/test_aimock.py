"""An agent against aimock, a server that we did not write: a whole acquaintance, from the first PDF to a summary.

What aimock answers depends on what it is sent: a fixture fits only with the tools and the results that it names.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer import AgentFormer, connect
from agentformer.agent import Agent
from tests.llms.test_conformance import line_of, stop
from tests.readers.conftest import make_pdf

pytestmark = pytest.mark.process
KEYS = "The caretaker keeps the keys in the blue cupboard."
BOATS = "Boats are lifted out of the water in October."
SUMMARY = "Aino had rules.pdf read, and asked who keeps the keys: the caretaker. She prefers green tea."


def fixtures() -> list[dict[str, Any]]:
    """The first that fits is answered."""

    def when(said: str, response: Any, **more: Any) -> dict[str, Any]:
        return {"match": {"userMessage": said, **more}, "response": response}

    def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        return {"toolCalls": [{"name": name, "arguments": arguments} for name, arguments in made]}

    def after(result: str) -> dict[str, Any]:
        return {"toolName": "rag_query", "hasToolResult": True, "toolResultContains": result}

    def first(tool: str) -> dict[str, Any]:
        return {"toolName": tool, "hasToolResult": False}

    query = ("rag_query", {"question": "Who keeps the keys?"})
    keep = ("memory_add", {"content": "Aino prefers green tea.", "kind": "preference"})
    return [
        when("Summarise these messages.", {"content": SUMMARY}),
        when("Aino prefers green tea.</memory>", {"content": "Green tea, as you told me."}, toolName="memory_search"),
        when("Read rules.pdf", {"content": "I have read rules.pdf."}, **after('"status": "ready"')),
        when("Read rules.pdf", calls(("rag_upload", {"path": "rules.pdf"})), **first("rag_upload")),
        when("Who keeps the keys", {"content": "The caretaker does [rules.pdf, 2]."}, **after("blue cupboard")),
        when("Who keeps the keys", calls(("rag_list", {}), query), **first("rag_query")),
        when("I prefer green tea", {"content": "I will remember that."}, **after('"kind": "preference"')),
        when("I prefer green tea", calls(keep), **first("memory_add")),
        when("Thank you", {"content": "You are welcome."}),
        when("Good night", {"content": "Good night."}),
        when("Go on for ever", calls(("rag_list", {})), toolName="rag_list"),
        when("No more tools can be called", {"content": "I went round in circles."}),
        when("Your reply could not be used", {"content": "In words, then."}),
        when("Call badly", {"toolCalls": [{"name": "rag_list", "arguments": "{not json"}]}),
        when("", {"content": "I do not know."}),
    ]


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = os.environ.get("AIMOCK")
    if not program:
        pytest.skip("AIMOCK does not name the program of the npm package @copilotkit/aimock")
    folder = tmp_path_factory.mktemp("aimock")
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": fixtures()}), encoding="utf-8")
    config = {"llm": {"fixtures": str(folder / "fixtures.json")}}
    (folder / "aimock.json").write_text(json.dumps(config), encoding="utf-8")
    process = subprocess.Popen(
        [program, "--config", folder / "aimock.json", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield line_of(process, r"http://[\w.]+:\d+")
    finally:
        stop(process)


@pytest.fixture
def af(aimock: str, tmp_path: Path) -> Iterator[AgentFormer]:
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    with connect(**where, llm_model="mocked", llm_base_url=aimock, llm_api_key="sk-test") as af:  # type: ignore[arg-type]
        yield af


def sent(aimock: str) -> list[dict[str, Any]]:
    """The bodies of all requests that aimock got, oldest first."""
    with urllib.request.urlopen(f"{aimock}/__aimock/journal", timeout=30) as answer:
        return [entry["body"] for entry in json.load(answer)]


def test_an_agent_reads_answers_remembers_recalls_and_consolidates(
    aimock: str, af: AgentFormer, tmp_path: Path
) -> None:
    (tmp_path / "rules.pdf").write_bytes(make_pdf([[BOATS], [KEYS]]))
    agent = Agent(af, user_id="aino", folder=tmp_path)
    before = len(sent(aimock))

    read = agent.turn("Read rules.pdf, please.", session_id="monday")
    assert (read.text, read.finish) == ("I have read rules.pdf.", "answer")
    assert [(document.name, document.pages, document.status) for document in af.rag.documents()] == [
        ("rules.pdf", 2, "ready")
    ]

    keys = agent.turn("Who keeps the keys?", session_id="monday")
    assert keys.text == "The caretaker does [rules.pdf, 2]."
    assert [(run.name, run.failed) for run in keys.tool_runs] == [("rag_list", False), ("rag_query", False)]
    assert [(cited.document, cited.page, cited.quote) for cited in keys.citations] == [("rules.pdf", 2, KEYS)]

    tea = agent.turn("I am Aino, and I prefer green tea.", session_id="monday")
    assert [run.name for run in tea.tool_runs] == ["memory_add"]

    recalled = agent.turn("What do I prefer to drink, which tea?", session_id="tuesday")
    assert recalled.text == "Green tea, as you told me."
    assert recalled.tool_runs == ()
    assert "Aino prefers green tea." in [used.excerpt for used in recalled.memories]

    assert af.memory.list(kinds=["summary"]) == []
    agent.turn("Thank you.", session_id="monday")
    agent.turn("Good night.", session_id="monday")
    af.cleaner.close(30)  # which finishes what the tenth message began
    (summary,) = af.memory.list(kinds=["summary"], session_id="monday")
    assert summary.content == SUMMARY
    assert len(summary.derived_from) == 5
    assert len(af.memory.transcript("monday")) == 10

    names = {tool.name for tool in af.toolbox.definitions()}
    asked = [body for body in sent(aimock)[before:] if body.get("tools")]
    assert len(asked) == 9  # three turns with tools, three without
    for body in asked:
        assert {tool["function"]["name"] for tool in body["tools"]} == names
        assert [message["role"] for message in body["messages"]].count("system") == 1
        called = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or ()]
        assert called == [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]


def test_a_server_whose_model_never_stops_calling_is_stopped(af: AgentFormer) -> None:
    turn = Agent(af).turn("Go on for ever.", session_id="s")
    assert (turn.finish, turn.text) == ("repeating", "I went round in circles.")
    assert len(turn.tool_runs) == 5


def test_arguments_that_are_no_json_are_told_to_the_model(af: AgentFormer) -> None:
    turn = Agent(af).turn("Call badly.", session_id="s")
    assert (turn.finish, turn.text) == ("answer", "In words, then.")
