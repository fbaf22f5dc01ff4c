"""A server that breaks its protocol in every way that clients must survive."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

Play = Callable[[socket.socket, str], None]


class HostileServer:
    """Each connection is given to `play` with the request's path; `paths` are those that were asked for.
    With `tls` it speaks HTTPS."""

    def __init__(self, play: Play, tls: ssl.SSLContext | None = None) -> None:
        self.play = play
        self._tls = tls
        self.paths: list[str] = []
        self.requests: list[bytes] = []
        self._stopped = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> HostileServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for sock in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def wait(self) -> None:
        """Until the test ends."""
        self._stopped.wait(60)

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                request = _request(connection)
                path = request.split(b" ", 2)[1].decode() if request.count(b" ") > 1 else ""
                self.paths.append(path)
                self.requests.append(request)
                self.play(connection, path)
        except OSError:
            pass  # the client went away, or the test ended

    def drip(self, connection: socket.socket, beginning: bytes, piece: bytes) -> None:
        """`beginning`, then a piece every 50 ms without end."""
        connection.sendall(beginning)
        while not self._stopped.wait(0.05):
            connection.sendall(piece)


def _request(connection: socket.socket) -> bytes:
    """The whole request: head, and as much body as it announces."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65_536)
        if not more:
            return data
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    missing = int(lengths[0]) - len(body) if lengths else 0
    while missing > 0 and (more := connection.recv(65_536)):
        data += more
        missing -= len(more)
    return data


def said(body: str | bytes, *, status: str = "200 OK", kind: str = "application/json", headers: str = "") -> bytes:
    """A whole answer."""
    data = body.encode() if isinstance(body, str) else body
    lines = f"Content-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n{headers}"
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + data


def saying(answer: bytes) -> Play:
    """Always the same answer."""

    def play(connection: socket.socket, path: str) -> None:
        connection.sendall(answer)

    return play
