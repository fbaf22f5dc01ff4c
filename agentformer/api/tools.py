"""Endpoints of the toolbox: what an agent can call, and calling it."""

from __future__ import annotations

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.models import tools as models
from agentformer.api.operations import Operations, always
from agentformer.api.response import reply
from agentformer.factory import AgentFormer
from agentformer.tools.caller import Caller
from agentformer.tools.definition import ToolDefinition

_ALL = "/api/tools"
_TAG = "tools"


def add_tools(operations: Operations, af: AgentFormer) -> None:
    @operations.declare("GET", _ALL, right="any", returns={200: models.Tools}, tag=_TAG)
    def tools(grant: Grant) -> Response:
        """List the tools that the key may call, as a language model is given them.

        In the format of OpenAI's `tools`; `annotations` say what a call may do to the store.
        """
        schemas = af.toolbox.schemas(grant)
        hints = [_annotations(tool) for tool in af.toolbox.definitions(grant)]
        return reply({"tools": [{**schema, "annotations": hint} for schema, hint in zip(schemas, hints, strict=True)]})

    @operations.declare(
        "POST",
        f"{_ALL}/{{name}}",
        right="any",
        body=models.Arguments,
        choices={"name": [tool.name for tool in af.toolbox.definitions()]},
        returns={200: models.ToolResult},
        faults=(409, 422, 503, 507),
        asks=always,
        tag=_TAG,
    )
    def call(grant: Grant, body: models.Arguments, name: str) -> Response:
        """Call a tool. The body holds its arguments.

        What is wrong with them is told in words that a model can act on. The key needs the tool's own right.
        """
        return reply({"result": af.toolbox.call(name, body.root, Caller(grant=grant))})


def _annotations(tool: ToolDefinition) -> dict[str, str | bool]:
    return {
        "title": tool.title,
        "read_only": tool.read_only,
        "destructive": tool.hints.destructive,
        "idempotent": tool.hints.idempotent,
    }
