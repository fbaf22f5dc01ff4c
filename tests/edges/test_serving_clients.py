"""What clients do to `agentformer serve`: bodies that are too long, no HTTP at all, slowness, and going away."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")
pytest.importorskip("waitress", reason="the extra `server` is not installed")
if os.name != "posix":
    pytest.skip("gunicorn runs on POSIX only", allow_module_level=True)

from tests.edges.running import BOUND, FORM, Running, Serve, answer_on, form_of, head_of, wait_until

pytestmark = pytest.mark.process
JSON = "application/json"
STUBBORN = (  # so that whoever waits for a slow client in a thread waits for longer than the test
    "from agentformer.servers.slow_clients import HTTP_API as t; import gunicorn.workers.gthread as gthread\n"
    "t.headers = t.idle = t.linger = 500.0\n"
    "gthread.DEFAULT_WORKER_DATA_TIMEOUT = 500.0\n"
)
IMPATIENT = (
    "import agentformer.api.serving.gunicorn as ours\n"
    "ours._KEEP_ALIVE_SECONDS = 1\n"
    "t.headers = 2.0; t.body = 2.0; t.idle = 1.0\n"
)


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Servers that the tests share, one for each set of options. Each of them ends well."""
    running: dict[str, Running] = {}

    def serve(*options: str, **more: Any) -> Running:
        wanted = repr((options, more))
        if wanted not in running:
            running[wanted] = Running(tmp_path_factory.mktemp("shared"), *options, **more)
        return running[wanted]

    yield serve
    for server in running.values():
        server.process.send_signal(signal.SIGTERM)
    ends = [(server.process.wait(BOUND), server.told()) for server in running.values()]
    for server in running.values():
        server.close()
    for code, told in ends:
        assert code == 0
        assert "Traceback" not in told and "canary" not in told


@pytest.fixture
def stubborn(serve: Serve) -> Running:
    return serve("--threads", "1", before=STUBBORN, AGENTFORMER_MAX_UPLOADS="1")


@pytest.fixture
def impatient(serve: Serve) -> Running:
    return serve("--threads", "1", before=STUBBORN + IMPATIENT)


def status_in(answers: Any) -> int:
    """Read one whole answer from a connection that has several."""
    status, length = int(answers.readline().split()[1]), 0
    while (line := answers.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    assert len(answers.read(length)) == length
    return status


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
        {"Content-Type": JSON},
        encode_chunked=chunked,
    )
    assert (status, told["limit"]) == (413, "max_json_bytes")
    assert running.documents() == []


@pytest.mark.parametrize(("most", "length", "status"), [(100_000, 16 * 1024**2, 400), (30_000_000, 17_000_000, 413)])
def test_waitress_leaves_it_to_the_application_how_long_a_body_may_be(
    serve: Serve, most: int, length: int, status: int
) -> None:
    running = serve("--server", "waitress", "--threads", "1", AGENTFORMER_MAX_FILE_BYTES=str(most))
    body = b'{"content": "' + b"x" * (length - 15) + b'"}'
    got, told = running.ask("POST", "/api/memory", body, {"Content-Type": JSON})
    assert (got, told["status"]) == (status, status)
    assert told["field"] == "content" if status == 400 else told["limit"] == "max_json_bytes"


def test_waitress_says_nothing_of_requests_that_wait(serve: Serve) -> None:
    running = serve("--server", "waitress", "--threads", "1", AGENTFORMER_MAX_FILE_BYTES="100000")
    running.process.send_signal(signal.SIGSTOP)
    asking = [running.connect() for _ in range(20)]
    for connection in asking:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    running.process.send_signal(signal.SIGCONT)
    assert {answer_on(connection)[0] for connection in asking} == {200}
    assert "queue" not in running.told()
    for connection in asking:
        connection.close()


def test_a_chunked_upload_within_the_limit_is_whole(stubborn: Running) -> None:
    text = "The caretaker keeps the keys. " * 5_000
    pieces = form_of("keys.txt", text)
    body = iter([pieces[start : start + 5000] for start in range(0, len(pieces), 5000)])
    status, told = stubborn.ask("POST", "/api/rag/upload", body, FORM, encode_chunked=True)
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


