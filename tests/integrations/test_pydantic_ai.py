"""The toolset of Pydantic AI stores and finds for an agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("pydantic_ai.toolsets", reason="pydantic-ai is not installed; run `make test-integrations`")

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from agentformer import AgentFormer
from agentformer.errors import InvalidInput
from agentformer.integrations.pydantic_ai import AgentFormerToolset
from tests.integrations.conftest import ticks_during


def test_an_agent_stores_searches_and_corrects_a_wrong_call(af: AgentFormer) -> None:
    calls = iter(
        [
            ToolCallPart("memory_add", {"content": "Aino prefers tea."}),
            ToolCallPart("memory_search", {"question": "tea"}),
            ToolCallPart("memory_search", {"query": "tea"}),
        ]
    )
    seen: list[Any] = []

    def answer(messages: Any, info: Any) -> ModelResponse:
        seen.extend(messages[-1].parts)
        assert {tool.name for tool in info.function_tools} == {"memory_add", "memory_search"}
        call = next(calls, None)
        return ModelResponse(parts=[call or TextPart("Tea.")])

    agent = Agent(FunctionModel(answer), toolsets=[AgentFormerToolset(af, ["memory_add", "memory_search"])])
    assert asyncio.run(agent.run("Which tea?")).output == "Tea."
    retries = [part for part in seen if "is missing" in str(part.content)]  # what the model reads about its wrong call
    assert len(retries) == 1 and "memory_search takes: query*" in str(retries[0].content)
    last = [part for part in seen if isinstance(part, ToolReturnPart)][-1]
    assert last.content["memories"][0]["content"] == "Aino prefers tea."


def test_the_event_loop_is_never_blocked(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    slow = af.toolbox.call
    monkeypatch.setattr(af.toolbox, "call", lambda *a, **k: (time.sleep(0.1), slow(*a, **k))[1])
    toolset, nothing = AgentFormerToolset(af), object()
    assert ticks_during(lambda n: toolset.call_tool("memory_status", {}, nothing, nothing)) >= 10


def test_a_name_that_no_tool_has_is_refused(af: AgentFormer) -> None:
    with pytest.raises(InvalidInput, match=r"names of tools \(memory_add, .*'nope'"):
        AgentFormerToolset(af, ["nope"])
