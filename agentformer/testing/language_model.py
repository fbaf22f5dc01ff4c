"""Check the contract of language models."""

from __future__ import annotations

import json
import math
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentformer.errors import InvalidInput, PromptTooLong
from agentformer.testing.case import raises
from agentformer.types import ChatMessage, LanguageModel, Reply, Tool, ToolCall

ASK = (ChatMessage("system", "You are brief."), ChatMessage("user", "Say something about the harbour."))
COUNT = (ChatMessage("user", "Count from one to a thousand, in words, one after the other, leaving none out."),)
WEATHER = Tool(
    "weather",
    "The weather in a town.",
    {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
)
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "dark": {"type": "boolean"}},
    "required": ["colour", "dark"],
    "additionalProperties": False,
}
VALUE = {"colour": "red", "dark": True}  # a model that repeats its prompt returns this word, too


class LanguageModelConformance:
    """The contract of `LanguageModel` as tests. A subclass defines `make()`, and sets the class attributes for
    abilities that the model lacks."""

    tools = True  # the model accepts tools and their results
    schemas = True  # if the message is JSON that fits the schema, the model returns this JSON
    fits = 0  # tokens of prompt and reply together; 0: unknown, and the limit is not tested

    def make(self) -> LanguageModel:
        """Return the model under test."""
        raise NotImplementedError

    def test_a_reply_has_text_and_token_counts(self) -> None:
        """`complete` returns a reply with a text, token counts and a finish reason."""
        self._check_reply(self.make().complete(ASK, max_tokens=64))

    def test_a_stream_yields_pieces_and_returns_the_reply(self) -> None:
        """The pieces of a stream, joined, are the text of the reply."""
        pieces, reply = _read_stream(self.make(), 64)
        self._check_reply(reply)
        assert all(pieces)
        assert "".join(pieces) == reply.text

    def test_max_tokens_limits_a_reply(self) -> None:
        """If a reply is cut at `max_tokens`, its finish reason is `length`."""
        model = self.make()
        reply = model.complete(COUNT, max_tokens=6)
        assert (reply.finish, reply.tokens_out <= 6) == ("length", True)
        assert reply.text.strip()

    def test_messages_of_every_role_are_accepted(self) -> None:
        """Messages of the roles system, user and assistant are accepted."""
        messages = [*ASK, ChatMessage("assistant", "It is full of boats."), ChatMessage("user", "How many?")]
        self._check_reply(self.make().complete(messages, max_tokens=64))

    def test_a_tool_call_or_a_text_is_returned(self) -> None:
        """A reply has a text or tool calls. If the reply has tool calls, its finish reason is `tool_calls`."""
        self._needs("tools")
        reply = self.make().complete([ChatMessage("user", "How is the weather in Turku?")], tools=[WEATHER])
        self._check_reply(reply)
        assert len({call.id for call in reply.tool_calls}) == len(reply.tool_calls)
        assert all(call.id and call.name and isinstance(dict(call.arguments), dict) for call in reply.tool_calls)
        assert (reply.finish == "tool_calls") == bool(reply.tool_calls)

    def test_the_result_of_a_tool_is_accepted(self) -> None:
        """A conversation with a tool call and its result is accepted."""
        self._needs("tools")
        messages = [
            ChatMessage("user", "How is the weather in Turku?"),
            ChatMessage("assistant", "", (ToolCall("call_1", "weather", {"town": "Turku"}),)),
            ChatMessage("tool", "12 degrees, rain", tool_call_id="call_1"),
        ]
        self._check_reply(self.make().complete(messages, tools=[WEATHER], max_tokens=64))

    def test_data_is_the_parsed_text_and_fits_the_schema(self) -> None:
        """If a schema is given, `data` of the reply is the parsed text."""
        self._needs("schemas")
        arguments = [ChatMessage("system", "Repeat the message."), ChatMessage("user", json.dumps(VALUE))]
        reply = self.make().complete(arguments, schema=COLOUR, max_tokens=64)
        assert json.loads(reply.text) == reply.data
        assert set(reply.data) == {"colour", "dark"}
        assert reply.data["colour"] in ("red", "green") and isinstance(reply.data["dark"], bool)

    def test_an_invalid_schema_is_refused(self) -> None:
        """An invalid JSON Schema raises `InvalidInput`."""
        self._needs("schemas")
        for wrong in ({"type": "nothing"}, {"properties": 3}):
            with raises(InvalidInput):
                self.make().complete(ASK, schema=wrong)

    def test_invalid_arguments_are_refused(self) -> None:
        """Invalid messages, limits and temperatures raise `InvalidInput`."""
        model = self.make()
        wrong: list[dict[str, Any]] = [{"messages": ()}, {"messages": [{"role": "user", "content": "hello"}]}]
        wrong += [{"max_tokens": 0}, *({"temperature": value} for value in (-0.1, 2.1, math.nan, math.inf))]
        for options in wrong:
            arguments: dict[str, Any] = {"messages": ASK, **options}
            with raises(InvalidInput):
                model.complete(**arguments)
            with raises(InvalidInput):
                list(model.stream(**arguments))

    def test_a_conversation_that_is_too_long_is_refused(self) -> None:
        """A conversation with more tokens than the model accepts raises `PromptTooLong`."""
        if not self.fits:
            raise unittest.SkipTest("the limit of this model is unknown")
        long = [ChatMessage("user", "harbour " * self.fits)]
        model = self.make()
        with raises(PromptTooLong):
            model.complete(long)
        with raises(PromptTooLong):
            list(model.stream(long))

    def test_a_closed_stream_leaves_the_model_usable(self) -> None:
        """If a stream is closed before its end, the model still answers the next call."""
        model = self.make()
        stream = model.stream(ASK, max_tokens=64)
        assert next(stream)
        stream.close()
        self._check_reply(model.complete(ASK, max_tokens=64))

    def test_a_model_is_thread_safe(self) -> None:
        """Concurrent calls return complete replies."""
        model = self.make()

        def ask(n: int) -> Reply:
            return model.complete(ASK, max_tokens=16) if n % 2 else _read_stream(model, 16)[1]

        with ThreadPoolExecutor(4) as pool:
            for reply in pool.map(ask, range(8)):
                self._check_reply(reply)

    def _needs(self, ability: str) -> None:
        if not getattr(self, ability):
            raise unittest.SkipTest(f"this model has no {ability}")

    def _check_reply(self, reply: Reply) -> None:
        assert reply.text.strip() or reply.tool_calls
        counts: list[Any] = [reply.tokens_in, reply.tokens_out]
        assert all(type(count) is int and count >= 0 for count in counts)
        assert reply.finish in ("stop", "length", "tool_calls", "filtered", "")
        assert reply.model


def _read_stream(model: LanguageModel, max_tokens: int) -> tuple[list[str], Reply]:
    stream = model.stream(ASK, max_tokens=max_tokens)
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            reply = end.value
            break
    assert isinstance(reply, Reply)
    return pieces, reply
