"""Several processes over one folder of JSON files, and processes that are killed while they write.

Six kills in the normal suite; `FAULTS_KILLS=50` for more. The seed is printed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.testing import by_words, make_entry
from agentformer.types import Link, Query, Scope
from tests import forked

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("FAULTS_KILLS", "6"))
EVERYTHING = Scope(include_archived=True)
NAMES = ("a", "b", "c")

HEAD = """
import os, random, signal, sys
from pathlib import Path
from agentformer.errors import Conflict, StoreFull
from agentformer.memory.backends.local_json import LocalJsonMemoryBackend
from agentformer.records.codec import now
from agentformer.testing import make_entry
from agentformer.types import Link, Query, Scope, Use
backend = LocalJsonMemoryBackend(Path(sys.argv[1]))
"""
# Stores and counts; a shared fact is stored by everybody and must stay one.
WRITER = (
    HEAD
    + """
for n in range(30):
    backend.store([make_entry(f"{sys.argv[2]} numbat {n}", namespace="ab"[n % 2])])
    backend.store([make_entry("a shared numbat", id=f"{sys.argv[2]}-{n}")], unique=True)
    backend.touch([Use("counted", now(), reads=1)])
    backend.update("counted", {"title": sys.argv[2]})
    backend.search(Query("numbat", Scope("a")))
backend.close()
"""
)
# Says after each call what it has done; never ends by itself.
RESTLESS = (
    HEAD
    + """
choose = random.Random(int(sys.argv[2]))
n = 0
while True:
    n += 1
    namespaces = "abc" if n % 3 else "sss"  # a summary has the namespace of its originals
    entries = [make_entry(f"numbat {n} {i}", namespace=namespaces[i]) for i in range(3)]
    ids = [entry.id for entry in backend.store(entries)]
    print("stored", *ids, flush=True)
    if n % 3 == 0:
        summary = make_entry(f"numbat summary {n}", namespace="s", kind="summary", derived_from=tuple(map(Link, ids)))
        backend.consolidate(summary, ids)
        print("summed", summary.id, *ids, flush=True)
        if choose.random() < 0.5:
            backend.restore(summary.id)
            print("restored", summary.id, *ids, flush=True)
    elif choose.random() < 0.3:
        backend.remove(ids)
        print("removed", *ids, flush=True)
"""
)
# Dies at the n-th rename or removal, in the middle of a change of four namespaces.
DIES = (
    HEAD
    + """
