"""Kills processes that write, opens what they left, and compares it with what an undisturbed run went through.

The processes are forks of one that has imported everything, so that a kill costs a fraction of a second; each has a
process group of its own, which SIGKILL ends as a whole. What each has acknowledged stands in a log, line by line.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commit_points import Points
from states import faults, state
from works import WORKS
from writers import Desk

from agentformer.rag.documents import Document
from agentformer.types import MemoryEntry
from tests import forked

PATIENCE = 240.0


# ---------------------------------------------------------------------- in the processes


class _Log:
    """One line for each thing told, written at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._states = path.parent / "states"

    def tell(self, **what: Any) -> None:
        os.write(self._file, (json.dumps(what) + "\n").encode())

    def tell_state(self, state: list[Any]) -> None:
        text = json.dumps(state, indent=1)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._states.mkdir(exist_ok=True)
        (self._states / name).write_text(text)
        self.tell(state=name)


def _work(order: dict[str, Any]) -> None:
    """Do a work's steps from `first` on; die at the point `die_at`, if that is not negative."""
    work, folder, log = WORKS[order["work"]], Path(order["folder"]), _Log(Path(order["log"]))

    def look() -> None:
        if order["watch"]:
            with points.looking():
                log.tell_state(state(folder, work.backend))

    def committed() -> None:
        if work.backend == "faiss":  # the other one is locked at that moment
            look()

    points = Points(order["die_at"], lambda name: log.tell(died=name), committed, _shared())
    desk = Desk(work, folder, points.install)
    log.tell(begun=order["first"])
    for number, step in enumerate(work.steps[order["first"] :], order["first"]):
        returned = step(desk)
        look()
        log.tell(acknowledged=number, kept=_kept(returned), changed=_changed(returned))
    desk.close()
    log.tell(done=points.count, seen=sorted(points.seen))


def _kept(returned: Any) -> list[list[Any]]:
    """The entries and documents that a call says are kept."""
    if isinstance(returned, MemoryEntry):
        return [[returned.namespace, returned.content, returned.version]]
    if isinstance(returned, Document):
        return [[returned.namespace, returned.name, 1]] if returned.id else []
    if isinstance(returned, tuple):
        return [[*returned]]
    return [each for one in returned for each in _kept(one)] if isinstance(returned, list) else []


def _changed(returned: Any) -> bool:
    """Does the call say that it has changed something?"""
    return not getattr(returned, "unchanged", False) and bool(
        returned if isinstance(returned, int) else _kept(returned)
    )


def _shared() -> memoryview:
    """A number that forks of this process count on together."""
    return memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")


def _prepare(order: dict[str, Any]) -> None:
    desk = Desk(WORKS[order["work"]], Path(order["folder"]))
    desk.work.before(desk)
    desk.close()


def _check(order: dict[str, Any]) -> None:
    """Open what is there as any process would, and tell its state and what is wrong with it."""
    work, folder, log = WORKS[order["work"]], Path(order["folder"]), _Log(Path(order["log"]))
    wrong = _damage(folder)
    desk = Desk(work, folder)
    wrong += faults(desk.af, folder)
    log.tell_state(state(folder, work.backend))
    desk.close()
    log.tell(faults=wrong)


def _damage(folder: Path) -> list[str]:
    wrong = []
    for path in (folder / "index").glob("*.sqlite*"):
        if path.suffix in (".sqlite", ".sqlite3"):
            with closing(sqlite3.connect(path)) as connection:
                told = connection.execute("PRAGMA integrity_check").fetchall()
                told += connection.execute("PRAGMA foreign_key_check").fetchall()
            wrong += [f"{path.name}: {row}" for row in told if row != ("ok",)]
    return wrong


_ORDERS = {"work": _work, "prepare": _prepare, "check": _check}


