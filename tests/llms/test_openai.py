"""The OpenAI protocol against a real socket: a small server that follows the published wire format."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.errors import LanguageModelUnavailable
from agentformer.llms.openai import OpenAIModel
from agentformer.types import ChatMessage

KEY = "sk-canary-1234567890"
ASK = [ChatMessage("user", "hello")]
Answers = Callable[[dict[str, Any]], tuple[int, str, bytes]]


class Server:
    """Answers each POST with `answer(body)`, and keeps what it was sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, Any]]] = []
        self.answer: Answers = lambda body: completion("hi")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append((self.path, self.headers["Authorization"], body))
                status, content_type, data = outer.answer(body)
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def model(server: Server, retries: int = 0) -> OpenAIModel:
    return OpenAIModel("tiny", base_url=server.url, api_key=KEY, timeout=5.0, retries=retries)


def completion(text: str | None) -> tuple[int, str, bytes]:
    body = {
        "id": "c1",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }
    return 200, "application/json", json.dumps(body).encode()


def test_a_completion_is_asked_for_and_read(server: Server) -> None:
    reply = model(server).complete(ASK, temperature=0.3, max_tokens=99)
    assert (reply.text, reply.tokens_in, reply.tokens_out) == ("hi", 7, 2)
    path, authorization, body = server.seen[0]
    assert (path, authorization) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert (body["temperature"], body["max_tokens"], body["messages"]) == (
        0.3,
        99,
        [{"role": "user", "content": "hello"}],
    )


def test_a_stream_gives_the_text_in_parts(server: Server) -> None:
    parts = [{"choices": [{"index": 0, "delta": {"content": word}}], "id": "c", "object": "chat.completion.chunk",
              "created": 0, "model": "tiny"} for word in ("blue ", "cupboard")]  # fmt: skip
    data = "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"
    server.answer = lambda body: (200, "text/event-stream", data.encode())
    assert list(model(server).stream(ASK)) == ["blue ", "cupboard"]


def test_a_busy_server_is_asked_again(server: Server) -> None:
    answers = iter([(429, "application/json", b"{}"), (503, "application/json", b"{}"), completion("at last")])
    server.answer = lambda body: next(answers)
    assert model(server, retries=2).complete(ASK).text == "at last"
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    "answer",
    [
        (401, "application/json", json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()),
        (404, "application/json", b'{"error": {"message": "no such model"}}'),
        (500, "text/plain", b"boom"),
        (200, "text/html", b"<html>welcome to the router</html>"),
        (200, "application/json", b'{"choices": ['),
        (200, "application/json", b'{"choices": []}'),
        completion(None),
    ],
    ids=["wrong key", "no model", "broken", "html", "half a json", "no choice", "no text"],
)
def test_nonsense_from_a_server_is_one_error_without_the_key(server: Server, answer: tuple[int, str, bytes]) -> None:
    server.answer = lambda body: answer
    with pytest.raises(LanguageModelUnavailable) as caught:
        model(server).complete(ASK)
    assert KEY not in str(caught.value)
    assert "http://127.0.0.1:" in str(caught.value) and "tiny" in str(caught.value)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    absent = OpenAIModel("tiny", base_url="http://user:secret@127.0.0.1:9/v1", api_key=KEY, timeout=2.0, retries=0)
    with pytest.raises(LanguageModelUnavailable) as caught:
        absent.complete(ASK)
    assert "secret" not in str(caught.value)
