"""The chat protocol of OpenAI: functions that create requests in a form that the server accepts, and functions that
read the replies."""

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
    """Check the arguments of a call before it is sent. Raise `InvalidInput` with the name of a wrong argument."""
    if not messages:
        raise InvalidInput("messages", "must contain at least one ChatMessage")
    for message in messages:
        _check_message(message)
    for tool in tools:
        if not isinstance(tool, Tool):
            raise InvalidInput("tools", f"must contain only objects of the class Tool, not {type(tool).__name__}")
        _check_json("tools", tool.parameters)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise InvalidInput("max_tokens", f"must be a whole number of at least 1, not {max_tokens!r:.80}")
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not (number and math.isfinite(temperature) and 0 <= temperature <= 2):
        raise InvalidInput("temperature", f"must be a number between 0 and 2, not {temperature!r:.80}")


def _check_message(message: object) -> None:
    if not isinstance(message, ChatMessage):
        raise InvalidInput(
            "messages", f"must contain only objects of the class ChatMessage, not {type(message).__name__}"
        )
    if message.role not in _ROLES:
        raise InvalidInput("messages", f"the role must be one of {', '.join(_ROLES)}, got {message.role!r:.80}")
    if not isinstance(message.content, str):
        raise InvalidInput("messages", f"the content must be text, not {type(message.content).__name__}")
    for call in message.tool_calls:
        if not isinstance(call, ToolCall):
            raise InvalidInput(
                "messages", f"tool_calls must contain only objects of the class ToolCall, not {type(call).__name__}"
            )
        _check_json("messages", call.arguments)


def _check_json(field: str, value: object) -> None:
    try:
        json.dumps(dict(value), allow_nan=False)  # type: ignore[call-overload]  # the call checks that the value is a mapping
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, f"the parameters and arguments of a tool must be JSON objects: {error}") from None


class Capabilities:
    """Stores the request options that a server has refused, so that the next requests do not contain these options.
    Newer models refuse the option `max_tokens` or `temperature`; older servers refuse a JSON Schema or the request for
    token counts in a stream."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def options(self, *, temperature: float, max_tokens: int, stream: bool) -> dict[str, Any]:
        """Return the options of a request, without those that the server has refused."""
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
        self, messages: Sequence[ChatMessage], schema: Schema, refused: str
    ) -> tuple[Sequence[ChatMessage], dict[str, Any]]:
        """Return the messages and the options of a request for a JSON reply. There are three formats for such a
        request, and the strictest format that the server has not refused is chosen. If the server has just refused a
        format, `refused` is its name, and only less strict formats are considered; otherwise, `refused` is "". If the
        options of the chosen format do not contain the schema, the schema is added to the messages."""
        remaining = SHAPES[SHAPES.index(refused) + 1 :] if refused else SHAPES
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
        """Find out from a failed request which option the server refused, and return its name, or "" if the server
        refused no option that can be left out. The option is stored, so that later requests do not contain it. But if
        the server refused only the JSON schema of this request, the JSON format is not stored, because the server may
        accept it with another schema. `sent` is the JSON of the request."""
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
    """Convert a message to the JSON of the protocol."""
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
    """Convert the description of a tool to the JSON of the protocol."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def clean(text: str) -> str:
    """Return `text` with a replacement character in place of each lone surrogate. JSON can contain lone surrogates, but
    they cannot be written to a file in UTF-8."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateJoiner:
    """Joins the two halves of a character outside the 16-bit range of Unicode, if a stream sends them in two different
    pieces. The halves are called surrogates."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """Return the text of the next piece. If the piece ends with the first half of a character, this half is
        returned together with the next piece."""
        text = self._half + piece
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return clean(text.removesuffix(self._half))

    def end(self) -> str:
        """Return the text that is left after the last piece: "", or a replacement character if the second half of a
        character has not arrived."""
        return clean(self._half)


class Piece(NamedTuple):
    """One event of a stream. `text` is the next text of the reply; a character may be split between two pieces.
    `finish` is the reason why the reply ended, or "". `tokens` is the number of tokens read and the number of tokens
    written, or None if the event does not contain these numbers."""

    text: str
    finish: Finish
    tokens: tuple[int, int] | None


def piece_in(chunk: Any) -> Piece | None:
    """Convert an event of a stream to a `Piece`. Return None if `chunk` is None, which marks the end of the stream.
    Raise `AttributeError`, `TypeError` or a similar error if the event does not follow the protocol."""
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
    """Convert a complete response of the server to a `Reply`. Raise `InvalidReply` if the reply is empty or much longer
    than `max_tokens` allows. Raise `AttributeError`, `TypeError` or a similar error if the response does not follow the
    protocol."""
    choice = response.choices[0]
    text = clean(_content_in(choice.message))
    try:
        calls = _calls_in(choice.message.tool_calls or (), title)
    except (AttributeError, TypeError) as error:  # the server works, only this reply cannot be used
        problem = f"{title} returned a tool call of an unknown type; ask again, or use another model"
        raise InvalidReply(problem) from error
    finish = _finish_in(choice.finish_reason)
    check_length(len(text), max_tokens, title)
    if not calls:
        check_text(text, finish, title)
    read, written = _usage_in(response.usage)
    return Reply(text, model, read, written, "tool_calls" if calls else finish, calls)


class _Object(dict[str, Any]):
    """A JSON object whose members are attributes, as in the package `openai`. A missing member is None."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def unstreamed_in(parts: Any) -> Any:
    """Return the complete response of a server that does not stream, or None if the server sends a stream."""
    if not parts.response.headers.get("content-type", "").lower().startswith("application/json"):
        return None
    return json.loads(parts.response.read(), object_hook=_Object)


