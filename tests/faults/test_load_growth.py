"""Under a mixed load that goes on, nothing grows: memory, file handles, threads, processes, temporary files, the log.

A few seconds in the normal suite, which tell nothing of memory; `FAULTS_SECONDS=600` for that, and for one process
beside two.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
from mixed_load import KINDS, NEEDY, Held, MixedLoad, Watch
from serve_load import Server

from agentformer.records.sqlite import database as database_module
from agentformer.records.sqlite.database import Database

CLIENTS = int(os.environ.get("FAULTS_CLIENTS", "8"))
SECONDS = float(os.environ.get("FAULTS_SECONDS", "2"))
MINUTES = 300.0  # seconds from which on memory has come to rest in the first part, and is looked at
GROWTH = 1.10  # of memory, from the second quarter to the last
PARTS = 3  # between which the server comes to rest; the first warms it up
WARMING = 4 * CLIENTS  # so that each process has begun all its threads
# Connections that a process keeps: the idle ones, and one of the upload jobs. SQLite may keep more database files open
# (`records/test_database.py::test_files_of_closed_connections_are_used_again`), so the logs are counted.
CONNECTIONS = database_module._MAX_IDLE + 1

needs_time = pytest.mark.skipif(SECONDS < MINUTES, reason="of the long form: set FAULTS_SECONDS")
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=needs_time), 2])
def test_nothing_grows_under_a_mixed_load(tmp_path: Path, workers: int) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    environ = {"TMPDIR": str(temporary), "AGENTFORMER_CLEAN_EVERY": "0"}
    server = Server(tmp_path, "--workers", str(workers), environ=environ)
    watch = Watch(server, temporary, tmp_path / "i", seconds=max(0.5, SECONDS / 300))
    try:
        watching = watch.start()
        rests, loads = [watch.at_rest()], []
        for part in range(PARTS):
            loads.append(load := MixedLoad(server, CLIENTS if part else WARMING, seed=part))
            load.run(SECONDS / PARTS)
            for job in load.accepted:
                server.ended_job(job)
            rests.append(watch.at_rest())
        watch.stop.set()
        watching.join()
        report(workers, watch, rests, loads)
        check(watch, rests, loads, workers)
        assert server.end() == 0
        assert "Traceback" not in server.log.read_text()
    finally:
        watch.stop.set()
        server.close()


def report(workers: int, watch: Watch, rests: list[Held], loads: list[MixedLoad]) -> None:
    told = {
        "workers": workers,
        "at_rest": [str(rest) for rest in rests],
        "rss_mb": [round(held.rss / 1e6) for held in watch.seen[:: max(1, len(watch.seen) // 40)]],
        "log_mb": round(max(held.log for held in watch.seen) / 1e6, 1),
        "most_files": max(held.files for held in watch.seen),
        "most_threads": max(held.threads for held in watch.seen),
        "load": [load.figures() for load in loads],
    }
    print(json.dumps(told, indent=1))


def check(watch: Watch, rests: list[Held], loads: list[MixedLoad], workers: int) -> None:
    assert [fault for load in loads for fault in load.faults] == []
    told = {kind.partition(" ")[0] for load in loads for kind in load.seen}
    assert told >= set(KINDS) - (NEEDY if SECONDS < MINUTES else set()), "not everything was tried"
    _, warm, middle, last = rests
    for what in ("threads", "files"):
        counts = [getattr(rest, what) for rest in (warm, middle, last)]
        assert counts[2] <= counts[1] or (SECONDS < MINUTES and counts[1] <= counts[0]), f"{what} grew: {counts}"
    assert last.connections <= CONNECTIONS * workers
    assert max(held.log for held in watch.seen) <= 2 * database_module.LOG_BYTES
    if SECONDS >= MINUTES:
        before, after = (watch.median(start, start + 0.25, lambda held: held.rss) for start in (0.25, 0.75))
        assert after <= GROWTH * before, f"memory grew from {before} to {after} bytes"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "m.sqlite3")
    yield database
    database.close()


def test_the_log_stays_short_while_somebody_always_reads(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite alone never begins it anew then."""
    most, rounds = 1_000_000, 400
    monkeypatch.setattr(database_module, "LOG_BYTES", most)
    with database.writing() as connection:
        connection.execute("CREATE TABLE load (text TEXT)")
        connection.execute("INSERT INTO load VALUES ('')")
    done, log = threading.Event(), database.path.with_name("m.sqlite3-wal")

    def read(number: int) -> None:
        while not done.wait(number * 0.003):
            with database.reading() as connection:
                connection.execute("SELECT * FROM load").fetchall()
                time.sleep(0.02)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for reader in readers:
        reader.start()
    try:
        longest = 0
        for number in range(rounds):
            with database.writing() as connection:
                connection.execute("UPDATE load SET text = ?", (f"{number} " * 5_000,))
            longest = max(longest, log.stat().st_size)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert longest < 3 * most
