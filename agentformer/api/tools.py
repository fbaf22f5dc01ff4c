"""Endpoints of the toolbox: list the tools of an agent, and call one."""

from __future__ import annotations

from typing import Any, Literal

from flask import Response
from pydantic import Field, RootModel

from agentformer.access.grant import Grant
from agentformer.api.models import ResponseModel
from agentformer.api.operations import Router, Service
from agentformer.api.response import reply
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import HINTS

router = Router("tools")


class Arguments(RootModel[dict[str, Any]]):
    """The arguments of a tool by name. The `parameters` of the tool are the schema of its arguments."""


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


@router.route("GET", "/api/tools", "any", {200: Tools})
def list_tools(service: Service, grant: Grant) -> Response:
    """List the tools that the key may call.

    Each tool has the format of OpenAI's `tools`. The `annotations` describe the effects of a call on the store.
    """
    toolbox = service.af.toolbox
    annotations = [
        {
            "title": tool.title,
            "read_only": tool.read_only,
            "destructive": tool.hints.destructive,
            "idempotent": tool.hints.idempotent,
        }
        for tool in toolbox.definitions(grant)
    ]
    tools = zip(toolbox.schemas(grant), annotations, strict=True)
    return reply({"tools": [{**schema, "annotations": item} for schema, item in tools]})


@router.route(
    "POST",
    "/api/tools/{name}",
    "any",
    {200: ToolResult},
    choices={"name": [*HINTS]},
    errors=(409, 422, 503, 507),
    uses_model=True,
)
def call_tool(service: Service, grant: Grant, body: Arguments, name: str) -> Response:
    """Call a tool with the arguments in the body.

    If an argument is wrong, the message of the problem explains the correction, so that a language model can call the
    tool again. The key needs the right that the tool requires.
    """
    return reply({"result": service.af.toolbox.call(name, body.root, Caller(grant=grant))})
