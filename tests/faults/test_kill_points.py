"""`kill -9` at every point between two effects on a disk, and at random moments, on every write path.

Each work is a list of calls (`works`). An undisturbed run of it tells every state that the store goes through. One
that was killed must be found, by whoever opens it next, in the state after the last acknowledged call, or in one that
the call under way goes through, which for all but a few is its end: all or nothing. Nothing is wrong with it, both
searches find all of it, and when the rest of the work is done it ends as if nothing had happened.

A kill or two of each work in the normal suite. `FAULTS_KILLS=1000` for so many over all works, half of them at
points and half at random moments, `FAULTS_KILLS=all` for every point of every work. The seed is printed and can be
given back in `FAULTS_KILLS_SEED`.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from killing import Killing, Undisturbed, spread
from works import WORKS
from writers import Work

from agentformer.jobs.store import JobStore
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.records.integrity.files import write_atomically
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry

KILLS = os.environ.get("FAULTS_KILLS", "")
SEED = int(os.environ.get("FAULTS_KILLS_SEED") or random.randrange(10**6))

needs_kill = pytest.mark.skipif(not hasattr(os, "fork") or not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killing]:
    found = Killing(tmp_path_factory.mktemp("kills"))
    yield found
    found.close()


def points_of(known: Undisturbed, work: Work, choose: random.Random) -> list[int]:
    total = known.run.points
    if KILLS == "all":
        return list(range(total))
    return spread(total, int(KILLS) // (2 * len(WORKS)) if KILLS else min(work.kills, 1), choose)


def moments_of(known: Undisturbed, choose: random.Random) -> Iterator[float]:
    """Twice as many as wanted: some come too late."""
    wanted = 0 if KILLS in ("", "all") else int(KILLS) // (2 * len(WORKS))
    return (choose.uniform(0.0, known.seconds) for _ in range(2 * wanted))


@needs_kill
@pytest.mark.parametrize("work", [pytest.param(work, id=name) for name, work in WORKS.items()])
def test_nothing_acknowledged_is_lost_and_nothing_is_half_done(killing: Killing, work: Work) -> None:
    if not KILLS and not work.kills:
        pytest.skip("of the long form: set FAULTS_KILLS")
    choose = random.Random(f"{SEED} {work.name}")
    before, calls = killing.told.copy(), killing.calls
    print(f"FAULTS_KILLS_SEED={SEED}")
    known = killing.undisturbed(work.name)
    points = points_of(known, work, choose)
    at_points = sum(killing.at_point(work.name, number) for number in points)
    at_random = 0
    for seconds in moments_of(known, choose):
        at_random += killing.after(work.name, seconds) if at_random < len(points) else 0
    print(
        f"{work.name}: {at_points} kills at {known.run.points} points, {at_random} at random; "
        f"{killing.calls - calls} acknowledged calls; all compared and verified; "
        f"died at {json.dumps(dict(killing.told - before))}"
    )
    assert at_points >= 0.9 * len(points) > 0  # a thread in the background may come to fewer than before


@needs_kill
@pytest.mark.parametrize("work", [pytest.param(work, id=name) for name, work in WORKS.items() if work.kills])
def test_a_call_does_what_it_tells_all_or_nothing(killing: Killing, work: Work) -> None:
    """In the undisturbed run, so that what killed ones are compared with has all that was acknowledged."""
    run = killing.undisturbed(work.name).run
    for step, states in run.between.items():
        entries = [killing.entries_of(state) for state in states]
        distinct = sum(one != other for one, other in pairwise(entries))
        assert distinct <= work.parts.get(step, 1), (work.name, step)
        kept, changed = run.told[step]
        assert len(states) > 1 or not changed, (work.name, step)
        there = [[told["namespace"], told["content"], told["version"]] for told, *_ in map(_apart, entries[-1])]
        assert all(entry in there for entry in kept), (work.name, step)


@needs_kill
def test_all_kinds_of_points_are_met(killing: Killing) -> None:
    """A library of ours that has its effects in another way would be killed at no point of it."""
    seen = {kind for work in ("forget", "training") for kind in killing.undisturbed(work).run.seen}
    assert seen == {
        "after a commit of words",
        "after a merge of words",
        "after COMMIT",
        "before a commit of words",
        "before COMMIT",
        "file lock",
        "fsync of a file",
        "piece of a vector snapshot",
        "replace of a file",
        "slice of a training",
        "statement of a transaction",
        "unlink of a file",
    } | ({"rmtree of a file", "rename of a file"} & seen)


def _apart(entry: list[Any]) -> list[Any]:
    """An entry with its former states; its original is there, if it has one."""
    *states, original = entry
    assert original
    return states


def test_sqlite_is_told_to_reach_the_disk(tmp_path: Path) -> None:
    """What `kill -9` cannot show: after a power failure, too, a commit is there."""
    database, jobs = Database(tmp_path / "memory.sqlite3"), JobStore(tmp_path / "jobs.sqlite")
    for opened in (database.reading, database.writing, jobs.reading, jobs.writing):
        with opened() as connection:
            assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
            assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    database.close()
    jobs.close()


def test_a_file_reaches_the_disk_before_its_name_and_its_name_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Any]] = []
    sync, rename = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append(("sync", os.fstat(handle).st_ino))
        sync(handle)

    def renamed(source: Path, target: Path) -> None:
        done.append(("rename", source.stat().st_ino))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_atomically(tmp_path / "file", b"numbat")
    written, folder = (tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino
    assert done == [("sync", written), ("rename", written), ("sync", folder)]
    done.clear()
    backend = LocalJsonMemoryBackend(tmp_path / "store")
    backend.store([make_entry("a numbat")])
    (file,) = (tmp_path / "store").glob("memory-*.json")
    assert done[-2:] == [("rename", file.stat().st_ino), ("sync", (tmp_path / "store").stat().st_ino)]
    backend.close()
