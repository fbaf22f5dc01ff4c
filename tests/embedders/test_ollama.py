from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentformer.embedders.model_info import PROBE
from agentformer.embedders.ollama import OllamaEmbedder
from agentformer.embedders.remote import RemoteOptions
from agentformer.errors import EmbedderUnavailable, TextTooLong
from agentformer.factory import build_embedder
from agentformer.http.redaction import redact_url
from agentformer.settings import Settings
from agentformer.testing import EmbedderConformance
from agentformer.types import Embedder
from tests.embedders.hostile_server import HostileServer, Play, said, saying
from tests.embedders.ollama_server import OllamaServer

pytestmark = pytest.mark.process

KEY = "sk-canary-6d1f0c2ab7"
PASSWORD = "canary-password-93c1"
SMALL = {"nomic-embed-text:latest": 256, "all-minilm:latest": 256, "own-model:latest": 256}


@pytest.fixture
def server() -> Iterator[OllamaServer]:
    with OllamaServer(context=SMALL) as server:
        yield server


def connect(server: OllamaServer, model: str = "nomic-embed-text", **settings: object) -> OllamaEmbedder:
    return OllamaEmbedder.from_settings(model, Settings(ollama_base_url=server.url, **settings))  # type: ignore[arg-type]


class TestOllama(EmbedderConformance):
    old = False

    @pytest.fixture(autouse=True, scope="class")
    def _connect(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with OllamaServer(context=SMALL, old=request.cls.old) as server:
            request.cls._embedder = connect(server)
            yield

    def make(self) -> Embedder:
        return self._embedder


class TestOlderOllama(TestOllama):
    old = True


def test_the_space_is_told_by_the_server(server: OllamaServer) -> None:
    space = connect(server).space
    assert (space.provider, space.model, space.dimension) == ("ollama", "nomic-embed-text", 256)
    assert (space.document_prefix, space.query_prefix) == ("search_document: ", "search_query: ")
    assert 200 < space.max_tokens < 256
    assert len(space.revision) == 64 and space.fingerprint and space.languages == "en"
    assert connect(server).space == space


def test_the_default_model_is_nomic_and_its_address_may_end_in_v1(server: OllamaServer) -> None:
    settings = Settings(embedder="ollama", embed_base_url=f"{server.url}/v1/")
    assert build_embedder(settings).space.model == "nomic-embed-text"


def test_documents_and_questions_are_sent_with_their_prefixes_and_nothing_may_be_cut(server: OllamaServer) -> None:
    embedder = connect(server, embed_keep_alive="7m")
    server.texts.clear()
    embedder.embed_documents(["one", "two"])
    embedder.embed_query("three")
    assert server.texts == ["search_document: one", "search_document: two", "search_query: three"]
    bodies = [body for path, body in server.requests if path == "/api/embed"]
    assert all(body["truncate"] is False and body["keep_alive"] == "7m" for body in bodies)


def test_a_model_without_habits_gets_the_text_alone(server: OllamaServer) -> None:
    embedder = connect(server, "all-minilm")
    server.texts.clear()
    embedder.embed_documents(["one"])
    assert server.texts == ["one"]


def test_texts_go_in_batches_and_come_back_in_order(server: OllamaServer) -> None:
    embedder = connect(server, "all-minilm", embed_batch=3)
    server.requests.clear()
    texts = [f"text number {n}" for n in range(8)]
    rows = embedder.embed_documents(texts)
    assert [len(body["input"]) for _, body in server.requests] == [3 + 1, 3 + 1, 2 + 1]  # and the probe
    assert np.allclose(rows, np.stack([embedder.embed_query(text) for text in texts]), atol=1e-6)


def test_the_tokens_that_the_server_read_are_counted(server: OllamaServer) -> None:
    embedder = connect(server, "all-minilm")
    probe, before = 19, embedder.tokens_read
    assert before == probe
    embedder.embed_documents(["one two three", "four"])
    assert embedder.tokens_read == before + (1 + 1 + 2 + 2) + (1 + 2) + probe


def test_a_text_that_the_server_finds_too_long_is_refused_and_never_cut(server: OllamaServer) -> None:
    embedder = connect(server, "all-minilm")
    server.context["all-minilm:latest"] = 64  # as if the server were started anew with a smaller context
    server.texts.clear()
    with pytest.raises(TextTooLong, match=r"all-minilm.*context length"):
        embedder.embed_documents(["short", "word " * 80, "also short"])
    assert "word " * 80 not in server.texts
    assert embedder.embed_documents(["short", "also short"]).shape == (2, 256)


def test_a_question_that_the_server_finds_too_long_is_embedded_in_smaller_parts(server: OllamaServer) -> None:
    embedder = connect(server, "all-minilm")
    server.context["all-minilm:latest"] = 64
    server.texts.clear()
    question = embedder.embed_query("word " * 90 + "volcano")
    assert abs(float(np.linalg.norm(question)) - 1) < 1e-5
    assert any("volcano" in text for text in server.texts)


def test_the_context_that_a_model_is_loaded_with_counts_not_the_one_it_could_have(server: OllamaServer) -> None:
    server.num_ctx = 128
    assert connect(server, "all-minilm").space.max_tokens < 128


def test_a_long_context_is_not_believed_unless_the_model_is_loaded_with_it() -> None:
    with OllamaServer(context={"bge-m3:latest": 8192}) as server:
        assert 1900 < connect(server, "bge-m3").space.max_tokens < 2048
        server.num_ctx = 8192
        assert connect(server, "bge-m3").space.max_tokens > 8000


def test_half_a_character_does_not_stop_the_text_around_it(server: OllamaServer) -> None:
    embedder = connect(server, "all-minilm")
    server.texts.clear()
    embedder.embed_documents(["a \ud83d b"])
    assert server.texts == ["a ? b"]


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e300])
def test_vectors_of_any_length_become_unit_vectors(size: float) -> None:
    with HostileServer(saying(embeddings([[3 * size, -4 * size]]))) as server:
        row = OllamaEmbedder("all-minilm", server.url).embed_query("one")
    assert row == pytest.approx([0.6, -0.8])


