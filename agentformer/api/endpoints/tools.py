"""Endpoints to list the tools of an agent, and to call a tool."""

from __future__ import annotations

from typing import Any, Literal

from flask import Response
from pydantic import Field, RootModel

from agentformer.access.permissions import Grant
from agentformer.api.models import ResponseModel
from agentformer.api.operations import Router, Service
from agentformer.api.response import reply
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import HINTS

router = Router("tools")


class Arguments(RootModel[dict[str, Any]]):
    """The arguments of a tool by name. The field `parameters` of the tool is the JSON Schema of the arguments."""


class Function(ResponseModel):
    """The name, the description and the parameters of a tool, as a language model gets them."""

    name: str
    description: str
    parameters: dict[str, Any] = Field(description="The JSON Schema of the arguments.")


class Annotations(ResponseModel):
    """The title of a tool, and the effects of a call on the stored data."""

    title: str
    read_only: bool
    destructive: bool = Field(description="True if a call can delete data permanently.")
    idempotent: bool = Field(description="True if repeating a call has no further effect.")


class Tool(ResponseModel):
    """A tool in the format of OpenAI's `tools`, with additional annotations."""

    type: Literal["function"]
    function: Function
    annotations: Annotations


class Tools(ResponseModel):
    """The tools that the key may call."""

    tools: list[Tool]


class ToolResult(ResponseModel):
    """The result of a call of a tool."""

    result: dict[str, Any]


@router.route("GET", "/api/tools", "tools", {200: Tools})
def list_tools(service: Service, grant: Grant) -> Response:
    """List the tools that the key may call.

    Each tool has the format of OpenAI's `tools`. The `annotations` describe the effects of a call on the stored data.
    """
    toolbox = service.af.toolbox
    annotations = [
        {
            "title": tool.title,
            "read_only": tool.read_only,
            "destructive": tool.hints.permission.destructive,
            "idempotent": tool.hints.idempotent,
        }
        for tool in toolbox.definitions(grant)
    ]
    tools = zip(toolbox.schemas(grant), annotations, strict=True)
    return reply({"tools": [{**schema, "annotations": item} for schema, item in tools]})


@router.route(
    "POST",
    "/api/tools/{name}",
    "tools",
    {200: ToolResult},
    choices={"name": [*HINTS]},
    errors=(409, 422, 503, 507),
    uses_model=True,
)
def call_tool(service: Service, grant: Grant, body: Arguments, name: str) -> Response:
    """Call a tool with the arguments in the body.

    If an argument is wrong, the field `detail` of the response explains how to correct the argument, so that a language
    model can call the tool again. The key needs the right that the tool requires.
    """
    return reply({"result": service.af.toolbox.call(name, body.root, Caller(grant=grant, removals=service.removals))})
