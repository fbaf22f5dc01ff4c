"""Any number of processes may have one store open: each sees what the others have finished, and nothing is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.testing import Reference, make_entry
from agentformer.types import MemoryBackend, Query, Scope
from tests import forked
from tests.faults.long_form import LONG

pytestmark = pytest.mark.process

# Reads lines from its input, stores each as an entry, answers with its id; "find TEXT" answers with contents.
HELPER = """
import sys
from pathlib import Path
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import make_entry
from agentformer.types import Query
backend = FaissMemoryBackend(Path(sys.argv[1]), HashingEmbedder())
print("ready", flush=True)
for line in sys.stdin:
    verb, _, text = line.strip().partition(" ")
    if verb == "store":
        print(backend.store([make_entry(text)])[0].id, flush=True)
    elif verb == "many":
        prefix, count = text.rsplit(" ", 1)
        for n in range(int(count)):
            backend.store([make_entry(f"{prefix} {n}")])
            if n % 5 == 0:
                backend.search(Query(prefix))
        print("done", flush=True)
    elif verb == "remove":
        print(backend.remove([text]), flush=True)
    else:
        hits = backend.search(Query(text, limit=100, mode=verb))
        print("|".join(sorted(hit.entry.content for hit in hits)), flush=True)
backend.close()
"""


class Other:
    """Another process with the same store open."""

    def __init__(self, folder: Path, program: str = HELPER, *arguments: str) -> None:
        self.process: Any = forked.program(program, folder, *arguments, stdin=subprocess.PIPE)
        assert self.answer() == "ready"

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        return str(self.process.stdout.readline().rstrip("\n"))

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def finish(self) -> int:
        self.process.communicate()
        return int(self.process.returncode)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[FaissMemoryBackend]:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    yield backend
    backend.close()


def found(backend: FaissMemoryBackend, mode: str, text: str) -> str:
    hits = backend.search(Query(text, limit=100, mode=mode))  # type: ignore[arg-type]
    return "|".join(sorted(hit.entry.content for hit in hits))


def test_each_process_sees_what_the_other_has_finished(tmp_path: Path, backend: FaissMemoryBackend) -> None:
    other = Other(tmp_path)
    for mode in ("dense", "lexical"):
        assert found(backend, mode, "numbat") == "" == other.ask(f"{mode} numbat")
    entry_id = other.ask("store a numbat")
    for mode in ("dense", "lexical"):
        assert found(backend, mode, "numbat") == "a numbat" == other.ask(f"{mode} numbat")
    backend.update(entry_id, {"content": "a kakapo"})
    assert other.ask("dense kakapo") == "a kakapo" == other.ask("lexical kakapo")
    assert other.ask("lexical numbat") == "" == found(backend, "lexical", "numbat")
    backend.store([make_entry("a second kakapo")])
    assert other.ask("lexical kakapo") == "a kakapo|a second kakapo" == other.ask("dense kakapo")
    assert other.ask(f"remove {entry_id}") == "1"
    for mode in ("dense", "lexical"):
        assert found(backend, mode, "kakapo") == "a second kakapo" == other.ask(f"{mode} kakapo")
    assert other.finish() == 0


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path, backend: FaissMemoryBackend) -> None:
    others = [Other(tmp_path) for _ in range(3)]
    for n, other in enumerate(others):
        other.tell(f"many writer{n} numbat 12")
    backend.store([make_entry(f"writer3 numbat {n}") for n in range(12)])
    assert [other.answer() for other in others] == ["done"] * 3
    expected = sorted(f"writer{w} numbat {n}" for w in range(4) for n in range(12))
    entries = backend.list(Scope(), limit=1000)
    assert sorted(entry.content for entry in entries) == expected
    assert backend.pending(Scope()) == 0
    for mode in ("dense", "lexical"):
        hits = backend.search(Query("numbat", limit=1000, mode=mode))  # type: ignore[arg-type]
        assert sorted(hit.entry.content for hit in hits) == expected
    query = Query("writer1 numbat 7", limit=5, mode="dense")
    Reference(entries).check_dense(query, backend.search(query))
    assert [other.finish() for other in others] == [0, 0, 0]


def test_whoever_closes_last_leaves_a_snapshot_that_is_right(tmp_path: Path) -> None:
    first = FaissMemoryBackend(tmp_path, HashingEmbedder())
    first.store([make_entry(f"numbat {n}") for n in range(20)])
    query = Query("numbat 7", limit=10, mode="dense")
    first.search(query)
    other = Other(tmp_path)
    assert other.ask("dense kakapo").count("|") == 19
    first.store([make_entry("kakapo")])
    first.search(query)
    first.close()
    assert other.finish() == 0  # closes with an older state in memory
    again = FaissMemoryBackend(tmp_path, HashingEmbedder())
    reference = Reference(again.list(Scope(), limit=100))
    assert len(reference.entries) == 21
    reference.check_dense(query, again.search(query))
    reference.check_dense(Query("kakapo", mode="dense"), again.search(Query("kakapo", mode="dense")))
    again.close()


BRING = """
import sys, time
from pathlib import Path
import agentformer
folder = Path(sys.argv[1])
with agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing") as af:
    af.rag.ready()
    print("ready", flush=True)
    for line in sys.stdin:
        number = int(line)
        text = f"The numbat of file {number} digs.\\n\\n" * 40
        try:
            print(af.rag.upload(text.encode(), name=f"file{number}.txt").status, flush=True)
        except Exception as error:
            print(repr(error), flush=True)
