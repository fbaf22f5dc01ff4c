"""A server that answers as a test says, byte by byte if need be, and keeps what it was sent."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: dict[str, Any]


Answer = Callable[[Request], Iterable[bytes]]


class Hostile:
    """Sends what `answer` yields for each request, then closes the connection. `gone` is set when a client hung up
    before the answer's end; `stop` when the test ends, so that an endless answer can wait on it."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[Request] = []
        self.gone = threading.Event()
        self.stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            connection.settimeout(30)
            try:
                request = self._read(stream)
                if request is None:
                    return
                self.seen.append(request)
                for data in self.answer(request):
                    if self.stop.is_set():
                        return
                    connection.sendall(data)
            except OSError:
                self.gone.set()

    @staticmethod
    def _read(stream: Any) -> Request | None:
        line = stream.readline().decode()
        if not line:
            return None
        headers = {}
        while (header := stream.readline().decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        raw = stream.read(int(headers.get("content-length", 0)))
        method, path, _ = line.split(" ", 2)
        return Request(method, path, headers, json.loads(raw or b"{}"))

    def close(self) -> None:
        self.stop.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(35)


Serve = Callable[[Answer], Hostile]


def head(status: int = 200, kind: str = "application/json", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {kind}", "Connection: close", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def says(data: Any, status: int = 200, kind: str = "application/json") -> list[bytes]:
    """A whole answer: a JSON value, or bytes as they are."""
    return [head(status, kind) + (data if isinstance(data, bytes) else json.dumps(data).encode())]


def refuses(status: int, message: str, **more: Any) -> list[bytes]:
    return says({"error": {"message": message, **more}}, status)


def completion(text: str | None, finish: str | None = "stop", **message: Any) -> list[bytes]:
    return says(
        {
            "id": "c1",
            "object": "chat.completion",
            "created": 0,
            "model": "tiny",
            "choices": [
                {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
            ],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        }
    )


def event(text: str | None = None, finish: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "tiny", "choices": choices}
    return f"data: {json.dumps({**chunk, 'usage': usage})}\n\n".encode()


STREAM = head(200, "text/event-stream")
DONE = b"data: [DONE]\n\n"
