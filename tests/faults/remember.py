"""What the fault tests run in processes of their own: add, change, clean, restore, search, until killed or at an end.

Each acknowledged call is a line of the log given, written after the call has returned.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from agentformer.errors import Conflict
from agentformer.factory import AgentFormer, connect

SESSIONS = ("red", "green", "blue")
COUNTER = "counter"


def opened(folder: Path) -> AgentFormer:
    # A lease of a killed process must end while the test still runs.
    settings = {"embedder": "hashing", "clean_every": 0, "lease_seconds": 1.0}
    return connect(index_dir=folder, upload_dir=folder / "uploads", **settings)


class Worker:
    """One thread's work. `name` makes its messages unlike anybody else's."""

    def __init__(self, af: AgentFormer, log: Path, name: str, seed: int) -> None:
        self._af = af
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._name = name
        self._choose = random.Random(seed)
        self._number = 0

    def step(self) -> None:
        """One call, more often an addition than anything else."""
        chosen = self._choose.random()
        if chosen < 0.55:
            self._add()
        elif chosen < 0.70:
            self._acknowledge("clean", ids=list(self._af.memory.clean(session_id=self._session()).summaries))
        elif chosen < 0.80:
            self._restore()
        elif chosen < 0.90:
            self._count()
        else:
            self._af.memory.search(f"numbat {self._choose.randrange(50)}", session_id=self._session())

    def _session(self) -> str:
        return self._choose.choice(SESSIONS)

    def _add(self) -> None:
        self._number += 1
        text = f"numbat number {self._number} of {self._name}"
        entry = self._af.memory.add_message(self._session(), "user", text)
        self._acknowledge("add", id=entry.id, content=text)

    def _restore(self) -> None:
        summaries = self._af.memory.list(kinds=["summary"], session_id=self._session())
        if not summaries:
            return
        summary = self._choose.choice(summaries)
        try:
            originals = self._af.memory.restore(summary.id)
        except Conflict:
            return  # another worker was faster
        self._acknowledge("restore", id=summary.id, ids=[entry.id for entry in originals])

    def _count(self) -> None:
        """A read, an addition and a write that must not lose anybody's addition."""
        block = self._af.memory.core.get(COUNTER)
        try:
            self._af.memory.update(block.id, content=str(int(block.content) + 1), expected_version=block.version)
        except Conflict:
            return
        self._acknowledge("count")

    def _acknowledge(self, call: str, **details: Any) -> None:
        os.write(self._log, (json.dumps({"call": call, **details}) + "\n").encode())


def work(af: AgentFormer, log: Path, name: str, seed: int, ends: float) -> None:
    worker = Worker(af, log, name, seed)
    while time.monotonic() < ends:
        worker.step()


def main() -> None:
    folder, log, name, seed, threads, seconds = sys.argv[1:]
    ends = time.monotonic() + float(seconds)
    failures: list[BaseException] = []

    def run(n: int) -> None:
        try:
            work(af, Path(log), f"{name}.{n}", int(seed) + n, ends)
        except BaseException as error:  # told at the end, by name
            failures.append(error)

    with opened(Path(folder)) as af:
        print("ready", flush=True)
        running = [threading.Thread(target=run, args=(n,)) for n in range(int(threads))]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    if failures:
        raise failures[0]


if __name__ == "__main__":
    main()
