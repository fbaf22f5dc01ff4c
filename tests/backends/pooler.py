"""A pooler in transaction mode: it gives its few connections to clients for one transaction at a time.

`Pooler` is one of ours, which changes the connection at each transaction, so that clients meet what others have left.
`pgbouncer` starts the real one, if it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            raise ConnectionError
        data += more
    return data


def _read(source: socket.socket) -> tuple[bytes, bytes]:
    kind = _exactly(source, 1)
    return kind, _exactly(source, struct.unpack("!I", _exactly(source, 4))[0] - 4)


class Pooler:
    """A pooler for the server at `url`, which needs no password."""

    def __init__(self, url: str, size: int) -> None:
        parts = urlsplit(url)
        self._place = parse_qs(parts.query)["host"][0] + "/.s.PGSQL.5432"
        self._startup = b"user\0postgres\0database\0" + parts.path[1:].encode() + b"\0\0"
        self._free: deque[socket.socket] = deque()
        self._changed = threading.Condition()
        self._greeting = b""
        self.servers = [self._server() for _ in range(size)]
        self._free.extend(self.servers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://postgres@127.0.0.1:{self._listener.getsockname()[1]}{parts.path}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _server(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._place)
        body = struct.pack("!I", 196608) + self._startup
        server.sendall(struct.pack("!I", len(body) + 4) + body)
        self._greeting = b""
        while True:
            kind, body = _read(server)
            self._greeting += _message(kind, body)
            if kind == b"Z":
                return server

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # many short messages
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), closing(client):
            while (length := struct.unpack("!I", _exactly(client, 4))[0]) == 8:  # a request for encryption
                _exactly(client, 4)
                client.sendall(b"N")
            if struct.unpack("!I", _exactly(client, length - 4)[:4])[0] == 80877102:  # the end of another request
                return
            client.sendall(self._greeting)
            while True:
                self._transaction(client, _read(client))

    def _transaction(self, client: socket.socket, first: tuple[bytes, bytes]) -> None:
        """Give a server to the client until the end of its transaction."""
        if first[0] == b"X":
            raise ConnectionError
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            server = self._free.popleft()  # the one that was not used for longest
        try:
            state = self._round(client, server, first)
            while state != b"I":
                state = self._round(client, server, _read(client))
        except OSError:
            server.sendall(_message(b"Q", b"ROLLBACK\0"))
            while _read(server)[0] != b"Z":
                pass
            raise
        finally:
            with self._changed:
                self._free.append(server)
                self._changed.notify()

    def _round(self, client: socket.socket, server: socket.socket, message: tuple[bytes, bytes]) -> bytes:
        """Send the messages of a client up to the end of a request, and the answers. Return the state afterwards."""
        while True:
            if message[0] == b"X":
                raise ConnectionError
            server.sendall(_message(*message))
            if message[0] in (b"Q", b"S"):
                break
            message = _read(client)
        while True:
            kind, body = _read(server)
            client.sendall(_message(kind, body))
            if kind == b"Z":
                return body

    def close(self) -> None:
        for each in (self._listener, *self._sockets, *self.servers):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class PgBouncer:
    """PgBouncer in transaction mode with `size` connections to the server at `url`, whose socket is in a folder. It
    keeps its address when it is killed and started again."""

    def __init__(self, url: str, folder: Path, size: int) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None or os.name != "posix":
            pytest.skip("pgbouncer is not installed")
        parts = urlsplit(url)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}{parts.path}"
        sockets = parse_qs(parts.query)["host"][0]
        settings: dict[str, Any] = {
            "listen_addr": "127.0.0.1",
            "listen_port": self._port,
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": size,
            "max_client_conn": 200,
            "server_round_robin": 1,
            "server_login_retry": 1,
            "unix_socket_dir": "",
            "logfile": "/dev/null",
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        self._config, self._log = folder / "pgbouncer.ini", folder / "pgbouncer.log"
        self._config.write_text("\n".join(["[databases]", f"* = host={sockets} user=postgres", "[pgbouncer]", *lines]))
        owner = Path(sockets).stat()  # it refuses to run as root, and another user may not reach the socket
        other = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
        self._command, self._user = [program, "/dev/stdin"], other  # that user may not read `folder`
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it accepts connections."""
        # a file, because it would wait for somebody who reads a pipe
        with self._config.open() as given, self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdin=given, stderr=log, **self._user)
        deadline = time.monotonic() + 20
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                pytest.skip(f"pgbouncer does not start here: {self._log.read_text()[-200:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def pgbouncer(url: str, folder: Path, size: int = 8) -> Iterator[PgBouncer]:
    """Start PgBouncer, and end it."""
    pooler = PgBouncer(url, folder, size)
    try:
        yield pooler
    finally:
        pooler.kill()
