"""JSON by a schema: how it is asked for, how far servers are trusted with it, and when it is no reply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.errors import InvalidInput, InvalidReply
from agentformer.llms.openai import OpenAIModel
from agentformer.llms.structured import Mismatch, Schema
from agentformer.settings import Settings
from agentformer.types import ChatMessage
from tests.llms.hostile import Answer, Hostile, Request, Serve, completion, refuses, says

pytestmark = pytest.mark.process

ASK = [ChatMessage("user", "hello")]
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}


def model(server: Hostile, **more: Any) -> OpenAIModel:
    settings = {"llm_base_url": server.url, "llm_api_key": "sk-test", "llm_retries": 0, "llm_timeout": 30.0, **more}
    return OpenAIModel.from_settings("tiny", Settings(**settings))


def in_turn(*answers: Sequence[bytes]) -> Answer:
    """One answer a request, the last one for ever."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def test_json_is_asked_for_by_the_schema(serve: Serve) -> None:
    server = serve(lambda request: completion('{"x": 3}'))
    reply = model(server).complete(ASK, schema=POINT)
    assert (reply.data, reply.text) == ({"x": 3}, '{"x": 3}')
    described = {"name": "reply", "schema": POINT, "strict": True}
    assert server.seen[0].body["response_format"] == {"type": "json_schema", "json_schema": described}


def test_a_schema_that_is_not_strict_is_not_said_to_be(serve: Serve) -> None:
    server = serve(lambda request: completion('{"x": 3}'))
    model(server).complete(ASK, schema={**POINT, "required": []})
    assert "strict" not in server.seen[0].body["response_format"]["json_schema"]


@pytest.mark.parametrize(("inner", "strict"), [(POINT, True), ({**POINT, "required": []}, False)])
@pytest.mark.parametrize("place", ["property", "items", "either", "definition"])
def test_a_schema_is_strict_only_if_its_inner_schemas_are(inner: dict[str, Any], strict: bool, place: str) -> None:
    value = {
        "property": inner,
        "items": {"type": "array", "items": inner},
        "either": {"anyOf": [{"type": "null"}, inner]},
        "definition": {"$ref": "#/$defs/point"},
    }[place]
    outer = {**POINT, "properties": {"x": value}, **({"$defs": {"point": inner}} if place == "definition" else {})}
    assert Schema(outer).strict is strict


@pytest.mark.parametrize(
    "text", ['```json\n{"x": 3}\n```', '\n```\n{"x": 3}```\n', '<think>{"x": 1}? no</think>\n{"x": 3}', ' {"x":\n3}']
)
def test_json_may_be_fenced_or_thought_about(serve: Serve, text: str) -> None:
    server = serve(lambda request: completion(text))
    reply = model(server).complete(ASK, schema=POINT)
    assert reply.data == {"x": 3} == json.loads(reply.text)


def test_a_server_without_schemas_is_asked_more_and_more_plainly_and_then_remembered(serve: Serve) -> None:
    def answer(request: Request) -> list[bytes]:
        kind = request.body.get("response_format", {}).get("type")
        return refuses(400, f"response_format type {kind} is not supported") if kind else completion('{"x": 3}')

    server = serve(answer)
    asked = model(server)
    assert asked.complete(ASK, schema=POINT).data == {"x": 3}
    assert asked.complete(ASK, schema=POINT).data == {"x": 3}
    kinds = [request.body.get("response_format", {}).get("type") for request in server.seen]
    assert kinds == ["json_schema", "json_object", None, None]
    messages = server.seen[-1].body["messages"]
    assert len(messages) == 1 and json.dumps(POINT) in messages[0]["content"]
    asked.complete([ChatMessage("system", "Be brief."), ChatMessage("assistant", "Hi."), *ASK], schema=POINT)
    *before, last = server.seen[-1].body["messages"]
    assert [message["content"] for message in before] == ["Be brief.", "Hi."]
    assert last["role"] == "user" and last["content"].startswith("hello") and json.dumps(POINT) in last["content"]


def test_one_schema_that_a_server_cannot_read_is_not_held_against_the_others(serve: Serve) -> None:
    def answer(request: Request) -> list[bytes]:
        if "odd" in json.dumps(request.body.get("response_format", {})):
            return refuses(400, "Invalid schema for response_format 'reply': odd", param="response_format")
        return completion('{"x": 3}')

    server = serve(answer)
    asked = model(server)
    asked.complete(ASK, schema={**POINT, "title": "odd"})
    asked.complete(ASK, schema=POINT)
    kinds = [request.body.get("response_format", {}).get("type") for request in server.seen]
    assert kinds == ["json_schema", "json_object", "json_schema"]


