"""`agentformer serve` as a process: how it starts, what its processes share, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("flask", reason="the extra `server` is not installed")
pytest.importorskip("waitress", reason="the extra `server` is not installed")
if os.name != "posix":
    pytest.skip("gunicorn runs on POSIX only", allow_module_level=True)

import agentformer
from agentformer.access.hosts import is_local
from agentformer.access.keys import KeyStore
from agentformer.api.serving import open_listener
from agentformer.cli import main
from agentformer.errors import InvalidInput
from agentformer.servers.listening import url_of
from agentformer.settings import Settings
from tests.edges.running import BOUND, FORM, Running, Serve, answer_on, form_of, head_of, takes_connections, wait_until

pytestmark = pytest.mark.process
SERVERS = ("gunicorn", "waitress")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    running: list[Running] = []

    def serve(*options: str, **more: Any) -> Running:
        running.append(Running(tmp_path, *options, **more))
        return running[-1]

    yield serve
    for each in running:
        each.close()


# The start


@pytest.mark.parametrize("server", SERVERS)
def test_it_says_where_once_it_answers_and_ends_well_at_sigterm(serve: Serve, server: str) -> None:
    running = serve("--server", server, "--threads", "1")
    silent = [running.connect() for _ in range(20)]  # connections on which nothing comes
    assert running.ask("GET", "/healthz")[0] == 200
    assert running.documents() == []
    assert running.ask("GET", "/api/rag/documents", headers={"X-Forwarded-For": "127.0.0.1"})[0] == 401
    assert running.end() == 0
    assert "Traceback" not in running.told()
    for connection in silent:
        assert connection.recv(1) == b""
        connection.close()


def test_a_program_reads_the_address_and_each_request_from_json_and_ctrl_c_ends_it(serve: Serve) -> None:
    running = serve("--json", "--log-format", "json")
    address = json.loads(running.said)["url"]
    assert address.startswith("http://127.0.0.1:")
    running.port = int(address.rpartition(":")[2])
    running.ask("GET", "/healthz?canary", headers={"X-Request-ID": "trace"})
    assert running.upload("a.txt", "Tea at four.")[0] == 201
    assert running.end(signal.SIGINT) == 0
    lines = [json.loads(line) for line in running.told().splitlines()]
    told, _ = (line for line in lines if line["logger"] == "agentformer.requests")
    assert (told["method"], told["path"], told["status"], told["request_id"]) == ("GET", "/healthz", 200, "trace")


def test_with_a_key_it_listens_everywhere_and_lets_only_the_key_in(serve: Serve, tmp_path: Path) -> None:
    _, secret = KeyStore(tmp_path / "indexes").make("office")
    running = serve("--host", "0.0.0.0")
    running.port = int(running.said.rpartition(":")[2])
    assert running.ask("GET", "/api/rag/documents")[0] == 401
    assert running.ask("GET", "/api/rag/documents", headers={"Authorization": f"Bearer {secret}"})[0] == 200
    assert running.end() == 0
    assert secret not in running.told()
    assert "Traceback" not in running.told()


@pytest.mark.parametrize("server", SERVERS)
def test_where_it_cannot_or_must_not_listen_it_says_why_and_ends(server: str, tmp_path: Path) -> None:
    def refused(*options: str) -> Result:
        where = ("--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket.socket, "listen", None)  # so that one that listens fails, and does not serve
            done = CliRunner().invoke(main, ["serve", "--server", server, *where, *options])
        assert done.stdout == ""
        return done

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = refused("--port", str(port))
    assert (done.exit_code, f"127.0.0.1:{port}" in done.stderr) == (2, True)
    done = refused("--port", "0", "--host", "0.0.0.0")
    assert (done.exit_code, "agentformer keys add" in done.stderr) == (2, True)
    (tmp_path / "i").mkdir(exist_ok=True)
    (tmp_path / "i" / "keys.json").write_text("{")
    done = refused("--port", "0")
    assert (done.exit_code, "keys.json" in done.stderr) == (3, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", socket.gethostname()])
def test_no_name_or_address_of_others_gets_around_it(tmp_path: Path, host: str) -> None:
    if host != "::" and is_local(socket.gethostbyname(host)):
        pytest.skip("this machine's name leads to itself alone")
    with pytest.raises(InvalidInput, match="agentformer keys add"):
        open_listener(Settings(index_dir=tmp_path, host=host, port=0))


@pytest.mark.parametrize("host", ["", "nowhere.invalid", "1.2.3.4.5", "256.1.1.1", "a b", "ä" * 70, "198.51.100.1"])
def test_an_address_that_is_not_ours_is_told(tmp_path: Path, host: str) -> None:
    KeyStore(tmp_path).make("office")
    with pytest.raises(InvalidInput) as refused:
        open_listener(Settings(index_dir=tmp_path, host=host, port=0))
    assert refused.value.field in ("host", "port")


@pytest.mark.parametrize(("host", "url"), [("localhost", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
def test_a_loopback_address_needs_no_key(tmp_path: Path, host: str, url: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("no IPv6 here")
    with open_listener(Settings(index_dir=tmp_path, host=host, port=0)) as listener:
        assert url_of(listener).startswith(url)
        assert url_of(listener).removeprefix(url) != "0"


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.usefixtures("faiss_files")
@pytest.mark.parametrize("options", [("--workers", "2"), ("--server", "waitress")])
def test_a_memory_that_cannot_be_opened_ends_it_with_the_errors_own_words(
    serve: Serve, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "indexes").mkdir()
    (tmp_path / "indexes" / "memory.sqlite3").write_bytes(b"no database" * 100)
    running = serve(*options)
    assert running.process.wait(BOUND) == 3
    (line,) = running.told().splitlines()
    assert line.startswith("error: ")
    assert "damaged" in line
    assert running.said == ""


def test_a_wrong_setting_that_the_memory_finds_is_a_wrong_argument(serve: Serve) -> None:
    running = serve("--embedder", "nosuch")
    assert running.process.wait(BOUND) == 2
    (line,) = running.told().splitlines()
    assert "nosuch" in line


# The end


@pytest.mark.parametrize("server", SERVERS)
def test_a_request_that_is_half_sent_at_sigterm_is_answered_and_an_upload_is_kept(
    serve: Serve, server: str, tmp_path: Path
) -> None:
    running = serve(
        "--server",
        server,
        before="import agentformer.api.serving.gunicorn as ours\nours._IDLE_AT_END_SECONDS = 19",
    )
    body = form_of("half.txt", "The caretaker keeps the keys. " * 2000)
    with running.connect() as connection, running.connect() as greeting:
        connection.sendall(head_of("/api/rag/upload", len(body)) + body[: len(body) // 2])
        if server == "gunicorn":
            greeting.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        else:  # waitress takes a body in before it is a request
            connection.sendall(body[len(body) // 2 :])
        assert running.ask("GET", "/healthz")[0] == 200  # so the connections before it were accepted
        time.sleep(0.5)  # it is being read
        running.process.send_signal(signal.SIGTERM)
        if server == "gunicorn":
            wait_until(lambda: not takes_connections(running.port))
            greeting.sendall(b"st: localhost\r\n\r\n")
            assert answer_on(greeting)[0] == 200
            connection.sendall(body[len(body) // 2 :])
        status, told = answer_on(connection)
    assert (status, told["documents"][0]["status"]) == (201, "ready")
    assert running.process.wait(BOUND) == 0
    with agentformer.connect(index_dir=tmp_path / "indexes", upload_dir=tmp_path / "uploads", embedder="hashing") as af:
        assert [document.name for document in af.rag.documents()] == ["half.txt"]


def test_a_request_that_does_not_end_is_cut_off_and_the_memory_is_closed(serve: Serve, tmp_path: Path) -> None:
    running = serve(before="import agentformer.api.serving.gunicorn as ours\nours.FINISH_SECONDS = 1")
    assert running.upload("kept.txt", "Tea at four.")[0] == 201
    with running.connect() as connection:
        connection.sendall(head_of("/api/rag/upload", 1000) + b"--x\r\n")
        assert running.ask("GET", "/healthz")[0] == 200  # so the connection before it was accepted
        time.sleep(0.5)
        assert running.end() == 0
    with agentformer.connect(index_dir=tmp_path / "indexes", upload_dir=tmp_path / "uploads", embedder="hashing") as af:
        assert [document.name for document in af.rag.documents()] == ["kept.txt"]


SLOW = (  # a file is read until its job is broken off
    "import time; from agentformer.rag.ingest import IngestPipeline\n"
    "def slow(self, document, text, progress, chunks):\n"
    "    while True: progress(0, 1), time.sleep(0.01)\n"
    "IngestPipeline.entries = slow\n"
)


@pytest.mark.parametrize("server", SERVERS)
def test_who_follows_a_running_job_does_not_hold_up_the_end(serve: Serve, server: str) -> None:
    endless = f"import agentformer.api.serving.{server} as ours\nours.FINISH_SECONDS = 500\n"
    running = serve("--server", server, before=endless + SLOW)
    headers = {**FORM, "Prefer": "respond-async"}
    status, job = running.ask("POST", "/api/rag/upload", form_of("a.txt", "Tea at four."), headers)
    assert status == 202
    with running.connect() as connection:
        connection.sendall(
            f"GET /api/jobs/{job['id']} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        stream = connection.makefile("rb")
        wait_until(lambda: b'"state": "running"' in stream.readline())
        assert running.end() == 0
        assert b"event: done" not in stream.read()
    assert "Traceback" not in running.told()


# Several processes

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells processes apart by /proc")


@needs_proc
def test_what_one_process_stores_the_other_sees_at_once(serve: Serve, tmp_path: Path) -> None:
    running = serve("--workers", "2")
    wait_until(lambda: len(running.workers()) == 2)
    one, other = running.workers()

    def only(worker: int) -> None:
        for each in (one, other):
            os.kill(each, signal.SIGCONT if each == worker else signal.SIGSTOP)

    try:
        only(one)
        assert running.upload("one.txt", "Tea at four.")[0] == 201
        only(other)
        assert running.documents() == ["one.txt"]
        assert running.upload("other.txt", "Coffee at five.")[0] == 201
        _, secret = KeyStore(tmp_path / "indexes").make("office")
        assert running.ask("GET", "/api/rag/documents")[0] == 401
        only(one)
        assert running.ask("GET", "/api/rag/documents")[0] == 401
        status, listed = running.ask("GET", "/api/rag/documents", headers={"Authorization": f"Bearer {secret}"})
        assert (status, {document["name"] for document in listed["documents"]}) == (200, {"one.txt", "other.txt"})
    finally:
        for each in (one, other):
            os.kill(each, signal.SIGCONT)
    assert running.end() == 0


@needs_proc
def test_a_process_that_dies_is_replaced_and_all_end_when_their_watcher_dies(serve: Serve) -> None:
    running = serve("--workers", "2")
    wait_until(lambda: len(running.workers()) == 2)
    assert running.upload("a.txt", "Tea at four.")[0] == 201
    dead, _ = running.workers()
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: len({*running.workers()} - {dead}) == 2)
    assert running.documents() == ["a.txt"]
    workers = running.workers()
    running.process.kill()
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert not takes_connections(running.port)
