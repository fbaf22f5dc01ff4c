"""Several servers: a call that one of them fails goes on to the next that answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.errors import InvalidReply, LanguageModelUnavailable, PromptTooLong
from agentformer.http.circuit_breaker import Breaker, Usage
from agentformer.llms.guarded import GuardedModel
from agentformer.llms.openai import OpenAIModel
from agentformer.settings import Settings
from agentformer.types import ChatMessage
from tests.llms.hostile import DONE, STREAM, Answer, Hostile, Request, Serve, completion, event, refuses, says

pytestmark = pytest.mark.process

ASK = [ChatMessage("user", "hello")]


def chats(*answers: Iterable[bytes]) -> Answer:
    """These answers in turn, the last one for ever; and to whoever asks for its models, that it is there."""
    left = [list(answer) for answer in answers]

    def answer(request: Request) -> Iterable[bytes]:
        if request.path == "/v1/models":
            return says({"data": []})
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


def streams(*parts: bytes) -> list[bytes]:
    return [STREAM, *parts]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to answer than a server may that is asked whether it is there."""
    monkeypatch.setattr("agentformer.http.openai_client._PROBE_SECONDS", 30.0)


def model(one: Hostile, two: Hostile) -> OpenAIModel:
    given: dict[str, Any] = {"lmstudio_base_url": one.url, "ollama_base_url": two.url}
    return OpenAIModel.from_settings("tiny", Settings(**given, llm_retries=0, llm_timeout=30.0))


def asked(server: Hostile) -> int:
    return sum(request.method == "POST" for request in server.seen)


def streamed(llm: Any) -> str:
    return "".join(llm.stream(ASK))


HEALTHY = {"complete": completion("two"), "stream": streams(event("two"), event(finish="stop"), DONE)}
ASKS: dict[str, Any] = {"complete": lambda llm: llm.complete(ASK).text, "stream": streamed}
LOST: dict[str, Iterable[bytes]] = {
    "hung up": [],
    "busy": refuses(429, "busy"),
    "broken": refuses(500, "boom"),
    "no model": refuses(404, "no model 'tiny'"),
    "no key": refuses(401, "who are you"),
    "no protocol": says(b"<html>router</html>", kind="text/html"),
}


@pytest.mark.parametrize("how", ["complete", "stream"])
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_a_call_goes_on_to_the_next_server(serve: Serve, lost: Iterable[bytes], how: str) -> None:
    one, two = serve(chats(lost)), serve(chats(HEALTHY[how]))
    llm = model(one, two)
    assert [ASKS[how](llm), ASKS[how](llm)] == ["two", "two"]
    assert (asked(one), asked(two)) == (1, 2)


def test_a_stream_goes_on_only_before_its_first_piece(serve: Serve) -> None:
    one = serve(chats(streams(event("")), streams(event("one "))))
    two = serve(chats(HEALTHY["stream"], refuses(503, "gone"), HEALTHY["stream"]))
    llm = GuardedModel(model(one, two), breaker=Breaker(300), usage=Usage())
    assert streamed(llm) == "two"
    stream = llm.stream(ASK)
    assert next(stream) == "one "
    with pytest.raises(LanguageModelUnavailable, match="ended before the reply"):
        next(stream)
    assert streamed(llm) == "two"
    assert (asked(one), asked(two)) == (2, 3)


@pytest.mark.parametrize("how", ["complete", "stream"])
def test_where_none_is_left_the_error_names_them_all_and_the_breaker_opens(serve: Serve, how: str) -> None:
    one, two = serve(chats(refuses(503, "at lunch"))), serve(chats(refuses(404, "no such model")))
    llm = GuardedModel(model(one, two), breaker=Breaker(300), usage=Usage())
    with pytest.raises(LanguageModelUnavailable) as caught:
        ASKS[how](llm)
    for part in (one.url, "at lunch", two.url, "no such model"):
        assert part in str(caught.value)
    with pytest.raises(LanguageModelUnavailable, match="next attempt"):
        ASKS[how](llm)
    assert (asked(one), asked(two)) == (1, 1)


def test_the_last_server_is_asked_again_from_the_first_at_the_next_call(serve: Serve) -> None:
    one = serve(chats(refuses(503, "at lunch"), completion("one")))
    two = serve(chats(refuses(503, "at lunch")))
    llm = model(one, two)
    with pytest.raises(LanguageModelUnavailable):
        llm.complete(ASK)
    assert llm.complete(ASK).text == "one"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refuses(400, "maximum context length is 8"), PromptTooLong),
        (refuses(400, "no tools here"), InvalidReply),
        (completion(""), InvalidReply),
    ],
    ids=["too long", "rejected", "silent"],
)
def test_what_a_server_refuses_is_not_taken_elsewhere(
    serve: Serve, answer: list[bytes], error: type[Exception]
) -> None:
    one, two = serve(chats(answer)), serve(chats(completion("two")))
    with pytest.raises(error):
        model(one, two).complete(ASK)
    assert two.seen == []


def test_going_on_is_logged_without_secrets(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-canary-1234567890"
    one, two = serve(chats(refuses(503, json.dumps({"your key": key})))), serve(chats(completion("two")))
    settings = Settings(
        lmstudio_base_url=one.url, ollama_base_url=two.url, llm_api_key=key, llm_retries=0, llm_timeout=30.0
    )
    OpenAIModel.from_settings("tiny", settings).complete(ASK)
    told = [record.getMessage() for record in caplog.records if record.name == "agentformer"]
    assert len(told) == 1
    assert one.url in told[0] and told[0].endswith(f"trying Ollama at {two.url} next")
    assert "canary" not in told[0]
