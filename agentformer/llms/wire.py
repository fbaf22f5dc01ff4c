"""The OpenAI chat protocol: requests in the form that each server accepts, and replies."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from agentformer.errors import InvalidInput, InvalidReply
from agentformer.http.openai_client import Failure
from agentformer.llms.structured import Schema, parse_json
from agentformer.types import ChatMessage, Reply, Tool, ToolCall

Finish = Literal["stop", "length", "tool_calls", "filtered", ""]
_FINISH: Mapping[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "filtered",
}
_ROLES = ("system", "user", "assistant", "tool")
SHAPES = ("json_schema", "json_object", "text")  # formats for requesting JSON, the strictest first
_CHARS_PER_TOKEN = 40  # over five times the average of any tokenizer
_LONGEST_TOKEN = 1000
_UNSUPPORTED = re.compile(
    r"unsupported|not support|unrecognized|unknown|unexpected|not permitted|extra|only the default|not allowed",
    re.IGNORECASE,
)
_FORMAT = re.compile(r"response_?format|json_schema|json_object|structured output|guided", re.IGNORECASE)
_THIS_SCHEMA = re.compile(r"invalid schema|schema conversion|grammar|strict", re.IGNORECASE)


def check_request(
    messages: Sequence[ChatMessage], *, temperature: float, max_tokens: int, tools: Sequence[Tool] = ()
) -> None:
    """Validate a request before it is sent. Raise `InvalidInput` with the name of the argument."""
    if not messages:
        raise InvalidInput("messages", "must contain at least one ChatMessage")
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
        json.dumps(dict(value), allow_nan=False)  # type: ignore[call-overload]  # the call checks that the value is a mapping
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, f"parameters and arguments must be objects of JSON values: {error}") from None


class Capabilities:
    """The options that a server has refused. Newer models refuse `max_tokens` or a temperature; older servers refuse
    JSON Schema or token counts in streams. Each option is tried once, or more often if threads share this object."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def options(self, *, temperature: float, max_tokens: int, stream: bool) -> dict[str, Any]:
        """Return the options of a request that the server accepts."""
        limit = "max_completion_tokens" if "max_tokens" in self._refused else "max_tokens"
        options: dict[str, Any] = {limit: max_tokens}
        if "temperature" not in self._refused:
            options["temperature"] = temperature
        if stream:
            options["stream"] = True
            if "stream_options" not in self._refused:
                options["stream_options"] = {"include_usage": True}
        return options

    def json_request(
        self, messages: Sequence[ChatMessage], schema: Schema, below: str
    ) -> tuple[Sequence[ChatMessage], dict[str, Any]]:
        """Return messages and options that request JSON in the strictest format, less strict than `below`, that the
        server has not refused. If the format does not contain the schema, the messages contain it."""
        remaining = SHAPES[SHAPES.index(below) + 1 :] if below else SHAPES
        usable = [s for s in remaining if s not in self._refused and (schema.is_object or s != "json_object")]
        shape = usable[0] if usable else "text"
        if shape == "json_schema":
            described: dict[str, Any] = {"name": "reply", "schema": schema.wire}
            if schema.strict:
                described["strict"] = True
            return messages, {"response_format": {"type": shape, "json_schema": described}}
        extended = [*messages, ChatMessage("user", schema.instruction)]
        if schema.instruction in messages[-1].content:  # the messages already contain the schema
            extended = list(messages)
        elif messages[-1].role == "user":  # some models do not accept two consecutive messages with the same role
            extended = [*messages[:-1], ChatMessage("user", f"{messages[-1].content}\n\n{schema.instruction}")]
        return extended, {"response_format": {"type": shape}} if shape == "json_object" else {}

    def learn(self, failure: Failure, sent: Mapping[str, Any]) -> str:
        """Store the option that the server refused and return its name. Return "" if the request cannot be changed. A
        format that is refused for one schema only is not stored."""
        if failure.kind != "rejected":
            return ""
        for name in ("max_tokens", "temperature", "stream_options"):
            # If only the value is refused, such as a limit that is too high, this is a mistake of the caller.
            supported = name != "stream_options" and not _UNSUPPORTED.search(failure.detail)
            if name in sent and name in failure.detail and not supported:
                self._refused.add(name)
                return name
        shape = str(sent.get("response_format", {}).get("type", ""))
        if shape and _THIS_SCHEMA.search(failure.detail):
            return shape
        if shape and _FORMAT.search(failure.detail):
            self._refused.add(shape)
            return shape
        return ""


