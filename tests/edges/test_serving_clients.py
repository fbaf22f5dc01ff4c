"""What clients do to `agentformer serve`: bodies that are too long, no HTTP at all, slowness, and going away."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")
pytest.importorskip("waitress", reason="the extra `server` is not installed")
if os.name != "posix":
    pytest.skip("gunicorn runs on POSIX only", allow_module_level=True)

from tests.edges.running import BOUND, FORM, Running, Serve, answer_on, form_of, head_of

IMPATIENT = (
    "import agentformer.api.serving.patience as patience\n"
    "patience.HEADER_SECONDS = 1.0; patience.BODY_SECONDS = 2.0; patience.IDLE_SECONDS = 1.0\n"
)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    running: list[Running] = []

    def serve(*options: str, **more: Any) -> Running:
        running.append(Running(tmp_path, *options, **more))
        return running[-1]

    yield serve
    for each in running:
        each.close()


def chunks_of(total: int) -> Iterator[bytes]:
    yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="big.txt"\r\n\r\n'
    for _ in range(total // 65536):
        yield b"x" * 65536
    yield b"\r\n--x--\r\n"


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_over_the_limit_is_413_and_the_limit_is_named_however_it_is_sent(serve: Serve, chunked: bool) -> None:
    running = serve(AGENTFORMER_MAX_FILE_BYTES="100000")
    body: Any = chunks_of(4_000_000)
    status, told = running.ask(
        "POST", "/api/rag/upload", body if chunked else b"".join(body), FORM, encode_chunked=chunked
    )
    assert (status, told["limit"]) == (413, "max_file_bytes")
    status, told = running.ask(
        "POST",
        "/api/memory",
        iter([b'{"content": "'] + [b"x" * 65536] * 300) if chunked else b"x" * 300 * 65536,
        {"Content-Type": "application/json"},
        encode_chunked=chunked,
    )
    assert (status, told["limit"]) == (413, "max_json_bytes")
    assert running.documents() == []


def test_a_chunked_upload_within_the_limit_is_whole(serve: Serve) -> None:
    running = serve()
    text = "The caretaker keeps the keys. " * 20_000
    pieces = form_of("keys.txt", text)
    body = iter([pieces[start : start + 5000] for start in range(0, len(pieces), 5000)])
    status, told = running.ask("POST", "/api/rag/upload", body, FORM, encode_chunked=True)
    assert (status, told["documents"][0]["bytes"]) == (201, len(text))


NO_HTTP = {
    b"nonsense\r\n\r\n": 400,
    b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer canary\x00\r\n\r\n": 400,
    b"GET /" + b"canary" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n": 414,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"canary" * 3000 + b"\r\n\r\n": 431,
    b"POST /api/rag/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n": 400,
    b"POST /api/rag/query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\ncanary\r\n": 400,
    b"POST /api/rag/upload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n\r\n5\r\n--x\r\ncanary\r\n": 400,
}


def test_what_is_no_http_is_a_problem_document_that_quotes_nothing(serve: Serve) -> None:
    running = serve()
    for raw, status in NO_HTTP.items():
        with running.connect() as connection:
            connection.sendall(raw)
            got, told = answer_on(connection)
        assert (got, told["status"]) == (status, status), raw[:80]
        assert "canary" not in json.dumps(told)
    assert running.end() == 0
    assert "canary" not in running.told()
    assert "Traceback" not in running.told()


def test_connections_on_which_nothing_comes_hold_no_thread(serve: Serve) -> None:
    running = serve("--threads", "1")
    silent = [running.connect() for _ in range(50)]
    assert running.ask("GET", "/healthz")[0] == 200
    assert running.end() == 0
    for connection in silent:
        assert connection.recv(1) == b""
        connection.close()


def test_slow_clients_do_not_keep_others_out(serve: Serve) -> None:
    running = serve("--threads", "4", before=IMPATIENT)
    stalled = [running.connect() for _ in range(30)]
    starts = (b"", b"GET /healthz HTTP/1.1\r\nHost:", head_of("/api/rag/upload", 5000) + b"--x\r\n")
    for number, connection in enumerate(stalled):
        connection.sendall(starts[number % 3])
    assert running.ask("GET", "/healthz")[0] == 200
    assert running.upload("a.txt", "Tea at four.")[0] == 201
    for connection in stalled:
        connection.close()


def test_who_sends_a_byte_now_and_then_is_told_that_it_is_too_slow(serve: Serve) -> None:
    running = serve("--threads", "1", before=IMPATIENT)
    with running.connect() as connection:
        connection.sendall(head_of("/api/rag/upload", 5000))
        stop = threading.Event()

        def drip() -> None:
            try:
                while not stop.wait(0.2):
                    connection.sendall(b"-")
            except OSError:
                pass

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            status, told = answer_on(connection)
        finally:
            stop.set()
            dripping.join(BOUND)
    assert (status, told["type"]) == (408, "urn:agentformer:problem:incomplete-request")
    assert running.ask("GET", "/healthz")[0] == 200


def test_who_does_not_read_the_answer_does_not_keep_a_thread(serve: Serve) -> None:
    running = serve("--threads", "1", before=IMPATIENT)
    status, told = running.upload("long.txt", "Tea at four." + "\n" * 8_000_000)
    assert status == 201
    with running.connect() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        path = f"/api/rag/documents/{told['documents'][0]['id']}/content"
        deaf.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert running.ask("GET", "/healthz")[0] == 200
    assert running.end() == 0
    assert "Traceback" not in running.told()


def test_clients_that_go_away_in_mid_upload_leave_nothing(serve: Serve) -> None:
    running = serve("--threads", "2")
    body = form_of("half.txt", "The caretaker keeps the keys. " * 2000)
    for number in range(8):
        connection = running.connect()
        connection.sendall(head_of("/api/rag/upload", len(body)) + body[: len(body) // 2])
        if number % 2:  # with a reset instead of an end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    assert running.upload("whole.txt", "Tea at four.")[0] == 201
    assert running.documents() == ["whole.txt"]
    assert running.end() == 0
    assert "Traceback" not in running.told()
