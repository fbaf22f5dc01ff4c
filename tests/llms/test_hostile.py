"""Servers that are down, broken, slow, endless or indiscreet: one typed error each, which says where and what to do."""

from __future__ import annotations

import gzip
import json
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.errors import InvalidReply, LanguageModelError, LanguageModelUnavailable, PromptTooLong
from agentformer.llms.openai import OpenAIModel
from agentformer.settings import Settings
from agentformer.types import ChatMessage, Reply
from tests.llms.hostile import DONE, STREAM, Answer, Hostile, Request, Serve, completion, event, head, refuses, says

pytestmark = pytest.mark.process

KEY = "sk-canary-1234567890abcdef"
ASK = [ChatMessage("user", "hello")]


@pytest.fixture(scope="module")
def shared() -> Iterator[Hostile]:
    """One server for many tests, so that its clients, which are slow to make, can be kept."""
    server = Hostile(lambda request: ())
    yield server
    server.close()


@pytest.fixture
def answering(shared: Hostile) -> Serve:
    """Let the shared server answer as it is told. It does not tell when a client has gone."""

    def answer(answer: Answer) -> Hostile:
        shared.answer = answer
        shared.seen.clear()
        return shared

    return answer


def model(server: Hostile, **more: Any) -> OpenAIModel:
    return kept_model(server.url, **more)


@cache
def kept_model(url: str, **more: Any) -> OpenAIModel:
    given = {"llm_base_url": url, "llm_api_key": KEY, "llm_retries": 0, "llm_timeout": 20.0, **more}
    return OpenAIModel.from_settings("tiny", Settings(**given))


def drips(server: Hostile, first: bytes, then: bytes) -> Iterator[bytes]:
    yield first
    while not server.stop.wait(0.1):
        yield then


def streamed(asked: OpenAIModel, **options: Any) -> Reply:
    """The reply of a stream, to be used like `complete`."""
    stream = asked.stream(ASK, **options)
    while True:
        try:
            next(stream)
        except StopIteration as end:
            reply: Reply = end.value
            return reply


ASKS = [lambda asked: asked.complete(ASK), streamed]

