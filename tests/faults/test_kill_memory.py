"""`kill -9` at any moment of adding, cleaning and restoring; and many writers at once. Nothing acknowledged is lost,
no consolidation is half done, and no index tells anything else than the records.

Two kills and one second in the normal suite; `FAULTS_KILLS=200` and `FAULTS_SECONDS=60` for more.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from remember import COUNTER, SESSIONS, opened

from agentformer.factory import AgentFormer
from agentformer.types import MemoryEntry, Query, Scope
from tests import forked

KILLS = int(os.environ.get("FAULTS_KILLS", "2"))
SECONDS = float(os.environ.get("FAULTS_SECONDS", "1"))
EVERYTHING = Scope(include_archived=True)


def start(folder: Path, log: Path, name: str, *, seed: int, threads: int = 1, seconds: float = 60) -> Any:
    script = Path(__file__).with_name("remember.py")
    process = forked.script(script, folder, log, name, seed, threads, seconds)
    assert process.stdout.readline() == "ready\n", process.communicate(timeout=60)[1]
    return process


def written(log: Path) -> None:
    """Wait until another call has been acknowledged."""
    before, deadline = len(acknowledged(log)), time.monotonic() + 60
    while len(acknowledged(log)) == before:
        assert time.monotonic() < deadline, "no call was acknowledged"
        time.sleep(0.02)


def acknowledged(log: Path) -> list[dict[str, Any]]:
    """What the log tells; a line that was cut off was not acknowledged."""
    lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in lines]


def everything(af: AgentFormer) -> list[MemoryEntry]:
    entries: list[MemoryEntry] = []
    while page := af.backend.list(EVERYTHING, after=entries[-1].id if entries else "", limit=1000):
        entries += page
    return entries


def check(af: AgentFormer, calls: list[dict[str, Any]]) -> Counter[str]:
    """All that must hold after any end. Returns how much of what was seen."""
    entries = everything(af)
    by_id = {entry.id: entry for entry in entries}
    for call in calls:
        if call["call"] == "add":
            assert by_id[call["id"]].content == call["content"]
        elif call["call"] == "clean":
            assert all(summary in by_id for summary in call["ids"])
        elif call["call"] == "restore":
            assert by_id[call["id"]].archived_at is not None
    summaries = [entry for entry in entries if entry.kind == "summary"]
    standing: Counter[str] = Counter()
    for summary in summaries:
        originals = [by_id[link.id] for link in summary.derived_from]
        assert len(originals) == 5
        if summary.archived_at is None:
            standing.update(entry.id for entry in originals)
            assert all(entry.archived_by == summary.id and entry.archived_at for entry in originals)
        else:
            assert all(entry.archived_by != summary.id for entry in originals)
    assert set(standing.values()) <= {1}, "two live summaries of one message"
    messages = [entry for entry in entries if entry.kind == "message"]
    assert all((entry.id in standing) == (entry.archived_at is not None) for entry in messages)
    said = [entry for session in SESSIONS for entry in af.memory.transcript(session)]
    assert sorted(entry.id for entry in said) == [entry.id for entry in messages]
    assert len({entry.content for entry in messages}) == len(messages)
    check_indexes(af, entries)
    return Counter(summaries=len(summaries), standing=len(standing), messages=len(messages))


def check_indexes(af: AgentFormer, entries: list[MemoryEntry]) -> None:
    assert af.backend.pending(EVERYTHING) == 0
    for mode in ("lexical", "dense"):
        for scope, expected in (
            (Scope(), [e.id for e in entries if not e.archived_at]),
            (EVERYTHING, [e.id for e in entries]),
        ):
            hits = af.backend.search(Query("numbat number", scope, limit=10_000, mode=mode))
            found = {hit.entry.id for hit in hits}
            numbats = {entry_id for entry_id in expected if entry_id != af.memory.core.get(COUNTER).id}
            assert found - {af.memory.core.get(COUNTER).id} == numbats, mode


def test_killed_at_any_moment_nothing_is_lost_or_half_done(tmp_path: Path) -> None:
    seed = int(os.environ.get("FAULTS_KILLS_SEED", random.randrange(10**6)))
    print(f"FAULTS_KILLS_SEED={seed}")
    choose = random.Random(seed)
    folder, log = tmp_path / "index", tmp_path / "log"
    with opened(folder) as af:
        af.memory.core.append(COUNTER, "0")
    seen: Counter[str] = Counter()
    for kill in range(KILLS):
        process = start(folder, log, f"run{kill}", seed=seed + kill)
        if kill % 2 == 0:  # half of them once calls are acknowledged, the others during the first calls
            written(log)
        time.sleep(choose.uniform(0.0, 0.8))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        if kill % 10 == 9 or kill == KILLS - 1 or kill < 5:
            with opened(folder) as af:
                calls = acknowledged(log)
                seen = check(af, calls)
                counts = sum(call["call"] == "count" for call in calls)
                # A count that was written and not yet acknowledged when its process died is counted, too.
                assert counts <= int(af.memory.core.get(COUNTER).content) <= counts + kill + 1
    told = Counter(call["call"] for call in acknowledged(log))
    print(f"{KILLS} kills; acknowledged {dict(told)}; at the end {dict(seen)}")
    assert told["add"] > 0


def test_threads_and_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    folder, log = tmp_path / "index", tmp_path / "log"
    with opened(folder) as af:
        af.memory.core.append(COUNTER, "0")
    # Two threads in each of four processes beside eight in a fifth: everything meets everything.
    processes = [start(folder, log, f"process{n}", seed=100 * n, threads=2, seconds=SECONDS) for n in range(4)]
    processes.append(start(folder, log, "threads", seed=1000, threads=8, seconds=SECONDS))
    for process in processes:
        _, errors = process.communicate(timeout=SECONDS + 240)
        assert process.returncode == 0, errors
    with opened(folder) as af:
        calls = acknowledged(log)
        seen = check(af, calls)
        told = Counter(call["call"] for call in calls)
        assert int(af.memory.core.get(COUNTER).content) == told["count"]
        assert seen["messages"] == told["add"]
        made = [summary for call in calls if call["call"] == "clean" for summary in call["ids"]]
        assert len(made) == len(set(made)) == seen["summaries"]
    print(f"{SECONDS} s; acknowledged {dict(told)}; at the end {dict(seen)}")
