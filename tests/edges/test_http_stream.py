"""Streamed answers over HTTP: a real server, a model on a real socket, and clients that stay or leave."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")
pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.api import create_app
from agentformer.settings import load_settings
from agentformer.types import AnswerPiece
from tests.edges.running import wait_until
from tests.edges.talking import BOUND, KEY, Server, Step, Talker, all_events, next_event, texts

pytestmark = pytest.mark.process
KEYS = "The office opens at nine. The caretaker keeps the keys in the blue cupboard."
WHO = "Who keeps the keys?"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Talker]]:
    talker = Talker()
    server = Server(tmp_path_factory.mktemp("served"), talker)
    try:
        server.upload("keys.txt", KEYS)
        yield server, talker
    finally:
        server.close()
        talker.close()


@pytest.fixture
def server(both: tuple[Server, Talker]) -> Server:
    return both[0]


@pytest.fixture
def talker(both: tuple[Server, Talker]) -> Talker:
    """The model, well behaved again."""
    both[1].status = 200
    both[1].seen.clear()
    both[1].left.clear()
    say(both[1], "The caretaker ", "[1].")
    return both[1]


def say(talker: Talker, *steps: Step) -> None:
    talker.script = lambda: iter(steps)


def test_tokens_come_while_the_model_still_speaks_and_the_answer_is_last(server: Server, talker: Talker) -> None:
    heard = threading.Event()
    say(talker, "The caretaker ", heard, "keeps them [1].")
    response = server.ask(WHO, stream=True)
    assert (response.status, response.getheader("Content-Type")) == (200, "text/event-stream; charset=utf-8")
    assert (response.getheader("Cache-Control"), response.getheader("X-Accel-Buffering")) == ("no-store", "no")
    assert next_event(response) == ("token", {"text": "The caretaker "})
    heard.set()  # only now does the model go on
    assert next_event(response) == ("token", {"text": "keeps them [1]."})
    name, answer = next_event(response)
    assert (name, answer["answer"], answer["mode"], answer["complete"]) == (
        "answer",
        "The caretaker keeps them [1].",
        "llm",
        True,
    )
    citation = answer["citations"][0]
    assert (citation["document"], citation["page"], citation["quote"]) == (
        "keys.txt",
        1,
        "The caretaker keeps the keys in the blue cupboard.",
    )
    assert 0 < answer["timings"]["first_token_ms"] <= answer["timings"]["total_ms"]
    assert next_event(response) == ("", {})


def test_a_model_that_is_lost_in_the_middle_is_an_error_event_and_a_proper_end(server: Server, talker: Talker) -> None:
    say(talker, "The caretaker keeps them [1]. ", "The", None)
    events = all_events(server.ask(WHO, stream=True))
    assert [name for name, _ in events] == ["token", "token", "error", "answer"]
    error, answer = events[-2][1], events[-1][1]
    assert set(error) == {"type", "title", "detail"}
    assert error["type"] == "urn:agentformer:problem:language-model-unavailable"
    assert (answer["answer"], answer["complete"], answer["mode"]) == ("The caretaker keeps them [1]. The", False, "llm")
    assert answer["citations"][0]["page"] == 1
    assert "failed before the end" in answer["warnings"][0]


def test_the_last_chunk_is_sent_also_when_the_model_is_lost(server: Server, talker: Talker) -> None:
    say(talker, "The", None)
    body = json.dumps({"question": WHO, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=BOUND) as client:
        head = "POST /api/rag/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    assert b"Transfer-Encoding: chunked" in received
    assert received.endswith(b"\r\n0\r\n\r\n")


def test_a_model_that_is_down_is_replaced_by_quotation(server: Server, talker: Talker) -> None:
    talker.status = 500
    events = all_events(server.ask(WHO, stream=True))
    assert [name for name, _ in events] == ["token", "answer"]
    answer = events[-1][1]
    assert (answer["mode"], answer["complete"]) == ("extractive", True)
    assert texts(events) == answer["answer"]
    assert "the language model failed" in answer["warnings"][-1]
    time.sleep(1.1)  # the breaker lets the next call through


def test_a_client_that_leaves_stops_the_model(server: Server, talker: Talker) -> None:
    def on_and_on() -> Iterator[Step]:
        until = time.monotonic() + BOUND
        while time.monotonic() < until:
            time.sleep(0.01)
            yield "word " * 20

    talker.script = on_and_on
    response = server.ask(WHO, stream=True)
    assert next_event(response)[0] == "token"
    response.close()
    assert talker.left.wait(BOUND - 5), "the model was left talking to nobody"
    say(talker, "Still here [1].")
    assert texts(all_events(server.ask(WHO, stream=True))) == "Still here [1]."


def test_a_silent_model_holds_neither_the_thread_of_a_client_that_left_nor_the_end_of_the_server(
    tmp_path: Path, talker: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFORMER_THREADS", "1")
    impatient = "import agentformer.api.response as r, agentformer.api.serving.gunicorn as s\n"
    alone = Server(tmp_path, talker, impatient + "r.SILENCE_SECONDS = 0.5; s.FINISH_SECONDS = 1")
    silence = threading.Event()
    try:
        alone.upload("keys.txt", KEYS)
        say(talker, "The caretaker", silence)
        response = alone.ask(WHO, stream=True)
        assert next_event(response)[0] == "token"
        assert response.readline() == b":\n"  # a comment while nothing is said, which clients leave aside
        response.close()
        say(talker, "Still here [1].")
        assert texts(all_events(alone.ask(WHO, stream=True))) == "Still here [1]."
        assert not silence.is_set()

        say(talker, "The caretaker", silence, silence)
        response = alone.ask(WHO, stream=True)
        assert next_event(response)[0] == "token"
        alone.process.send_signal(signal.SIGTERM)
        assert alone.process.wait(BOUND) == 0  # long before the model goes on
        response.close()
    finally:
        silence.set()
        alone.close()


def test_nothing_found_is_an_answer_and_no_model_is_asked(server: Server, talker: Talker) -> None:
    events = all_events(server.ask("Missä avaimet ovat?", stream=True, namespace="empty"))
    assert [name for name, _ in events] == ["token", "answer"]
    assert (events[1][1]["mode"], texts(events)) == ("none", "En löytänyt asiakirjoista tai muistista vastausta tähän.")
    assert talker.seen == []


@pytest.mark.parametrize(
    ("accept", "body", "kind"),
    [
        ("text/event-stream", {}, "text/event-stream"),
        ("text/event-stream", {"stream": False}, "application/json"),
        ("application/json", {"stream": True}, "text/event-stream"),
        ("application/json, text/event-stream", {}, "application/json"),
        ("*/*", {}, "application/json"),
    ],
)
def test_the_body_or_else_the_accept_header_decides(
    server: Server, talker: Talker, accept: str, body: dict[str, Any], kind: str
) -> None:
    response = server.ask(WHO, headers={"Accept": accept}, **body)
    assert response.getheader("Content-Type", "").split(";")[0] == kind
    assert b"caretaker" in response.read()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"question": " "}, "question"),
        ({"question": WHO, "stream": "yes"}, "stream"),
        ({"question": WHO, "stream": 1}, "stream"),
        ({"question": WHO, "max_tokens": 0}, "max_tokens"),
        ({"question": WHO, "max_tokens": 4097}, "max_tokens"),
        ({"question": WHO, "max_tokens": True}, "max_tokens"),
        ({"question": WHO, "max_tokens": "9"}, "max_tokens"),
        ({"question": WHO, "top_k": 0}, "top_k"),
    ],
)
def test_bad_input_is_told_before_the_first_event(
    server: Server, talker: Talker, body: dict[str, Any], field: str
) -> None:
    response = server.post("/api/rag/query", json.dumps(body).encode(), Accept="text/event-stream")
    assert (response.status, response.getheader("Content-Type")) == (400, "application/problem+json")
    assert json.loads(response.read())["field"] == field
    assert talker.seen == []


@pytest.mark.parametrize("stream", [True, False])
def test_max_tokens_reaches_the_model(server: Server, talker: Talker, stream: bool) -> None:
    server.ask(WHO, stream=stream, max_tokens=77).read()
    asked = talker.seen[0]
    assert 77 in (asked.get("max_tokens"), asked.get("max_completion_tokens"))


def test_thoughts_do_not_reach_the_client(server: Server, talker: Talker) -> None:
    say(talker, "<thi", "nk>sec", "ret</th", "ink>\n\nThe caretaker", " [1].")
    response = server.ask(WHO, stream=True)
    raw = response.read()
    assert b"secret" not in raw and b"think" not in raw


def test_a_fault_of_ours_is_an_event_that_tells_nothing_of_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> Iterator[AnswerPiece]:
        yield AnswerPiece("The ")
        raise RuntimeError("/home/someone/secret.py is broken")

    app = create_app(load_settings({"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}))
    memory = app.extensions["agentformer"]
    monkeypatch.setattr(memory.rag, "stream", broken)
    response = app.test_client().post("/api/rag/query", json={"question": WHO, "stream": True})
    memory.close()
    assert response.status_code == 200
    assert "secret" not in response.text and "Traceback" not in response.text
    token, error, end = response.text.split("\n\n")
    assert (token, end) == ('event: token\ndata: {"text": "The "}', "")
    assert json.loads(error.removeprefix("event: error\ndata: "))["type"] == "urn:agentformer:problem:internal"


def test_no_key_is_in_what_the_server_wrote(server: Server, talker: Talker) -> None:
    talker.status = 401
    written = server.ask(WHO, stream=True).read().decode()
    assert "the language model failed" in written
    assert KEY not in written + server.errors.read_text()


def test_the_status_has_the_last_error_of_a_provider_and_no_key(server: Server, talker: Talker) -> None:
    talker.status = 401
    server.ask(WHO, stream=True).read()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
    connection.request("GET", "/api/status", headers={"Connection": "close"})
    response = connection.getresponse()
    told = response.read().decode()
    status = json.loads(told)
    (model,) = (used for name, used in status["providers"].items() if name.startswith("llm "))
    assert (response.status, model["last_error"] != "", KEY in told) == (200, True, False)
    assert (status["kinds"]["document"], status["spaces"][0]["spec"]) == (1, "hashing:256")


def test_a_burst_of_questions_is_answered_and_others_are_not_kept_waiting(server: Server, talker: Talker) -> None:
    """More questions than threads come at once. Each waits for its turn, and a request that needs no model does not."""
    while b"The caretaker [1]." not in server.ask(WHO, stream=True).read():
        time.sleep(0.1)  # after the failures of other tests, the model is asked again in a second
    gate = threading.Event()
    say(talker, gate, "The caretaker [1].")
    talker.seen.clear()
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(lambda: server.ask(WHO, stream=True).read()) for _ in range(12)]
        wait_until(lambda: len(talker.seen) == 7)  # all threads for slow requests wait for the model
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=BOUND) as health:
            assert health.status == 200
        assert [future.result() for future in asked if future.done()] == []
        gate.set()
        answers = [future.result(BOUND) for future in asked]
    assert all(b"event: answer" in answer and b"The caretaker [1]." in answer for answer in answers)
