"""The guard around a model: when it asks, and what it counts."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from agentformer.errors import InvalidInput, InvalidReply, LanguageModelUnavailable, PromptTooLong
from agentformer.http.circuit_breaker import Breaker, Usage
from agentformer.llms.chat_protocol import check_length
from agentformer.llms.echo import EchoModel
from agentformer.llms.guarded import GuardedModel
from agentformer.llms.structured import Mismatch, Schema
from agentformer.types import ChatMessage, Reply

ASK = [ChatMessage("user", "hello")]


class Scripted:
    """Does what the next item of its script says: raises it, or says it word by word with 5 tokens in and 2 out."""

    def __init__(self, *script: Exception | str) -> None:
        self.script = list(script)
        self.calls = 0

    def complete(self, messages: Any, **options: Any) -> Reply:
        self.calls += 1
        item = self.script.pop(0)
        if isinstance(item, Exception):
            raise item
        return Reply(item, "scripted", 5, 2)

    def stream(self, messages: Any, **options: Any) -> Generator[str, None, Reply]:
        self.calls += 1
        for item in self.script:
            if isinstance(item, Exception):
                raise item
            yield item
        return Reply("".join(map(str, self.script)), "scripted", 5, 2)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def guarded(inner: Scripted, clock: Clock | None = None) -> tuple[GuardedModel, Usage]:
    usage = Usage()
    return GuardedModel(inner, breaker=Breaker(30, clock=clock or Clock()), usage=usage), usage


def test_a_dead_server_is_asked_once_and_again_after_the_wait() -> None:
    clock = Clock()
    inner = Scripted(LanguageModelUnavailable("nobody there"), "hi", "ho")
    model, usage = guarded(inner, clock)
    with pytest.raises(LanguageModelUnavailable, match=r"^nobody there$"):
        model.complete(ASK)
    for _ in range(5):
        with pytest.raises(LanguageModelUnavailable, match="nobody there; next attempt in 30 s"):
            model.complete(ASK)
        with pytest.raises(LanguageModelUnavailable, match="next attempt"):
            list(model.stream(ASK))
    assert inner.calls == 1
    clock.now += 31
    assert [model.complete(ASK).text, model.complete(ASK).text] == ["hi", "ho"]
    counts = usage.snapshot()
    assert (counts["calls"], counts["errors"]) == (3, {"LanguageModelUnavailable": 1})
    assert (counts["tokens_in"], counts["tokens_out"]) == (10, 4)


def test_a_server_that_answers_badly_is_asked_again_at_once() -> None:
    for error in [PromptTooLong("long"), InvalidReply("odd"), InvalidInput("schema", "none")]:
        model, usage = guarded(Scripted(error, "hi"))
        with pytest.raises(type(error)):
            model.complete(ASK)
        assert model.complete(ASK).text == "hi"
        assert usage.snapshot()["errors"] == {type(error).__name__: 1}


def test_a_stream_is_one_call_from_the_first_piece_to_the_last() -> None:
    model, usage = guarded(Scripted("blue ", "cupboard"))
    stream = model.stream(ASK)
    assert usage.snapshot()["calls"] == 0
    assert [next(stream), next(stream)] == ["blue ", "cupboard"]
    assert usage.snapshot()["calls"] == 0
    with pytest.raises(StopIteration) as end:
        next(stream)
    assert end.value.value.text == "blue cupboard"
    counts = usage.snapshot()
    assert (counts["calls"], counts["tokens_in"], counts["tokens_out"], counts["errors"]) == (1, 5, 2, {})


def test_an_error_in_the_middle_of_a_stream_counts_and_opens_the_breaker() -> None:
    model, usage = guarded(Scripted("blue ", LanguageModelUnavailable("cut")))
    stream = model.stream(ASK)
    assert next(stream) == "blue "
    with pytest.raises(LanguageModelUnavailable):
        next(stream)
    with pytest.raises(LanguageModelUnavailable, match="next attempt"):
        model.complete(ASK)
    assert usage.snapshot()["errors"] == {"LanguageModelUnavailable": 1}


def test_while_another_server_answers_the_next_call_is_let_through() -> None:
    class Choosing(Scripted):
        has_fallback = True

    inner = Choosing(LanguageModelUnavailable("cut"), "hi", LanguageModelUnavailable("all gone"))
    model, _ = guarded(inner)
    with pytest.raises(LanguageModelUnavailable):
        model.complete(ASK)
    assert model.complete(ASK).text == "hi"
    inner.has_fallback = False
    with pytest.raises(LanguageModelUnavailable):
        model.complete(ASK)
    with pytest.raises(LanguageModelUnavailable, match="next attempt"):
        model.complete(ASK)


def test_who_stops_listening_makes_no_error() -> None:
    model, usage = guarded(Scripted("blue ", "cupboard"))
    stream = model.stream(ASK)
    next(stream)
    stream.close()
    counts = usage.snapshot()
    assert (counts["calls"], counts["errors"], counts["tokens_out"]) == (1, {}, 0)
    assert next(model.stream(ASK)) == "blue "


def test_all_that_a_caller_says_is_passed_on() -> None:
    seen: dict[str, Any] = {}

    class Listening(Scripted):
        def complete(self, messages: Any, **options: Any) -> Reply:
            seen.update(options, messages=messages)
            return super().complete(messages)

    model, _ = guarded(Listening("hi"))
    model.complete(ASK, tools=(), schema={"type": "object"}, temperature=0.9, max_tokens=3)
    assert seen == {"messages": ASK, "tools": (), "schema": {"type": "object"}, "temperature": 0.9, "max_tokens": 3}


def test_an_error_of_a_plugin_is_a_model_that_cannot_be_used_now() -> None:
    model, usage = guarded(Scripted(RuntimeError("a bug\nof the plugin")))
    with pytest.raises(LanguageModelUnavailable, match=r"language model failed \(RuntimeError: a bug of the plugin\)"):
        model.complete(ASK)
    with pytest.raises(LanguageModelUnavailable, match="next attempt"):
        model.complete(ASK)
    assert usage.snapshot()["errors"] == {"LanguageModelUnavailable": 1}


def test_an_echo_is_cut_after_max_tokens_words() -> None:
    replies = [EchoModel().complete([ChatMessage("user", "one two three")], max_tokens=n) for n in (2, 3, 4)]
    assert [(reply.text, reply.finish, reply.tokens_out) for reply in replies] == [
        ("one two", "length", 2),
        ("one two three", "stop", 3),
        ("one two three", "stop", 3),
    ]


def test_at_most_five_problems_of_a_reply_are_reported() -> None:
    schema = Schema({"type": "array", "items": {"type": "integer"}})
    for wrong, reported in ((5, 5), (6, 5)):
        with pytest.raises(Mismatch) as mismatch:
            schema.read(json.dumps(["x"] * wrong))
        assert len(str(mismatch.value).splitlines()) == reported


def test_a_text_may_have_40_characters_per_token_and_1000_more() -> None:
    check_length(20 * 40 + 1000, 20, "tiny")
    with pytest.raises(InvalidReply, match="does not stop at max_tokens"):
        check_length(20 * 40 + 1001, 20, "tiny")