def test_what_is_no_http_is_a_problem_document_that_quotes_nothing(impatient: Running) -> None:
    for raw, status in NO_HTTP.items():
        with impatient.connect() as connection:
            connection.sendall(raw)
            got, told = answer_on(connection)
        assert (got, told["status"]) == (status, status), raw[:80]
        assert "canary" not in json.dumps(told)


def test_connections_on_which_nothing_comes_hold_no_thread(stubborn: Running) -> None:
    silent = [stubborn.connect() for _ in range(110)]  # more than it has threads
    assert stubborn.ask("GET", "/healthz")[0] == 200
    for connection in silent:
        connection.close()


def test_uploads_over_the_limit_wait_and_leave_threads_to_others(stubborn: Running) -> None:
    bodies = [form_of(f"{number}.txt", f"Tea at {number}.") for number in range(18)]
    sending = []
    for body in bodies:
        sending.append(stubborn.connect())
        sending[-1].sendall(head_of("/api/rag/upload", len(body)) + body[:-1])
    arrived = [stubborn.connect() for _ in range(17)]  # more than uploads may wait
    for connection in arrived:
        connection.sendall(head_of("/api/rag/upload", len(bodies[0])) + bodies[0])
    assert stubborn.ask("GET", "/healthz")[0] == 200
    assert stubborn.post("/api/memory/search", text="tea", mode="lexical")[0] == 200
    for connection, body in zip(sending, bodies, strict=True):
        connection.sendall(body[-1:])
    answers = [answer_on(connection) for connection in sending + arrived]
    refused = [told["limit"] for status, told in answers if status == 429]
    assert refused == ["max_uploads"] * 18  # of 35 uploads, one runs and 16 wait
    assert [status for status, told in answers if status != 429] == [201] * 17
    for connection in sending + arrived:
        connection.close()


def test_slow_bodies_leave_threads_to_others(stubborn: Running) -> None:
    body = json.dumps({"text": "tea", "mode": "lexical"}).encode()
    slow = [stubborn.connect() for _ in range(30)]
    for number, connection in enumerate(slow):
        head = head_of("/api/memory/search", len(body), JSON)
        if number % 2:
            length, chunk = b"Content-Length: %d" % len(body), b"%x\r\n" % len(body)
            head = head.replace(length, b"Transfer-Encoding: chunked") + chunk
        connection.sendall(head + body[:-1])
    assert stubborn.ask("GET", "/healthz")[0] == 200
    assert stubborn.ask("GET", "/api/rag/documents")[0] == 200
    assert stubborn.upload("a.txt", "Tea at four.")[0] == 201
    for _ in range(5):  # a body that has arrived needs no place
        with stubborn.connect() as connection:
            connection.sendall(head_of("/api/memory/search", len(body), JSON) + body)
            assert answer_on(connection)[0] == 200
    wait_until(lambda: len(select.select(slow, [], [], 0)[0]) == 6)  # the server has begun to read all of them
    for number, connection in enumerate(slow):
        connection.sendall(body[-1:] + (b"\r\n0\r\n\r\n" if number % 2 else b""))
    answers = [answer_on(connection) for connection in slow]
    assert [status for status, _ in answers].count(200) == 24
    assert [told["limit"] for status, told in answers if status != 200] == ["max_bodies"] * 6
    for connection in slow:
        connection.close()


def test_clients_that_do_not_read_leave_threads_to_others(stubborn: Running) -> None:
    status, told = stubborn.upload("long.txt", "Tea at four." + "\n" * 6_000_000)
    assert status == 201
    request = (
        f"GET /api/rag/documents/{told['documents'][0]['id']}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    )
    deaf = [stubborn.connect() for _ in range(110)]  # more than it has threads
    for connection in deaf:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request)
    assert stubborn.ask("GET", "/healthz")[0] == 200
    assert stubborn.upload("a.txt", "Tea at five.")[0] == 201
    for connection in deaf:
        connection.close()


