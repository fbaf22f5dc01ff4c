"""Backups that are taken while three processes add, change, remove, sum up and ingest; and `kill -9` during one.

Two backups and one kill in the normal suite; `FAULTS_SECONDS=60` and `FAULTS_KILLS=30` for more.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from backup_writers import opened
from long_form import LONG

from agentformer.archive.backup import check_backup
from agentformer.factory import AgentFormer
from agentformer.types import MemoryEntry, Scope
from tests import forked

SECONDS = float(os.environ.get("FAULTS_SECONDS", "0"))
KILLS = int(os.environ.get("FAULTS_KILLS", "1"))
WRITERS = 3
BACKUPS = 2  # at least


def started(folder: Path, name: str) -> Any:
    """A writer that has opened the memory and writes until it is killed, or for ten minutes."""
    script = Path(__file__).with_name("backup_writers.py")
    log = folder / f"{name}.log"
    process = forked.script(script, folder / "i", folder / "u", log, name, 600)
    assert process.stdout.readline() == "ready\n", process.communicate(timeout=60)[1]
    return process


def told(folder: Path) -> list[dict[str, Any]]:
    """What the writers have acknowledged; a line that was cut off was not."""
    lines = [line for log in folder.glob("*.log") for line in log.read_text(encoding="utf-8").split("\n")[:-1]]
    return [json.loads(line) for line in lines]


def busy(folder: Path, writers: list[Any], calls: int) -> None:
    """Wait until so many more calls have been acknowledged."""
    before, deadline = len(told(folder)), time.monotonic() + 120
    while len(told(folder)) < before + calls:
        assert time.monotonic() < deadline, "no call was acknowledged"
        for writer in writers:
            assert writer.poll() is None, writer.communicate()[1]
        time.sleep(0.02)


def backed_up(folder: Path, name: str) -> tuple[float, float]:
    """When a backup began and when it had ended."""
    where = ["--index-dir", str(folder / "i"), "--upload-dir", str(folder / "u"), "--embedder", "hashing"]
    began = time.monotonic()
    done = forked.ended(forked.command("backup", folder / name, *where), 300)
    assert done.returncode == 0, done.stderr
    return began, time.monotonic()


def everything(af: AgentFormer) -> dict[str, MemoryEntry]:
    entries: list[MemoryEntry] = []
    while page := af.backend.list(Scope(include_archived=True), after=entries[-1].id if entries else "", limit=1000):
        entries += page
    return {entry.id: entry for entry in entries}


def check_moment(entries: dict[str, MemoryEntry], calls: list[dict[str, Any]], began: float, ended: float) -> int:
    """All that was acknowledged before is there, and nothing that was begun after. Returns how much was looked at."""
    first, last = {}, {}  # of each entry the last call that returned before, and the first that was begun after
    touched_between = set()
    for call in sorted(calls, key=lambda call: call["began"]):
        if call["returned"] < began:
            first[call["id"]] = call
        elif call["began"] > ended:
            last.setdefault(call["id"], call)
        else:
            touched_between.add(call["id"])
    for entry_id, call in first.items():
        if call["call"] == "remove":
            assert entry_id not in entries, "what was removed before is in the backup"
        elif entry_id not in touched_between:
            assert entries[entry_id].version == call["version"]
    for entry_id, call in last.items():
        if call["call"] == "add":
            assert entry_id not in entries, "what came after is in the backup"
        if call["call"] == "update" and entry_id in entries:
            assert entries[entry_id].version < call["version"]
    return len(first)


def check_restored(folder: Path, name: str, calls: list[dict[str, Any]], began: float, ended: float) -> int:
    """Restored, the backup is a sound memory of that moment."""
    assert check_backup(folder / name) == []
    place = folder / f"restored {name}"
    shutil.copytree(folder / name, place)
    with opened(place / "indexes", place / "uploads") as af:
        entries = everything(af)
        looked_at = check_moment(entries, calls, began, ended)
        for entry in entries.values():
            assert len(af.backend.history(entry.id)) == entry.version - 1
            assert entry.archived_by is None or entries[entry.archived_by].archived_at is None
        for document in af.rag.documents():
            assert af.rag.original(document.id).count(b"closes in November") == 5
            assert len(af.rag.pages(document.id)) == document.pages
        found = [(check.name, check.findings) for check in af.verify() if check.found]
        assert found == []
        live = {i for i, e in entries.items() if e.kind == "fact" and e.archived_at is None}
        hits = af.memory.search("numbat", kinds=["fact"], limit=10_000, mode="lexical")
        assert {hit.entry.id for hit in hits} == live
    shutil.rmtree(place)
    return looked_at


def test_backups_under_load_are_whole_and_of_their_moment(tmp_path: Path) -> None:
    with opened(tmp_path / "i", tmp_path / "u"):
        pass
    writers = [started(tmp_path, f"writer{n}") for n in range(WRITERS)]
    taken: list[tuple[str, float, float]] = []
    ends = time.monotonic() + SECONDS
    try:
        while len(taken) < BACKUPS or time.monotonic() < ends:
            busy(tmp_path, writers, 10)
            name = f"backup{len(taken)}"
            taken.append((name, *backed_up(tmp_path, name)))
        busy(tmp_path, writers, 10)
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate(timeout=60)
    calls = told(tmp_path)
    for name, began, ended in taken:
        looked_at = check_restored(tmp_path, name, calls, began, ended)
        during = sum(began < call["returned"] and call["began"] < ended for call in calls)
        print(f"{name}: {looked_at} entries acknowledged before, {during} calls during {ended - began:.1f} s")
        assert looked_at > 0 and during > 0


def begun(folder: Path, name: str) -> Any:
    """Return a backup whose folder is there, unless it has ended already."""
    where = ["--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u", "--embedder", "hashing"]
    former = set(folder.glob(f".{name}.*"))
    process = forked.command("backup", folder / name, *where)
    deadline = time.monotonic() + 120
    while set(folder.glob(f".{name}.*")) <= former and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return process


def test_a_backup_that_is_killed_leaves_nothing_under_its_name(tmp_path: Path) -> None:
    with opened(tmp_path / "i", tmp_path / "u") as af:
        af.memory.store_many(f"numbat {n} {'of the quiet harbour ' * 20}" for n in range(3000 if LONG else 600))
        for n in range(20):
            af.rag.upload(f"Note {n} of the harbour. ".encode() * 200, name=f"{n}.txt")
    whole, began = begun(tmp_path, "whole"), time.monotonic()
    assert whole.wait(timeout=120) == 0
    lasts = time.monotonic() - began
    choose = random.Random(KILLS)
    left_behind = kills = 0
    while kills < KILLS or not left_behind:  # a kill may come too late
        kills += 1
        assert kills <= 10 * KILLS
        process = begun(tmp_path, "copy")
        time.sleep(choose.uniform(0, lasts / 2))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        left = list(tmp_path.glob(".copy.*"))
        assert len(left) <= 1, "what an earlier kill left was not cleared away"
        left_behind += len(left)
        if (tmp_path / "copy").exists():  # it had been finished
            assert check_backup(tmp_path / "copy") == []
            shutil.rmtree(tmp_path / "copy")
    backed_up(tmp_path, "copy")
    assert check_backup(tmp_path / "copy") == []
    assert not list(tmp_path.glob(".copy.*"))
    print(f"{left_behind} of {kills} kills came in the midst of a backup")
