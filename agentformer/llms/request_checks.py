"""What no language model can be asked: the caller's mistakes, told before any server could be blamed for them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from agentformer.errors import InvalidInput
from agentformer.types import ChatMessage, Tool, ToolCall

_ROLES = ("system", "user", "assistant", "tool")


def check_asked(
    messages: Sequence[ChatMessage], *, temperature: float, max_tokens: int, tools: Sequence[Tool] = ()
) -> None:
    """Raises `InvalidInput`, naming the argument."""
    if not messages:
        raise InvalidInput("messages", "must hold at least one ChatMessage")
    for message in messages:
        _check_message(message)
    for tool in tools:
        if not isinstance(tool, Tool):
            raise InvalidInput("tools", f"must be Tools, got {type(tool).__name__}")
        _check_json("tools", tool.parameters)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise InvalidInput("max_tokens", f"must be a whole number of at least 1, got {max_tokens!r:.80}")
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not (number and math.isfinite(temperature) and 0 <= temperature <= 2):
        raise InvalidInput("temperature", f"must be a number in 0..2, got {temperature!r:.80}")


def _check_message(message: object) -> None:
    if not isinstance(message, ChatMessage):
        raise InvalidInput("messages", f"must be ChatMessages, got {type(message).__name__}")
    if message.role not in _ROLES:
        raise InvalidInput("messages", f"the role must be one of {', '.join(_ROLES)}, got {message.role!r:.80}")
    if not isinstance(message.content, str):
        raise InvalidInput("messages", f"the content must be text, got {type(message.content).__name__}")
    for call in message.tool_calls:
        if not isinstance(call, ToolCall):
            raise InvalidInput("messages", f"tool_calls must be ToolCalls, got {type(call).__name__}")
        _check_json("messages", call.arguments)


def _check_json(field: str, value: object) -> None:
    try:
        json.dumps(dict(value), allow_nan=False)  # type: ignore[call-overload]  # whether it is a mapping is the question
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, f"parameters and arguments must be objects of JSON values: {error}") from None
