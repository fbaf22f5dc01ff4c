"""The conformance suite over every language model here, each against a server that we did not write."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.errors import InvalidReply
from agentformer.http.circuit_breaker import Breaker, Usage
from agentformer.llms.echo import EchoModel
from agentformer.llms.guarded import GuardedModel
from agentformer.llms.openai import OpenAIModel
from agentformer.settings import Settings
from agentformer.testing import LanguageModelConformance
from agentformer.testing.models import COLOUR, VALUE, WEATHER
from agentformer.types import ChatMessage, LanguageModel

HERE = Path(__file__).parent


def line_of(process: subprocess.Popen[str], pattern: str) -> str:
    """The address in the first line of output that fits; the test ends where the server ends without one."""
    assert process.stdout
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(f"the server ended with {process.wait()}")


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


class TestEcho(LanguageModelConformance):
    def make(self) -> LanguageModel:
        return EchoModel()


class TestGuarded(LanguageModelConformance):
    def make(self) -> LanguageModel:
        return GuardedModel(EchoModel(), breaker=Breaker(30), usage=Usage())


@pytest.fixture(scope="class")
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """llama.cpp with a model of random weights."""
    for package in ("xllamacpp", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    from tests.llms.tiny_gguf import write

    path = tmp_path_factory.mktemp("gguf") / "babble.gguf"
    write(path)
    process = subprocess.Popen(
        [sys.executable, HERE / "serve_gguf.py", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = line_of(process, r"http://[\d.]+:\d+")
        request.cls.model = OpenAIModel.from_settings("babble", Settings(llm_base_url=url))
        yield
    finally:
        stop(process)


@pytest.mark.process
@pytest.mark.usefixtures("llama")
class TestLlamaCpp(LanguageModelConformance):
    fits = 512
    model: LanguageModel

    def make(self) -> LanguageModel:
        return self.model

    def test_a_schema_binds_even_a_model_that_babbles(self) -> None:
        schema = {
            "type": "object",
            "properties": {"scores": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 4}},
            "required": ["scores"],
        }
        for _ in range(5):
            reply = self.model.complete([ChatMessage("user", "Judge.")], schema=schema, temperature=1.0)
            assert 2 <= len(reply.data["scores"]) <= 4
            assert set(reply.data["scores"]) <= {1, 2, 3}

    def test_tokens_are_counted_by_the_server(self) -> None:
        reply = self.model.complete([ChatMessage("user", "abc")], max_tokens=9)
        assert reply.tokens_out == 9
        assert reply.tokens_in > len("user: abc assistant:")  # this vocabulary has single letters only


def fixtures() -> list[dict[str, Any]]:
    """What aimock answers; the first that fits."""

    def when(said: str, response: Any, **more: Any) -> dict[str, Any]:
        return {"match": {"userMessage": said, **more}, "response": response}

    busy = {"error": {"message": "Rate limited", "type": "rate_limit_error"}, "status": 429}
    return [
        when("never valid", {"content": "I would rather not."}),
        when("weather in Turku", {"content": "12 degrees and rain."}, hasToolResult=True),
        when("weather in Turku", {"toolCalls": [{"name": "weather", "arguments": {"town": "Turku"}}]}),
        when(
            "Count from one",
            {"content": "one, two, three", "finishReason": "length", "usage": {"completion_tokens": 6}},
        ),
        when('"colour"', {"content": json.dumps(VALUE)}),
        when("two colours", {"content": "```json\n[]\n```"}, turnIndex=0),
        when("That answer cannot be used", {"content": json.dumps(VALUE)}),
        when("busy", {**busy, "retryAfter": 0}, sequenceIndex=0),
        when("busy", {**busy, "retryAfter": 0}, sequenceIndex=1),
        when("busy", {"content": "At last."}),
        when("harbour", {"content": "The harbour is full of boats and of gulls, from April until late October."}),
        when("How many", {"content": "Forty."}),
    ]


@pytest.fixture(scope="class")
def aimock(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    program = os.environ.get("AIMOCK")
    if not program:
        pytest.skip("AIMOCK does not name the program of the npm package @copilotkit/aimock")
    folder = tmp_path_factory.mktemp("aimock")
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": fixtures()}), encoding="utf-8")
    config = {"llm": {"fixtures": str(folder / "fixtures.json"), "chunkSize": 5}}
    (folder / "aimock.json").write_text(json.dumps(config), encoding="utf-8")
    process = subprocess.Popen(
        [program, "--config", folder / "aimock.json", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        url = line_of(process, r"http://[\w.]+:\d+")
        request.cls.model = OpenAIModel.from_settings("mocked", Settings(llm_base_url=url, llm_api_key="sk-test"))
        yield
    finally:
        stop(process)


@pytest.mark.process
@pytest.mark.usefixtures("aimock")
class TestAimock(LanguageModelConformance):
    model: LanguageModel

    def make(self) -> LanguageModel:
        return self.model

    def test_the_text_is_what_was_recorded(self) -> None:
        asked = [ChatMessage("user", "Tell me about the harbour")]
        text = "The harbour is full of boats and of gulls, from April until late October."
        assert self.model.complete(asked).text == text
        pieces = list(self.model.stream(asked))
        assert "".join(pieces) == text
        assert len(pieces) > 5

    def test_a_tool_is_called_with_its_arguments(self) -> None:
        reply = self.model.complete([ChatMessage("user", "How is the weather in Turku?")], tools=[WEATHER])
        assert [(call.name, call.arguments) for call in reply.tool_calls] == [("weather", {"town": "Turku"})]
        assert reply.finish == "tool_calls"

    def test_a_busy_server_is_asked_again(self) -> None:
        assert self.model.complete([ChatMessage("user", "are you busy")]).text == "At last."

    def test_json_that_is_not_valid_is_asked_for_once_more(self) -> None:
        assert self.model.complete([ChatMessage("user", "two colours")], schema=COLOUR).data == VALUE

    def test_what_never_becomes_valid_is_no_reply(self) -> None:
        with pytest.raises(InvalidReply, match="in two attempts"):
            self.model.complete([ChatMessage("user", "never valid")], schema={**COLOUR, "title": "never valid"})
