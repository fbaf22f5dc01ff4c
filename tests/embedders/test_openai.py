from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.embedders.openai import OpenAIEmbedder, parse_model
from agentformer.embedders.remote import RemoteOptions
from agentformer.errors import EmbedderUnavailable, InvalidInput, TextTooLong
from agentformer.http.openai_client import Server
from agentformer.settings import Settings
from agentformer.testing import EmbedderConformance
from agentformer.types import Embedder
from tests.embedders.hostile_server import HostileServer, said, saying
from tests.embedders.ollama_server import OllamaServer

pytestmark = pytest.mark.process

KEY = "sk-canary-50e8a4d7f3"
MODELS = {"own-model": 512, "text-embedding-3-small": 8191, "nomic-embed-text-v1.5": 512}


@pytest.fixture
def server() -> Iterator[OllamaServer]:
    with OllamaServer(context=MODELS, num_ctx=8192) as server:
        yield server


def connect(server: OllamaServer, model: str = "own-model", **settings: object) -> OpenAIEmbedder:
    return OpenAIEmbedder.from_settings(model, Settings(embed_base_url=server.url, **settings))  # type: ignore[arg-type]


class TestOpenAI(EmbedderConformance):
    @pytest.fixture(autouse=True, scope="class")
    def _connect(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with OllamaServer(context=MODELS, num_ctx=8192) as server:
            request.cls._embedder = connect(server)
            yield

    def make(self) -> Embedder:
        return self._embedder


class TestAimock(EmbedderConformance):
    """Against a server that others wrote."""

    @pytest.fixture(autouse=True)
    def _connect(self, aimock: str) -> None:
        self._embedder = OpenAIEmbedder.from_settings("some-model", Settings(embed_base_url=aimock, embed_api_key=KEY))

    def make(self) -> Embedder:
        return self._embedder


class TestLlamaCpp(EmbedderConformance):
    """Against llama.cpp's own server and tokenizer."""

    @pytest.fixture(autouse=True)
    def _connect(self, llama: str) -> None:
        self._embedder = OpenAIEmbedder.from_settings("words", Settings(embed_base_url=llama))

    def make(self) -> Embedder:
        return self._embedder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a llama.cpp server with a model that reads 512 tokens."""
    for package in ("xllamacpp", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    model = tmp_path_factory.mktemp("gguf") / "words.gguf"
    command = [sys.executable, Path(__file__).with_name("llama_server.py"), model]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield address(process)
        finally:
            process.kill()


def address(process: subprocess.Popen[str]) -> str:
    """The first address that the process prints. A process that says nothing is killed, so that no test hangs."""
    timer = threading.Timer(60, process.kill)
    timer.start()
    try:
        for line in process.stdout or ():
            if found := re.search(r"http://[\d.]+:\d+", line):
                return found.group()
    finally:
        timer.cancel()
    raise AssertionError("the server ended before it listened")


def test_llama_cpp_refuses_what_it_cannot_read_and_nothing_is_cut(llama: str) -> None:
    embedder = OpenAIEmbedder.from_settings("words", Settings(embed_base_url=llama, embed_retries=0))
    letters = "qxz " * 300  # of which the estimate makes a token for three letters, and this model one for each
    with pytest.raises(TextTooLong, match=r"openai:words.*tokens"):
        embedder.embed_documents(["short", letters])
    assert np.linalg.norm(embedder.embed_query(letters)) == pytest.approx(1)
    assert embedder.tokens_read > 600


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running aimock that wants KEY."""
    executable = os.environ.get("AIMOCK") or shutil.which("aimock")
    if not executable:
        pytest.skip("AIMOCK does not name the executable of the npm package @copilotkit/aimock")
    folder = tmp_path_factory.mktemp("aimock")
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": FIXTURES}))
    (folder / "aimock.json").write_text(json.dumps({"llm": {"fixtures": str(folder / "fixtures.json")}}))
    command = [executable, "--config", str(folder / "aimock.json"), "--port", "0"]
    environment = {**os.environ, "AIMOCK_API_KEYS": KEY}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield address(process)
        finally:
            process.kill()


FIXTURES = [
    {
        "match": {"inputText": "crowded", "sequenceIndex": 0},
        "response": {"error": {"message": "Rate limit reached", "type": "rate_limit_error"}, "status": 429},
    },
    {"match": {"inputText": "crowded"}, "response": {"embedding": [3.0, 4.0, *[0.0] * 1534]}},
    {
        "match": {"inputText": "overlong"},
        "response": {
            "error": {"message": "This model's maximum context length is 8192 tokens", "type": "invalid_request_error"},
            "status": 400,
        },
    },
]


def test_aimock_busy_once_is_asked_again(aimock: str) -> None:
    embedder = OpenAIEmbedder.from_settings("some-model", Settings(embed_base_url=aimock, embed_api_key=KEY))
    assert embedder.embed_query("crowded")[:2] == pytest.approx([0.6, 0.8])


def test_aimock_says_that_a_text_is_too_long(aimock: str) -> None:
    embedder = OpenAIEmbedder.from_settings("some-model", Settings(embed_base_url=aimock, embed_api_key=KEY))
    with pytest.raises(TextTooLong, match="maximum context length"):
        embedder.embed_documents(["overlong"])


def test_aimock_makes_vectors_of_the_dimension_that_is_asked_for(aimock: str) -> None:
    settings = Settings(embed_base_url=aimock, embed_api_key=KEY)
    assert OpenAIEmbedder.from_settings("some-model@64", settings).space.dimension == 64
    assert OpenAIEmbedder.from_settings("some-model", settings).space.dimension == 1536


def test_aimock_refuses_a_wrong_key(aimock: str) -> None:
    with pytest.raises(EmbedderUnavailable, match="AGENTFORMER_EMBED_API_KEY") as caught:
        OpenAIEmbedder.from_settings("some-model", Settings(embed_base_url=aimock, embed_api_key="sk-other-canary"))
    assert "sk-other-canary" not in str(caught.value)


def test_the_space_keeps_the_dimensions_in_the_models_name(server: OllamaServer) -> None:
    space = connect(server, "text-embedding-3-small@64").space
    assert (space.provider, space.model, space.dimension) == ("openai", "text-embedding-3-small@64", 64)
    assert space.languages == "*" and 8000 < space.max_tokens < 8191
    bodies = [body for path, body in server.requests if path == "/v1/embeddings"]
    assert [(body["model"], body["dimensions"]) for body in bodies] == [("text-embedding-3-small", 64)]


def test_dimensions_are_sent_only_where_the_name_has_them(server: OllamaServer) -> None:
    connect(server).embed_documents(["one"])
    assert server.requests
    assert all("dimensions" not in body and body["encoding_format"] == "float" for _, body in server.requests)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("model", ("model", 0)),
        ("model@256", ("model", 256)),
        ("name@q8_0", ("name@q8_0", 0)),
        ("name@q8_0@12", ("name@q8_0", 12)),
        ("@12", ("@12", 0)),
        ("model@", ("model@", 0)),
        ("model@²", ("model@²", 0)),
    ],
)
def test_only_a_number_after_the_last_at_sign_counts_as_dimensions(spec: str, expected: tuple[str, int]) -> None:
    assert parse_model(spec) == expected


