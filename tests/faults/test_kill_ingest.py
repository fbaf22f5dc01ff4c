"""`kill -9` while documents are brought in, then again: nothing shows that it ever happened.

One kill in the normal suite; `FAULTS_KILLS=50` for more. The seed is printed and can be given back in
`FAULTS_KILLS_SEED`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ingest_documents import command, entries, half_documents, observe, write_documents
from long_form import LONG, long_form

from agentformer.memory.backends.faiss.folder import DATABASE_FILE
from tests import forked

KILLS = int(os.environ.get("FAULTS_KILLS", "1"))
TOKEN = "FAULTS_FAMILY"  # inherited by every child of an ingest, so that orphans are seen
DIES_AT_RENAME = """
import os, signal, sys
left = int(sys.argv.pop(1))
real = os.replace
def replace(*arguments, **options):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)
os.replace = replace
from agentformer.cli import main
main()
"""


@dataclass(frozen=True)
class World:
    documents: Path
    seconds: float  # that an uninterrupted ingest takes
    expected: dict[str, Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("kill")
    write_documents(folder / "documents")
    started = time.monotonic()
    run(folder / "documents", folder)
    seconds = time.monotonic() - started
    expected = observe(folder / "index", folder / "uploads")
    assert len(expected["documents"]) == 12
    assert [status for name, _, _, status in expected["documents"] if name != "empty.txt"] == ["ready"] * 11
    assert expected["counts"]["kinds"]["chunk"] > (200 if LONG else 40)
    assert all(len(hits) == 10 for hits in expected["searches"])
    return World(folder / "documents", seconds, expected)


def ingest_of(documents: Path, folder: Path) -> list[str]:
    return command("ingest", folder / "index", folder / "uploads", str(documents))


def start(documents: Path, folder: Path) -> Any:
    return forked.command(*ingest_of(documents, folder))


def run(documents: Path, folder: Path) -> None:
    done = forked.ended(start(documents, folder))
    assert done.returncode == 1, done.stderr  # done, but for the empty file
    failed = [d["name"] for d in json.loads(done.stdout)["documents"] if d["status"] != "ready"]
    assert failed == ["empty.txt"]


def check_recovery(world: World, folder: Path) -> None:
    if (folder / "index").exists():
        assert half_documents(folder / "index") == []
    run(world.documents, folder)
    assert observe(folder / "index", folder / "uploads") == world.expected


def family(folder: Path) -> list[int]:
    """Processes that an ingest of this folder has left."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{TOKEN}={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has just ended
            found += map(int, each.read_text().split())
    return found


def running(pids: list[int]) -> list[int]:
    """Those of these processes that have not ended."""
    found = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(pid)
        except OSError:
            continue
    return found


def test_an_ingest_killed_at_random_points_leaves_no_trace(world: World, tmp_path: Path) -> None:
    seed = int(os.environ.get("FAULTS_KILLS_SEED") or random.randrange(10**6))
    print(f"seed {seed}, {KILLS} kills within {world.seconds:.1f} s")
    choose = random.Random(seed)
    killed = attempts = 0
    longest = world.seconds
    while killed < KILLS:
        attempts += 1
        folder = tmp_path / str(attempts)
        delay = choose.uniform(0, longest)
        process = start(world.documents, folder)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=delay)
        process.kill()
        process.communicate()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 1
            longest = delay  # it was faster than the first one, and done
            continue
        killed += 1
        there = half_way(folder)
        check_recovery(world, folder)
        print(f"kill {killed} after {delay:.2f} s with {there} documents stored", flush=True)


def half_way(folder: Path) -> int:
    """How many documents are there before anything is repaired."""
    if not (folder / "index" / DATABASE_FILE).exists():
        return 0
    return sum(entry.kind == "document" for entry in entries(folder / "index"))


@pytest.mark.parametrize("renames", [0, pytest.param(5, marks=long_form)])
def test_an_ingest_killed_between_writing_and_renaming_leaves_no_file_behind(
    world: World, tmp_path: Path, renames: int
) -> None:
    process = forked.program(DIES_AT_RENAME, renames, *ingest_of(world.documents, tmp_path))
    assert forked.ended(process).returncode == -signal.SIGKILL
    check_recovery(world, tmp_path)


@long_form
def test_an_ingest_killed_again_and_again_still_arrives(world: World, tmp_path: Path) -> None:
    for share in (0.5, 0.6, 0.4, 0.7):
        process = start(world.documents, tmp_path)
        time.sleep(world.seconds * share)
        process.kill()
        process.communicate()
    check_recovery(world, tmp_path)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_killed_ingest_leaves_no_process(world: World, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "agentformer.cli", *ingest_of(world.documents, tmp_path)]
    process = subprocess.Popen(program, env={**os.environ, TOKEN: str(tmp_path)})
    while not (readers := children(process.pid)):  # at work: a file is being read
        assert process.poll() is None
        time.sleep(0.01)
    assert process.pid in family(tmp_path)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while (family(tmp_path) or running(readers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert family(tmp_path) == [] == running(readers)
