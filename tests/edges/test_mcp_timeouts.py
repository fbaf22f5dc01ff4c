"""The MCP server over HTTP with clients that are slow, that are many, or that send half of something."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
pytest.importorskip("flask", reason="the extra `server` is not installed")

import httpx2

from tests.edges.doors import BOUND, HttpServer
from tests.edges.running import wait_until

pytestmark = pytest.mark.process
HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
HASTY = "from agentformer.servers.slow_clients import MCP as p; import agentformer.mcp_server.http as t; "
Start = Callable[..., HttpServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[HttpServer] = []

    def start(**more: Any) -> HttpServer:
        started.append(HttpServer(tmp_path, **more))
        assert started[-1].url.startswith("http://"), started[-1].told
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    server = HttpServer(tmp_path_factory.mktemp("hasty"), before=HASTY + "p.headers = p.body = 2")
    yield server
    assert server.end() == (0, "")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(server: HttpServer, stack: ExitStack) -> socket.socket:
    host, port = server.url.removeprefix("http://").removesuffix("/mcp").split(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=BOUND))


def heard(connection: socket.socket) -> bytes:
    """All until the server closes."""
    told = b""
    while piece := connection.recv(65536):
        told += piece
    return told


def serves(server: HttpServer) -> bool:
    return httpx2.post(server.url, content=LIST, headers=JSON, timeout=BOUND).status_code == 200


def incomplete(server: HttpServer, stack: ExitStack) -> None:
    """Requests of which a part does not come are answered with 408."""
    heads = [connect(server, stack) for _ in range(2)]
    heads[1].sendall(b"POST /mcp HTTP/1.1\r\nHost: loc")
    bodies = [connect(server, stack) for _ in range(2)]
    for connection, length in zip(
        bodies, (b"Content-Length: 1000\r\n", b"Transfer-Encoding: chunked\r\n"), strict=True
    ):
        connection.sendall(HEAD + length + b"\r\n")
    for connection in heads:
        head, body = heard(connection).split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert json.loads(body)["type"] == "urn:agentformer:problem:incomplete-request"
    for connection in bodies:
        assert heard(connection).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert serves(server)


def test_an_incomplete_request_is_answered_with_408(hasty: HttpServer, stack: ExitStack) -> None:
    incomplete(hasty, stack)


def test_a_client_from_which_nothing_comes_is_answered_with_408(start: Start, stack: ExitStack) -> None:
    server = start(before=HASTY + "p.idle = 0.5")
    incomplete(server, stack)
    assert server.end() == (0, "")


def test_what_trickles_in_has_a_time_as_a_whole(hasty: HttpServer, stack: ExitStack) -> None:
    connection = connect(hasty, stack)
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
    connection.settimeout(0.1)
    told = b""
    for _ in range(int(BOUND * 10)):
        try:
            connection.sendall(b" ")
            told = connection.recv(65536)
            break
        except TimeoutError:
            continue
    assert told.startswith(b"HTTP/1.1 408 ")


def test_who_was_refused_and_sends_on_is_cut(hasty: HttpServer, stack: ExitStack) -> None:
    connection = connect(hasty, stack)
    connection.sendall(HEAD + b"Authorization: Basic YTpi\r\nContent-Length: 1000\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")
    connection.settimeout(0.1)
    ended = False
    for _ in range(int(BOUND * 10)):
        try:
            connection.sendall(b" ")
            ended = not connection.recv(65536)
        except TimeoutError:
            continue
        except OSError:
            ended = True
        if ended:
            break
    assert ended


def test_more_connections_than_there_may_be_are_told_so_and_what_is_not_whole_does_not_hold_up_the_end(
    start: Start, stack: ExitStack
) -> None:
    # Where the server waits for them at its end, it waits for longer than the test does.
    server = start(before=HASTY + "t._MAX_CONNECTIONS = 5; t._FINISH_SECONDS = t._EXIT_SECONDS = 600")
    with ExitStack() as five:
        for _ in range(5):
            connect(server, five).sendall(b"POST /mcp HT")
        told = heard(connect(server, five))
    assert told.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nRetry-After: 2\r\n" in told
    for _ in range(int(BOUND * 10)):
        with ExitStack() as other:
            connection = connect(server, other)
            lines = "".join(f"{name}: {value}\r\n" for name, value in JSON.items())
            head = (
                f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}Content-Length: {len(LIST)}\r\n"
            )
            connection.sendall(head.encode() + b"\r\n" + LIST)
            if (told := heard(connection)).startswith(b"HTTP/1.1 200 "):
                break
    assert told.startswith(b"HTTP/1.1 200 ")
    for number in range(4):
        connection = connect(server, stack)
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{" if number % 2 else b"POST /mcp HTTP/1.1\r\nHos")
    wait_until(lambda: serves(server))
    assert server.end() == (0, "")


def test_bodies_under_way_are_bounded_together(start: Start, stack: ExitStack) -> None:
    server = start(environment={"AGENTFORMER_MAX_FILE_BYTES": "1"})  # so that a message has at most 1 MiB
    most = 1024 * 1024
    waiting = []
    for _ in range(6):
        waiting.append(connect(server, stack))
        waiting[-1].sendall(HEAD + b"Content-Length: %d\r\n\r\n" % most + b" " * (most - 1))
    wait_until(lambda: len(select.select(waiting, [], [], 0)[0]) == 2)
    refused = [connection.recv(65536) for connection in select.select(waiting, [], [], 0)[0]]
    assert all(told.startswith(b"HTTP/1.1 429 ") and b"retry-after: 5\r\n" in told.lower() for told in refused)
    assert serves(server)  # small ones have room
    assert select.select(waiting, [], [], 0)[0] == []
    stack.close()
    with ExitStack() as again:  # what was held is free again
        for _ in range(4):
            connection = connect(server, again)
            connection.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % most + b" " * most)
            assert b" 429 " not in heard(connection)