def test_json_that_is_not_valid_is_asked_for_once_more_with_what_is_wrong(serve: Serve) -> None:
    server = serve(in_turn(completion('{"x": "three"}'), completion('{"x": 3}')))
    reply = model(server).complete(ASK, schema=POINT)
    assert reply.data == {"x": 3}
    assert (reply.tokens_in, reply.tokens_out) == (14, 4)
    first, bad, why = server.seen[1].body["messages"]
    assert (first["content"], bad["role"], bad["content"]) == ("hello", "assistant", '{"x": "three"}')
    assert "$.x" in why["content"] and "'three' is not of type 'integer'" in why["content"]


def test_what_only_some_readers_take_for_json_is_none() -> None:
    for text in ["1e999", "[-1e999]", '"\\ud800"', '{"\\udfff": 1}', '{"a": 1, "a": 1}', '[{"a": {"b": 1, "b": 2}}]']:
        with pytest.raises(Mismatch, match="not JSON"):
            Schema({}).read(text)


def test_what_every_reader_takes_for_json_is_read() -> None:
    for text in ["1e308", '"\\ud83d\\ude00"', '{"a": 1, "b": {"a": 2}}']:
        assert Schema({}).read(text) == (text, json.loads(text))


@pytest.mark.parametrize("text", ["no", '{"x": NaN}', "[" * 20_000, '{"x": ' + "9" * 10_000 + "}", '{"x": 3} {"x": 4}'])
def test_what_is_twice_no_json_is_no_reply(serve: Serve, text: str) -> None:
    server = serve(lambda request: completion(text))
    with pytest.raises(InvalidReply, match="in two attempts"):
        model(server).complete(ASK, schema=POINT)
    assert len(server.seen) == 2


def test_json_that_max_tokens_cut_is_not_asked_for_again(serve: Serve) -> None:
    server = serve(lambda request: completion('{"x": ', "length"))
    with pytest.raises(InvalidReply, match="raise max_tokens"):
        model(server).complete(ASK, schema=POINT)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "point"},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"a": {1, 2}},
        {"$ref": "#"},
    ],
    ids=["no type", "no target", "elsewhere", "no json", "itself"],
)
def test_what_is_no_schema_is_the_callers_mistake(serve: Serve, schema: dict[str, Any]) -> None:
    server = serve(lambda request: completion('{"x": 3}'))
    with pytest.raises(InvalidInput, match=r"^schema: "):
        model(server).complete(ASK, schema=schema)


def test_nothing_is_fetched_for_a_schema(serve: Serve) -> None:
    elsewhere = serve(lambda request: says({"type": "object"}))
    server = serve(lambda request: completion('{"x": 3}'))
    with pytest.raises(InvalidInput, match="missing definition"):
        model(server).complete(ASK, schema={"$ref": f"{elsewhere.url}/schema.json"})
    assert elsewhere.seen == []


def test_a_model_is_told_the_schema_once_when_it_is_asked_again(serve: Serve) -> None:
    def answer(request: Request) -> list[bytes]:
        if "response_format" in request.body:
            return refuses(400, "response_format is not supported")
        return completion('{"x": 3}' if "cannot be used" in request.body["messages"][-1]["content"] else "three")

    server = serve(answer)
    assert model(server).complete(ASK, schema=POINT).data == {"x": 3}
    assert [message["content"].count(json.dumps(POINT)) for message in server.seen[-1].body["messages"]] == [0, 0, 1]


def test_a_schema_in_words_keeps_every_message(serve: Serve) -> None:
    """It is part of the last message of the user, or else a message of its own."""
    server = serve(
        lambda request: (
            refuses(400, "response_format is not supported")
            if "response_format" in request.body
            else completion('{"x": 3}')
        )
    )
    asked = model(server)
    said = [ChatMessage("system", "be brief"), ChatMessage("user", "hi"), ChatMessage("assistant", "yes?")]
    for messages, texts in (
        ([*said, *ASK], ["be brief", "hi", "yes?", "hello"]),
        (said, ["be brief", "hi", "yes?", ""]),
    ):
        asked.complete(messages, schema=POINT)
        sent = server.seen[-1].body["messages"]
        assert [message["content"].partition("Answer with one JSON")[0].rstrip() for message in sent] == texts
        assert sent[-1]["role"] == "user" and json.dumps(POINT) in sent[-1]["content"]
