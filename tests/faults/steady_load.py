"""Clients of mixed work at servers that are killed now and then: is an acknowledged write lost, does an error occur
that a client could not expect, and does memory grow?

    python -m tests.faults.steady_load one|two|postgres [--minutes 10] [--clients 16] [--embedder minilm:int8]

`one` and `two` are workers of one server on the embedded store; `postgres` is two servers and a node without an API on
PostgreSQL behind PgBouncer in transaction mode. In the first part of the time, something is killed every `--pause`
seconds: a worker, or a server, the node, the pooler or PostgreSQL in turn. The table has a row for each minute; the
exit code is 1 if anything was lost or wrong. The store keeps its size, so memory has no reason to grow.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.backends.pooler import pgbouncer
from tests.backends.postgres_faults import own_server
from tests.faults.serve_load import BOUND, Answer, called, multipart, text

DISTURBED = 0.4  # the part of the time in which something is killed
FAILING = 20.0  # seconds after a kill in which calls may fail
SETTLING = 60.0  # seconds after a kill in which a new process grows to its size
GROWTH = 1.10
MEMORIES, DOCUMENTS = 12, 4  # of each client
POOL = 20  # connections of PgBouncer to the server
KINDS = {"store": 4, "search": 4, "ask": 4, "update": 3, "forget": 2, "upload": 2}
REFUSALS = frozenset({429, 503})  # with `Retry-After`
_ACKNOWLEDGED = frozenset(
    f"{kind} {status}" for kind in ("store", "update", "forget", "upload") for status in (200, 201, 204)
)
_STARTED = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Process:
    """A process of `agentformer`, which is started again with the same arguments after it was killed."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, environ: dict[str, str]) -> None:
        self.name, self.port = name, 0
        self._command = [sys.executable, "-m", "agentformer.cli", *arguments]
        self._log, self._environ = folder / f"{name}.log", environ
        self.start()

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._log.parent,
                env=self._environ,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.name} did not start: {self._log.read_text()[-2000:]}"
        if found := _STARTED.search(line):
            self.port = int(found[1])

    def pids(self) -> list[int]:
        """Return the process and its children."""
        pid = self._process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def kill_worker(self) -> None:
        """Kill one of the processes that serve."""
        os.kill(random.choice(self.pids()[1:]), signal.SIGKILL)

    def restart(self) -> None:
        """Kill all processes, and start them again."""
        self.kill()
        self.start()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(BOUND)
        if self._process.stdout:
            self._process.stdout.close()

    def end(self) -> int:
        """Return the exit code after SIGTERM."""
        self._process.terminate()
        return self._process.wait(BOUND)

    def warnings(self) -> list[str]:
        """Return the lines of the log that name an error that nobody expected."""
        lines = self._log.read_text().splitlines()
        return [line for line in lines if "Traceback" in line or "internal error" in line]


@dataclass
class Setup:
    """The processes that run, and what may be killed, in turn."""

    servers: list[Process]
    others: list[Process]
    kills: list[Callable[[], object]]
    index: Path

    def held(self) -> tuple[float, float, int]:
        """Return the resident and the proportional size of all processes in MB, and the number of their threads. Pages
        that processes share count for each in the first, and once in the second."""
        rss = pss = threads = 0
        for process in (*self.servers, *self.others):
            for pid in process.pids():
                status = Path(f"/proc/{pid}/status").read_text()
                rss += int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
                threads += int(re.findall(r"Threads:\s+(\d+)", status)[0])
                pss += int(re.findall(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)[0])
        return rss / 1024, pss / 1024, threads


@dataclass
class Told:
    """What was acknowledged about the memories and documents of one client. A call without an answer leaves two
    possible states: each value is the set of the contents that may be stored, and None stands for nothing."""

    memories: dict[str, set[str | None]] = field(default_factory=dict)  # id -> contents
    documents: dict[str, set[str | None]] = field(default_factory=dict)  # name -> SHA-256
    doubtful: set[str] = field(default_factory=set)  # contents that were stored without an answer, or not