left = int(sys.argv[2])
def dying(real):
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return call
os.replace, os.unlink = dying(os.replace), dying(os.unlink)
Path.unlink = dying(Path.unlink)
news = [make_entry("new numbat", id=f"new {k}", namespace=k) for k in "abd"]
backend.store(news, replacing=[Scope(k) for k in "abc"])
"""
)


def start(program: str, *arguments: object) -> Any:
    return forked.program(program, *arguments)


def test_concurrent_processes_lose_no_write(tmp_path: Path) -> None:
    backend = LocalJsonMemoryBackend(tmp_path)
    backend.store([make_entry("counted", id="counted", namespace="c")])
    writers = [start(WRITER, tmp_path, f"writer{n}") for n in range(2)]
    for n in range(30):
        backend.store([make_entry(f"writer2 numbat {n}", namespace="ab"[n % 2])])
    for writer in writers:
        _, err = writer.communicate(timeout=120)
        assert writer.returncode == 0, err
    found = [entry.content for name in "ab" for entry in backend.list(Scope(name), limit=1000)]
    assert sorted(found) == sorted(f"writer{w} numbat {n}" for w in range(3) for n in range(30))
    assert [len(by_words(backend, "numbat", Scope(name))) for name in "ab"] == [45, 45]
    (shared,) = backend.list(Scope())
    assert shared.repeat_count == 59
    (counted,) = backend.get(["counted"])
    assert (counted.read_count, counted.version, len(backend.history("counted"))) == (60, 61, 60)
    assert [e.content for e in LocalJsonMemoryBackend(tmp_path).list(Scope())] == ["a shared numbat"]


@pytest.mark.fault
@pytest.mark.parametrize("steps", range(12))
def test_a_killed_change_of_several_namespaces_is_atomic(tmp_path: Path, steps: int) -> None:
    backend = LocalJsonMemoryBackend(tmp_path)
    backend.store([make_entry("old numbat", id=f"old {name}", namespace=name) for name in NAMES])
    process = start(DIES, tmp_path, steps)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGKILL, 0), err
    new = {"a": ["new a"], "b": ["new b"], "c": [], "d": ["new d"]}
    old = {"a": ["old a"], "b": ["old b"], "c": ["old c"], "d": []}
    for opened in (backend, LocalJsonMemoryBackend(tmp_path)):
        listed = {name: [entry.id for entry in opened.list(Scope(name))] for name in "abcd"}
        assert listed in (old, new)
        assert listed == {name: by_words(opened, "numbat", Scope(name)) for name in "abcd"}
        assert process.returncode == -signal.SIGKILL or listed == new
    backend.remove(Scope("a"))
    left = sorted(path.name for path in tmp_path.iterdir() if path.name != "memory.lock")
    assert left == sorted(f"memory-{name}.json" for name in "bcd" if listed[name])


@pytest.mark.fault
def test_a_killed_process_loses_no_acknowledged_write(tmp_path: Path) -> None:
    seed = int(os.environ.get("FAULTS_KILLS_SEED") or random.randrange(10**6))
    print(f"seed {seed}, {KILLS} kills")
    choose = random.Random(seed)
    reports: list[Report] = []
    for kill in range(KILLS):
        with start(RESTLESS, tmp_path, seed + kill) as process:
            first = process.stdout.readline()
            time.sleep(choose.uniform(0, 0.4))
            process.kill()
            # `communicate` would lose the lines that `readline` has read from the pipe but not returned.
            out = process.stdout.read()
            err = process.stderr.read()
        assert process.returncode == -signal.SIGKILL, err
        lines = [line.split() for line in (first + out).splitlines(keepends=True) if line.endswith("\n")]
        reports += [Report(what, ids, n == len(lines)) for n, (what, *ids) in enumerate(lines, 1)]
        check(tmp_path, reports)
    assert len(reports) >= KILLS


class Report(NamedTuple):
    """A change that a process reported, of a summary and its three originals, or of three entries."""

    what: str
    ids: list[str]
    last: bool  # before it was killed: the next call may have been done, and not told


def check(tmp_path: Path, reports: list[Report]) -> None:
    """Check that every acknowledged change is there, and the last one wholly or not at all."""
    backend = LocalJsonMemoryBackend(tmp_path)
    entries = {e.id: e for name in (*NAMES, "s") for e in backend.list(Scope(name, include_archived=True), limit=9999)}
    newest = {report.ids[-3]: report for report in reports}
    for what, ids, last in newest.values():
        there = sum(entry_id in entries for entry_id in ids)
        if what == "stored":
            assert there == 3 or (there == 0 and last)
        elif what == "removed":
            assert there == 0
        else:
            assert there == 4
            assert (entries[ids[0]].archived_at is not None) == (what == "restored") or last
    for entry in entries.values():
        if entry.kind == "summary":
            originals = [entries[link.id] for link in entry.derived_from]
            by = {original.archived_by for original in originals}
            assert by == ({None} if entry.archived_at else {entry.id})
            assert {original.archived_at is None for original in originals} == {entry.archived_at is not None}
    for name in (*NAMES, "s"):
        live = [entry.id for entry in backend.list(Scope(name), limit=9999)]
        hits = backend.search(Query("numbat", Scope(name), limit=9999))
        assert sorted(hit.entry.id for hit in hits) == live
    assert not list(tmp_path.glob("*.damaged-*"))
    backend.close()


@pytest.mark.fault
def test_a_full_disk_refuses_the_write_and_keeps_the_rest(tmp_path: Path) -> None:
    room = 200_000  # bytes that any one file may have
    program = HEAD + (
        "try:\n    while True:\n"
        "        print(backend.store([make_entry('numbat ' * 1000)])[0].id, flush=True)\n"
        "except StoreFull as error:\n    print('full:', error, flush=True)\n"
    )
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
    done = forked.ended(start(limit + program, tmp_path))
    *ids, last = done.stdout.splitlines()
    assert last.startswith("full: ") and "disk space" in last, done.stderr
    backend = LocalJsonMemoryBackend(tmp_path)
    assert [entry.id for entry in backend.list(EVERYTHING)] == ids and 20 < len(ids) < 40
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory-default.json", "memory.lock"]
    assert len(json.loads((tmp_path / "memory-default.json").read_text())["entries"]) == len(ids)
    assert backend.store([make_entry("a small numbat", derived_from=(Link("x"),))])