@pytest.mark.parametrize("spec", ["model@0", "model@65537", "model@" + "9" * 5000])
def test_unusable_dimensions_are_refused(spec: str) -> None:
    with pytest.raises(InvalidInput, match="dimensions"):
        parse_model(spec)


def test_a_server_that_ignores_the_dimensions_is_not_believed(server: OllamaServer) -> None:
    answer = said(json.dumps({"data": [{"index": 0, "embedding": [0.6, 0.8]}]}))
    with HostileServer(saying(answer)) as hostile, pytest.raises(EmbedderUnavailable, match="2 numbers instead of 3"):
        OpenAIEmbedder("own-model@3", Server("server", hostile.url), RemoteOptions(retries=0))


def test_rows_are_put_in_the_order_of_the_texts_whatever_order_they_come_in(server: OllamaServer) -> None:
    embedder = connect(server)  # this server answers backwards
    texts = [f"text number {n}" for n in range(5)]
    rows = embedder.embed_documents(texts)
    assert np.allclose(rows, np.stack([embedder.embed_query(text) for text in texts]), atol=1e-6)


def test_batches_are_bounded_by_texts_and_by_tokens(server: OllamaServer) -> None:
    embedder = connect(server, "text-embedding-3-small", embed_batch=60)
    server.requests.clear()
    embedder.embed_documents(["a"] * 130)
    assert [len(body["input"]) for _, body in server.requests] == [60 + 1, 60 + 1, 10 + 1]  # and the probe
    server.requests.clear()
    embedder.embed_documents(["abc " * 8000] * 38)
    # 37 * 8,000 is the most below 300,000.
    assert [len(body["input"]) for _, body in server.requests] == [37 + 1, 1 + 1]


