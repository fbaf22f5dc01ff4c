"""Tools: what an agent can call, and what it gets."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, RootModel

from agentformer.api.models.common import ResponseModel


class Arguments(RootModel[dict[str, Any]]):
    """What a tool takes, by name. Each tool's `parameters` are its schema."""


class Function(ResponseModel):
    """A tool as a language model is given it."""

    name: str
    description: str
    parameters: dict[str, Any] = Field(description="The JSON Schema of its arguments.")


class Annotations(ResponseModel):
    """What calling a tool may do to the store."""

    title: str
    read_only: bool
    destructive: bool = Field(description="Something may be gone for good afterwards.")
    idempotent: bool = Field(description="The same call again changes nothing more.")


class Tool(ResponseModel):
    """A tool in the format of OpenAI's `tools`, with what it does beside it."""

    type: Literal["function"]
    function: Function
    annotations: Annotations


class Tools(ResponseModel):
    """What the key may call."""

    tools: list[Tool]


class ToolResult(ResponseModel):
    """What a tool gave."""

    result: dict[str, Any]