@dataclass
class SteadyLoad:
    """Clients that work until `stop` is set. Each has memories and documents of its own, and asks of everything."""

    servers: Sequence[Process]
    clients: int
    seed: int
    stop: threading.Event = field(default_factory=threading.Event)
    seen: Counter[str] = field(default_factory=Counter)  # kind of call and status -> how often
    faults: list[str] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)  # monotonic times
    told: dict[int, Told] = field(default_factory=lambda: defaultdict(Told))

    def start(self) -> list[threading.Thread]:
        self._lock = threading.Lock()
        for number in range(self.clients):
            self.told[number] = Told()
        threads = [threading.Thread(target=self._client, args=(number,)) for number in range(self.clients)]
        for thread in threads:
            thread.start()
        return threads

    def _client(self, number: int) -> None:
        client = _Client(self, number, self.told[number], random.Random(f"{self.seed} {number}"))
        while not self.stop.is_set():
            try:
                client.act()
            except Exception as error:  # a client that ends would hide what follows
                self.fault(f"client {number}: {type(error).__name__}: {error}")
                self.stop.wait(1)

    def note(self, kind: str, status: object) -> None:
        with self._lock:
            self.seen[f"{kind} {status}"] += 1

    def fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)

    def is_disturbed(self) -> bool:
        """Return whether something was killed so shortly ago that a call may fail."""
        return bool(self.kills) and time.monotonic() - self.kills[-1] < FAILING


class _Client:
    def __init__(self, load: SteadyLoad, number: int, told: Told, choose: random.Random) -> None:
        self._load, self._number, self._told, self._choose = load, number, told, choose
        self._server = number % len(load.servers)
        self._connection: http.client.HTTPConnection | None = None

    def act(self) -> None:
        kind = self._choose.choices(list(KINDS), list(KINDS.values()))[0]
        getattr(self, f"_{kind}")()

    def _call(self, kind: str, method: str, path: str, body: bytes | None = None, form: str = "") -> Answer | None:
        """Return the answer, or None if there is none: the next call then goes to the next server. A refusal is waited
        for. Other failures, and these at a time when nothing was killed, are faults."""
        port = self._load.servers[self._server].port
        connection = self._connection or http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)
        try:
            answer = called(connection, method, path, body, {"Content_Type": form} if form else {})
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._connection = None
            self._server = (self._server + 1) % len(self._load.servers)
            self._load.note(kind, "no answer")
            if not self._load.is_disturbed():
                self._load.fault(f"{kind}: {type(error).__name__}: {error}")
            self._load.stop.wait(0.2)
            return None
        self._connection = connection
        self._load.note(kind, answer.status)
        if answer.status in REFUSALS:
            if "retry-after" not in answer.headers or (answer.status == 503 and not self._load.is_disturbed()):
                self._load.fault(f"{kind} {answer.status}: {answer.data[:300]!r}")
            self._load.stop.wait(min(5.0, float(answer.headers.get("retry-after", 1))))
        elif answer.status >= 400 and (kind, answer.status) not in (("update", 404), ("forget", 404)):
            self._load.fault(f"{kind} {method} {path} {answer.status}: {answer.data[:300]!r}")
        return answer

    def _post(self, kind: str, path: str, method: str = "POST", **body: Any) -> Answer | None:
        return self._call(kind, method, path, json.dumps(body).encode(), "application/json")

    def _text(self, words: int) -> str:
        return f"{text(self._choose, words).decode()} {self._choose.getrandbits(64):x}"

    def _store(self) -> None:
        content = self._text(self._choose.choice((5, 50)))
        answer = self._post("store", "/api/memory", content=content, session_id=f"s{self._number}")
        if answer is not None and answer.status == 201:
            self._told.memories[answer.json["id"]] = {content}
        else:
            self._told.doubtful.add(content)
        while len(self._present()) > MEMORIES and not self._load.stop.is_set():
            self._forget()

    def _present(self) -> list[str]:
        return [entry for entry, contents in self._told.memories.items() if contents != {None}]

    def _update(self) -> None:
        self._change("update", self._text(10))

    def _forget(self) -> None:
        self._change("forget", None)

    def _change(self, kind: str, content: str | None) -> None:
        """Change or remove a memory. Without an answer, both states are possible."""
        if not (present := self._present()):
            return
        entry = self._choose.choice(present)
        allowed, path = self._told.memories[entry], f"/api/memory/{entry}"
        allowed.add(content)
        answer = (
            self._call(kind, "DELETE", path) if content is None else self._post(kind, path, "PATCH", content=content)
        )
        if answer is None:
            return
        if answer.status < 300:
            self._told.memories[entry] = {content}
        elif answer.status == 404:
            if None not in allowed:
                self._load.fault(f"{kind}: {entry} is lost")
            self._told.memories[entry] = {None}
        elif answer.status == 429:  # it was refused before it began
            allowed.discard(content)

    def _upload(self) -> None:
        name = f"{self._number}-{self._choose.randrange(DOCUMENTS)}.txt"
        data = f"{text(self._choose, self._choose.choice((20, 200, 1000))).decode()} {self._choose.random()}".encode()
        allowed = self._told.documents.setdefault(name, {None})
        allowed.add(hashlib.sha256(data).hexdigest())
        body, kind = multipart({name: data})
        answer = self._call("upload", "POST", "/api/rag/upload", body, kind)
        if answer is not None and answer.status < 300:
            self._told.documents[name] = {hashlib.sha256(data).hexdigest()}

    def _search(self) -> None:
        mode = self._choose.choice(("hybrid", "lexical"))
        self._post("search", "/api/memory/search", text=text(self._choose, 4).decode(), mode=mode)

    def _ask(self) -> None:
        self._post("ask", "/api/rag/query", question=text(self._choose, 4).decode())


