"""Clients that upload and ask at once, and remember what the server has acknowledged.

    python -m tests.faults.serve_load URL CLIENTS SECONDS

prints what was seen.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests import forked

BOUND = 120.0  # seconds that anything here waits at most
KINDS = ("query", "upload", "async", "list")
NOTHING: Mapping[str, str] = MappingProxyType({})
WORDS = ("caretaker", "keeps", "keys", "blue", "cupboard", "boats", "lifted", "water", "October", "tea", "rope")


class Server:
    """`agentformer serve` in a process of its own, over the folders of `folder`. `before` is Python that it runs first;
    `environ` is added to its environment."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        before: str = "",
        environ: Mapping[str, str] = NOTHING,
    ) -> None:
        command = ["serve", "--embedder", "hashing", "--port", "0", *options]
        where = ["--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u"]
        self.log = folder / "log.txt"
        with self.log.open("a") as log:
            own_group = f"import os\nos.setsid()\n{before}"
            self.process = forked.command(
                *command, *where, before=own_group, imports=forked.SERVE, cwd=folder, env=environ, stderr=log
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, f"{line!r}: {self.log.read_text()[-2000:]}"
        self.port = int(line.strip().rpartition(":")[2].split("/")[0])

    def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        try:
            return called(connection, method, path, body, headers)
        finally:
            connection.close()

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(BOUND)

    def kill(self) -> None:
        """`kill -9`, of all its processes at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(BOUND)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout:
            self.process.stdout.close()

    def processes(self) -> list[int]:
        """Those that serve: the process itself, or its children."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children] or [self.process.pid]

    def threads(self) -> int:
        return sum(len([*Path(f"/proc/{pid}/task").iterdir()]) for pid in self.processes())

    def memory(self) -> int:
        """Bytes that its processes hold now."""
        lines = [line for pid in self.processes() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def documents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            page = self.call("GET", f"/api/rag/documents?limit=200&after={page['next']}").json
            found += page["documents"]
        return found

    def ended_job(self, job_id: str) -> dict[str, Any]:
        deadline = time.monotonic() + BOUND
        while True:
            job: dict[str, Any] = self.call("GET", f"/api/jobs/{job_id}").json
            if job["state"] not in ("queued", "running"):
                return job
            assert time.monotonic() < deadline, job
            time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def called(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def multipart(files: dict[str, bytes]) -> tuple[bytes, str]:
    """A body and its type."""
    border = uuid.uuid4().hex
    parts = [
        f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
        + data
        + b"\r\n"
        for name, data in files.items()
    ]
    return b"".join([*parts, f"--{border}--\r\n".encode()]), f"multipart/form-data; boundary={border}"


def text(choose: random.Random, words: int) -> bytes:
    return " ".join(choose.choice(WORDS) for _ in range(words)).encode()


@dataclass
class Load:
    """What clients do with a server until `stop` is set, or until it goes away if that is `expected`."""

    server: Server
    clients: int
    seed: int = field(default_factory=lambda: random.randrange(10**6))
    expected: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    seen: Counter[str] = field(default_factory=Counter)  # kind of call and status -> how often
    faults: list[str] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)  # names acknowledged by 201 -> SHA-256
    accepted: dict[str, dict[str, str]] = field(default_factory=dict)  # job -> names acknowledged by 202 -> SHA-256
    seconds: list[float] = field(default_factory=list)  # of each query

    def start(self) -> None:
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(self.clients)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(BOUND)
            assert not thread.is_alive(), "a client got no answer"

    def run(self, seconds: float) -> None:
        self.start()
        self.stop.wait(seconds)
        self.stop.set()
        self.join()

    def figures(self) -> dict[str, Any]:
        queries = statistics.quantiles(self.seconds, n=20) if len(self.seconds) > 1 else [0.0] * 19
        return {
            "calls": sum(self.seen.values()),
            "seen": dict(sorted(self.seen.items())),
            "documents_acknowledged": len(self.stored) + sum(map(len, self.accepted.values())),
            "jobs": len(self.accepted),
            "query_ms_p50": round(statistics.median(self.seconds or [0.0]) * 1000),
            "query_ms_p95": round(queries[18] * 1000),
        }

    def _client(self, number: int) -> None:
        choose = random.Random(f"{self.seed} {number}")
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=BOUND)
        kind = KINDS[number % len(KINDS)]  # so that each kind is called, however slow the machine is
        while not self.stop.is_set():
            try:
                getattr(self, f"_{kind}")(connection, choose, number)
                kind = choose.choices(KINDS, (5, 3, 2, 1))[0]
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if self.expected:
                    return
                self._fault(f"{type(error).__name__}: {error}")
        connection.close()

    def _ask(
        self,
        kind: str,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        **headers: str,
    ) -> Answer | None:
        """The answer, unless the server is too busy for it; then the client waits for as long as it is told."""
        answer = called(connection, method, path, body, headers)
        with self._lock:
            self.seen[f"{kind} {answer.status}"] += 1
        if answer.status == 429:
            self.stop.wait(min(5.0, float(answer.headers["retry-after"])))
            return None
        if answer.status not in (200, 201, 202):
            self._fault(f"{kind} {answer.status}: {answer.data[:300]!r}")
            return None
        return answer

    def _query(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        body = json.dumps({"question": text(choose, 4).decode()}).encode()
        began = time.monotonic()
        if self._ask("query", connection, "POST", "/api/rag/query", body, Content_Type="application/json"):
            with self._lock:
                self.seconds.append(time.monotonic() - began)

    def _upload(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        files = self._files(choose, number)
        body, kind = multipart(files)
        if answer := self._ask("upload", connection, "POST", "/api/rag/upload", body, Content_Type=kind):
            documents = answer.json["documents"]
            if [d["status"] for d in documents] != ["ready"] * len(files):
                self._fault(f"not ready: {documents}")
            with self._lock:
                self.stored |= _digests(files)

    def _async(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        files = self._files(choose, number)
        body, kind = multipart(files)
        path = "/api/rag/upload"
        if answer := self._ask("async", connection, "POST", path, body, Content_Type=kind, Prefer="respond-async"):
            with self._lock:
                self.accepted[answer.json["id"]] = _digests(files)
            if answer.headers["location"] != f"/api/jobs/{answer.json['id']}":
                self._fault(f"location {answer.headers['location']}")

    def _list(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        self._ask("list", connection, "GET", choose.choice(("/api/rag/documents?limit=20", "/api/jobs?limit=20")), None)

    def _files(self, choose: random.Random, number: int) -> dict[str, bytes]:
        return {
            f"{number}-{uuid.UUID(int=choose.getrandbits(128)).hex}.txt": text(choose, choose.choice((20, 200, 2000)))
            for _ in range(choose.choice((1, 1, 2)))
        }

    def _fault(self, told: str) -> None:
        with self._lock:
            self.faults.append(told)


def _digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def check_nothing_is_lost(server: Server, load: Load) -> None:
    """Every acknowledged file is a document, once; every accepted job has ended well."""
    wanted = dict(load.stored)
    for job_id, files in load.accepted.items():
        job = server.ended_job(job_id)
        assert job["state"] == "done", job
        assert [d["status"] for d in job["documents"]] == ["ready"] * len(files), job
        wanted |= files
    documents = server.documents()
    names = Counter(document["name"] for document in documents)
    assert [name for name, count in names.items() if count > 1] == []
    there = {document["name"]: document["sha256"] for document in documents if document["status"] == "ready"}
    assert {name: digest for name, digest in wanted.items() if there.get(name) != digest} == {}


class _Running(Server):
    """A server that somebody else has started."""

    def __init__(self, port: int) -> None:
        self.port = port


if __name__ == "__main__":
    under_load = Load(_Running(int(sys.argv[1].rstrip("/").rpartition(":")[2])), int(sys.argv[2]))
    under_load.run(float(sys.argv[3]))
    check_nothing_is_lost(under_load.server, under_load)
    print(json.dumps({**under_load.figures(), "faults": under_load.faults[:5]}, indent=1))
