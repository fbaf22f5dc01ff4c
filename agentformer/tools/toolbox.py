"""`Toolbox`: the tools of an agent for its memory. Python, HTTP, MCP and language models use the same tools."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentformer.access.limits import KeyLimits
from agentformer.access.permissions import EVERYTHING, Grant
from agentformer.errors import AgentFormerError, NotFound, StoreError
from agentformer.http import tracing
from agentformer.memory.memory_manager import MemoryManager
from agentformer.tools.caller import Caller
from agentformer.tools.definition import Hints, ToolDefinition
from agentformer.tools.document_tools import DocumentTools
from agentformer.tools.memory_tools import MemoryTools
from agentformer.tools.rag_tool import RAGTool
from agentformer.types import MemoryBackend, Tool, ToolCall
from agentformer.types.documents import MODEL_FAILED

log = logging.getLogger("agentformer")

OWNER = Caller()
# The hints of every tool, in the order in which tools are listed; available without an open memory.
HINTS: dict[str, Hints] = {
    name: function.hints
    for tools in (MemoryTools, DocumentTools)
    for name, function in vars(tools).items()
    if hasattr(function, "hints")
}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call, for a language model. `text` is the result as JSON, and `value` is the same result as an
    object. If the call failed, `text` is a message that explains how to correct the call, and `value` is None."""

    text: str
    failed: bool = False
    value: dict[str, Any] | None = None


class Toolbox:
    """The tools of one memory. Thread-safe if the memory is thread-safe."""

    def __init__(
        self,
        memory: MemoryManager,
        rag: RAGTool,
        backend: MemoryBackend,
        status: Callable[[], Mapping[str, Any]],
        limits: KeyLimits,
    ) -> None:
        self._limits = limits
        memories, documents = MemoryTools(memory, backend, status), DocumentTools(rag)
        offered = [name for name in HINTS if name != "rag_sync" or rag.sync_roots]  # without roots, every call fails
        functions = [
            getattr(tools, name) for tools in (memories, documents) for name in offered if hasattr(tools, name)
        ]
        self._tools = {function.__name__: ToolDefinition(function) for function in functions}

    def definitions(self, grant: Grant = EVERYTHING) -> list[ToolDefinition]:
        """Return the tools that the grant allows, always in the same order."""
        return [tool for tool in self._tools.values() if tool.hints.permission.allows(grant)]

    def tools(self, grant: Grant = EVERYTHING) -> list[Tool]:
        """Return the tools that the grant allows, in the form that language models need."""
        return [Tool(tool.name, tool.description, tool.parameters) for tool in self.definitions(grant)]

    def schemas(self, grant: Grant = EVERYTHING) -> list[dict[str, Any]]:
        """Return the tools that the grant allows, in the format of OpenAI's `tools`."""
        names = ("name", "description", "parameters")
        functions = ({name: getattr(tool, name) for name in names} for tool in self.definitions(grant))
        return [{"type": "function", "function": function} for function in functions]

    def call(self, name: str, arguments: Mapping[str, Any], caller: Caller = OWNER) -> dict[str, Any]:
        """Run a tool and return its result as JSON values. Raises `NotFound` for an unknown tool, `Forbidden` for a
        tool that the caller may not use, `InvalidInput` for wrong arguments, `KeyFull` and `Busy` at a limit of the key
        of the caller, and the errors of the operation."""
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            names = ", ".join(tool.name for tool in self.definitions(caller.grant))
            raise NotFound(f"there is no tool {name!r:.80}; the tools are: {names}")
        tool.hints.permission.require(caller.grant)
        named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        with tracing.span(f"execute_tool {name}", named) as span:
            span.set_text("gen_ai.tool.call.arguments", arguments)
            result = self._within_limits(tool, caller, arguments)
            span.set_text("gen_ai.tool.call.result", result)
            return result

    def _within_limits(self, tool: ToolDefinition, caller: Caller, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run the tool within the limits of the key. A question counts unless the model fails. New data need room."""
        run, allowance, adds = partial(tool.run, caller, arguments), caller.grant.allowance, tool.hints.permission.adds
        if allowance is None:
            return run()
        if tool.name == "rag_query" and not caller.extractive:
            with self._limits.take_question(allowance) as question:
                answer = run()
                if any(warning.startswith(MODEL_FAILED) for warning in answer["warnings"]):
                    question.give_back()
                return answer
        if not adds:
            return run()
        size = len(json.dumps(arguments, ensure_ascii=False, default=str).encode("utf-8", "replace"))
        with self._limits.reserve(allowance, size, int(adds == "entries")):
            return run()

    def run(self, call: ToolCall, caller: Caller = OWNER) -> ToolResult:
        """Run a tool that a language model has called. Never raises: an error becomes a message for the model."""
        try:
            value = self.call(call.name, call.arguments, caller)
            return ToolResult(json.dumps(value, ensure_ascii=False), value=value)
        except StoreError:
            log.exception("the tool %s failed", call.name)
            return ToolResult("the memory is unavailable now; say so, and continue without it", failed=True)
        except AgentFormerError as error:
            return ToolResult(str(error), failed=True)
        except Exception:  # an internal error must not end a conversation
            log.exception("the tool %s failed", call.name)
            return ToolResult("the tool failed with an internal error; do not repeat this call", failed=True)