def lost(load: SteadyLoad) -> list[str]:
    """Compare what is stored with what was acknowledged, and return what differs."""
    problems: list[str] = []
    documents: dict[str, list[str]] = defaultdict(list)
    for each in _pages(load, "/api/rag/documents?limit=200", "documents"):
        documents[each["name"]].append(each["sha256"])
    stored = {
        each["id"]: each["content"]
        for each in _pages(load, "/api/memory?limit=200", "entries")
        if re.fullmatch(r"s\d+", each.get("session_id") or "")
    }
    known: set[str] = set()
    for number, told in load.told.items():
        for name, allowed in told.documents.items():
            found = documents.get(name, [])
            if len(found) > 1 or (found[0] if found else None) not in allowed:
                problems.append(f"client {number}: document {name}: {found}, told {allowed}")
        for entry, contents in told.memories.items():
            known.add(entry)
            if stored.get(entry) not in contents:
                problems.append(f"client {number}: memory {entry}: {stored.get(entry)!r}, told {contents}")
    doubtful = set().union(*(told.doubtful for told in load.told.values()))
    others = Counter(content for entry, content in stored.items() if entry not in known)
    problems += [
        f"stored {count} times without an acknowledgement: {content!r}"
        for content, count in others.items()
        if count > 1 or content not in doubtful
    ]
    return problems


def _pages(load: SteadyLoad, path: str, name: str) -> Iterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None:
        connection = http.client.HTTPConnection("127.0.0.1", load.servers[0].port, timeout=BOUND)
        page = called(connection, "GET", f"{path}&after={after}", None, {})
        connection.close()
        assert page.status == 200, page.data
        yield from page.json[name]
        after = page.json["next"]


