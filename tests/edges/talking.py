"""A server that talks the OpenAI chat protocol, as slowly and as badly as a test wants; and one of ours before it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.forked import SERVE, start

BOUND = 120.0  # seconds that anything here waits at most
KEY = "sk-canary-0987654321"
Step = str | threading.Event | None  # a piece to say; an event to wait for; None: the connection is lost


class Talker:
    """Says `script` to everybody who asks for a stream; `status` other than 200 refuses."""

    def __init__(self) -> None:
        self.script: Callable[[], Iterator[Step]] = lambda: iter(["Hello."])
        self.status = 200
        self.finish = "stop"  # or "length", as a server says that had no more room
        self.seen: list[dict[str, Any]] = []
        self.left = threading.Event()  # a listener went away while we talked
        handler = type("Conversation", (_Conversation,), {"talker": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    @property
    def settings(self) -> dict[str, str]:
        """Environment of a process that asks this server."""
        return {
            "AGENTFORMER_LLM_MODEL": "tiny",
            "AGENTFORMER_LLM_BASE_URL": self.url,
            "AGENTFORMER_LLM_API_KEY": KEY,
            "AGENTFORMER_LLM_RETRIES": "0",
            "AGENTFORMER_BREAKER_SECONDS": "1",
        }

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


class _Conversation(BaseHTTPRequestHandler):
    talker: Talker
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._whole(200, {"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.talker.seen.append(body)
        if self.talker.status != 200:
            self._whole(self.talker.status, {"error": {"message": "out of order"}})
        elif not body.get("stream"):
            text = "".join(step for step in self.talker.script() if isinstance(step, str))
            self._whole(200, {**_frame("chat.completion"), "choices": [_choice("message", text, self.talker.finish)]})
        else:
            self._talk()

    def _talk(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for step in self.talker.script():
                if step is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if isinstance(step, threading.Event):
                    step.wait(BOUND)
                else:
                    self._say(step, None)
            self._say("", self.talker.finish)
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except OSError:
            self.talker.left.set()

    def _say(self, text: str, finish: str | None) -> None:
        part = {**_frame("chat.completion.chunk"), "choices": [_choice("delta", text, finish)]}
        self._chunk(b"data: " + json.dumps(part).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _whole(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


class Server:
    """`agentformer serve` in a process of its own; `before` is Python that it runs first."""

    def __init__(self, folder: Path, talker: Talker, before: str = "") -> None:
        command = ["serve", "--port", "0", "--embedder", "hashing"]
        self.errors = folder / "errors.txt"
        with self.errors.open("w") as errors:
            code = f"{before}\nfrom agentformer.cli import main\nmain({command})"
            self.process = start(code, SERVE, cwd=folder, env={**os.environ, **talker.settings}, stderr=errors)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def post(self, path: str, body: bytes, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, body, {"Content-Type": "application/json", "Connection": "close", **named})
        return connection.getresponse()

    def ask(self, question: str, *, headers: dict[str, str] | None = None, **body: Any) -> http.client.HTTPResponse:
        return self.post("/api/rag/query", json.dumps({"question": question, **body}).encode(), **(headers or {}))

    def upload(self, name: str, text: str) -> None:
        data = (
            f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            f"Content-Type: text/plain\r\n\r\n{text}\r\n--x--\r\n"
        )
        answer = self.post("/api/rag/upload", data.encode(), Content_Type="multipart/form-data; boundary=x")
        assert answer.status == 201, answer.read()
        answer.read()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=BOUND)


def next_event(response: http.client.HTTPResponse) -> tuple[str, dict[str, Any]]:
    """The next event as it comes, without the comments that a silent server sends; an empty name at the end."""
    while (line := response.readline()) in (b":\n", b"\n"):
        pass
    if not line:
        return "", {}
    name, data = line.decode(), response.readline().decode()
    assert response.readline() == b"\n"
    return name.removeprefix("event: ").strip(), json.loads(data.removeprefix("data: "))


def all_events(response: http.client.HTTPResponse) -> list[tuple[str, dict[str, Any]]]:
    return list(iter(lambda: next_event(response), ("", {})))


def texts(events: Sequence[tuple[str, dict[str, Any]]]) -> str:
    return "".join(data["text"] for name, data in events if name == "token")


def _frame(kind: str) -> dict[str, Any]:
    return {"id": "c1", "object": kind, "created": 0, "model": "tiny"}


def _choice(kind: str, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": 0, kind: {"role": "assistant", "content": text}, "finish_reason": finish}