def message_out(message: ChatMessage) -> dict[str, Any]:
    """Return the message in the form of the protocol."""
    sent: dict[str, Any] = {"role": message.role, "content": clean(message.content)}
    if message.tool_calls:
        sent["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        sent["tool_call_id"] = message.tool_call_id
    return sent


def tool_out(tool: Tool) -> dict[str, Any]:
    """Return the tool in the form of the protocol."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def clean(text: str) -> str:
    """Return `text` without lone surrogates. JSON can contain them, but no file can."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateJoiner:
    """Joins surrogate pairs that a stream splits into two pieces."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """Return the text of a piece. The first half of a pair is held back until the second half arrives."""
        text = self._half + piece
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return clean(text.removesuffix(self._half))

    def end(self) -> str:
        """Return the rest of the text. If half a pair is left, return the replacement character."""
        return clean(self._half)


class Piece(NamedTuple):
    """One event of a stream. `text` may begin or end within a surrogate pair. `tokens` are the tokens read and written,
    if the event has these counts."""

    text: str
    finish: Finish
    tokens: tuple[int, int] | None


def piece_in(chunk: Any) -> Piece | None:
    """Convert an event of a stream to a piece. Return None after the last event. Raises the errors of `reply_in`."""
    if chunk is None:
        return None
    usage = getattr(chunk, "usage", None)
    tokens = _usage_in(usage) if usage else None
    if not chunk.choices:
        return Piece("", "", tokens)
    choice = chunk.choices[0]
    text = _content_in(choice.delta) if choice.delta else ""
    return Piece(text, _finish_in(choice.finish_reason), tokens)


def reply_in(response: Any, title: str, model: str, max_tokens: int) -> Reply:
    """Return the reply of a complete response. Raise `InvalidReply` for a reply that is empty or far too long, and
    `AttributeError`, `TypeError` and similar errors for a response that is not a completion."""
    choice = response.choices[0]
    text = clean(_content_in(choice.message))
    calls = _calls_in(choice.message.tool_calls or (), title)
    finish = _finish_in(choice.finish_reason)
    check_length(len(text), max_tokens, title)
    if not calls:
        check_text(text, finish, title)
    read, written = _usage_in(response.usage)
    return Reply(text, model, read, written, "tool_calls" if calls else finish, calls)


class _Object(dict[str, Any]):
    """A JSON object with its members as attributes, as in the `openai` package. A missing member is None."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def unstreamed_in(parts: Any) -> Any:
    """Return the complete response of a server that does not stream as requested. Return None for a stream."""
    if not parts.response.headers.get("content-type", "").lower().startswith("application/json"):
        return None
    return json.loads(parts.response.read(), object_hook=_Object)


def check_length(chars: int, max_tokens: int, title: str) -> None:
    """Raise `InvalidReply` for a text that is longer than `max_tokens` allows."""
    if chars > max_tokens * _CHARS_PER_TOKEN + _LONGEST_TOKEN:
        raise InvalidReply(f"{title} does not stop at max_tokens; use another server or model")


def check_text(text: str, finish: Finish, title: str) -> None:
    """Raise `InvalidReply` for an empty text."""
    if text.strip():
        return
    if finish == "length":
        raise InvalidReply(f"{title} used all its tokens before the reply began; raise max_tokens")
    if finish == "filtered":
        raise InvalidReply(f"{title}: the provider's content filter withheld the reply; rephrase the question")
    raise InvalidReply(f"{title} returned an empty reply; ask again, or use another model")


def _content_in(message: Any) -> str:
    content = message.content
    if content is not None and not isinstance(content, str):
        raise TypeError("content is not text")
    return content or ""


def _finish_in(reason: object) -> Finish:
    return _FINISH.get(reason, "") if isinstance(reason, str) else ""


def _usage_in(usage: Any) -> tuple[int, int]:
    """Return the tokens read and written. A count that is missing or invalid is 0."""
    counts = (getattr(usage, "prompt_tokens", 0), getattr(usage, "completion_tokens", 0))
    read, written = (count if type(count) is int and count >= 0 else 0 for count in counts)
    return read, written


def _calls_in(calls: Any, title: str) -> tuple[ToolCall, ...]:
    """Return the tool calls with unique ids. Raise `InvalidReply` for arguments that are not a JSON object."""
    by_id: dict[str, ToolCall] = {}
    for call in calls:
        name = call.function.name
        if not isinstance(name, str) or not name:
            raise InvalidReply(f"{title} called a tool without a name")
        id = call.id if isinstance(call.id, str) else ""
        if not id or id in by_id:
            id = f"call_{uuid.uuid4().hex}"
        by_id[id] = ToolCall(id, name, _arguments_in(call.function.arguments, name, title))
    return tuple(by_id.values())


def _arguments_in(arguments: Any, name: str, title: str) -> Mapping[str, Any]:
    """Return the arguments of a call. Some servers send an object, or nothing for a tool without parameters."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        value = parse_json(text) if text.strip() else None
    except ValueError:
        raise InvalidReply(f"{title} called {name!r:.80} with arguments that are not JSON") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidReply(f"{title} called {name!r:.80} with arguments that are not a JSON object")
    return value
