"""The OpenAI protocol against a real socket: what is sent, what is read, and what servers refuse by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.errors import InvalidInput, InvalidReply, LanguageModelUnavailable, PromptTooLong
from agentformer.http.circuit_breaker import Breaker, Usage
from agentformer.llms.chat_protocol import check_request
from agentformer.llms.guarded import GuardedModel
from agentformer.llms.openai import OpenAIModel
from agentformer.settings import Settings
from agentformer.types import ChatMessage, Reply, Tool, ToolCall
from tests.llms.hostile import DONE, STREAM, Hostile, Request, Serve, completion, event, refuses, says

pytestmark = pytest.mark.process

ASK = [ChatMessage("user", "hello")]


def model(server: Hostile, **more: Any) -> OpenAIModel:
    settings = {"llm_base_url": server.url, "llm_api_key": "sk-test", "llm_retries": 0, "llm_timeout": 30.0, **more}
    return OpenAIModel.from_settings("tiny", Settings(**settings))


def whole(stream: Any) -> tuple[list[str], Reply]:
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


def test_a_completion_is_asked_for_and_read(serve: Serve) -> None:
    server = serve(lambda request: completion("hi"))
    reply = model(server).complete(ASK, temperature=0.3, max_tokens=99)
    assert reply == Reply("hi", "tiny", 7, 2, "stop")
    request = server.seen[0]
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer sk-test"
    assert request.body == {
        "model": "tiny",
        "temperature": 0.3,
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "hello"}],
    }


def test_the_environment_adds_nothing_to_a_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-of-an-admin")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-somebody")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-somebody")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Of-Somebody: 1\nAuthorization: Bearer sk-custom")
    server = serve(lambda request: completion("hi"))
    model(server, llm_api_key="").complete(ASK)
    headers = server.seen[0].headers
    assert "authorization" not in headers
    assert not [name for name, value in headers.items() if "somebody" in name + value or "x-" in name]


def test_tools_and_their_results_are_sent(serve: Serve) -> None:
    server = serve(lambda request: completion("It rains."))
    tool = Tool("weather", "Of a town.", {"type": "object"})
    asked = [
        *ASK,
        ChatMessage("assistant", "", (ToolCall("c1", "weather", {"town": "Åbo"}),)),
        ChatMessage("tool", "rain", tool_call_id="c1"),
    ]
    model(server).complete(asked, tools=[tool])
    body = server.seen[0].body
    described = {"name": "weather", "description": "Of a town.", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": described}]
    call = body["messages"][1]["tool_calls"][0]
    assert (call["id"], call["type"], call["function"]["name"]) == ("c1", "function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"town": "Åbo"}
    assert body["messages"][2] == {"role": "tool", "content": "rain", "tool_call_id": "c1"}


def call(arguments: Any, id: str | None = "c1", name: Any = "weather") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_calls_are_read_and_always_have_ids_of_their_own(serve: Serve) -> None:
    calls = [call('{"town": "Turku"}'), call(""), call("{}", id=None), call({"town": "Oulu"}, id="")]
    server = serve(lambda request: completion(None, "stop", tool_calls=calls))
    reply = model(server).complete(ASK)
    assert [dict(one.arguments) for one in reply.tool_calls] == [{"town": "Turku"}, {}, {}, {"town": "Oulu"}]
    assert reply.finish == "tool_calls"
    ids = [one.id for one in reply.tool_calls]
    assert ids[0] == "c1" and len(set(ids)) == 4 and all(ids)


@pytest.mark.parametrize("arguments", ['{"town":', "[1]", "NaN", '"text"', "[" * 100_000], ids=lambda a: a[:8])
def test_arguments_that_are_no_object_are_no_reply(serve: Serve, arguments: str) -> None:
    server = serve(lambda request: completion(None, "tool_calls", tool_calls=[call(arguments)]))
    with pytest.raises(InvalidReply, match="weather"):
        model(server).complete(ASK)


@pytest.mark.parametrize("calls", [[{"id": "c1", "type": "custom", "custom": {"name": "x", "input": "y"}}], [7], "x"])
def test_a_tool_call_of_an_unknown_type_fails_only_its_own_call(serve: Serve, calls: Any) -> None:
    replies = [completion(None, "tool_calls", tool_calls=calls), completion("hello")]
    guarded = GuardedModel(model(serve(lambda request: replies.pop(0))), breaker=Breaker(30), usage=Usage())
    with pytest.raises(InvalidReply, match="ask again, or use another model"):
        guarded.complete(ASK)
    assert guarded.complete(ASK).text == "hello"


@pytest.mark.parametrize(
    ("sent", "read"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "filtered"), ("eos", ""), (None, "")],
)
def test_why_it_stopped_is_told(serve: Serve, sent: str | None, read: str) -> None:
    server = serve(lambda request: completion("hi", sent))
    assert model(server).complete(ASK).finish == read


@pytest.mark.parametrize(
    ("finish", "advice"), [("stop", "empty reply"), ("length", "raise max_tokens"), ("content_filter", "filter")]
)
@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_reply_without_words_is_no_reply(serve: Serve, text: str | None, finish: str, advice: str) -> None:
    server = serve(lambda request: completion(text, finish))
    with pytest.raises(InvalidReply, match=advice):
        model(server).complete(ASK)


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": "many", "completion_tokens": -1}, {"prompt_tokens": True}]
)
def test_counts_that_are_none_are_zero(serve: Serve, usage: Any) -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    server = serve(lambda request: says({"choices": [choice], "usage": usage}))
    reply = model(server).complete(ASK)
    assert (reply.text, reply.tokens_in, reply.tokens_out) == ("hi", 0, 0)


def test_half_a_character_harms_nobody(serve: Serve) -> None:
    server = serve(lambda request: completion("a\ud800b"))
    text = model(server).complete([ChatMessage("user", "c\udc00d")]).text
    assert text == "a\ufffdb"
    assert server.seen[0].body["messages"][0]["content"] == "c\ufffdd"


@pytest.mark.parametrize(
    ("sent", "pieces"),
    [
        (["a", "\ud83d", "\ude00 b"], ["a", "\U0001f600 b"]),
        (["a\ud83d", "", "\ude00"], ["a", "\U0001f600"]),
        (["a\ud83d", "b"], ["a", "\ufffdb"]),
        (["\ude00", "b"], ["\ufffd", "b"]),
        (["a", "\ud83d\ud83d"], ["a", "\ufffd", "\ufffd"]),
    ],
    ids=["pair", "over an empty piece", "first half", "second half", "at the end"],
)
def test_a_character_that_a_stream_cuts_in_two_is_joined(serve: Serve, sent: list[str], pieces: list[str]) -> None:
    server = serve(lambda request: [STREAM, *map(event, sent), event(finish="stop"), DONE])
    came, reply = whole(model(server).stream(ASK))
    assert (came, reply.text) == (pieces, "".join(pieces))


def test_a_server_that_does_not_stream_gives_one_piece(serve: Serve) -> None:
    server = serve(lambda request: completion("a\ud83d\ude00b"))
    for _ in range(2):
        pieces, reply = whole(model(server).stream(ASK))
        assert pieces == ["a\U0001f600b"]
        assert reply == Reply("a\U0001f600b", "tiny", 7, 2, "stop")
    with pytest.raises(InvalidReply, match="empty reply"):
        whole(model(serve(lambda request: completion(""))).stream(ASK))


def test_what_newer_models_refuse_is_not_sent_again(serve: Serve) -> None:
    def answer(request: Request) -> list[bytes]:
        if "max_tokens" in request.body:
            advice = "is not supported with this model. Use 'max_completion_tokens' instead."
            return refuses(400, f"Unsupported parameter: 'max_tokens' {advice}", code="unsupported_parameter")
        if "temperature" in request.body:
            said = "'temperature' does not support 0.3 with this model. Only the default (1) value is supported."
            return refuses(400, f"Unsupported value: {said}", code="unsupported_value")
        return completion("hi")

    server = serve(answer)
    asked = model(server)
    assert asked.complete(ASK, max_tokens=44).text == "hi"
    assert asked.complete(ASK, max_tokens=55).text == "hi"
    assert len(server.seen) == 4
    assert {key: server.seen[-1].body[key] for key in server.seen[-1].body if key != "messages"} == {
        "model": "tiny",
        "max_completion_tokens": 55,
    }


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens is too large: 99999. This model supports at most 4096 completion tokens.",
        "Invalid 'max_tokens': integer above maximum value. Expected a value <= 4096, but got 99999 instead.",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 9 instead.",
    ],
)
def test_a_value_out_of_range_is_no_reason_to_ask_otherwise(serve: Serve, said: str) -> None:
    server = serve(lambda request: refuses(400, said))
    with pytest.raises(InvalidReply, match=r"99999|9 instead"):
        model(server).complete(ASK, max_tokens=99999, temperature=2)
    assert len(server.seen) == 1


def test_a_reply_far_longer_than_max_tokens_is_no_reply(serve: Serve) -> None:
    server = serve(lambda request: completion("word " * 10_000))
    with pytest.raises(InvalidReply, match="does not stop at max_tokens"):
        model(server).complete(ASK, max_tokens=20)


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
        "request (3020 tokens) exceeds the available context size (512 tokens), try increasing it",
        "Trying to keep the first 6000 tokens when context the overflows. However, the model is loaded with context "
        "length of only 4096 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input length exceeds the context window of this model.",
    ],
    ids=["openai, vllm", "llama.cpp", "lm studio", "anthropic", "gateway"],
)
def test_a_conversation_that_does_not_fit_is_told_in_every_dialect(serve: Serve, said: str) -> None:
    server = serve(lambda request: refuses(400, said))
    for ask in (model(server).complete, lambda messages: list(model(server).stream(messages))):
        with pytest.raises(PromptTooLong, match="shorten"):
            ask(ASK)


def test_a_stream_gives_pieces_and_then_the_reply(serve: Serve) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    parts = [event(""), event("blue "), event("cupboard"), event(finish="length"), event(usage=usage), DONE]
    server = serve(lambda request: [STREAM, *parts])
    pieces, reply = whole(model(server).stream(ASK, max_tokens=7))
    assert pieces == ["blue ", "cupboard"]
    assert reply == Reply("blue cupboard", "tiny", 3, 2, "length")
    body = server.seen[0].body
    assert (body["stream"], body["stream_options"], body["max_tokens"]) == (True, {"include_usage": True}, 7)


def test_a_server_without_counts_in_streams_is_asked_without(serve: Serve) -> None:
    def answer(request: Request) -> list[bytes]:
        if "stream_options" in request.body:
            return refuses(422, "body.stream_options: Extra inputs are not permitted")
        return [STREAM, event("hi"), event(finish="stop"), DONE]

    server = serve(answer)
    pieces, reply = whole(model(server).stream(ASK))
    assert (pieces, reply.tokens_in, reply.finish) == (["hi"], 0, "stop")


def test_a_stream_that_is_closed_early_hangs_up(serve: Serve) -> None:
    def answer(request: Request) -> Iterator[bytes]:
        yield STREAM
        while True:
            yield event("word " * 1000)

    server = serve(answer)
    stream = model(server).stream(ASK, max_tokens=10_000_000)
    assert next(stream)
    stream.close()
    assert server.gone.wait(20)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": []}),
    ("messages", {"messages": "hello"}),
    ("messages", {"messages": [{"role": "user", "content": "hello"}]}),
    ("messages", {"messages": [ChatMessage("robot", "hello")]}),
    ("messages", {"messages": [ChatMessage("user", None)]}),
    ("messages", {"messages": [ChatMessage("assistant", "", (ToolCall("1", "t", {"x": {1}}),))]}),
    ("messages", {"messages": [ChatMessage("assistant", "", ({"id": "1"},))]}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 1.5}),
    ("temperature", {"temperature": float("nan")}),
    ("temperature", {"temperature": float("inf")}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 2.1}),
    ("temperature", {"temperature": "warm"}),
    ("tools", {"tools": [{"name": "t"}]}),
    ("tools", {"tools": [Tool("t", "", {"x": float("inf")})]}),
]


def test_an_invalid_request_names_the_argument_and_is_not_sent(serve: Serve) -> None:
    for field, wrong in WRONG:
        request: dict[str, Any] = {"messages": ASK, "temperature": 0.3, "max_tokens": 5, **wrong}
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            check_request(**request)
    for edge in ({"max_tokens": 1}, {"temperature": 0}, {"temperature": 2}):
        check_request(**{"messages": ASK, "temperature": 0.3, "max_tokens": 5, **edge})  # type: ignore[arg-type]
    server = serve(lambda request: completion("hi"))
    with pytest.raises(InvalidInput, match=r"^max_tokens: "):
        model(server).complete(ASK, max_tokens=0)
    with pytest.raises(InvalidInput, match=r"^temperature: "):
        list(model(server).stream(ASK, temperature=2.1))
    assert server.seen == []


@pytest.mark.parametrize("name", ["ollama", "lmstudio"])
def test_a_prefix_names_the_server(serve: Serve, name: str) -> None:
    server = serve(lambda request: completion("hi"))
    other = serve(lambda request: completion("not asked"))
    addresses: dict[str, Any] = {
        "ollama_base_url": other.url,
        "lmstudio_base_url": other.url,
        f"{name}_base_url": server.url[:-3],
    }
    settings = Settings(**addresses, openai_base_url=other.url, openai_api_key="sk-openai", llm_retries=0)
    make = getattr(OpenAIModel, name)
    assert make("gpt-4o", settings).complete(ASK).text == "hi"
    assert [(request.path, request.body["model"]) for request in server.seen] == [("/v1/chat/completions", "gpt-4o")]
    assert "authorization" not in server.seen[0].headers
    named = Settings(**addresses, llm_base_url=other.url, llm_api_key="sk-test")
    assert make("gpt-4o", named).complete(ASK).text == "not asked"
    assert other.seen[0].headers["authorization"] == "Bearer sk-test"


def test_no_model_is_no_name() -> None:
    for make in [OpenAIModel.from_settings, OpenAIModel.ollama, OpenAIModel.lmstudio]:
        for empty in ("", " "):
            with pytest.raises(InvalidInput, match=r"^llm_model: "):
                make(empty, Settings())


def test_where_no_server_answers_all_that_were_tried_are_named() -> None:
    settings = Settings(lmstudio_base_url="http://u:secret@127.0.0.1:9", ollama_base_url="http://127.0.0.1:9/v1")
    with pytest.raises(LanguageModelUnavailable) as caught:
        OpenAIModel.from_settings("tiny", settings).complete(ASK)
    assert "LM Studio at http://127.0.0.1:9/v1, Ollama at http://127.0.0.1:9/v1" in str(caught.value)
    assert str(caught.value).startswith("No server is reachable for model 'tiny' (tried ")
    assert "secret" not in str(caught.value)