"""


def test_the_same_file_from_several_processes_at_once_is_one_document(tmp_path: Path) -> None:
    count = 12
    others: list[Any] = [forked.program(BRING, tmp_path, stdin=subprocess.PIPE) for _ in range(3)]
    for other in others:
        assert other.stdout.readline() == "ready\n"
    with ThreadPoolExecutor(len(others)) as pool:
        orders = "".join(f"{n}\n" for n in range(count))
        statuses = list(pool.map(lambda other: other.communicate(orders, timeout=120)[0], others))
    assert statuses == ["ready\n" * count] * 3
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        documents = af.rag.documents()
        assert sorted(document.name for document in documents) == sorted(f"file{n}.txt" for n in range(count))
        for document in documents:
            assert af.rag.original(document.id).startswith(b"The numbat")
            assert len(af.rag.chunks(document.id)) == document.chunks == 1
        assert len(af.backend.search(Query("numbat", limit=100, mode="dense"))) == count


@pytest.mark.parametrize("backend", ["faiss", "local_json"])
def test_a_lease_from_before_the_clock_was_set_back_is_not_for_ever(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that died held it, and by its clock it was a day later."""
    later = datetime.now(UTC) + timedelta(days=1)
    open_store = {"faiss": lambda: FaissMemoryBackend(tmp_path, HashingEmbedder())}.get(
        backend, lambda: LocalJsonMemoryBackend(tmp_path)
    )
    first, other = open_store(), open_store()
    with monkeypatch.context() as patched:
        for module in ("records.meta", "memory.backends.sidecar"):
            patched.setattr(f"agentformer.{module}.now", lambda: later)
        assert first.lease("clean", "dead", 300)
        assert not other.lease("clean", "other", 300)
    assert other.lease("clean", "other", 300)
    first.close()
    other.close()


# Opens a backend, and for each line of its input supersedes the first id by the second one. "play SEED" makes 60 random
# calls on the entries e0 to e5.
SUPERSEDER = """
import dataclasses
import random
import sys
from pathlib import Path
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.local_json import LocalJsonMemoryBackend
from agentformer.testing import make_entry
from agentformer.types import Scope
folder = Path(sys.argv[1])
faiss = sys.argv[2] == "faiss"
backend = FaissMemoryBackend(folder, HashingEmbedder()) if faiss else LocalJsonMemoryBackend(folder)
print("ready", flush=True)

def play(choose):
    one, other = (f"e{n}" for n in choose.sample(range(6), 2))
    def fresh(): return make_entry(f"entry {one}", id=one, source_type="note", source_id=one)
    action = choose.choice(["supersede"] * 4 + ["restore", "remove", "replace", "store", "import"])
    if action == "supersede":
        backend.update(one, {"superseded_by": other})
    elif action == "restore":
        backend.update(one, {"superseded_by": None})
    elif action == "remove":
        backend.remove([one])
    elif action == "replace":
        backend.store([make_entry("in its place")], replacing=[Scope(source_type="note", source_id=one)])
    elif action == "store":
        backend.store([fresh()])
    else:
        backend.store([dataclasses.replace(fresh(), superseded_by=other)])

def refused(call, *arguments):
    try:
        call(*arguments)
    except (Conflict, InvalidInput, NotFound):
        return "refused"
    return "done"

for line in sys.stdin:
    old, new = line.split()
    if old == "play":
        choose = random.Random(new)
        for _ in range(60):
            refused(play, choose)
        print("played", flush=True)
    else:
        print(refused(backend.update, old, {"superseded_by": new}), flush=True)
backend.close()
"""


@pytest.mark.parametrize("kind", ["faiss", "local_json"])
def test_two_processes_supersede_and_remove_and_nothing_is_hidden_for_good(tmp_path: Path, kind: str) -> None:
    """Each supersedes the other's entry at the same moment; then both make any calls in any order."""
    backend: MemoryBackend = LocalJsonMemoryBackend(tmp_path)
    if kind == "faiss":
        backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    pairs = 150 if LONG else 15
    backend.store([make_entry(f"{side} {n}", id=f"{side}{n}") for n in range(pairs) for side in "ab"])
    processes = [Other(tmp_path, SUPERSEDER, kind) for _ in range(2)]
    for n in range(pairs):
        for process, (old, new) in zip(processes, ("ab", "ba"), strict=True):
            process.tell(f"{old}{n} {new}{n}")
        assert sorted(process.answer() for process in processes) == ["done", "refused"]
        assert backend.count(Scope()) == 2 * pairs - n - 1
    for seed in range(0, 20 if LONG else 2, 2):
        for k, process in enumerate(processes):
            process.tell(f"play {seed + k}")
        for process in processes:
            process.answer()
        assert not [check for check in backend.verify() if check.found]
        for entry in backend.list(Scope(include_archived=True), limit=1000):
            chain = [entry]
            while (following := chain[-1].superseded_by) is not None:
                assert following not in [one.id for one in chain]
                chain += backend.get([following])
                assert chain[-1].id == following
    assert [process.finish() for process in processes] == [0, 0]
    backend.close()