@contextmanager
def running(setup: str, folder: Path, embedder: str) -> Iterator[Setup]:
    """Start the servers of a setup, and end them."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENTFORMER_")}
    environ |= {"PYTHONPATH": str(Path(__file__).parents[2]), "AGENTFORMER_CLEAN_EVERY": "0"}
    environ |= {"AGENTFORMER_LOG_LEVEL": "warning", "HF_HUB_OFFLINE": "1"}
    where = ["--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u", "--embedder", embedder]
    serve = ["serve", "--port", "0", *where]
    with ExitStack() as ending:
        if setup != "postgres":
            workers = {"one": "1", "two": "2"}[setup]
            server = Process("server", [*serve, "--workers", workers], folder, environ)
            ending.callback(server.kill)
            yield Setup([server], [], [server.kill_worker], folder / "i")
            return
        database = ending.enter_context(own_server())
        pooler = ending.enter_context(pgbouncer(f"postgresql:///postgres?host={database.data}", folder, POOL))
        environ |= {"AGENTFORMER_BACKEND": "postgres", "AGENTFORMER_POSTGRES_URL": pooler.url}
        environ |= {"AGENTFORMER_ORIGINALS": "database", "AGENTFORMER_NODE_LEASE_SECONDS": "5"}
        servers = [Process(f"server-{n}", serve, folder, environ) for n in range(2)]
        node = Process("node", ["worker", *where], folder, environ)
        for process in (*servers, node):
            ending.callback(process.kill)

        def restart_pooler() -> None:
            pooler.kill()
            time.sleep(1)
            pooler.start()

        def restart_database() -> None:
            database.ctl("stop", "-m", "immediate")
            database.start()

        kills = [servers[0].restart, restart_pooler, node.restart, restart_database, servers[1].restart]
        yield Setup(servers, [node], kills, folder / "i")


@dataclass
class Sample:
    at: float
    rss: float
    pss: float
    threads: int
    calls: int
    wal: float


def run(setup: Setup, load: SteadyLoad, minutes: float, pause: float) -> list[Sample]:
    """Let the clients work, kill, and return what the processes held, every two seconds."""
    samples: list[Sample] = []
    kills, began = itertools.cycle(setup.kills), time.monotonic()
    threads = load.start()
    end, undisturbed, next_kill = began + minutes * 60, began + minutes * 60 * DISTURBED, began + pause
    try:
        while (now := time.monotonic()) < end:
            with suppress(OSError, IndexError):  # a process that ends while it is looked at
                log = setup.index / "memory.sqlite3-wal"
                size = log.stat().st_size / 1e6 if log.exists() else 0.0
                samples.append(Sample(now - began, *setup.held(), load.seen.total(), size))
            if next_kill <= now < undisturbed:
                load.kills.append(now)
                next(kills)()
                load.kills.append(time.monotonic())
                next_kill = time.monotonic() + pause
            time.sleep(2)
    finally:
        load.stop.set()
        for thread in threads:
            thread.join(2 * BOUND)
    return samples


def report(samples: list[Sample], load: SteadyLoad, began: float) -> float:
    """Print a row for each minute, and return the growth from the first undisturbed minute to the last one."""
    print("| minute | calls | kills | resident, MB | proportional, MB | threads | log, MB |")
    print("|---|---|---|---|---|---|---|")
    medians = {}
    former = 0
    for minute, group in itertools.groupby(samples, lambda sample: int(sample.at // 60)):
        rows = list(group)
        kills = sum(minute * 60 <= at - began < minute * 60 + 60 for at in load.kills[::2])
        medians[minute] = statistics.median(row.rss for row in rows)
        print(
            f"| {minute + 1} | {rows[-1].calls - former} | {kills} | {medians[minute]:.0f} | "
            f"{statistics.median(row.pss for row in rows):.0f} | {max(row.threads for row in rows)} | "
            f"{max(row.wal for row in rows):.1f} |"
        )
        former = rows[-1].calls
    last_kill = (load.kills[-1] - began) if load.kills else 0.0
    calm = [value for minute, value in medians.items() if minute * 60 >= last_kill + SETTLING]
    return calm[-1] / calm[0] if len(calm) > 1 else 1.0


class Outcome(NamedTuple):
    """What a run has shown. `growth` is the memory of the last minute to that of the first calm one."""

    problems: list[str]
    growth: float
    seen: Counter[str]
    kills: int

    @property
    def writes(self) -> int:
        """The number of acknowledged writes."""
        return sum(count for kind, count in self.seen.items() if kind in _ACKNOWLEDGED)


def measured(setup: str, folder: Path, minutes: float, clients: int, embedder: str, pause: float, seed: int) -> Outcome:
    """Run the load, print its table, and return what was seen."""
    with running(setup, folder, embedder) as started:
        load, began = SteadyLoad(started.servers, clients, seed), time.monotonic()
        samples = run(started, load, minutes, pause)
        growth = report(samples, load, began)
        problems = lost(load) + load.faults
        for process in (*started.servers, *started.others):
            if code := process.end():
                problems.append(f"{process.name} ended with {code}")
            problems += [f"{process.name}: {line}" for line in process.warnings()]
    return Outcome(problems, growth, load.seen, len(load.kills) // 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setup", choices=("one", "two", "postgres"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--embedder", default="minilm:int8")
    parser.add_argument("--pause", type=float, default=45.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(folder=Path(folder), **vars(given))
    print(json.dumps(dict(sorted(found.seen.items()))))
    print(
        f"seed {given.seed}: {found.seen.total()} calls, {found.writes} acknowledged writes, {found.kills} kills, "
        f"{len(found.problems)} problems; memory of the last minute to that of the first calm one: {found.growth:.2f}"
    )
    print("\n".join(found.problems[:20]))
    return int(bool(found.problems) or found.growth > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
