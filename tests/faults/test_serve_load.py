"""`agentformer serve` under many clients, ended and killed in the middle: no 5xx, nothing lost that it acknowledged.

A second and eight clients in the normal suite; `FAULTS_CLIENTS=32 FAULTS_SECONDS=120` for more.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
from long_form import LONG, long_form
from serve_load import BOUND, Answer, Load, Server, check_nothing_is_lost, multipart

CLIENTS = int(os.environ.get("FAULTS_CLIENTS", "8"))
SECONDS = float(os.environ.get("FAULTS_SECONDS", "1"))

SLOW = 30  # files of a job that goes on while something else happens

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGTERM and SIGKILL")
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")

Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Server] = []

    def start(*options: str, before: str = "", **environ: str) -> Server:
        started.append(Server(tmp_path, *options, before=before, environ=environ))
        return started[-1]

    yield start
    for server in started:
        server.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_both(load: Load) -> None:
    """Until the server has acknowledged some uploads of either kind."""
    until(lambda: len(load.accepted) > 2 and len(load.stored) > 2)


@pytest.mark.parametrize("options", [(), pytest.param(("--workers", "2"), marks=long_form)], ids=" ".join)
def test_many_clients_lose_nothing_and_see_no_error_of_the_server(start: Start, options: tuple[str, ...]) -> None:
    server = start(*options)
    load = Load(server, CLIENTS)
    print("seed", load.seed)
    load.run(SECONDS)
    print(json.dumps(load.figures(), indent=1))
    assert load.faults == []
    assert load.seen["query 200"] and load.stored and load.accepted
    check_nothing_is_lost(server, load)
    assert server.end() == 0
    check_nothing_is_lost(start(*options), load)
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("options", [(), pytest.param(("--server", "waitress"), marks=long_form)], ids=" ".join)
def test_sigterm_in_the_middle_loses_no_acknowledged_upload(start: Start, options: tuple[str, ...]) -> None:
    server = start(*options)
    load = Load(server, CLIENTS, expected=True)
    print("seed", load.seed)
    load.start()
    wait_for_both(load)
    server.process.terminate()
    load.stop.wait(1)  # they go on asking while it ends
    load.stop.set()
    load.join()
    assert server.process.wait(BOUND) == 0
    assert load.faults == []
    check_nothing_is_lost(start(*options), load)


def test_kill_9_in_the_middle_loses_no_acknowledged_upload(start: Start) -> None:
    loads = []
    for _ in range(2 if LONG else 1):
        server = start("--workers", "2")
        loads.append(load := Load(server, CLIENTS, expected=True))
        print("seed", load.seed)
        load.start()
        wait_for_both(load)
        server.kill()
        load.join()
        assert load.faults == []
    server = start("--workers", "2")
    for load in loads:
        check_nothing_is_lost(server, load)


def test_the_same_file_from_everybody_at_once_is_one_document(start: Start) -> None:
    server = start("--workers", "2")
    body, kind = multipart({"rules.txt": b"The caretaker keeps the keys in the blue cupboard. " * 200})
    go = threading.Barrier(8)

    def send(number: int) -> tuple[int, str]:
        go.wait(BOUND)
        prefer = {"Prefer": "respond-async"} if number % 2 else {}
        answer = server.call("POST", "/api/rag/upload", body, Content_Type=kind, **prefer)
        return answer.status, answer.json.get("id", "")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert {status for status, _ in answers} <= {201, 202, 429}
    jobs = [server.ended_job(job_id) for status, job_id in answers if status == 202]
    assert {job["state"] for job in jobs} == {"done"}
    assert [(d["name"], d["status"]) for d in server.documents()] == [("rules.txt", "ready")]


@needs_proc
@pytest.mark.parametrize("options", [(), pytest.param(("--server", "waitress"), marks=long_form)], ids=" ".join)
def test_clients_that_go_away_in_the_middle_leave_no_thread_and_nothing_stored(
    start: Start, options: tuple[str, ...]
) -> None:
    server = start(*options)
    job = slow_job(server, words=20_000)  # a minute at least, and it is cancelled in the end
    leave([half_an_upload(server) for _ in range(16)])  # so that all threads that the server will ever have are there
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: server.call("GET", "/healthz").status, range(64)))
    threads = server.threads()

    leave([half_an_upload(server) for _ in range(6)] + [a_follower(server, job) for _ in range(2)])
    until(lambda: server.threads() <= threads)
    body, kind = multipart({"whole.txt": b"Boats are lifted out of the water in October."})
    with ThreadPoolExecutor(4) as pool:
        sent = list(
            pool.map(lambda _: server.call("POST", "/api/rag/upload", body, Content_Type=kind).status, range(4))
        )
    assert sent == [201] * 4
    server.call("DELETE", f"/api/jobs/{job}")
    assert server.ended_job(job)["state"] == "cancelled"
    assert "half.txt" not in [document["name"] for document in server.documents()]
    assert server.end() == 0


def slow_job(server: Server, words: int) -> str:
    """A job of many files."""
    files = {f"slow{n}.txt": " ".join(f"rope{n}x{i}" for i in range(words)).encode() for n in range(SLOW)}
    body, kind = multipart(files)
    answer = server.call("POST", "/api/rag/upload", body, Content_Type=kind, Prefer="respond-async")
    assert answer.status == 202
    return str(answer.json["id"])


def leave(connections: list[socket.socket]) -> None:
    time.sleep(0.5)
    for connection in connections:
        connection.close()


def half_an_upload(server: Server) -> socket.socket:
    body, kind = multipart({"half.txt": b"x" * 100_000})
    head = f"POST /api/rag/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=BOUND)
    connection.sendall(head.encode() + b"\r\n\r\n" + body[: len(body) // 2])
    return connection


def a_follower(server: Server, job: str) -> socket.socket:
    """It has seen the first event."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=BOUND)
    request = f"GET /api/jobs/{job} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
    connection.sendall(request.encode())
    seen = b""
    while b"event: progress" not in seen:
        data = connection.recv(4096)
        assert data, seen
        seen += data
    return connection


