"""Clients that do all that can be done over HTTP, for as long as they like, while the store stays of one size: what is
stored takes the place of what was there. And what the processes that serve hold meanwhile."""

from __future__ import annotations

import http.client
import json
import random
import socket
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from long_form import LONG
from serve_load import BOUND, Answer, Load, Server, called, multipart, text

DOCUMENTS = 4  # of each client
MEMORIES = 12
WELL = frozenset({200, 201, 202, 204})
RACED = frozenset({404, 409, 412})  # somebody else has changed or removed it meanwhile
JSON = {"Content_Type": "application/json"}
NEEDY = frozenset({"look", "update", "forget"})  # of what there is something
KINDS = {
    "query": 5,
    "upload": 2,
    "async": 1,
    "list": 2,
    "look": 2,
    "add": 3,
    "search": 4,
    "words": 2,
    "update": 2,
    "forget": 1,
    "tool": 2,
    "message": 1,
    "bad": 2,
    "leave": 1,
}
BAD: tuple[tuple[str, str, bytes, dict[str, str]], ...] = (
    ("POST", "/api/rag/query", b'{"question": ', JSON),
    ("POST", "/api/rag/query", b'{"question": "?", "nonsense": 1}', JSON),
    ("POST", "/api/memory", b'{"content": ""}', JSON),
    ("POST", "/api/memory", b"\xff\xfe", JSON),
    ("POST", "/api/rag/upload", b"--x\r\nno part", {"Content_Type": "multipart/form-data; boundary=x"}),
    ("POST", "/api/rag/upload", b"plain", {"Content_Type": "text/plain"}),
    ("GET", "/api/memory/nobody", b"", {}),
    ("PUT", "/api/memory", b"", {}),
    ("POST", "/api/tools/nothing", b"{}", JSON),
)