def test_a_model_that_is_unknown_here_is_asked_for_its_languages(server: OllamaServer) -> None:
    assert connect(server, "own-model").space.languages == "*"  # the server's tokenizer makes 2.3 tokens of a word
    server.old = True  # which counts no tokens
    assert connect(server, "own-model").space.languages == "en"


def test_a_model_swapped_under_its_name_has_another_fingerprint(server: OllamaServer) -> None:
    before = connect(server).space
    server.seed = 5
    after = connect(server).space
    assert before.fingerprint != after.fingerprint and before.revision != after.revision
    unlisted = dataclasses.replace(after, revision=before.revision)
    assert before.difference(unlisted) == "swapped" and before.difference(before) == ""


def test_a_missing_model_says_how_to_get_it(server: OllamaServer) -> None:
    with pytest.raises(EmbedderUnavailable, match="ollama pull nosuch") as caught:
        connect(server, "nosuch")
    assert server.url in str(caught.value)


def test_a_wrong_key_names_the_setting_and_not_the_key(server: OllamaServer) -> None:
    server.key = "right"
    with pytest.raises(EmbedderUnavailable, match="AGENTFORMER_EMBED_API_KEY") as caught:
        connect(server, embed_api_key=KEY)
    assert KEY not in str(caught.value)
    assert connect(server, embed_api_key="right").space.dimension == 256


def test_a_key_that_cannot_be_sent_is_refused_without_repeating_it(server: OllamaServer) -> None:
    with pytest.raises(ValueError) as caught:
        connect(server, embed_api_key=f"{KEY}\nX-Other: 1")
    assert KEY not in str(caught.value)


def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://user:{PASSWORD}@127.0.0.1:{port}"
    with pytest.raises(EmbedderUnavailable, match="ollama serve") as caught:
        OllamaEmbedder("nomic-embed-text", url, RemoteOptions(retries=0))
    assert f"127.0.0.1:{port}" in str(caught.value) and PASSWORD not in str(caught.value)


def test_a_server_that_dies_and_returns_is_used_again_by_the_same_embedder(server: OllamaServer) -> None:
    embedder = connect(server, embed_retries=0)
    server.stop()
    with pytest.raises(EmbedderUnavailable):
        embedder.embed_documents(["one"])
    server.start()
    assert embedder.embed_documents(["one"]).shape == (1, 256)


def test_a_server_that_dies_before_it_answers_has_embedded_nothing(server: OllamaServer) -> None:
    embedder = connect(server, embed_retries=0)
    server.texts.clear()
    server.hanging.set()
    killer = threading.Timer(0.2, server.stop)
    killer.start()
    with pytest.raises(EmbedderUnavailable):
        embedder.embed_documents(["one"])
    killer.join()
    assert server.texts == []