def test_prefixes_and_tokens_are_those_of_the_model(server: OllamaServer) -> None:
    embedder = connect(server, "nomic-embed-text-v1.5")
    before = embedder.tokens_read
    server.texts.clear()
    embedder.embed_query("one")
    assert server.texts == ["search_query: one"]
    assert embedder.tokens_read - before == 7 + 2  # sear ch _ quer y : one, and two around them
    server.texts.clear()
    embedder.embed_documents(["one"])
    assert server.texts == ["search_document: one"]


def test_a_text_that_the_server_finds_too_long_is_refused_and_its_neighbours_are_not_lost(server: OllamaServer) -> None:
    embedder = connect(server)
    server.context["own-model"] = 64
    server.texts.clear()
    with pytest.raises(TextTooLong, match="own-model"):
        embedder.embed_documents(["short", "word " * 80])
    assert server.texts == ["short"]


def test_half_a_character_does_not_stop_the_text_around_it(server: OllamaServer) -> None:
    embedder = connect(server)
    server.texts.clear()
    embedder.embed_documents(["a \ud83d b"])
    assert server.texts == ["a ? b"]


def test_a_missing_model_names_model_and_address(server: OllamaServer) -> None:
    with pytest.raises(EmbedderUnavailable, match="nosuch") as caught:
        connect(server, "nosuch")
    assert server.url in str(caught.value) and "openai" in str(caught.value)


def test_where_no_server_answers_all_that_were_asked_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    one, other = (f"http://127.0.0.1:{port}" for port in ports)
    with pytest.raises(EmbedderUnavailable, match="OPENAI_BASE_URL") as caught:
        OpenAIEmbedder.from_settings("own-model", Settings(lmstudio_base_url=one, ollama_base_url=other))
    assert one in str(caught.value) and other in str(caught.value)


def test_a_server_that_dies_and_returns_is_used_again_by_the_same_embedder(server: OllamaServer) -> None:
    embedder = connect(server, embed_retries=0)
    server.stop()
    with pytest.raises(EmbedderUnavailable) as caught:
        embedder.embed_documents(["one"])
    assert server.url in str(caught.value)
    server.start()
    assert embedder.embed_documents(["one"]).shape == (1, 256)


