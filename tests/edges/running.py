"""`agentformer serve` as a process that tests start, ask and end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.forked import SERVE, start

BOUND = 120.0  # seconds that anything here waits at most
BOUNDARY = b"x"


class Running:
    """`agentformer serve` on a free port; `before` is Python that its process runs first."""

    def __init__(self, folder: Path, *options: str, before: str = "", **environ: str) -> None:
        self.folder = folder
        self.errors = folder / "errors.txt"
        command = ["serve", "--port", "0", "--embedder", "hashing", *options]
        with self.errors.open("w") as errors:
            code = f"{before}\nfrom agentformer.cli import main\nmain({command})"
            self.process = start(code, SERVE, cwd=folder, env={**os.environ, **environ}, stderr=errors)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        self.port = int(self.said.rpartition(":")[2]) if self.said.startswith("serving on http://127.0.0.1:") else 0

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=BOUND)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **more: Any
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        try:
            connection.request(method, path, body, headers or {}, **more)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        return self.ask("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def upload(self, name: str, text: str) -> tuple[int, Any]:
        return self.ask("POST", "/api/rag/upload", form_of(name, text), FORM)

    def documents(self) -> list[str]:
        status, listed = self.ask("GET", "/api/rag/documents")
        assert status == 200
        return [document["name"] for document in listed["documents"]]

    def workers(self) -> list[int]:
        """The processes that it made."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, parent = status.read_text().rpartition(")")[2].split()[:2]
                if int(parent) == self.process.pid and state != "Z":
                    found.append(int(status.parent.name))
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(BOUND)

    def told(self) -> str:
        return self.errors.read_text()

    def close(self) -> None:
        """End it at once, with its workers; `end` lets it finish."""
        for process in [self.process.pid, *self.workers()] if self.process.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.communicate(timeout=BOUND)


FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
Serve = Callable[..., Running]


def form_of(name: str, text: str) -> bytes:
    head = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: text/plain'
    return f"--x\r\n{head}\r\n\r\n{text}\r\n--x--\r\n".encode()


def head_of(path: str, length: int, content_type: str = FORM["Content-Type"]) -> bytes:
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {length}"
    return f"{lines}\r\n\r\n".encode()


def answer_on(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, json.loads(response.read() or b"{}")


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def takes_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=BOUND).close()
    except OSError:
        return False
    return True
