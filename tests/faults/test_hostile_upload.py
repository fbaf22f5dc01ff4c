"""Files that mean harm, sent to a real server: refused within the limits, while questions are answered.

Two files and a sparse one in the normal suite; `FAULTS_HOSTILE=all` for more.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
from serve_load import BOUND, Server, multipart

from tests import forked
from tests.readers.hostile import HOSTILE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGTERM and SIGKILL")

SPARSE = 2 << 30
SLOW = "took longer than 1 s"
# What is sent, with the words that refuse it: a decompression bomb, and pages without end. On a crowded machine a bomb
# of half a second is slow, too.
REFUSED = {"docx-bomb_that_claims_little": "damaged", "pdf-slow_pages": SLOW}
if os.environ.get("FAULTS_HOSTILE"):
    REFUSED |= {"pdf-flate_bomb": "damaged", "docx-bomb": "has over 200 MiB of text", "pdf-kids_loop": "damaged"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("AGENTFORMER_READ_SECONDS", "1")
    server = Server(tmp_path)
    try:
        yield server
    finally:
        server.close()


class Asking(threading.Thread):
    """A client that asks all the while."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.statuses: list[int] = []
        self._server = server

    def run(self) -> None:
        body = json.dumps({"question": "Who keeps the keys?"}).encode()
        while not self.done.wait(0.05):
            answer = self._server.call("POST", "/api/rag/query", body, Content_Type="application/json")
            good = answer.status == 200 and "caretaker" in answer.json["answer"]
            self.statuses.append(200 if good else -answer.status)


def upload(server: Server, name: str, data: bytes) -> tuple[int, dict[str, Any]]:
    body, kind = multipart({name: data})
    answer = server.call("POST", "/api/rag/upload", body, Content_Type=kind)
    return answer.status, answer.json["documents"][0]


def test_bombs_and_loops_and_a_sparse_file_are_refused_while_questions_are_answered(
    server: Server, tmp_path: Path
) -> None:
    assert upload(server, "keys.txt", b"The caretaker keeps the keys in the blue cupboard.")[0] == 201
    asking = Asking(server)
    asking.start()
    try:
        for name, told in REFUSED.items():
            file, make = HOSTILE[name]
            before = len(asking.statuses)
            status, document = upload(server, file, make(""))
            assert (status, document["status"]) == (422, "failed"), (name, document)
            assert told in document["reason"] or SLOW in document["reason"], (name, document)
            while len(asking.statuses) == before:  # at least one question was answered with each
                assert asking.is_alive()
                time.sleep(0.02)
        assert too_large(server) == 413
        assert_sparse_file_is_not_read(tmp_path)
    finally:
        asking.done.set()
        asking.join(BOUND)
    assert set(asking.statuses) == {200}
    assert upload(server, "honest.txt", b"Ships lie at the pier.")[0] == 201
    assert server.end() == 0


def too_large(server: Server) -> int:
    """The status with which two GiB are refused, of which only the beginning is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
    connection.putrequest("POST", "/api/rag/upload")
    connection.putheader("Content-Type", "multipart/form-data; boundary=b")
    connection.putheader("Content-Length", str(SPARSE))
    connection.endheaders(b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n')
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def assert_sparse_file_is_not_read(folder: Path) -> None:
    """`ingest` tells its size, with no more memory than it needs for a file of a few bytes."""
    small, sparse = folder / "small.bin", folder / "sparse.pdf"
    small.write_bytes(b"\x00\x01")
    with sparse.open("wb") as file:
        file.truncate(SPARSE)
    usual, peak = (ingested(folder, path) for path in (small, sparse))
    assert "status" in usual[0] and "more than 268435456 bytes" in peak[0]
    assert peak[1] - usual[1] < 32 << 20


def ingested(folder: Path, path: Path) -> tuple[str, int]:
    """What the command says, and the most memory that it had."""
    where = ["--embedder", "hashing", "--index-dir", str(folder / "cli"), "--upload-dir", str(folder / "u2"), "--json"]
    told = "import atexit, resource\natexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))"
    ran = forked.ended(forked.command("ingest", path, *where, before=told))
    assert ran.returncode == 1, ran
    return ran.stdout + ran.stderr, int(ran.stdout.split()[-1]) * 1024