class MixedLoad(Load):
    """A client works on what is its own, and asks of everything."""

    def start(self) -> None:
        self._own: dict[int, list[str]] = defaultdict(list)  # client -> ids of its memories
        self._pages: set[str] = set()  # ids of documents
        self._former: dict[http.client.HTTPConnection, int] = {}  # the status of the last answer
        super().start()

    def _client(self, number: int) -> None:
        choose = random.Random(f"{self.seed} {number}")
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=BOUND)
        first = list(KINDS)[number % len(KINDS)]  # so that a short load has everything in it
        while not self.stop.is_set():
            kind, first = first or choose.choices(list(KINDS), list(KINDS.values()))[0], ""
            try:
                getattr(self, f"_{kind}")(connection, choose, number)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._fault(f"{kind}: {type(error).__name__}: {error}")
        connection.close()

    def _asked(
        self,
        kind: str,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None = None,
        fine: Iterable[int] = WELL,
        **headers: str,
    ) -> Answer | None:
        """The answer where it went well; others than these and 429 are faults."""
        try:
            answer = called(connection, method, path, body, headers)
        except (http.client.RemoteDisconnected, ConnectionError):
            former = self._former.get(connection, 0)
            if (
                not 400 <= former < 500
            ):  # else its body was not read to the end, and so the connection could not be kept
                raise http.client.HTTPException(f"no answer on a connection after {former}") from None
            connection.close()
            answer = called(connection, method, path, body, headers)
        with self._lock:
            self._former[connection] = answer.status
            self.seen[f"{kind} {answer.status}"] += 1
        if answer.status == 429:
            self.stop.wait(min(5.0, float(answer.headers["retry-after"])))
        elif answer.status not in fine:
            self._fault(f"{kind} {method} {path} {answer.status}: {answer.data[:300]!r}")
        return answer if answer.status in WELL else None

    def _post(self, kind: str, connection: http.client.HTTPConnection, path: str, **body: Any) -> Answer | None:
        return self._asked(kind, connection, "POST", path, json.dumps(body).encode(), **JSON)

    def _query(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        began = time.monotonic()
        question, stream = text(choose, 4).decode(), choose.random() < 0.2
        if self._post("query", connection, "/api/rag/query", question=question, stream=stream):
            with self._lock:
                self.seconds.append(time.monotonic() - began)

    def _upload(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        body, kind = multipart(self._files(choose, number))
        if answer := self._asked("upload", connection, "POST", "/api/rag/upload", body, Content_Type=kind):
            with self._lock:
                self._pages = {d["id"] for d in answer.json["documents"]} | set(list(self._pages)[:50])

    def _async(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        body, kind = multipart(self._files(choose, number))
        headers = {"Content_Type": kind, "Prefer": "respond-async"}
        if answer := self._asked("async", connection, "POST", "/api/rag/upload", body, **headers):
            with self._lock:
                self.accepted = {answer.json["id"]: {}}  # of all, the last one is waited for

    def _files(self, choose: random.Random, number: int) -> dict[str, bytes]:
        name = f"{number}-{choose.randrange(DOCUMENTS)}.txt"
        return {name: text(choose, choose.choice((20, 200, 1000)))}

    def _list(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        paths = ("/api/rag/documents?limit=20", "/api/jobs?limit=20", "/api/memory?limit=50", "/api/tools", "/healthz")
        self._asked("list", connection, "GET", choose.choice((*paths, "/readyz", "/api/status", "/metrics")))

    def _look(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        """Pages, chunks and originals, as an export reads them."""
        with self._lock:
            ids = list(self._pages)
        if ids:
            path = f"/api/rag/documents/{choose.choice(ids)}{choose.choice(('', '/pages', '/chunks', '/content'))}"
            self._asked("look", connection, "GET", path, fine=WELL | RACED)

    def _add(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        content = f"{text(choose, choose.choice((5, 50))).decode()} {choose.getrandbits(64):x}"
        if answer := self._post("add", connection, "/api/memory", content=content, session_id=f"s{number}"):
            self._own[number].append(answer.json["id"])
        while len(self._own[number]) > MEMORIES:
            self._forget(connection, choose, number)

    def _update(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        if self._own[number]:
            path = f"/api/memory/{choose.choice(self._own[number])}"
            body = json.dumps({"content": f"{text(choose, 10).decode()} {choose.getrandbits(64):x}"}).encode()
            self._asked("update", connection, "PATCH", path, body, fine=WELL | RACED, **JSON)

    def _forget(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        if self._own[number]:
            path = f"/api/memory/{self._own[number].pop(0)}"
            self._asked("forget", connection, "DELETE", path, fine=WELL | RACED)

    def _search(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        self._post("search", connection, "/api/memory/search", text=text(choose, 4).decode())

    def _words(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        self._post("words", connection, "/api/memory/search", text=text(choose, 3).decode(), mode="lexical")

    def _tool(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        tool = choose.choice(("memory_search", "rag_query"))
        wanted = {"query": text(choose, 3).decode()} if tool == "memory_search" else {"question": "Who keeps keys?"}
        self._post("tool", connection, f"/api/tools/{tool}", **wanted)

    def _message(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        """Said, and then forgotten again, since a session grows."""
        said = {"session_id": f"m{number}", "role": "user", "content": f"{text(choose, 8).decode()} {choose.random()}"}
        if answer := self._post("message", connection, "/api/memory/messages", **said):
            path = f"/api/memory/{answer.json['id']}"
            self._asked("forget", connection, "DELETE", path, fine=WELL | RACED)

    def _bad(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        method, path, body, headers = choose.choice(BAD)
        self._asked("bad", connection, method, path, body, fine=range(400, 500), **headers)

    def _leave(self, connection: http.client.HTTPConnection, choose: random.Random, number: int) -> None:
        """Go away in the middle: of an upload, or of a stream."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=BOUND) as gone:
            if choose.random() < 0.5:
                kind = "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 50000"
                head, body = f"POST /api/rag/upload HTTP/1.1\r\nHost: localhost\r\n{kind}", b"--x\r\n" * 100
            else:
                body = b'{"question": "Who keeps the keys?", "stream": true}'
                kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
                head = f"POST /api/rag/query HTTP/1.1\r\nHost: localhost\r\n{kind}"
            with suppress(OSError):
                gone.sendall(f"{head}\r\n\r\n".encode() + body)
        with self._lock:
            self.seen["leave"] += 1


@dataclass(frozen=True, slots=True)
class Held:
    """What the processes of a server have at one moment."""

    rss: int  # bytes
    files: int  # open ones, but those of databases
    connections: int  # to databases; each has the write-ahead log of its database open
    threads: int
    children: int
    log: int  # bytes of the write-ahead log
    left: int  # temporary files and folders


@dataclass
class Watch:
    """Looks at a server every `seconds` until `stop` is set. `temporary` is where the server keeps what is."""

    server: Server
    temporary: Path
    index: Path
    seconds: float = 2.0
    stop: threading.Event = field(default_factory=threading.Event)
    seen: list[Held] = field(default_factory=list)

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        return thread

    def now(self) -> Held:
        processes = self.server.processes()
        names = [name for pid in processes for name in open_files(pid)]
        log = self.index / "memory.sqlite3-wal"
        return Held(
            rss=self.server.memory(),
            files=sum(".sqlite" not in name for name in names),
            connections=sum(name.endswith("-wal") for name in names),
            threads=self.server.threads(),
            children=sum(_children(pid) for pid in processes),
            log=log.stat().st_size if log.exists() else 0,
            left=len([*self.temporary.iterdir()]),
        )

    def at_rest(self) -> Held:
        """When nothing goes on any more: what is there for a while, without children and temporary files."""
        before, deadline = self.now(), time.monotonic() + BOUND
        while True:
            time.sleep(1.0 if LONG else 0.3)
            held = self.now()
            still = (held.files, held.threads) == (before.files, before.threads)
            if still and not held.children and not held.left:
                return held
            assert time.monotonic() < deadline, f"it does not come to rest: {held}"
            before = held

    def _run(self) -> None:
        while not self.stop.wait(self.seconds):
            with suppress(OSError):  # a process or a file that goes away while it is looked at
                self.seen.append(self.now())

    def median(self, start: float, end: float, what: Callable[[Held], int]) -> float:
        """Of the samples in this part of the time, 0 to 1."""
        part = self.seen[int(len(self.seen) * start) : int(len(self.seen) * end)]
        return statistics.median(map(what, part))


def open_files(pid: int) -> list[str]:
    names = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            names.append(str(descriptor.readlink()))
    return names


def _children(pid: int) -> int:
    count = 0
    for task in _tasks(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since
            count += len((task / "children").read_text().split())
    return count


def _tasks(pid: int) -> list[Path]:
    return [*Path(f"/proc/{pid}/task").iterdir()]