WHOLE = completion("hi")[0].partition(b"\r\n\r\n")[2]
NONSENSE: dict[str, Iterable[bytes]] = {
    "html": says(b"<html>welcome to the router</html>", kind="text/html"),
    "html that says it is json": says(b"<html>welcome to the router</html>"),
    "half a json": says(b'{"choices": ['),
    "no choices": says({"choices": []}),
    "choices that are none": says({"choices": "many"}),
    "a message that is none": says({"choices": [{"message": ["hi"]}]}),
    "a text that is none": completion({"text": "hi"}),  # type: ignore[arg-type]
    "null": says(None),
    "a number": says(7),
    "nothing": says(b""),
    "nesting without end": says(b"[" * 200_000),
    "bytes that are no text": says(b"\xff\xfe\x00"),
    "compressed": [head(200, "application/json", "Content-Encoding: gzip"), gzip.compress(WHOLE)],
    "not http": [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "hung up": [],
    "cut in the head": [b"HTTP/1.1 200"],
    "cut in the body": [head(200, "application/json", "Content-Length: 5000"), b'{"choices'],
    "a redirect": [head(302, "text/html", "Location: http://127.0.0.1:9/elsewhere")],
    "broken": says(b"boom", 500, "text/plain"),
    "overloaded": refuses(529, "Overloaded"),
    "rate": refuses(429, "Rate limit reached for too many tokens per min"),
    "no model": refuses(404, "model 'tiny' not found"),
    "forbidden": refuses(403, "no"),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("ask", ASKS, ids=["complete", "stream"])
def test_nonsense_is_one_error_that_names_model_and_address(
    answering: Serve, ask: Any, answer: Iterable[bytes]
) -> None:
    server = answering(lambda request: answer)
    with pytest.raises(LanguageModelUnavailable) as caught:
        ask(model(server))
    assert "model 'tiny'" in str(caught.value) and server.url in str(caught.value)
    assert ";" in str(caught.value), "what to do comes after a semicolon"
    assert "router" not in str(caught.value)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("answer", "says_so"),
    [
        (refuses(401, "who are you"), "AGENTFORMER_LLM_API_KEY"),
        (refuses(404, "model 'tiny' not found"), "model 'tiny'"),
        (NONSENSE["a redirect"], "a redirect; redirects are not followed"),
        (NONSENSE["html"], "AGENTFORMER_LLM_BASE_URL"),
        (refuses(429, "slow down"), '): "slow down"; try again later'),
    ],
    ids=["key", "model", "redirect", "html", "rate"],
)
def test_a_message_says_what_to_do(answering: Serve, answer: Iterable[bytes], says_so: str) -> None:
    with pytest.raises(LanguageModelUnavailable) as caught:
        model(answering(lambda request: answer)).complete(ASK)
    assert says_so in str(caught.value)


def test_a_request_that_is_not_taken_shows_that_the_server_is_there(answering: Serve) -> None:
    said = "\n tiny   does not support tools\x1b[31m" + "!" * 500
    with pytest.raises(InvalidReply, match="tiny does not support tools") as caught:
        model(answering(lambda request: refuses(400, said))).complete(ASK)
    assert "\x1b" not in str(caught.value) and "!" * 200 not in str(caught.value)


def test_a_server_that_never_finishes_costs_one_timeout(serve: Serve) -> None:
    """It is silent, or its head or its body goes on for ever."""

    def left(first: bytes, ask: Any) -> None:
        server = serve(lambda request: drips(server, first, b"" if first == b"" else b" "))
        with pytest.raises(LanguageModelUnavailable, match="within 1 s"):
            ask(model(server, llm_retries=2, llm_stream_seconds=1, llm_timeout=1))
        assert len(server.seen) == 1

    firsts = (b"", b"HTTP/1.1 200 OK\r\nX-Long: ", head() + b" ")
    at_once(left, *product(firsts, ASKS))


def at_once(test: Callable[..., None], *cases: tuple[Any, ...]) -> None:
    """Test cases that wait, all in the time of one."""
    with ThreadPoolExecutor(len(cases)) as pool:
        for _ in pool.map(test, *zip(*cases, strict=True)):
            pass


def test_an_answer_without_end_is_left_at_its_limit(serve: Serve) -> None:
    def answer(request: Request) -> Iterator[bytes]:
        yield head()
        while True:
            yield b" " * 1_000_000

    server = serve(answer)
    with pytest.raises(LanguageModelUnavailable, match="67108864 bytes"):
        model(server, llm_timeout=60).complete(ASK)
    assert server.gone.wait(20)


def test_a_stream_that_is_cut_keeps_what_came(serve: Serve) -> None:
    server = serve(lambda request: [STREAM, event("blue "), event("cup")])
    stream = model(server).stream(ASK)
    assert [next(stream), next(stream)] == ["blue ", "cup"]
    with pytest.raises(LanguageModelUnavailable, match="ended before the reply"):
        next(stream)


def test_a_done_without_a_reason_is_a_cut(serve: Serve) -> None:
    server = serve(lambda request: [STREAM, event("blue"), DONE])
    with pytest.raises(LanguageModelUnavailable, match="ended before"):
        list(model(server).stream(ASK))


@pytest.mark.parametrize(
    ("last", "says_so"),
    [
        (b'data: {"error": {"message": "the GPU is on fire"}}\n\n', "GPU is on fire"),
        (b'data: {"choi\n\n', "does not follow the OpenAI protocol"),
        (b'data: {"choices": [{"delta": {"content": 7}}]}\n\n', "does not follow the OpenAI protocol"),
        (b"data: 7\n\n", "does not follow the OpenAI protocol"),
    ],
    ids=["error event", "half a json", "no text", "no event"],
)
def test_an_error_in_the_middle_of_a_stream_keeps_what_came(answering: Serve, last: bytes, says_so: str) -> None:
    server = answering(lambda request: [STREAM, event("blue "), last])
    stream = model(server).stream(ASK)
    assert next(stream) == "blue "
    with pytest.raises(LanguageModelUnavailable, match=says_so):
        next(stream)


def test_a_stream_that_breaks_after_its_end_is_whole(serve: Serve) -> None:
    server = serve(lambda request: [STREAM, event("blue"), event(finish="stop"), b"data: {oh\n\n"])
    assert streamed(model(server)) == Reply("blue", "tiny", 0, 0, "stop")


def test_a_stream_without_end_is_left_when_its_time_is_up(serve: Serve) -> None:
    server = serve(lambda request: drips(server, STREAM, event("a")))
    stream = model(server, llm_stream_seconds=1).stream(ASK)
    assert next(stream) == "a"
    with pytest.raises(LanguageModelUnavailable, match=r"within 1 s.*AGENTFORMER_LLM_STREAM_SECONDS"):
        list(stream)
    assert server.gone.wait(20)


def test_a_stream_that_does_not_stop_at_max_tokens_is_left(serve: Serve) -> None:
    def answer(request: Request) -> Iterator[bytes]:
        yield STREAM
        while True:
            yield event("word ")

    server = serve(answer)
    with pytest.raises(InvalidReply, match="does not stop at max_tokens"):
        list(model(server).stream(ASK, max_tokens=20))
    assert server.gone.wait(20)


def test_a_busy_server_and_a_lost_connection_are_asked_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentformer.http.retry_policy.random.uniform", lambda low, high: low / 50)
    answers = iter([refuses(429, "busy"), refuses(503, "busy"), [], completion("at last")])
    server = serve(lambda request: next(answers))
    assert model(server, llm_retries=3).complete(ASK).text == "at last"
    assert len(server.seen) == 4


def busy(*headers: str) -> list[bytes]:
    return [head(429, "application/json", *headers) + b'{"error": {"message": "slow down"}}']


@pytest.mark.parametrize("ask", ASKS, ids=["complete", "stream"])
@pytest.mark.parametrize(
    "header", ["Retry-After: 21", "retry-after-ms: 21000", "Retry-After: 86400", "Retry-After: inf"]
)
def test_a_server_cannot_make_us_wait_beyond_twice_the_timeout(answering: Serve, ask: Any, header: str) -> None:
    server = answering(lambda request: busy(header))
    with pytest.raises(LanguageModelUnavailable, match="slow down"):
        ask(model(server, llm_retries=2, llm_timeout=10))
    assert len(server.seen) == 1


def test_a_short_wait_that_a_server_asks_for_is_kept(serve: Serve) -> None:
    answers = iter([busy("Retry-After: 0"), busy("retry-after-ms: 10", "Retry-After: 90"), completion("at last")])
    server = serve(lambda request: next(answers))
    assert model(server, llm_retries=2).complete(ASK).text == "at last"


def test_many_retries_end_with_twice_the_timeout(serve: Serve) -> None:
    def ended(header: str) -> None:
        server = serve(lambda request: busy(header))
        with pytest.raises(LanguageModelUnavailable, match="slow down"):
            model(server, llm_retries=6, llm_timeout=2).complete(ASK)
        assert 1 < len(server.seen) < 6

    at_once(ended, ("X: 1",), ("Retry-After: soon",), ("Retry-After: nan",), ("Retry-After: -1",))


def test_the_last_attempt_has_what_is_left_of_twice_the_timeout(serve: Serve) -> None:
    def answer(request: Request) -> Iterator[bytes]:
        server.stop.wait(1.2 if len(server.seen) == 1 else 30)
        yield from busy("retry-after-ms: 2400")

    server = serve(answer)
    with pytest.raises(LanguageModelUnavailable, match=r"did not finish its response within [012](\.\d+)? s"):
        model(server, llm_retries=5, llm_timeout=3.0).complete(ASK)
    assert len(server.seen) == 2
    server.stop.set()


@pytest.mark.parametrize("status", [400, 401, 404, 501])
def test_what_will_not_change_is_not_tried_again(answering: Serve, status: int) -> None:
    server = answering(lambda request: refuses(status, "no"))
    with pytest.raises(LanguageModelError):
        model(server, llm_retries=2).complete(ASK)
    assert len(server.seen) == 1


@pytest.mark.parametrize("ask", ASKS, ids=["complete", "stream"])
def test_an_input_that_is_too_long_is_not_tried_again(answering: Serve, ask: Any) -> None:
    said = "input (1779 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
    server = answering(lambda request: refuses(500, said))
    with pytest.raises(PromptTooLong, match="1779 tokens"):
        ask(model(server, llm_retries=2))
    assert len(server.seen) == 1


def echoes(status: int) -> Answer:
    """Quotes all that it was sent, the key first of all."""

    def answer(request: Request) -> Iterable[bytes]:
        secret = request.headers.get("authorization", "")
        return refuses(status, f"Incorrect API key provided: {KEY}; {secret}; " + "x" * 150 + KEY, code=KEY)

    return answer


INDISCREET: dict[str, Answer] = {
    **{str(status): echoes(status) for status in (400, 401, 403, 404, 413, 429, 500)},
    "html": lambda request: says(f"<html>{KEY}</html>".encode(), 401, "text/html"),
    "plain": lambda request: says(KEY.encode(), 401, "text/plain"),
    "cut json": lambda request: says(f'{{"{KEY}'.encode()),
    "error event": lambda request: [STREAM, f"data: {json.dumps({'error': {'message': KEY}})}\n\n".encode()],
    "redirect": lambda request: [head(302, "text/html", f"Location: http://127.0.0.1:9/?key={KEY}")],
    "tool call": lambda request: completion(
        None, tool_calls=[{"id": "1", "type": "function", "function": {"name": "t", "arguments": KEY}}]
    ),
    "tool name": lambda request: completion(
        None, tool_calls=[{"id": "1", "type": "function", "function": {"name": KEY, "arguments": "{"}}]
    ),
    "half": lambda request: refuses(400, f"the key {KEY[5:18]}"),
    "hung up": lambda request: [],
}


@pytest.mark.parametrize("answer", INDISCREET.values(), ids=INDISCREET)
@pytest.mark.parametrize("ask", ASKS, ids=["complete", "stream"])
def test_no_error_and_no_log_ever_holds_a_secret(
    answering: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, ask: Any, answer: Answer
) -> None:
    monkeypatch.setattr("agentformer.http.retry_policy.random.uniform", lambda low, high: low / 50)
    server = answering(answer)
    url = server.url.replace("http://", "http://user:hunter2-canary@")
    for name in ("openai", "httpx", "httpx2", "httpcore", "httpcore2"):
        caplog.set_level(logging.DEBUG, name)
    caplog.set_level(logging.DEBUG)
    settings = Settings(llm_base_url=url, llm_api_key=KEY, llm_retries=1)
    asked = kept_model(url, llm_retries=1)
    with pytest.raises(LanguageModelError) as caught:
        ask(asked)
    error = caught.value
    logging.getLogger("agentformer").exception("what a caller would log", exc_info=error)
    # At DEBUG the libraries log the headers of answers; a key that a server puts there is the one thing left.
    logged = caplog.text.replace(f"http://127.0.0.1:9/?key={KEY}", "")
    shown = [*traceback.format_exception(error), repr(settings), repr(asked), str(vars(asked)), logged]
    chain: BaseException | None = error
    while chain is not None:
        shown.append(repr(chain))
        chain = chain.__cause__ or chain.__context__
    text = "\n".join(shown)
    assert "tiny" in text
    for secret in (KEY, KEY[:14], KEY[5:18], "hunter2"):
        assert secret not in text


def test_a_password_in_the_address_is_sent_and_not_shown(serve: Serve) -> None:
    server = serve(lambda request: completion("hi"))
    url = server.url.replace("http://", "http://user:p%40ss@")
    OpenAIModel.from_settings("tiny", Settings(llm_base_url=url)).complete(ASK)
    assert server.seen[0].headers["authorization"] == "Basic dXNlcjpwQHNz"


def test_a_key_that_cannot_be_sent_is_refused_unquoted() -> None:
    for key in ["sk-canary\n1234", "sk-canary 1234", "sk-canäry"]:
        with pytest.raises(ValueError, match="api_key") as caught:
            OpenAIModel.from_settings("tiny", Settings(llm_base_url="http://127.0.0.1:9", llm_api_key=key))
        assert "sk-can" not in "".join(traceback.format_exception(caught.value)).replace(repr(key), "")
