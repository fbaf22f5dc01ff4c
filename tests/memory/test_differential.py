"""Random calls by two processes that have the same store open, compared with the model of `test_state_machine`.

Each call is made by one of the processes, chosen at random. Now and then a process closes the store and opens it again,
or is killed, and another process takes its place. After each call, the entries of the store are compared with the
entries of the model, and the results of one search with the results that follow from the model.

`FAULTS_OPERATIONS=20000` makes more calls, and `FAULTS_OPERATIONS_SEED` repeats a run.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import AgentFormerError
from agentformer.index.words import index as words
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.testing import Reference, admits
from agentformer.types import UNSEARCHED_KINDS, Decay, Hits, MemoryBackend, Query, Scope
from tests.memory.test_state_machine import MOMENT, NAMESPACES, Machine

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="processes are started by a fork server"),
]

OPERATIONS = int(os.environ.get("FAULTS_OPERATIONS", "120"))
SEED = int(os.environ.get("FAULTS_OPERATIONS_SEED", random.randrange(10**6) if OPERATIONS > 120 else 2))
WORDS = ("numbat", "kakapo", "axolotl", "dugong", "fossa", "gharial", "jerboa", "loris", "margay", "urial")
DECAY = Decay({"context": 0.9, "decisions": 0.5}, MOMENT + timedelta(days=3))
FORK: Any = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")
FORK.set_forkserver_preload(
    ["agentformer.index.words.index", "agentformer.search.pipeline", "faiss", "hypothesis", "pytest"]
)
CLOSE = ("close", (), {})
Open = Callable[[Path], MemoryBackend]
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def faiss(folder: Path) -> MemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder())


def serve(opened: Open, folder: Path, pipe: Connection) -> None:
    """Make the calls that arrive, and send the list of what they return, or the error that one of them raises."""
    words._WAIT_SECONDS = 600.0  # a removal may discard the index, whose whole history a search then waits for
    backend = opened(folder)
    while True:
        results: list[Any] = []
        try:
            for name, args, options in pipe.recv():
                if name == "close":
                    backend.close()
                    backend = opened(folder)
                result = getattr(backend, name)(*args, **options) if name != "close" else None
                results.append((list(result), result.warnings) if isinstance(result, Hits) else result)
        except AgentFormerError as error:
            pipe.send(error)
        else:
            pipe.send(results)


class Worker:
    """A process that has the store open."""

    def __init__(self, opened: Open, folder: Path) -> None:
        self._pipe, theirs = FORK.Pipe()
        self._process = FORK.Process(target=serve, args=(opened, folder, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, *calls: Call) -> list[Any]:
        self._pipe.send(calls)
        results = self._pipe.recv()
        if isinstance(results, Exception):
            raise results
        return [Hits(*r) if name == "search" else r for (name, *_), r in zip(calls, results, strict=True)]

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Workers:
    """A backend, each method of which is called in one of two processes."""

    def __init__(self, opened: Open, folder: Path, choose: random.Random) -> None:
        self._start = lambda: Worker(opened, folder)
        self._choose = choose
        self._workers = [self._start(), self._start()]
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self.together((name, args, options))[0]

    def together(self, *calls: Call) -> list[Any]:
        """Make calls one after another in the same process."""
        return self._workers[self._choose.randrange(2)].call(*calls)

    def disturb(self) -> None:
        """Reopen the store in one of the processes, or kill the process and start another one, or do nothing."""
        number, chance = self._choose.randrange(2), self._choose.random()
        if chance < 0.02:
            self.counts["reopened"] += 1
            self._workers[number].call(CLOSE)
        elif chance < 0.03:
            self.counts["killed"] += 1
            self._workers[number].kill()
            self._workers[number] = self._start()

    def end(self) -> None:
        for worker in self._workers:
            worker.call(CLOSE)
            worker.kill()


class TwoProcesses(Machine):
    """Makes random calls, and compares the store with the model after each call."""

    done: ClassVar[Counter[str]] = Counter()

    def __init__(self, opened: Open, folder: Path, choose: random.Random) -> None:
        super().__init__()
        self.choose = choose
        self.neighbours = self.vectors = opened is faiss  # type: ignore[misc]
        self.backend: Any = Workers(opened, folder, choose)
        self.embedder = HashingEmbedder()
        self.room = 100  # the number of entries above which entries are removed
        self.done = Counter()  # type: ignore[misc]

    def run(self, operations: int) -> None:
        for number in range(operations):
            if number % 500 == 0:
                self.room = self.choose.choice((10, 30, 80, 200))
            if number % 1000 == 999:
                print(f"{number + 1} operations, seed {SEED}", flush=True)
            name, call = self.operation()
            self.done[f"called {name}"] += 1
            try:
                call()
                self.compare()
                if number % 100 == 99 or number == operations - 1:
                    del self.ever[:-1000]
                    self.records_agree()
                    self.nothing_is_hidden_for_good()
                    self.a_summary_or_its_originals_are_live()
                self.backend.disturb()
            except BaseException:
                print(f"operation {number}, {name}, seed {SEED}")
                raise
        assert [check for check in self.backend.verify() if check.found] == []
        self.backend.end()

    def operation(self) -> tuple[str, Callable[[], object]]:
        choose, pick = self.choose, lambda: self.choose.randrange(10**6)
        picks = [pick() for _ in range(choose.randint(1, 3))]
        if len(self.model.entries) > self.room:
            few = choose.random() < 0.8
            return "make room", (lambda: self.remove_ids(picks)) if few else (lambda: self.remove_scope(self.scope()))
        operations: dict[str, tuple[int, Callable[[], object]]] = {
            "store": (20, lambda: self.store(self.batch(), choose.random() < 0.5, self.rarely_a_scope())),
            "replace": (5, self.replace_record),
            "repeat": (5, lambda: self.store_unique(self.draft())),
            "take an id": (2, lambda: self.store_under_an_id(self.draft(), pick(), choose.random() < 0.5)),
            "update": (14, lambda: self.update(pick(), self.draft(), choose.choice((None, 0, 1)), choose.random())),
            "supersede": (8, lambda: self.supersede_what_can_be(pick(), pick())),
            "supersede any": (2, lambda: self.supersede(pick(), pick())),
            "undo": (3, lambda: self.supersede_no_more(pick())),
            "store superseded": (2, lambda: self.store_superseded(pick(), pick(), self.draft())),
            "archive": (4, lambda: self.archive_or_revive_by_hand(pick(), choose.choice((None, MOMENT)))),
            "remove": (6, lambda: self.remove_ids(picks)),
            "remove scope": (1, lambda: self.remove_scope(self.scope())),
            "sum up": (5, lambda: self.consolidate_what_can_be(self.namespace(), self.draft(), choose.randint(1, 4))),
            "sum up any": (2, lambda: self.consolidate(picks, self.draft(), choose.choice((None, 0, 1)))),
            "restore": (3, lambda: self.restore_a_summary(pick())),
            "restore any": (1, lambda: self.restore(pick())),
            "touch": (4, lambda: self.touch(picks, choose.randint(-50, 50), (choose.randint(0, 2), 1, 0))),
        }
        (name,) = choose.choices(list(operations), [weight for weight, _ in operations.values()])
        return name, operations[name][1]

    def namespace(self) -> str:
        return self.choose.choice(NAMESPACES)

    def rarely_a_scope(self) -> list[Scope]:
        return [self.scope()] if self.choose.random() < 0.1 else []

    def replace_record(self) -> None:
        """Store entries of a record of the host application, which replace its former entries."""
        draft = self.draft()
        draft |= {"source_type": "row", "source_id": self.choose.choice("abc")}
        scope = Scope(draft["namespace"], source_type="row", source_id=draft["source_id"], include_archived=True)
        self.store([draft] * self.choose.randint(1, 2), True, [scope])

    def batch(self) -> list[dict[str, Any]]:
        return [self.draft() for _ in range(self.choose.randint(1, 3))]

    def draft(self) -> dict[str, Any]:
        choose = self.choose
        draft = {
            "content": self.words(4),
            "namespace": self.namespace(),
            "session_id": choose.choice(("s", "t", None)),
            "user_id": choose.choice(("aino", "bo", None)),
        }
        rare: dict[str, Any] = {
            "kind": choose.choice(("fact", "message", "message", "summary", "document")),
            "tier": choose.choice(("semantic", "episodic", "working")),
            "title": self.words(1),
            "metadata": choose.choice(({"k": 1}, {"k": True}, {})),
            "parent": choose.randrange(10**6),
            "agent_id": choose.choice(("one", None)),
            "project": choose.choice(("p", None)),
            "category": choose.choice(("context", "decisions", "")),
            "occurred_at": MOMENT + timedelta(hours=choose.randint(-20, 20)),
            "times": choose.choice(((MOMENT, None, None), (None, MOMENT, None), (None, None, MOMENT))),
        }
        return draft | {name: value for name, value in rare.items() if choose.random() < 0.3}

    def words(self, most: int) -> str:
        return " ".join(self.choose.choices(WORDS, k=self.choose.randint(1, most)))

    def scope(self) -> Scope:
        """A scope with one or two conditions."""
        choose = self.choose
        conditions: dict[str, Any] = {
            "session_id": choose.choice("st"),
            "user_id": choose.choice(("aino", "bo")),
            "kinds": choose.choice((("fact",), ("message", "summary"))),
            "tiers": (choose.choice(("episodic", "working")),),
            "metadata": {"k": choose.choice((1, True))},
            "project": "p",
            "agent_id": "one",
            "source_id": choose.choice("abc"),
            "categories": ("context", "decisions"),
            "occurred_from": MOMENT + timedelta(hours=choose.randint(-20, 20)),
            "min_salience": choose.choice((0.2, 0.5, 0.9)),
            "as_of": MOMENT + timedelta(hours=choose.randint(-20, 20)),
        }
        names = choose.sample(sorted(conditions), choose.randint(1, 2))
        chosen = {name: conditions[name] for name in names}
        return Scope(self.namespace(), **chosen, or_nobody=choose.random() < 0.2, decay=DECAY)

    def compare(self) -> None:
        """Compare the entries of a namespace, of a scope, and of a search."""
        scope = self.choose.choice((Scope(self.namespace()), self.scope()))
        scope = dataclasses.replace(scope, include_archived=self.choose.random() < 0.3)
        limit = self.choose.choice((3, 10, 1000))
        query = Query(self.words(2), scope, limit, mode=self.choose.choice(("lexical", "dense", "hybrid")))
        whole = Scope(self.namespace(), include_archived=True)
        freed, entries, some, hits = self.backend.together(
            ("get", (sorted(self.model.freed),), {}),
            ("list", (whole,), {"limit": 1000}),
            ("list", (scope,), {"limit": 1000}),
            ("search", (query,), {}),
        )
        for entry in freed:
            self.adopt(entry, "updated_at")
        self.model.freed.clear()
        known = self.model.entries
        assert list(entries) == [known[i] for i in sorted(known) if admits(whole, known[i])]
        assert list(some) == [known[i] for i in sorted(known) if admits(scope, known[i])]
        self.compare_hits(query, hits)

    def compare_hits(self, query: Query, hits: Hits) -> None:
        scope, ids = query.scope, [hit.entry.id for hit in hits]
        visible = [e for e in self.model.entries.values() if admits(scope, e) and e.kind not in UNSEARCHED_KINDS]
        assert len(set(ids)) == len(ids) <= query.limit
        assert [hit.entry for hit in hits] == [self.model.entries[entry_id] for entry_id in ids]
        assert [(-hit.score, hit.entry.id) for hit in hits] == sorted((-hit.score, hit.entry.id) for hit in hits)
        words = set(query.text.split())
        by_words = {entry.id for entry in visible if words & set(self.findable(entry).split())}
        found = by_words if query.mode == "lexical" or not self.vectors else {entry.id for entry in visible}
        self.done[f"searched {query.mode}"] += bool(found)
        if query.mode == "dense" and not self.vectors:
            assert not hits and hits.warnings
            return
        assert not hits.warnings
        assert set(ids) <= found
        assert len(ids) == min(query.limit, len(found)), (query, set(ids) ^ found)
        if query.mode == "dense":
            Reference(visible, self.embedder).check_dense(query, hits)

    def findable(self, entry: Any) -> str:
        return f"{super().findable(entry)} {entry.title}"


@pytest.fixture(params=[faiss, LocalJsonMemoryBackend], ids=["faiss", "local_json"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoProcesses]:
    yield TwoProcesses(request.param, tmp_path, random.Random(SEED))


def test_two_processes_do_what_the_model_does(machine: TwoProcesses) -> None:
    machine.run(OPERATIONS)
    print(f"seed {SEED}: {OPERATIONS} operations, {machine.backend.counts}, {machine.done}")
    assert all(machine.done[name] > OPERATIONS // 200 for name in ("store", "update", "consolidate", "restore"))
    assert machine.backend.counts["reopened"] and machine.backend.counts["killed"]
