"""What every language model owes its callers."""

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
VALUE = {"colour": "red", "dark": True}  # which a model that only repeats gives back, too


class LanguageModelConformance:
    """Subclasses give `make()`, which may return the same model every time, and say what the model cannot do."""

    tools = True  # messages about tools are understood
    schemas = True  # JSON by a schema comes, when the message is that JSON
    fits = 0  # tokens that the model reads, in prompt and reply together; 0: not known, and no overflow is tried

    def make(self) -> LanguageModel:
        raise NotImplementedError

    def test_a_reply_has_text_and_honest_counts(self) -> None:
        self._sound(self.make().complete(ASK, max_tokens=64))

    def test_a_stream_gives_the_text_in_pieces_and_then_the_reply(self) -> None:
        pieces, reply = _streamed(self.make(), 64)
        self._sound(reply)
        assert all(pieces)
        assert "".join(pieces) == reply.text

    def test_max_tokens_ends_a_reply_and_the_reply_says_so(self) -> None:
        model = self.make()
        reply = model.complete(COUNT, max_tokens=6)
        assert (reply.finish, reply.tokens_out <= 6) == ("length", True)
        assert reply.text.strip()

    def test_messages_of_every_role_are_taken(self) -> None:
        said = [*ASK, ChatMessage("assistant", "It is full of boats."), ChatMessage("user", "How many?")]
        self._sound(self.make().complete(said, max_tokens=64))

    def test_a_tool_is_called_or_text_comes(self) -> None:
        self._needs("tools")
        reply = self.make().complete([ChatMessage("user", "How is the weather in Turku?")], tools=[WEATHER])
        self._sound(reply)
        assert len({call.id for call in reply.tool_calls}) == len(reply.tool_calls)
        assert all(call.id and call.name and isinstance(dict(call.arguments), dict) for call in reply.tool_calls)
        assert (reply.finish == "tool_calls") == bool(reply.tool_calls)

    def test_the_result_of_a_tool_is_taken(self) -> None:
        self._needs("tools")
        said = [
            ChatMessage("user", "How is the weather in Turku?"),
            ChatMessage("assistant", "", (ToolCall("call_1", "weather", {"town": "Turku"}),)),
            ChatMessage("tool", "12 degrees, rain", tool_call_id="call_1"),
        ]
        self._sound(self.make().complete(said, tools=[WEATHER], max_tokens=64))

    def test_data_is_the_json_of_the_text_and_valid_under_the_schema(self) -> None:
        self._needs("schemas")
        asked = [ChatMessage("system", "Repeat the message."), ChatMessage("user", json.dumps(VALUE))]
        reply = self.make().complete(asked, schema=COLOUR, max_tokens=64)
        assert json.loads(reply.text) == reply.data
        assert set(reply.data) == {"colour", "dark"}
        assert reply.data["colour"] in ("red", "green") and isinstance(reply.data["dark"], bool)

    def test_what_is_no_schema_is_refused(self) -> None:
        self._needs("schemas")
        for wrong in ({"type": "nothing"}, {"properties": 3}):
            with raises(InvalidInput):
                self.make().complete(ASK, schema=wrong)

    def test_what_no_model_can_be_asked_is_refused(self) -> None:
        model = self.make()
        wrong: list[dict[str, Any]] = [{"messages": ()}, {"messages": [{"role": "user", "content": "hello"}]}]
        wrong += [{"max_tokens": 0}, *({"temperature": value} for value in (-0.1, 2.1, math.nan, math.inf))]
        for options in wrong:
            asked: dict[str, Any] = {"messages": ASK, **options}
            with raises(InvalidInput):
                model.complete(**asked)
            with raises(InvalidInput):
                list(model.stream(**asked))

    def test_a_conversation_that_does_not_fit_is_refused(self) -> None:
        if not self.fits:
            raise unittest.SkipTest("how much this model reads is not known")
        long = [ChatMessage("user", "harbour " * self.fits)]
        model = self.make()
        with raises(PromptTooLong):
            model.complete(long)
        with raises(PromptTooLong):
            list(model.stream(long))

    def test_who_stops_listening_leaves_the_model_in_order(self) -> None:
        model = self.make()
        stream = model.stream(ASK, max_tokens=64)
        assert next(stream)
        stream.close()
        self._sound(model.complete(ASK, max_tokens=64))

    def test_threads_may_share_a_model(self) -> None:
        model = self.make()

        def ask(n: int) -> Reply:
            return model.complete(ASK, max_tokens=16) if n % 2 else _streamed(model, 16)[1]

        with ThreadPoolExecutor(4) as pool:
            for reply in pool.map(ask, range(8)):
                self._sound(reply)

    def _needs(self, ability: str) -> None:
        if not getattr(self, ability):
            raise unittest.SkipTest(f"this model has no {ability}")

    def _sound(self, reply: Reply) -> None:
        assert reply.text.strip() or reply.tool_calls
        counts: list[Any] = [reply.tokens_in, reply.tokens_out]
        assert all(type(count) is int and count >= 0 for count in counts)
        assert reply.finish in ("stop", "length", "tool_calls", "filtered", "")
        assert reply.model


def _streamed(model: LanguageModel, max_tokens: int) -> tuple[list[str], Reply]:
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
