"""A server on loopback whose answers a test writes byte by byte."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Play = Callable[[socket.socket, str], None]


class Server:
    """Plays `play(connection, path)` for each request, and records the requests."""

    def __init__(self, play: Play, context: ssl.SSLContext | None = None) -> None:
        self.play = play
        self._context = context
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.requests: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def url(self, path: str = "/report.txt", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            try:
                self._answer(connection)
            except OSError:  # the client has gone, or does not trust the certificate
                pass
            finally:
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        sock = self._context.wrap_socket(connection, server_side=True) if self._context else connection
        with sock:
            request = b""
            while b"\r\n\r\n" not in request:
                piece = sock.recv(65_536)
                if not piece:
                    return
                request += piece
            self.requests.append(request.decode())
            self.play(sock, self.requests[-1].split()[1])

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)


@contextmanager
def serving(play: Play, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(play, context)
    try:
        yield server
    finally:
        server.close()


def answer(
    body: bytes = b"Ships lie at the pier.", *headers: str, status: str = "200 OK", length: int | None = -1
) -> Play:
    if length is not None:
        headers = (*headers, f"Content-Length: {len(body) if length < 0 else length}")
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *headers, "")).encode()
    return lambda connection, path: connection.sendall(head + body)