def test_the_key_is_sent_and_never_said(server: OllamaServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.key = KEY
    embedder = connect(server, embed_api_key=KEY)
    server.key = "another"
    with pytest.raises(EmbedderUnavailable) as caught:
        embedder.embed_documents(["one"])
    assert KEY not in str(caught.value) and KEY not in caplog.text
    assert KEY not in repr(embedder) and KEY not in repr(vars(embedder))


def vectors(*rows: object, **more: object) -> bytes:
    return said(json.dumps({"data": [{"index": i, "embedding": row} for i, row in enumerate(rows)], **more}))


NONSENSE: dict[str, bytes] = {
    "HTML": said("<html><body>Welcome to the hotel</body></html>", kind="text/html"),
    "HTML that says it is JSON": said("<html><body>Welcome to the hotel</body></html>"),
    "half a JSON": said('{"data": [{"embedding": [0.1, 0.'),
    "a list": said("[1, 2]"),
    "null": said("null"),
    "no data": said("{}"),
    "null data": said('{"data": null}'),
    "NaN": vectors([float("nan"), 1.0]),
    "infinity": vectors([float("-inf"), 1.0]),
    "null inside": vectors([None, 1.0]),
    "text inside": vectors(["1", "2"]),
    "text for numbers": vectors("0.6, 0.8"),
    "truth inside": vectors([True, True]),
    "zeros": vectors([0.0, 0.0]),
    "no row": vectors(),
    "a row that is no object": said('{"data": [3]}'),
    "too many rows": vectors([0.6, 0.8], [0.6, 0.8], [0.6, 0.8]),
    "another dimension": vectors([0.6, 0.8, 0.1]),
    "a place that is not there": said('{"data": [{"index": 7, "embedding": [0.6, 0.8]}]}'),
    "an error that quotes the key": said(json.dumps({"error": {"message": f"bad {KEY}"}}), status="500 Oops"),
    "a refused key": said(json.dumps({"error": {"message": f"Incorrect: {KEY}"}}), status="401 Unauthorized"),
    "a busy server": said("{}", status="429 Busy", headers="Retry-After: 1\r\n"),
    "a redirect": said("", status="307 Temporary Redirect", headers="Location: http://localhost:1/\r\n"),
    "fewer bytes than announced": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
    "no HTTP": b"\x00\x01\x02\r\n\r\n",
    "silence": b"",
}


@pytest.fixture(scope="module")
def connected() -> Iterator[tuple[HostileServer, OpenAIEmbedder]]:
    """A server, and an embedder that it has given good answers so far."""
    with HostileServer(saying(vectors([0.6, 0.8], usage={"prompt_tokens": 3}))) as hostile:
        url = f"http://user:canary-password@127.0.0.1:{hostile.port}/v1"
        yield (
            hostile,
            OpenAIEmbedder("own-model", Server("server", url, KEY), RemoteOptions(timeout=10, retries=0)),
        )


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_is_an_error_that_names_provider_and_address_and_no_secret(
    connected: tuple[HostileServer, OpenAIEmbedder], nonsense: str
) -> None:
    hostile, embedder = connected
    calls: list[tuple[bytes, Callable[[], object]]] = [
        (NONSENSE[nonsense], lambda: embedder.embed_query("one")),
        (beside_the_probe(NONSENSE[nonsense]), lambda: embedder.embed_documents(["one"])),
    ]
    for answer, call in calls:
        hostile.play = saying(answer)
        with pytest.raises(EmbedderUnavailable) as caught:
            call()
        message = str(caught.value)
        assert "openai:own-model" in message and f"{hostile.url}/v1" in message, message
        assert KEY not in message and "canary" not in message and "user:" not in message, message


def beside_the_probe(answer: bytes) -> bytes:
    """The same, with a right row for the probe, so that only the document's is wrong."""
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        (item,) = json.loads(body)["data"]
    except (ValueError, TypeError, KeyError):
        return answer
    if b"Content-Length: %d\r\n" % len(body) not in head:  # it is not the row that is wrong
        return answer
    return said(json.dumps({"data": [item, {"index": 1, "embedding": [0.6, 0.8]}]}))


def test_html_is_told_as_such_with_the_setting_of_the_address() -> None:
    for status, words in (("200 OK", "returned HTML instead of JSON; check"), ("404 Not Found", "the path")):
        page = said("<html><body>Welcome to the hotel</body></html>", status=status, kind="text/html")
        with (
            HostileServer(saying(page)) as hostile,
            pytest.raises(EmbedderUnavailable, match=f"{words}.*AGENTFORMER_EMBED_BASE_URL") as caught,
        ):
            OpenAIEmbedder("own-model", Server("server", hostile.url), RemoteOptions(retries=0))
        assert "openai:own-model" in str(caught.value) and "hotel" not in str(caught.value)


@pytest.mark.parametrize("piece", [b"1, ", b" "])
def test_an_answer_that_never_ends_is_left_after_the_timeout(piece: bytes) -> None:
    beginning = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n["
    with (
        HostileServer(lambda connection, path: hostile.drip(connection, beginning, piece)) as hostile,
        pytest.raises(EmbedderUnavailable, match="openai:own-model"),
    ):
        OpenAIEmbedder("own-model", Server("server", hostile.url), RemoteOptions(timeout=1, retries=0))


def test_a_server_that_takes_the_question_and_says_nothing_is_left_after_the_timeout() -> None:
    with (
        HostileServer(lambda connection, path: hostile.wait()) as hostile,
        pytest.raises(EmbedderUnavailable, match="openai:own-model"),
    ):
        OpenAIEmbedder("own-model", Server("server", hostile.url), RemoteOptions(timeout=1, retries=0))
