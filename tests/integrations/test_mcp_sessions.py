"""What an agent of a framework stores over MCP in one session, an agent in another process of the server finds in the
next. The models are scripted; the clients, the server and the memory are real."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "agentformer"
BOUND = 120.0
FACT = "The spare key hangs in the boathouse."
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not PROGRAM.exists(), reason="there is no .venv with agentformer"),
]
Session = Callable[[Path, str, dict[str, Any]], Awaitable[str]]  # returns what the tool has returned


def server(folder: Path) -> dict[str, Any]:
    place = ["mcp", "--index-dir", str(folder / "i"), "--upload-dir", str(folder / "u"), "--embedder", "hashing"]
    return {"command": str(PROGRAM), "args": place, "env": {"PATH": os.environ["PATH"], "HOME": str(folder)}}


async def openai_agents(folder: Path, tool: str, arguments: dict[str, Any]) -> str:
    """A run of an agent of the OpenAI Agents SDK, whose model calls a tool and repeats its result."""
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
    from agents.mcp import MCPServerStdio
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class Scripted(Model):
        async def get_response(self, *given: Any, **options: Any) -> ModelResponse:
            items = options.get("input", given[1] if len(given) > 1 else None)
            results = [each["output"] for each in items if isinstance(each, dict) and "output" in each]
            call = ResponseFunctionToolCall(
                arguments=json.dumps(arguments), call_id="c1", name=tool, type="function_call"
            )
            text = ResponseOutputText(text=str(results), type="output_text", annotations=[])
            said = ResponseOutputMessage(id="m1", content=[text], role="assistant", status="completed", type="message")
            return ModelResponse(output=[said if results else call], usage=Usage(), response_id=None)

        def stream_response(self, *given: Any, **options: Any) -> Any:
            raise NotImplementedError

    async with MCPServerStdio(params=server(folder), client_session_timeout_seconds=BOUND) as memory:  # type: ignore[arg-type]
        agent = Agent(name="assistant", model=Scripted(), mcp_servers=[memory])
        run = await Runner.run(agent, "Go.", run_config=RunConfig(tracing_disabled=True))
        return str(run.final_output)


async def langgraph(folder: Path, tool: str, arguments: dict[str, Any]) -> str:
    """A run of an agent of LangGraph with the tools of the server; its model calls one and ends."""
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_mcp_adapters.client import MultiServerMCPClient

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    client = MultiServerMCPClient({"memory": {"transport": "stdio", **server(folder)}})
    call = AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": "c1"}])
    agent = create_agent(Scripted(messages=iter([call, AIMessage("Done.")])), await client.get_tools())
    state = await agent.ainvoke({"messages": [{"role": "user", "content": "Go."}]})
    return str(next(each.content for each in state["messages"] if isinstance(each, ToolMessage)))


async def mcp_client(folder: Path, tool: str, arguments: dict[str, Any]) -> str:
    """A call of the client of the package `mcp`, of version 2."""
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async with Client(stdio_client(StdioServerParameters(**server(folder)))) as client:
        return str((await client.call_tool(tool, arguments)).structured_content)


@pytest.mark.parametrize(
    ("session", "module"),
    [(openai_agents, "agents.mcp"), (langgraph, "langchain_mcp_adapters"), (mcp_client, "mcp.client.client")],
    ids=["openai-agents", "langgraph", "mcp"],
)
def test_a_session_remembers_in_the_next_one(session: Session, module: str, tmp_path: Path) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed; run `make test-mcp-clients`")

    def ask(tool: str, **arguments: Any) -> str:
        return asyncio.run(asyncio.wait_for(session(tmp_path, tool, arguments), BOUND))

    ask("memory_add", content=FACT)
    assert FACT in ask("memory_search", query="Where is the spare key?")
