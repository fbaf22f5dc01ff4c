"""Answers requests for chat completions with a language model that has no server, such as `echo` or a plugin."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from agentformer.errors import InvalidInput, LanguageModelError, LanguageModelUnavailable, PromptTooLong
from agentformer.llms.forwarding import Refusal
from agentformer.types import ChatMessage, LanguageModel, Reply, Tool, ToolCall

_MAX_TOKENS = 512  # of an answer if the request names no limit
_ROLES = {"developer": "system", "function": "tool"}


class ModelChat:
    """Sends chat requests to a `LanguageModel` of this process. It has the same methods as `ChatForwarder`."""

    def __init__(self, model: LanguageModel, name: str) -> None:
        self._model = model
        self._name = name

    def send(self, body: Mapping[str, Any], *, stream: bool) -> ModelAnswer:
        """Return the answer of the model to a request in OpenAI's format. The model is called when the answer is read.
        Raises `InvalidInput` for a message or a tool that the model cannot get."""
        options = {
            "temperature": body.get("temperature", 0.3),
            "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens") or _MAX_TOKENS,
        }
        messages = [_message(message) for message in body.get("messages", ())]
        tools = [_tool(tool) for tool in body.get("tools") or ()]
        return ModelAnswer(self._model, self._name, messages, tools, options, is_stream=stream)


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The answer to a request: one JSON value, or events if `is_stream` is true."""

    model: LanguageModel
    name: str
    messages: list[ChatMessage]
    tools: list[Tool]
    options: Mapping[str, Any]
    is_stream: bool

    @property
    def is_json(self) -> bool:
        """True if the answer is one JSON value."""
        return not self.is_stream

    @property
    def content_type(self) -> str:
        """The media type of the answer."""
        return "text/event-stream" if self.is_stream else "application/json"

    def read(self) -> bytes | Refusal:
        """Return the chat completion as JSON, or a `Refusal` if the model fails."""
        try:
            reply = self.model.complete(self.messages, tools=self.tools, **self.options)
        except (LanguageModelError, InvalidInput) as error:
            return _refusal(error)
        usage = {
            "prompt_tokens": reply.tokens_in,
            "completion_tokens": reply.tokens_out,
            "total_tokens": reply.tokens_in + reply.tokens_out,
        }
        message = {"role": "assistant", "content": reply.text or None, **_calls(reply)}
        choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
        return json.dumps({**self._head("chat.completion"), "choices": [choice], "usage": usage}).encode()

    def pieces(self) -> Generator[bytes | Refusal, None, None]:
        """Yield the events of the stream. A model that gets tools does not stream, so its whole reply is one event."""
        head = self._head("chat.completion.chunk")

        def event(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode()

        try:
            yield event({"role": "assistant", "content": ""})
            if self.tools:
                reply = self.model.complete(self.messages, tools=self.tools, **self.options)
                yield event({"content": reply.text, **_calls(reply)})
            else:
                with closing(self.model.stream(self.messages, **self.options)) as texts:
                    reply = yield from _events(texts, event)
            yield event({}, _finish(reply))
            yield b"data: [DONE]\n\n"
        except (LanguageModelError, InvalidInput) as error:
            yield _refusal(error)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": self.name}


def _events(texts: Generator[str, None, Reply], event: Any) -> Generator[bytes, None, Reply]:
    while True:
        try:
            text = next(texts)
        except StopIteration as end:
            return end.value if isinstance(end.value, Reply) else Reply("", finish="stop")
        yield event({"content": text})


def _message(message: Mapping[str, Any]) -> ChatMessage:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    role: Any = message.get("role")
    calls = tuple(_call(call) for call in message.get("tool_calls") or ())
    text = "\n".join(text for text in texts if isinstance(text, str))
    return ChatMessage(_ROLES.get(role, role), text, calls, message.get("tool_call_id") or "")


def _call(call: Any) -> ToolCall:
    try:
        function = call["function"]
        return ToolCall(str(call["id"]), str(function["name"]), json.loads(function["arguments"] or "{}"))
    except (TypeError, KeyError, ValueError):
        raise InvalidInput("messages", "have a tool call without an id, a name and JSON arguments") from None


def _tool(tool: Any) -> Tool:
    try:
        function = tool["function"]
        return Tool(str(function["name"]), str(function.get("description", "")), function.get("parameters") or {})
    except (TypeError, KeyError, AttributeError):
        raise InvalidInput("tools", "must be functions with a name and parameters") from None


def _calls(reply: Reply) -> dict[str, Any]:
    """Return the tool calls of a reply as a field of a message, or {} if there are none."""
    calls = []
    for number, call in enumerate(reply.tool_calls):
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
        calls.append({"index": number, "id": call.id, "type": "function", "function": function})
    return {"tool_calls": calls} if calls else {}


def _finish(reply: Reply) -> str:
    return "content_filter" if reply.finish == "filtered" else reply.finish or "stop"


def _refusal(error: LanguageModelError | InvalidInput) -> Refusal:
    if isinstance(error, InvalidInput):
        return Refusal(400, str(error), type="invalid_request_error", code="invalid_request", param=error.field)
    if isinstance(error, PromptTooLong):
        return Refusal(400, str(error), type="invalid_request_error", code="context_length_exceeded")
    code = "upstream_unavailable" if isinstance(error, LanguageModelUnavailable) else "upstream_invalid"
    return Refusal(502, str(error), code=code)
