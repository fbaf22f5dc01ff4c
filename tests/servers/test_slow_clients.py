"""Timeouts for slow clients: time budgets, and sockets that count the time of waiting."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from agentformer.servers import slow_clients
from agentformer.servers.slow_clients import (
    HEAD_BYTES,
    HTTP_API,
    MCP,
    HeadersTooLong,
    ServerTimeouts,
    TimeBudget,
    TimedSocket,
)

LIMITS = ServerTimeouts(headers=1.0, body=5.0, idle=2.0, rate=100, linger=0.1)
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
Pair = tuple[TimedSocket, socket.socket]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A socket of a server that waits 0.2 s at most, and its client."""
    monkeypatch.setattr(slow_clients, "HTTP_API", replace(HTTP_API, body=0.2, idle=0.2))
    plain, client = socket.socketpair()
    client.settimeout(30)
    server = TimedSocket.replacing(plain)
    yield server, client
    for end in (server, client):
        with suppress(OSError):
            end.close()


def read_headers(server: TimedSocket) -> None:
    server.setblocking(False)
    assert server.receive_headers()
    server.setblocking(True)
    server.expect_body()


def test_a_budget_shrinks_with_time_and_grows_with_bytes() -> None:
    budget = TimeBudget(5.0, LIMITS)
    assert budget.left == 2.0  # never more than the idle time
    budget.spend(4.0, 0)
    assert budget.left == pytest.approx(1.0)
    budget.spend(0.5, 100)  # 100 bytes are worth a second
    assert budget.left == pytest.approx(1.5)
    budget.spend(9.0, 0)
    assert budget.left == 0


def test_the_limits_of_both_servers() -> None:
    assert ServerTimeouts(headers=10, body=30, idle=20, rate=1024, linger=2) == HTTP_API
    assert ServerTimeouts(headers=20, body=30, idle=20, rate=256 * 1024, linger=1) == MCP


def test_a_body_has_arrived_wherever_its_bytes_are(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "_BODY_GRACE_SECONDS", 0.01)
    server, client = pair
    client.sendall(HEAD + b"1234")
    read_headers(server)
    assert server.recv(len(HEAD) + 1) == HEAD + b"1"
    server.expect_body(1)
    assert [server.has_body(size) for size in (0, 4, 5, 100_000, None)] == [True, True, False, False, False]
    client.sendall(b"5678")
    assert [server.has_body(size) for size in (8, 9)] == [True, False]
    assert server.recv(100) + server.recv(100) == b"2345678"  # nothing was taken


def test_a_body_that_comes_just_after_its_headers_has_arrived(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "_BODY_GRACE_SECONDS", 30.0)
    server, client = pair
    client.sendall(HEAD)
    read_headers(server)
    server.recv(len(HEAD))
    sending = threading.Timer(0.02, client.sendall, (b"12",))
    sending.start()
    assert server.has_body(2)
    sending.join()
    client.close()
    monkeypatch.setattr(slow_clients, "_BODY_GRACE_SECONDS", 0.0)
    assert not server.has_body(3)


def test_only_so_many_clients_may_read_slowly(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "_READ_SECONDS", 0.01)
    monkeypatch.setattr(slow_clients, "_slow_readers", places := threading.BoundedSemaphore(1))
    server, client = pair
    server._writing = TimeBudget(30.0, HTTP_API)
    received: list[int] = []

    def read() -> None:
        while sum(received) < 5_000_000 and (data := client.recv(1_000_000)):
            received.append(len(data))

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(server.sendall, b"x" * 5_000_000)
        until = time.monotonic() + 30
        # Until the client counts as slow. The test must not take the place, because the server would find none.
        while places._value and time.monotonic() < until:
            time.sleep(0.001)
        read()
        sending.result(30)
    assert sum(received) == 5_000_000 and places.acquire(blocking=False)  # the place is free again, and taken here
    with pytest.raises(BrokenPipeError, match="too slowly"):
        server.sendall(b"x" * 50_000_000)
    places.release()


def test_headers_are_complete_after_a_blank_line_in_any_pieces(pair: Pair) -> None:
    server, client = pair
    for head in (HEAD, b"\r\n\r\n"):
        server.expect_headers()
        server.setblocking(False)
        for index in range(len(head)):
            assert not server.receive_headers()
            client.sendall(head[index : index + 1])
        assert server.receive_headers() and server.receive_headers()
        assert server.recv(3) == head[:3] and server.recv(1000) == head[3:]


