"""Endpoints of the toolbox: list the tools of an agent, and call one."""

from __future__ import annotations

from typing import Any, Literal

from flask import Response
from pydantic import Field, RootModel

from agentformer.access.grant import Grant
from agentformer.api.models import ResponseModel
from agentformer.api.operations import Operation, Operations
from agentformer.api.response import reply
from agentformer.factory import AgentFormer
from agentformer.tools.caller import Caller
from agentformer.tools.definition import ToolDefinition

_TOOLS = "/api/tools"
_TAG = "tools"


class Arguments(RootModel[dict[str, Any]]):
    """The arguments of a tool, by name. Their schema is the tool's `parameters`."""


class Function(ResponseModel):
    """A tool, as a language model needs it."""

    name: str
    description: str
    parameters: dict[str, Any] = Field(description="The JSON Schema of the arguments.")


class Annotations(ResponseModel):
    """The effects of a tool on the store."""

    title: str
    read_only: bool
    destructive: bool = Field(description="True if a call may delete data permanently.")
    idempotent: bool = Field(description="True if repeating a call has no further effect.")


class Tool(ResponseModel):
    """A tool in the format of OpenAI's `tools`, with its annotations."""

    type: Literal["function"]
    function: Function
    annotations: Annotations


class Tools(ResponseModel):
    """The tools that the key may call."""

    tools: list[Tool]


class ToolResult(ResponseModel):
    """The result of a tool."""

    result: dict[str, Any]


def add_tools(operations: Operations, af: AgentFormer) -> None:
    """Declare both endpoints."""

    @operations.declare(Operation(method="GET", path=_TOOLS, right="any", returns={200: Tools}, tag=_TAG))
    def list_tools(grant: Grant) -> Response:
        """List the tools that the key may call.

        In the format of OpenAI's `tools`; `annotations` describe the effects of a call on the store.
        """
        schemas = af.toolbox.schemas(grant)
        annotations = [_annotations(tool) for tool in af.toolbox.definitions(grant)]
        tools = [{**schema, "annotations": item} for schema, item in zip(schemas, annotations, strict=True)]
        return reply({"tools": tools})

    @operations.declare(
        Operation(
            method="POST",
            path=f"{_TOOLS}/{{name}}",
            right="any",
            body=Arguments,
            choices={"name": [tool.name for tool in af.toolbox.definitions()]},
            returns={200: ToolResult},
            errors=(409, 422, 503, 507),
            uses_model=True,
            tag=_TAG,
        )
    )
    def call_tool(grant: Grant, body: Arguments, name: str) -> Response:
        """Call a tool with the arguments in the body.

        Errors of the arguments are described so that a language model can correct them. The key needs the right of the
        tool.
        """
        return reply({"result": af.toolbox.call(name, body.root, Caller(grant=grant))})


def _annotations(tool: ToolDefinition) -> dict[str, str | bool]:
    return {
        "title": tool.title,
        "read_only": tool.read_only,
        "destructive": tool.hints.destructive,
        "idempotent": tool.hints.idempotent,
    }