def test_a_server_that_ends_while_a_job_is_followed_hands_it_over(start: Start) -> None:
    server = start()
    job = slow_job(server, words=10)
    follower = a_follower(server, job)
    assert server.end() == 0
    follower.close()
    again = start()
    done = again.ended_job(job)
    assert (done["state"], done["progress"]["files_done"]) == ("done", SLOW)
    assert len(again.documents()) == SLOW
    assert again.end() == 0


def test_without_room_nothing_is_acknowledged_and_the_server_goes_on(start: Start) -> None:
    room = 2_000_000  # bytes that any one file may have
    server = start(before=f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))")
    big, kind = multipart({"big.txt": b"x" * (room + 1)})
    for prefer in ({}, {"Prefer": "respond-async"}):
        refused = server.call("POST", "/api/rag/upload", big, Content_Type=kind, **prefer)
        assert (refused.status, refused.json["type"]) == (507, "urn:agentformer:problem:store-full")
    assert server.call("GET", "/api/jobs").json["jobs"] == []
    small, kind = multipart({"small.txt": b"Tea is served at four."})
    accepted = server.call("POST", "/api/rag/upload", small, Content_Type=kind, Prefer="respond-async")
    assert server.ended_job(accepted.json["id"])["state"] == "done"
    assert [document["name"] for document in server.documents()] == ["small.txt"]
    assert server.end() == 0


STORM = 64  # clients that upload at once, where four may


@needs_proc
@pytest.mark.parametrize("options", [(), pytest.param(("--server", "waitress"), marks=long_form)], ids=" ".join)
def test_a_storm_of_uploads_is_told_to_come_again_and_leaves_no_trace(start: Start, options: tuple[str, ...]) -> None:
    server = start(*options)
    blob = b"\x7fELF\x02" + bytes(range(256)) * 16_000  # no document, so that it is only taken and looked at
    body, kind = multipart({"blob.bin": blob})
    assert server.call("POST", "/api/rag/upload", body, Content_Type=kind).status == 422
    before, most = server.memory(), [0]
    go = threading.Barrier(STORM)

    def send(number: int) -> Answer:
        go.wait(BOUND)
        answer = server.call("POST", "/api/rag/upload", body, Content_Type=kind)
        most[0] = max(most[0], server.memory())
        return answer

    with ThreadPoolExecutor(STORM) as pool:
        answers = list(pool.map(send, range(STORM)))
    told = Counter(answer.status for answer in answers)
    assert set(told) == {422, 429}, told
    assert all(int(answer.headers["retry-after"]) > 0 for answer in answers if answer.status == 429)
    assert most[0] - before < STORM * len(blob) / 2, "what came too much was held in memory"
    small, kind = multipart({"after.txt": b"The rope is blue."})
    after = [server.call("POST", "/api/rag/upload", small, Content_Type=kind) for _ in range(3)]
    assert {answer.status for answer in after} == {201}, "the storm is over"
    assert server.end() == 0


def test_a_queue_that_is_full_takes_no_further_job_until_one_has_ended(start: Start) -> None:
    server = start(AGENTFORMER_MAX_JOBS="2")
    jobs = [slow_job(server, words=2000) for _ in range(2)]
    body, kind = multipart({"third.txt": b"The rope is blue."})

    def third() -> Answer:
        return server.call("POST", "/api/rag/upload", body, Content_Type=kind, Prefer="respond-async")

    refused = third()
    assert (refused.status, refused.json["limit"]) == (429, "max_jobs")
    assert int(refused.headers["retry-after"]) > 0
    assert server.call("POST", "/api/rag/upload", body, Content_Type=kind).status == 201  # the others go on
    for job in jobs:
        server.call("DELETE", f"/api/jobs/{job}")
        server.ended_job(job)
    accepted = third()
    assert accepted.status == 202
    assert server.ended_job(accepted.json["id"])["state"] == "done"


def test_a_body_that_is_too_long_is_refused_before_it_is_sent(start: Start) -> None:
    server = start()
    for path in ("/api/rag/upload", "/api/memory"):
        kind = "application/json" if path == "/api/memory" else "multipart/form-data; boundary=x"
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {2 << 30}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=BOUND) as connection:
            connection.sendall(head.encode())  # and nothing of the body
            told = b""
            while b"too-large" not in told:
                data = connection.recv(4096)
                assert data, told
                told += data
        assert told.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("options", [(), pytest.param(("--server", "waitress"), marks=long_form)], ids=" ".join)
def test_many_connections_that_say_nothing_keep_nobody_out(start: Start, options: tuple[str, ...]) -> None:
    server = start(*options)
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=BOUND) for _ in range(80)]
    for connection in silent[::2]:
        connection.sendall(b"POST /api/rag/query HTTP/1.1\r\nHost:")
    load = Load(server, CLIENTS)
    load.run(min(SECONDS, 1))
    for connection in silent:
        connection.close()
    assert load.faults == [] and load.seen["query 200"]