def test_the_contract_server_runs_as_a_process_and_logs_what_it_embedded(tmp_path: Path) -> None:
    log = tmp_path / "texts"
    command = [sys.executable, "-m", "tests.embedders.ollama_server", "--log", str(log)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            OllamaEmbedder("nomic-embed-text", url).embed_documents(["one"])
        finally:
            process.kill()
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    probe = f"probe: search_document: {PROBE}"
    assert lines[0] == probe
    # What was sent last is logged after it was sent, so the kill may have come first.
    assert lines[1:] == ["search_document: one", probe][: len(lines) - 1]


ROW = [0.6, 0.8]
GOOD = {"embeddings": [ROW], "prompt_eval_count": 3}


def embeddings(rows: object) -> bytes:
    return said(json.dumps({"embeddings": rows}))


NONSENSE = {
    "HTML": said("<html><body>Welcome to the hotel</body></html>", kind="text/html"),
    "half a JSON": said('{"embeddings": [[0.1, 0.'),
    "no JSON object": said("[1, 2]"),
    "NaN": embeddings([[float("nan"), 1.0]]),
    "infinity": embeddings([[float("inf"), 1.0]]),
    "too large a number": said('{"embeddings": [[1e999, 1.0]]}'),
    "an integer without end": said('{"embeddings": [[1' + "0" * 400 + ", 1.0]]}"),
    "null": embeddings(None),
    "a null row": embeddings([None]),
    "null inside": embeddings([[None, 1.0]]),
    "text inside": embeddings([["1", "2"]]),
    "truth inside": embeddings([[True, False]]),
    "zeros": embeddings([[0.0, 0]]),
    "an empty row": embeddings([[]]),
    "no row": embeddings([]),
    "too many rows": embeddings([ROW, ROW, ROW]),
    "another dimension": embeddings([[0.6, 0.8, 0.1]]),
    "an older answer": said(json.dumps({"embedding": ROW})),
    "depth": said("[" * 100_000),
    "an error that quotes the key": said(json.dumps({"error": f"bad token {KEY}"}), status="500 Internal Server Error"),
    "a broken gateway": said("<html>502</html>", status="502 Bad Gateway", kind="text/html"),
    "an error in plain text": said(f"no route, {KEY}", status="503 Service Unavailable", kind="text/plain"),
    "a refused key": said(json.dumps({"error": f"{KEY} is wrong"}), status="401 Unauthorized"),
    "a redirect": said("", status="307 Temporary Redirect", headers=f"Location: http://x:{PASSWORD}@localhost/\r\n"),
    "fewer bytes than announced": b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + json.dumps(GOOD).encode(),
    "no HTTP": b"\x00\x01\x02\r\n\r\n",
    "silence": b"",
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_is_an_error_that_names_provider_and_address_and_no_secret(nonsense: str) -> None:
    answer = {"good": said(json.dumps(GOOD)), "bad": NONSENSE[nonsense]}
    mood = "good"

    def play(connection: socket.socket, path: str) -> None:
        connection.sendall(answer[mood] if path == "/api/embed" else said("{}"))

    with HostileServer(play) as hostile:
        url = f"http://user:{PASSWORD}@127.0.0.1:{hostile.port}/base"
        hostile.play = _below("/base", play)
        embedder = OllamaEmbedder("all-minilm", url, RemoteOptions(timeout=10, retries=0), key=KEY)
        mood = "bad"
        for call in (lambda: embedder.embed_query("one"), lambda: embedder.embed_documents(["one"])):
            with pytest.raises(EmbedderUnavailable) as caught:
                call()
            message = str(caught.value)
            assert "ollama:all-minilm" in message and redact_url(url) in message, message
            assert KEY not in message and PASSWORD not in message and "user" not in message, message
            answer["bad"] = beside_the_probe(answer["bad"])


def beside_the_probe(answer: bytes) -> bytes:
    """The same, with a right row for the probe, so that only the document's is wrong."""
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        (row,) = json.loads(body)["embeddings"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return answer
    if b"Content-Length: %d\r\n" % len(body) not in head:  # it is not the row that is wrong
        return answer
    return embeddings([row, ROW])


def _below(base: str, play: Play) -> Play:
    return lambda connection, path: play(connection, path.removeprefix(base))


@pytest.mark.parametrize("nonsense", sorted(NONSENSE.keys() - {"another dimension"}))
def test_nonsense_at_the_first_request_is_such_an_error_too(nonsense: str) -> None:
    with HostileServer(saying(NONSENSE[nonsense])) as hostile, pytest.raises(EmbedderUnavailable) as caught:
        OllamaEmbedder("all-minilm", hostile.url, RemoteOptions(timeout=10, retries=0), key=KEY)
    message = str(caught.value)
    assert "ollama:all-minilm" in message and hostile.url in message and KEY not in message, message


def test_a_server_that_takes_the_question_and_says_nothing_costs_one_timeout() -> None:
    with HostileServer(lambda connection, path: hostile.wait()) as hostile:
        with pytest.raises(EmbedderUnavailable, match=r"did not finish its response within 1 s"):
            OllamaEmbedder("all-minilm", hostile.url, RemoteOptions(timeout=1, retries=2))
        assert len(hostile.paths) == 1


def test_a_server_of_another_kind_is_told_from_an_older_one() -> None:
    with (
        HostileServer(saying(said("404 page not found", status="404 Not Found", kind="text/plain"))) as hostile,
        pytest.raises(EmbedderUnavailable, match="address of an Ollama server"),
    ):
        OllamaEmbedder("all-minilm", hostile.url)


def test_one_wrong_turn_of_a_proxy_does_not_lead_to_the_endpoint_that_cuts(server: OllamaServer) -> None:
    embedder = connect(server)
    server.old = True
    with pytest.raises(EmbedderUnavailable):
        embedder.embed_documents(["one"])
    server.old = False
    assert embedder.embed_documents(["one"]).shape == (1, 256)