PARTIAL = {
    "a first request": b"G",
    "headers without an end": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5000,
    "the request after one that was answered": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nG",
}


@pytest.mark.parametrize("sent", PARTIAL.values(), ids=PARTIAL)
def test_headers_that_are_not_whole_hold_no_thread(stubborn: Running, sent: bytes) -> None:
    partial = [stubborn.connect() for _ in range(20)]
    for connection in partial:
        connection.sendall(sent)
    if b"\r\n\r\n" in sent:
        assert {answer_on(connection)[0] for connection in partial} == {200}
    assert stubborn.ask("GET", "/healthz")[0] == 200
    for connection in partial:
        connection.sendall(b"ET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" if sent[-1:] == b"G" else b"\r\n\r\n")
    assert {answer_on(connection)[0] for connection in partial} == {200}
    for connection in partial:
        connection.close()


def test_headers_that_are_never_whole_end_the_connection(impatient: Running) -> None:
    partial = [(sent, impatient.connect()) for sent in PARTIAL.values()]
    for sent, connection in partial:
        connection.sendall(sent)
        if b"\r\n\r\n" in sent:
            assert answer_on(connection)[0] == 200
    for _, connection in partial:
        assert connection.recv(1) == b""
        connection.close()


def test_a_connection_is_used_for_many_requests_in_whatever_pieces_they_come(stubborn: Running) -> None:
    asked = b"POST /api/rag/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = b'{"question": "Tea?", "namespace": "%s"}' % (b"n" * 100)
    asked += b"Content-Length: %d\r\n\r\n" % len(body) + body
    with stubborn.connect() as connection:
        for size in (1, 7, 150, len(asked) + 50, 5 * len(asked)):
            pieces = b"".join([asked] * (1 if size == 1 else 5))
            for start in range(0, len(pieces), size):
                connection.sendall(pieces[start : start + size])
                time.sleep(0.001)
            answers = connection.makefile("rb")
            for _ in range(len(pieces) // len(asked)):
                assert status_in(answers) == 200


@pytest.mark.parametrize(("endless", "status"), [(b"GET /", 414), (b"GET / HTTP/1.1\r\nHost: localhost\r\n", 431)])
def test_headers_that_do_not_end_are_refused_when_too_much_came(stubborn: Running, endless: bytes, status: int) -> None:
    with stubborn.connect() as connection:
        connection.sendall(endless)
        for number in range(100 * 1024 // 40):
            try:
                connection.sendall(b"x" * 40 if status == 414 else b"x%d: %s\r\n" % (number, b"x" * 30))
            except OSError:  # refused already
                break
        got, told = answer_on(connection)
    assert (got, told["status"]) == (status, status)


def test_who_is_refused_before_the_body_is_sent_holds_no_thread(impatient: Running) -> None:
    refused = [impatient.connect() for _ in range(8)]
    for connection in refused:
        connection.sendall(head_of("/api/rag/upload", 5000).replace(b"localhost", b"elsewhere.test"))
    assert {answer_on(connection)[0] for connection in refused} == {421}
    assert impatient.ask("GET", "/healthz")[0] == 200
    for connection in refused:
        connection.sendall(b"x" * 5000)  # is taken, and the connection stands until it has been idle for a second
        assert connection.recv(1) == b""
        connection.close()


def test_who_sends_a_byte_now_and_then_is_told_that_it_is_too_slow(impatient: Running) -> None:
    with impatient.connect() as connection:
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
    assert impatient.ask("GET", "/healthz")[0] == 200


def test_clients_that_go_away_in_mid_upload_leave_nothing(stubborn: Running) -> None:
    body = form_of("half.txt", "The caretaker keeps the keys. " * 2000)
    for number in range(8):
        connection = stubborn.connect()
        connection.sendall(head_of("/api/rag/upload", len(body)) + body[: len(body) // 2])
        if number % 2:  # with a reset instead of an end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    assert stubborn.upload("whole.txt", "Tea at six.")[0] == 201
    names = stubborn.documents()
    assert "whole.txt" in names and "half.txt" not in names