def test_headers_end_also_with_a_bare_line_feed(pair: Pair) -> None:
    server, client = pair
    server.setblocking(False)
    client.sendall(b"GET / HTTP/1.1\n")
    assert server.receive_headers()


def test_headers_over_the_limit_are_an_error(pair: Pair) -> None:
    server, client = pair
    server.setblocking(False)
    sent = 0
    while not server.receive_headers():
        sent += client.send(b"x" * min(4096, HEAD_BYTES - sent))
        assert sent <= HEAD_BYTES
    assert sent == HEAD_BYTES
    assert len(b"".join(iter(lambda: server.recv(4096) if server._buffer else b"", b""))) == HEAD_BYTES
    with pytest.raises(HeadersTooLong):
        server.recv(1)


def test_no_more_than_the_limit_is_read_before_a_thread_is_needed(pair: Pair) -> None:
    server, client = pair
    server.setblocking(False)
    assert HEAD_BYTES == 64 * 2**10
    server.expect_headers(b"x" * (HEAD_BYTES - 1))
    assert not server.receive_headers()
    client.sendall(b"x" * 1000)
    assert server.receive_headers()
    assert len(server.take_buffer()) == HEAD_BYTES


def test_nothing_is_read_between_headers_and_body(pair: Pair) -> None:
    server, client = pair
    server.setblocking(False)
    client.sendall(HEAD)
    assert server.receive_headers()
    assert (server.recv(1000), server.recv(1000)) == (HEAD, b"")


def test_a_closed_connection_is_ready_and_empty(pair: Pair) -> None:
    server, client = pair
    server.setblocking(False)
    client.close()
    assert server.receive_headers()
    assert server.recv(10) == b""


def test_bytes_of_the_next_request_stay_for_it(pair: Pair) -> None:
    server, client = pair
    client.sendall(HEAD + b"GET /next")
    read_headers(server)
    assert server.recv(len(HEAD)) == HEAD
    rest = server.take_buffer()
    assert (rest, server.take_buffer()) == (b"GET /next", b"")
    server.expect_headers(rest)
    server.setblocking(False)
    assert not server.receive_headers()
    client.sendall(b" HTTP/1.1\r\n\r\n")
    assert server.receive_headers()
    assert server.recv(1000) == b"GET /next HTTP/1.1\r\n\r\n"


def test_reading_a_body_ends_when_the_time_is_over(pair: Pair) -> None:
    server, client = pair
    client.sendall(HEAD)
    read_headers(server)
    assert server.recv(1000) == HEAD
    for piece in (b"body", b"more"):
        client.sendall(piece)
        assert server.recv(1000) == piece
    assert server.recv(1000) == b""  # nothing comes
    client.sendall(b"late")
    server._reading = TimeBudget(0, LIMITS)
    assert server.recv(1000) == b""


@pytest.mark.slow
def test_writing_to_a_client_that_does_not_read_breaks(pair: Pair) -> None:
    server, client = pair
    read = threading.Thread(target=client.recv, args=(10,))
    read.start()
    server.sendall(b"x" * 10)
    read.join(30)
    with pytest.raises(BrokenPipeError, match="too slowly"):
        server.sendall(b"x" * 50_000_000)


def test_a_timeout_of_the_caller_replaces_the_limits(pair: Pair) -> None:
    server, client = pair
    client.sendall(HEAD)
    read_headers(server)
    server.recv(1000)
    server.settimeout(0.01)
    with pytest.raises(TimeoutError):
        server.recv(10)
    with pytest.raises(TimeoutError):
        server.sendall(b"x" * 50_000_000)


def test_the_last_response_can_be_read_before_the_connection_closes(pair: Pair) -> None:
    server, client = pair
    server.sendall(b"refused")
    assert server.end_writing()
    assert (client.recv(100), client.recv(100)) == (b"refused", b"")
    assert server.discard()  # nothing has come
    client.sendall(b"more")
    assert server.discard()
    client.close()
    assert not server.discard()
    server.close()
    assert not server.end_writing()
    server.setblocking(False)  # ignored
