"""The toolbox: what an agent can do with its memory, in one definition for Python, HTTP, MCP and language models."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentformer.access.grant import EVERYTHING, Grant
from agentformer.errors import AgentFormerError, NotFound, StoreError
from agentformer.memory.memory_manager import MemoryManager
from agentformer.tools.caller import Caller
from agentformer.tools.definition import Hints, ToolDefinition
from agentformer.tools.document_tools import DocumentTools
from agentformer.tools.memory_tools import MemoryTools
from agentformer.tools.rag_tool import RAGTool
from agentformer.types import MemoryBackend, Tool, ToolCall

log = logging.getLogger("agentformer")

OWNER = Caller()
# Every tool there is, in the order in which they are shown, for who has no opened memory at hand.
HINTS: dict[str, Hints] = {
    name: function.hints
    for tools in (MemoryTools, DocumentTools)
    for name, function in vars(tools).items()
    if hasattr(function, "hints")
}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a model is told of a call: JSON, or where it failed a correction in plain words. `value` is the same JSON
    as an object; None where the call failed."""

    text: str
    failed: bool = False
    value: dict[str, Any] | None = None


class Toolbox:
    """Thread-safe as the memory is."""

    def __init__(
        self,
        memory: MemoryManager,
        rag: RAGTool,
        backend: MemoryBackend,
        status: Callable[[], Mapping[str, Any]],
    ) -> None:
        memories, documents = MemoryTools(memory, backend, status), DocumentTools(rag)
        functions = [getattr(tools, name) for tools in (memories, documents) for name in HINTS if hasattr(tools, name)]
        self._tools = {function.__name__: ToolDefinition(function) for function in functions}

    def definitions(self, grant: Grant = EVERYTHING) -> list[ToolDefinition]:
        """The tools that this grant lets somebody call, in a fixed order."""
        return [tool for tool in self._tools.values() if grant.may(tool.hints.right) and tool.name not in grant.without]

    def tools(self, grant: Grant = EVERYTHING) -> list[Tool]:
        """The same, for a language model."""
        return [tool.as_tool() for tool in self.definitions(grant)]

    def schemas(self, grant: Grant = EVERYTHING) -> list[dict[str, Any]]:
        """The same in the format of OpenAI's `tools`."""
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in self.definitions(grant)
        ]

    def call(self, name: str, arguments: Mapping[str, Any], caller: Caller = OWNER) -> dict[str, Any]:
        """Run a tool and return its result as JSON values. Raises `NotFound` for an unknown tool, `Forbidden` for one
        that the caller may not call, `InvalidInput` for wrong arguments, and what the memory itself raises."""
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            there = ", ".join(tool.name for tool in self.definitions(caller.grant))
            raise NotFound(f"there is no tool {name!r:.80}; there are: {there}")
        caller.grant.require(tool.hints.right)
        caller.grant.require_tool(name)
        return tool.run(caller, arguments)

    def run(self, call: ToolCall, caller: Caller = OWNER) -> ToolResult:
        """Run what a model asked for. Never raises: whatever went wrong is told so that the model can act on it."""
        try:
            value = self.call(call.name, call.arguments, caller)
            return ToolResult(json.dumps(value, ensure_ascii=False), value=value)
        except StoreError:
            log.exception("the tool %s failed", call.name)
            return ToolResult("the memory cannot be used now; say so, and go on without it", failed=True)
        except AgentFormerError as error:
            return ToolResult(str(error), failed=True)
        except Exception:  # a fault of ours must not end somebody's conversation
            log.exception("the tool %s failed", call.name)
            return ToolResult("the tool failed by an error of its own; do not call it again with this", failed=True)
