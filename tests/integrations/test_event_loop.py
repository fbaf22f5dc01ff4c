"""20 concurrent calls of each asynchronous method of an adapter, with a slow embedder: the event loop goes on.

Every query is new: the vector of a known query is not computed again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentformer import AgentFormer
from tests.integrations.conftest import ticks_during

Call = Callable[[int], Awaitable[Any]]
Calls = dict[str, Call]


def langchain(af: AgentFormer) -> Calls:
    pytest.importorskip("langchain.agents.middleware", reason="langchain is not installed")
    from langchain_core.messages import HumanMessage

    from agentformer.integrations.langchain import AgentFormerRetriever, AgentFormerVectorStore, RecallMiddleware

    class Request:
        def __init__(self, text: str) -> None:
            self.messages = [HumanMessage(text)]

        def override(self, **changes: Any) -> Request:
            return self

    async def handler(request: Any) -> Any:
        return request

    store, retriever, middleware = AgentFormerVectorStore(af), AgentFormerRetriever(af=af), RecallMiddleware(af)
    return {
        "aadd_texts": lambda n: store.aadd_texts([f"Text {n} about boats."]),
        "asimilarity_search": lambda n: store.asimilarity_search(f"boats {n}"),
        "asimilarity_search_with_score": lambda n: store.asimilarity_search_with_score(f"rafts {n}", k=2),
        "retriever": lambda n: retriever.ainvoke(f"canoes {n}"),
        "middleware": lambda n: middleware.awrap_model_call(Request(f"ferries {n}"), handler),
    }


def langgraph(af: AgentFormer) -> Calls:
    pytest.importorskip("langgraph.store.base", reason="langgraph is not installed")
    from agentformer.integrations.langgraph import AgentFormerStore

    store = AgentFormerStore(af)
    return {
        "aput": lambda n: store.aput(("a",), f"k{n}", {"text": f"Text {n} about boats."}),
        "asearch": lambda n: store.asearch(("a",), query=f"boats {n}"),
    }


def anthropic(af: AgentFormer) -> Calls:
    pytest.importorskip("anthropic.lib.tools", reason="anthropic is not installed")
    from agentformer.integrations.anthropic import AsyncAgentFormerMemoryTool

    tool = AsyncAgentFormerMemoryTool(af)

    def create(n: int) -> Awaitable[Any]:
        return tool.call({"command": "create", "path": f"/memories/{n}", "file_text": f"Text {n} about boats."})

    return {"create": create}


def openai_agents(af: AgentFormer) -> Calls:
    pytest.importorskip("agents.memory", reason="openai-agents is not installed")
    from agentformer.integrations.openai_agents import AgentFormerSession, function_tools

    session = AgentFormerSession("s", af)
    (search,) = function_tools(af, ["memory_search"])
    context: Any = None
    return {
        "add_items": lambda n: session.add_items([{"role": "user", "content": f"Text {n} about boats."}]),
        "memory_search": lambda n: search.on_invoke_tool(context, f'{{"query": "boats {n}"}}'),
    }


def llamaindex(af: AgentFormer) -> Calls:
    pytest.importorskip("llama_index.core.memory", reason="llama-index-core is not installed")
    from llama_index.core.base.llms.types import ChatMessage

    from agentformer.integrations.llamaindex import AgentFormerMemoryBlock, AgentFormerRetriever

    retriever, block = AgentFormerRetriever(af), AgentFormerMemoryBlock(af=af)
    return {
        "aput": lambda n: block.aput([ChatMessage(role="user", content=f"Text {n} about boats.")]),
        "aretrieve": lambda n: retriever.aretrieve(f"boats {n}"),
        "aget": lambda n: block.aget([ChatMessage(role="user", content=f"rafts {n}")]),
    }


def pydantic_ai(af: AgentFormer) -> Calls:
    pytest.importorskip("pydantic_ai.toolsets", reason="pydantic-ai is not installed")
    from agentformer.integrations.pydantic_ai import AgentFormerToolset

    toolset, nothing = AgentFormerToolset(af), None
    return {
        "memory_add": lambda n: toolset.call_tool("memory_add", {"content": f"Text {n} on boats."}, nothing, nothing),
        "memory_search": lambda n: toolset.call_tool("memory_search", {"query": f"boats {n}"}, nothing, nothing),
    }


def adk(af: AgentFormer) -> Calls:
    pytest.importorskip("google.adk.memory", reason="google-adk is not installed")
    from google.adk.events import Event
    from google.genai.types import Content, Part

    from agentformer.integrations.adk import AgentFormerMemoryService

    service = AgentFormerMemoryService(af)

    def add(n: int) -> Awaitable[Any]:
        event = Event(id=f"e{n}", author="user", content=Content(role="user", parts=[Part(text=f"Text {n} on boats.")]))
        return service.add_events_to_memory(app_name="app", user_id="aino", events=[event])

    return {
        "add_events_to_memory": add,
        "search_memory": lambda n: service.search_memory(app_name="app", user_id="aino", query=f"boats {n}"),
    }


def haystack(af: AgentFormer) -> Calls:
    pytest.importorskip("haystack.dataclasses", reason="haystack-ai is not installed")
    from haystack import Document

    from agentformer.integrations.haystack import (
        AgentFormerDocumentStore,
        AgentFormerMemoryRetriever,
        AgentFormerRetriever,
    )

    store = AgentFormerDocumentStore(af)
    retriever, memories = AgentFormerRetriever(store), AgentFormerMemoryRetriever(af)
    return {
        "write_documents_async": lambda n: store.write_documents_async([Document(content=f"Text {n} about boats.")]),
        "run_async": lambda n: retriever.run_async(f"boats {n}"),
        "run_async of memories": lambda n: memories.run_async(f"boats and more {n}"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "calls_of", [langchain, langgraph, anthropic, openai_agents, llamaindex, pydantic_ai, adk, haystack]
)
def test_the_event_loop_is_never_blocked(slow: AgentFormer, calls_of: Callable[[AgentFormer], Calls]) -> None:
    """A call that blocked the loop would take its tenth of a second without a tick: 20 such calls leave one tick."""
    calls = calls_of(slow)
    for name, call in calls.items():
        assert ticks_during(call) >= 10, name
