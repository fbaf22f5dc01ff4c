"""What embedders over HTTP share: a model that is swapped while it is used, servers that are slow, and languages."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from agentformer.embedders.model_info import PROBE
from agentformer.embedders.ollama import OllamaEmbedder
from agentformer.embedders.remote import RemoteEmbedder, RemoteOptions
from agentformer.errors import EmbedderUnavailable, TextTooLong
from agentformer.settings import Settings
from tests.embedders.hostile_server import HostileServer, said, saying
from tests.embedders.ollama_server import OllamaServer

pytestmark = pytest.mark.process

MODELS = {"nomic-embed-text:latest": 512, "own-model:latest": 512}
Connect = Callable[..., RemoteEmbedder]


@pytest.fixture
def server() -> Iterator[OllamaServer]:
    with OllamaServer(context=MODELS) as server:
        yield server


@pytest.fixture(params=["/api/embed", "/api/embeddings", "/v1/embeddings"])
def connect(request: pytest.FixtureRequest, server: OllamaServer) -> Connect:
    """Connects to the server by one of the three ways to its vectors."""
    kind: type[OllamaEmbedder] | type[RemoteEmbedder] = OllamaEmbedder
    if request.param.startswith("/v1"):
        pytest.importorskip("openai", reason="the extra `llm` is not installed")
        from agentformer.embedders.openai import OpenAIEmbedder

        kind = OpenAIEmbedder
    server.old = request.param == "/api/embeddings"

    def connected(model: str = "nomic-embed-text", **settings: object) -> RemoteEmbedder:
        return kind.from_settings(model, Settings(embed_base_url=server.url, **settings))  # type: ignore

    return connected


def asked(server: OllamaServer) -> list[list[str]]:
    """The texts of each request for vectors."""
    return [body.get("input") or [body["prompt"]] for _, body in server.requests if body.keys() & {"input", "prompt"}]


def test_each_request_for_documents_ends_with_the_probe(server: OllamaServer, connect: Connect) -> None:
    embedder = connect(embed_batch=2)
    server.requests.clear()
    embedder.embed_documents(["one", "two", "three"])
    requests = asked(server)
    size = embedder.request_texts
    if server.old:
        assert size == 1
        requests = [[text, probe] for (text,), (probe,) in zip(requests[::2], requests[1::2], strict=True)]
    names = ["one", "two", "three"]
    groups = [names[i : i + size] for i in range(0, 3, size)]
    assert requests == [[f"search_document: {text}" for text in [*group, PROBE]] for group in groups]


def test_a_model_swapped_on_a_running_server_embeds_no_document(server: OllamaServer, connect: Connect) -> None:
    embedder = connect()
    before = embedder.embed_documents(["one", "two"])
    server.seed = 5
    for _ in range(2):
        with pytest.raises(
            EmbedderUnavailable, match=r"different model.* agentformer reembed --to \w+:nomic"
        ) as caught:
            embedder.embed_documents(["one", "two"])
        assert server.url in str(caught.value)
    server.seed = 0
    assert np.array_equal(embedder.embed_documents(["one", "two"]), before)


def test_a_question_is_held_against_the_model_again_after_a_while(
    server: OllamaServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = connect()
    seen = len(server.probes)
    embedder.embed_query("one")
    assert len(server.probes) == seen
    monkeypatch.setattr("agentformer.embedders.remote._CHECK_SECONDS", -1.0)
    embedder.embed_query("one")
    assert asked(server)[-1][-1] == f"search_document: {PROBE}"
    server.seed = 5
    with pytest.raises(EmbedderUnavailable, match="a different model"):
        embedder.embed_query("one")


class WholeRequests(OllamaServer):
    """Holds all texts of a request together against the limit."""

    def vectors(self, model: str, texts: list[str], **more: object) -> tuple[list[list[float]], int]:  # type: ignore
        super().vectors(model, [" ".join(texts)], **more)  # type: ignore
        return super().vectors(model, texts, **more)  # type: ignore


def test_a_text_that_fits_only_without_the_probe_goes_without_it_and_the_probe_after_it() -> None:
    with WholeRequests(context={"own-model:latest": 96}) as server:
        embedder = OllamaEmbedder("own-model", server.url)
        long = "abc " * 80
        assert embedder.embed_documents([long, "short"]).shape == (2, 256)
        assert [long] in asked(server) and server.texts.count(long) == 1
        seen = len(server.probes)
        server.seed = 5
        with pytest.raises(EmbedderUnavailable, match="a different model"):
            embedder.embed_documents([long])
        assert len(server.probes) == seen + 1
        server.seed, server.context["own-model:latest"] = 0, 48
        with pytest.raises(TextTooLong):
            embedder.embed_documents([long])


def test_a_model_that_no_longer_reads_the_probe_is_another_one(server: OllamaServer) -> None:
    embedder = OllamaEmbedder("own-model", server.url)
    server.context["own-model:latest"] = 8
    with pytest.raises(EmbedderUnavailable, match="a different model"):
        embedder.embed_documents(["short"])


def test_a_slow_server_is_asked_for_less_until_it_answers_in_time(server: OllamaServer, connect: Connect) -> None:
    embedder = connect("own-model", embed_timeout=1, embed_retries=0, embed_batch=8)
    server.delay = 0.15
    texts, errors, rows = [f"text {n}" for n in range(8)], [], []
    size = embedder.request_texts
    while len(rows) < len(texts) and len(errors) < 8:
        try:
            rows += list(embedder.embed_documents(texts[len(rows) : len(rows) + embedder.request_texts]))
        except EmbedderUnavailable as error:
            errors.append(str(error))
    server.delay = 0
    assert len(rows) == 8
    assert np.allclose(np.stack(rows), connect("own-model").embed_documents(texts), atol=1e-6)
    assert (embedder.request_texts < size and errors) or server.old
    for error in errors:
        assert "AGENTFORMER_EMBED_TIMEOUT" in error and "AGENTFORMER_EMBED_BATCH" in error, error
        assert (
            "ollama serve" not in error and ("did not" in error or "sent nothing" in error) and server.url in error
        ), error


def test_a_hung_server_costs_one_timeout_and_is_not_asked_for_less_than_one(
    server: OllamaServer, connect: Connect
) -> None:
    embedder = connect("own-model", embed_timeout=1, embed_retries=2, embed_batch=2)
    server.requests.clear()
    server.hanging.set()
    for count in (1, 2):
        with pytest.raises(EmbedderUnavailable, match="AGENTFORMER_EMBED_TIMEOUT"):
            embedder.embed_documents(["one", "two"])
        assert len(server.requests) == count and embedder.request_texts == 1


def test_after_quick_answers_requests_hold_more_again(server: OllamaServer) -> None:
    embedder = OllamaEmbedder("own-model", server.url, RemoteOptions(timeout=1, retries=0, batch=5))
    server.hanging.set()
    with pytest.raises(EmbedderUnavailable, match="contain 2 texts instead of 5"):
        embedder.embed_documents(["one"] * 5)
    server.hanging.clear()
    embedder = OllamaEmbedder("own-model", server.url, RemoteOptions(timeout=60, retries=0, batch=5))
    embedder._request_size.timed_out(5)
    sizes = []
    for _ in range(24):
        sizes.append(embedder.request_texts)
        embedder.embed_documents(["one"] * embedder.request_texts)
    assert sizes == [2] * 8 + [4] * 8 + [5] * 8


def test_a_gateway_that_gives_up_counts_as_a_timeout() -> None:
    for status in ["504 Gateway Timeout", "408 Request Timeout"]:
        with HostileServer(saying(said('{"embeddings": [[0.6, 0.8]]}'))) as hostile:
            embedder = OllamaEmbedder("all-minilm", hostile.url, RemoteOptions(retries=0, batch=8))
            hostile.play = saying(said("<html>", status=status, kind="text/html"))
            with pytest.raises(EmbedderUnavailable, match=f"HTTP {status[:3]}.*AGENTFORMER_EMBED_BATCH"):
                embedder.embed_documents(["one"] * 8)
        assert embedder.request_texts == 4


def advice(answer: bytes) -> str:
    with HostileServer(saying(answer)) as hostile, pytest.raises(EmbedderUnavailable) as caught:
        OllamaEmbedder("all-minilm", hostile.url, RemoteOptions(retries=0, timeout=5))
    return str(caught.value)


def test_only_a_refused_connection_is_answered_with_how_to_start_the_server() -> None:
    for answer in (b"", said("<html>hello"), said("", status="413 Too Large"), b"\x00\r\n\r\n"):
        assert "ollama serve" not in advice(answer)
    with pytest.raises(EmbedderUnavailable, match=r"host name is unknown.*OLLAMA_BASE_URL") as caught:
        OllamaEmbedder("all-minilm", f"http://{'a' * 70}.invalid", RemoteOptions(retries=0))
    assert "ollama serve" not in str(caught.value)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(EmbedderUnavailable, match="ollama serve"):
        OllamaEmbedder("all-minilm", f"http://127.0.0.1:{port}", RemoteOptions(retries=0))


def test_a_request_that_a_gateway_finds_too_large_is_sent_in_halves(server: OllamaServer) -> None:
    embedder = OllamaEmbedder("own-model", server.url, RemoteOptions(retries=0))
    sizes = []

    def play(connection: socket.socket, path: str) -> None:
        texts = json.loads(hostile.requests[-1].partition(b"\r\n\r\n")[2] or b"{}").get("input", [])
        sizes.append(len(texts))
        if len(texts) > 3:
            connection.sendall(said("<html>", status="413 Content Too Large", kind="text/html"))
        else:
            rows, read = server.vectors("own-model:latest", texts, truncate=False)
            connection.sendall(said(json.dumps({"embeddings": rows, "prompt_eval_count": read})))

    with HostileServer(play) as hostile:
        gated = OllamaEmbedder("own-model", hostile.url, RemoteOptions(retries=0))
        sizes.clear()
        texts = ["one", "two", "three", "four"]
        assert np.allclose(gated.embed_documents(texts), embedder.embed_documents(texts), atol=1e-6)
    assert sizes == [4 + 1, 2 + 1, 2 + 1]


def test_a_path_with_letters_outside_ascii_is_encoded_and_one_that_is_encoded_stays() -> None:
    for path in ("/bäse ü", "/b%C3%A4se%20%C3%BC"):
        with HostileServer(saying(said('{"embeddings": [[0.6, 0.8]]}'))) as hostile:
            OllamaEmbedder("all-minilm", hostile.url + path, RemoteOptions(retries=0))
        assert "/b%C3%A4se%20%C3%BC/api/embed" in hostile.paths


def test_the_languages_that_are_set_beat_those_that_are_known_and_make_no_other_space(
    server: OllamaServer, connect: Connect
) -> None:
    known, given = connect(), connect(embed_languages="en, FI")
    assert (known.space.languages, given.space.languages) == ("en", "en fi")
    assert known.space.difference(given.space) == ""
    assert connect("own-model", embed_languages="*").space.languages == "*"


def test_a_model_whose_languages_cannot_be_measured_is_told_once_with_what_to_set(
    server: OllamaServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.old = True  # which counts no tokens
    for _ in range(2):
        assert OllamaEmbedder("own-model", server.url).space.languages == "en"
    (record,) = (record for record in caplog.records if "AGENTFORMER_EMBED_LANGUAGES" in record.getMessage())
    assert record.levelno == logging.WARNING and f"ollama:own-model at {server.url}" in record.getMessage()
    caplog.clear()
    assert OllamaEmbedder("own-model", server.url, RemoteOptions(languages="fi")).space.languages == "fi"
    assert not caplog.records
