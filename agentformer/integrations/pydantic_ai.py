"""Pydantic AI: the tools of a memory as a toolset of an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agentformer.errors import AgentFormerError
from agentformer.factory import AgentFormer
from agentformer.integrations import TOOLS, missing, tools_named
from agentformer.tools.caller import Caller

try:
    from pydantic_ai.exceptions import ModelRetry
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_core import SchemaValidator, core_schema
except ImportError as error:
    raise missing("pydantic_ai", error) from error

_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class AgentFormerToolset(AbstractToolset[Any]):
    """The tools of a memory with these `names`, as a toolset. `caller` limits the rights of the tools; by default, they
    have all rights. A call runs in a thread. The tool checks its arguments itself. After an error, the model gets the
    message and can try again. Raises `InvalidInput` for an unknown name."""

    def __init__(self, af: AgentFormer, names: Sequence[str] = TOOLS, *, caller: Caller | None = None) -> None:
        self._af = af
        self._tools = tools_named(af, names)
        self._caller = caller or Caller()

    @property
    def id(self) -> str:
        """The name of the toolset."""
        return "agentformer"

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        """Return the tools by name."""
        return {
            tool.name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters)
                ),
                max_retries=2,
                args_validator=_OBJECT,
            )
            for tool in self._tools
        }

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        """Run a tool in a thread, and return its result."""
        try:
            return await asyncio.to_thread(self._af.toolbox.call, name, tool_args, self._caller)
        except AgentFormerError as error:
            raise ModelRetry(str(error)) from error
