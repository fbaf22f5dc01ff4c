"""Conversations in the OpenAI chat protocol, and replies out of it."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentformer.errors import InvalidReply
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
_CHARS_PER_TOKEN = 40  # no tokenizer averages a fifth of it
_LONGEST_TOKEN = 1000


def messages_out(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    return [_message_out(message) for message in messages]


def _message_out(message: ChatMessage) -> dict[str, Any]:
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


def tools_out(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools
    ]


def clean(text: str) -> str:
    """`text` without halves of surrogate pairs, which JSON can carry and no file can."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Joiner:
    """Clean text out of pieces that may have cut a surrogate pair in two."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        text = self._half + piece
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return clean(text.removesuffix(self._half))

    def end(self) -> str:
        """What is left: of half a pair, the sign for a character that is not known."""
        return clean(self._half)


def finish_in(reason: object) -> Finish:
    return _FINISH.get(reason, "") if isinstance(reason, str) else ""


def usage_in(usage: Any) -> tuple[int, int]:
    """Tokens read and written; 0 where the server does not say, or says nonsense."""
    counts = (getattr(usage, "prompt_tokens", 0), getattr(usage, "completion_tokens", 0))
    read, written = (count if type(count) is int and count >= 0 else 0 for count in counts)
    return read, written


def reply_in(done: Any, who: str, model: str, max_tokens: int) -> Reply:
    """The reply of a whole completion. Raises `InvalidReply` for one that says nothing or far too much, and
    `AttributeError`, `TypeError` and the like for what is no completion."""
    choice = done.choices[0]
    content = choice.message.content
    if content is not None and not isinstance(content, str):
        raise TypeError("content is no text")
    calls = calls_in(choice.message.tool_calls or (), who)
    finish = finish_in(choice.finish_reason)
    text = clean(content or "")
    check_length(len(text), max_tokens, who)
    if not calls:
        check_said(text, finish, who)
    read, written = usage_in(done.usage)
    return Reply(text, model, read, written, "tool_calls" if calls else finish, calls)


class _Object(dict[str, Any]):
    """A JSON object that is read as the package's own are: None for what it does not have."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def unstreamed_in(parts: Any) -> Any:
    """The whole completion of a server that does not stream, though it was asked to; None for a stream."""
    if not parts.response.headers.get("content-type", "").lower().startswith("application/json"):
        return None
    return json.loads(parts.response.read(), object_hook=_Object)


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of a stream. `text` may begin or end within a surrogate pair; see `Joiner`. `tokens`: read and
    written, where it tells them."""

    text: str
    finish: Finish
    tokens: tuple[int, int] | None


def piece_in(chunk: Any) -> Piece | None:
    """An event of a stream; None after the last one. Raises as `reply_in` does."""
    if chunk is None:
        return None
    usage = getattr(chunk, "usage", None)
    tokens = usage_in(usage) if usage else None
    if not chunk.choices:
        return Piece("", "", tokens)
    choice = chunk.choices[0]
    text = choice.delta.content if choice.delta else None
    if text is not None and not isinstance(text, str):
        raise TypeError("content is no text")
    return Piece(text or "", finish_in(choice.finish_reason), tokens)


def check_length(chars: int, max_tokens: int, who: str) -> None:
    """Raises `InvalidReply` for more text than `max_tokens` can be: the server does not keep to it, or to any end."""
    if chars > max_tokens * _CHARS_PER_TOKEN + _LONGEST_TOKEN:
        raise InvalidReply(f"{who} does not stop at max_tokens; use another server or model")


def check_said(text: str, finish: Finish, who: str) -> None:
    """Raises `InvalidReply` for a text without any words, with what to do about it."""
    if text.strip():
        return
    if finish == "length":
        raise InvalidReply(f"{who} spent all its tokens before it said anything; raise max_tokens")
    if finish == "filtered":
        raise InvalidReply(f"{who}: the provider's filter withheld the answer; rephrase the question")
    raise InvalidReply(f"{who} said nothing; ask again, or another model")


def calls_in(calls: Any, who: str) -> tuple[ToolCall, ...]:
    """Tool calls with ids that differ. Raises `InvalidReply` for arguments that are no JSON object."""
    found: dict[str, ToolCall] = {}
    for call in calls:
        name = call.function.name
        if not isinstance(name, str) or not name:
            raise InvalidReply(f"{who} called a tool without a name")
        given = call.id if isinstance(call.id, str) else ""
        one = given if given and given not in found else f"call_{uuid.uuid4().hex}"
        found[one] = ToolCall(one, name, _arguments_in(call.function.arguments, name, who))
    return tuple(found.values())


def _arguments_in(arguments: Any, name: str, who: str) -> Mapping[str, Any]:
    """Some servers send the object itself, some nothing for a tool without parameters."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        found = loads(text) if text.strip() else None
    except ValueError:
        raise InvalidReply(f"{who} called {name!r:.80} with arguments that are not JSON") from None
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise InvalidReply(f"{who} called {name!r:.80} with arguments that are not a JSON object")
    return found


def loads(text: str) -> Any:
    """A JSON value that every reader of JSON understands alike, and any file can hold. Raises `ValueError`, also for
    NaN, a number beyond a double, a key that stands twice, half a surrogate pair and nesting without end."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_number, object_pairs_hook=_members)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a text holds half a surrogate pair") from None
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is too large a number")
    return number


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key stands twice in the object that begins with {pairs[0][0]!r:.40}")
    return found