def _fork(order: dict[str, Any]) -> int:
    """The id of a process that carries the order out and ends."""
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        os.dup2(os.open(f"{order['log']}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        _ORDERS[order["do"]](order)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _serve_orders() -> None:
    """Read orders; for each tell the id of its process, then how that ended."""
    print("ready", flush=True)
    for line in sys.stdin:
        pid = _fork(json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


# ---------------------------------------------------------------------- in the test


@dataclass
class Run:
    """What a log tells of one run."""

    begun: int = 0
    acknowledged: int = -1  # the last step of which the call had returned
    died: str = ""  # at which point
    points: int = 0  # that a run went through to its end
    seen: list[str] = field(default_factory=list)  # their kinds
    faults: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)  # distinct ones, in order
    told: dict[int, tuple[list[list[Any]], bool]] = field(default_factory=dict)  # step -> what it says is kept, changed
    between: dict[int, list[str]] = field(
        default_factory=dict
    )  # step -> the states it went through, both ends included


def read_log(path: Path, begun: str = "") -> Run:
    run = Run(states=[begun] if begun else [])
    passed = list(run.states)
    for line in path.read_text().split("\n")[:-1]:  # a line that was cut off tells nothing
        told = json.loads(line)
        if "state" in told:
            run.states += [told["state"]] if told["state"] not in run.states[-1:] else []
            passed += [told["state"]] if told["state"] not in passed[-1:] else []
        elif "acknowledged" in told:
            run.acknowledged = told["acknowledged"]
            run.told[run.acknowledged] = told["kept"], told["changed"]
            run.between[run.acknowledged] = passed
            passed = passed[-1:]
        else:
            run.begun = told.get("begun", run.begun)
            run.died = told.get("died", run.died)
            run.points = told.get("done", run.points)
            run.seen = told.get("seen", run.seen)
            run.faults += told.get("faults", [])
    return run


@dataclass(frozen=True)
class Undisturbed:
    """A work as it goes when nobody kills it."""

    base: Path  # a copy of what was there before
    run: Run
    seconds: float


class Killing:
    """Runs works in forks of one process, and kills them. `told` counts where they died."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._known: dict[str, Undisturbed] = {}
        self.told: Counter[str] = Counter()
        self.calls = 0  # acknowledged by those that were killed, and compared
        self._forker = forked.script(Path(__file__), imports=forked.SERVE + forked.STORE, stdin=subprocess.PIPE)
        assert self._answer() == "ready"

    def close(self) -> None:
        self._forker.communicate(timeout=PATIENCE)

    def undisturbed(self, work: str) -> Undisturbed:
        """Made once for each work. Its end is checked as any other."""
        if work not in self._known:
            place = self._folder / work
            base, folder = place / "base", place / "undisturbed"
            base.mkdir(parents=True)
            self._order("prepare", work, base, place / "prepared")
            begun = self._checked(work, _copied(base, place / "begun"), place / "before", ended=False)
            _copied(base, folder)
            started = time.monotonic()
            log = place / "undisturbed.log"
            self._order("work", work, folder, log, first=0, die_at=-1, watch=True)
            seconds = time.monotonic() - started
            run = read_log(log, begun)
            assert self._checked(work, folder, place / "after") == run.states[-1], work
            self._known[work] = Undisturbed(base, run, seconds)
        return self._known[work]

    def at_point(self, work: str, number: int) -> bool:
        """Die at the point of this number, look, and go on to the end. False where there is no such point."""
        return self._kill(work, die_at=number)

    def after(self, work: str, seconds: float) -> bool:
        """Killed from outside after a time. False where it was done before."""
        return self._kill(work, seconds=seconds)

    def _kill(self, work: str, *, die_at: int = -1, seconds: float | None = None) -> bool:
        known = self.undisturbed(work)
        self._number += 1
        place = self._folder / work / str(self._number)
        place.mkdir()
        folder, log = _copied(known.base, place / "store"), place / "log"
        died = self._order("work", work, folder, log, first=0, die_at=die_at, seconds=seconds)
        run = read_log(log) if log.exists() else Run()
        if died:
            self.told[run.died or "anywhere"] += 1
            self.calls += run.acknowledged + 1
            self._compare(work, folder, run, known.run)
        else:
            assert self._checked(work, folder, place / "end") == known.run.states[-1], (work, place)
        shutil.rmtree(place)
        return died

    def _compare(self, work: str, folder: Path, run: Run, expected: Run) -> None:
        """All that was acknowledged is there, and of the call that was under way all or nothing; then the rest of the
        work ends as if nothing had happened."""
        place = folder.parent
        last = max(expected.between, default=-1)
        allowed = expected.between.get(run.acknowledged + 1, expected.states[-1:])
        if WORKS[work].serves:
            allowed = [*allowed, *expected.between.get(run.acknowledged + 2, [])]
        found = self._checked(work, folder, place / "reopened", ended=False)
        assert found in allowed, (
            f"{work}, died at {run.died!r} after {run.acknowledged}: {_difference(place, allowed, found)}"
        )
        first = run.acknowledged + 1
        if first <= last and found == expected.between[first][-1] != expected.between[first][0]:
            first += 1  # the call under way had happened
        self._order("work", work, folder, place / "rest.log", first=first, die_at=-1)
        found = self._checked(work, folder, place / "ended")
        assert found == expected.states[-1], f"{work}, {run.died!r}: {_difference(place, expected.states[-1:], found)}"

    def entries_of(self, state: str) -> list[Any]:
        entries: list[Any] = json.loads((self._folder / "states" / state).read_text())[:-1]
        return entries

    def _checked(self, work: str, folder: Path, log: Path, *, ended: bool = True) -> str:
        """The state of a store, in which nothing is wrong."""
        self._order("check", work, folder, log)
        run = read_log(log)
        assert run.faults == [] or (WORKS[work].damaged and not ended), (work, run.faults)
        shutil.copytree(log.parent / "states", self._folder / "states", dirs_exist_ok=True)
        return run.states[-1]

    def _order(self, do: str, work: str, folder: Path, log: Path, *, seconds: float | None = None, **more: Any) -> bool:
        """True where the process was killed. Raises where it failed."""
        assert self._forker.stdin is not None
        order = {"do": do, "work": work, "folder": str(folder), "log": str(log), "watch": False, **more}
        self._forker.stdin.write(json.dumps(order) + "\n")
        self._forker.stdin.flush()
        pid = int(self._answer())
        killer = threading.Timer(PATIENCE if seconds is None else seconds, _kill_group, [pid])
        killer.start()
        code = int(self._answer())
        killer.cancel()
        errors = Path(f"{log}.err").read_text() if Path(f"{log}.err").exists() else ""
        died = code == -signal.SIGKILL and (seconds is not None or more.get("die_at", -1) >= 0)
        assert died or code == 0, (do, work, code, errors[-3000:])
        if died:
            _wait_for_group(pid)
        return died

    def _answer(self) -> str:
        assert self._forker.stdout is not None
        return self._forker.stdout.readline().strip()


def _kill_group(pid: int) -> None:
    with_group = os.killpg
    try:
        with_group(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet
        os.kill(pid, signal.SIGKILL)


def _wait_for_group(pid: int) -> None:
    """Wait until the other processes of a killed group have ended. Until then, they may hold locks of files."""
    deadline = time.monotonic() + 5
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(pid, 0)
            time.sleep(0.01)


def _copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def _difference(place: Path, allowed: list[str], found: str) -> str:
    """What is in the one state and not in the other."""
    states = place.parent.parent / "states"
    nearest = min((_lines(states / name) ^ _lines(states / found) for name in allowed), key=len)
    return f"{len(allowed)} states were allowed; from the nearest it differs by {sorted(nearest)[:6]}"


def _lines(path: Path) -> set[str]:
    return {json.dumps(each)[:600] for each in json.loads(path.read_text())}


def spread(total: int, count: int, choose: random.Random) -> list[int]:
    """`count` of the numbers below `total`, one from each of as many equal parts; all of them where there are fewer."""
    count = min(count, total)
    return [choose.randrange(n * total // count, (n + 1) * total // count) for n in range(count)]


if __name__ == "__main__":
    _serve_orders()