def check_length(chars: int, max_tokens: int, title: str) -> None:
    """Raise `InvalidReply` if a reply with this number of characters is much longer than `max_tokens` allows."""
    if chars > max_tokens * _CHARS_PER_TOKEN + _LONGEST_TOKEN:
        raise InvalidReply(f"{title} does not stop at max_tokens; use another server or model")


def check_text(text: str, finish: Finish, title: str) -> None:
    """Raise `InvalidReply` if the text of a reply is empty. The message depends on `finish`, the reason why the reply
    ended."""
    if text.strip():
        return
    if finish == "length":
        raise InvalidReply(f"{title} used all its tokens before it began to answer; raise max_tokens")
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
    """Return the numbers of tokens read and written. A number that is missing or invalid is replaced by 0."""
    counts = (getattr(usage, "prompt_tokens", 0), getattr(usage, "completion_tokens", 0))
    read, written = (count if type(count) is int and count >= 0 else 0 for count in counts)
    return read, written


def _calls_in(calls: Any, title: str) -> tuple[ToolCall, ...]:
    """Return the tool calls of a reply. A missing or repeated id of a call is replaced by a new id. Raise
    `InvalidReply` if the name of a tool is missing, or if the arguments of a call are not a JSON object."""
    by_id: dict[str, ToolCall] = {}
    for call in calls:
        name = call.function.name
        if not isinstance(name, str) or not name:
            raise InvalidReply(f"{title} returned a tool call that names no tool; ask again, or use another model")
        id = call.id if isinstance(call.id, str) else ""
        if not id or id in by_id:
            id = f"call_{uuid.uuid4().hex}"
        by_id[id] = ToolCall(id, name, _arguments_in(call.function.arguments, name, title))
    return tuple(by_id.values())


def _arguments_in(arguments: Any, name: str, title: str) -> Mapping[str, Any]:
    """Return the arguments of a tool call as a dictionary. `arguments` is usually JSON as text, but some servers send a
    JSON object, and some send nothing if the tool has no parameters. Raise `InvalidReply` if the arguments are not a
    JSON object; `name` and `title` are for the message."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        value = parse_json(text) if text.strip() else None
    except ValueError:
        raise InvalidReply(f"{title} called the tool {name!r:.80} with arguments that are not JSON") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidReply(f"{title} called the tool {name!r:.80} with arguments that are not a JSON object")
    return value
