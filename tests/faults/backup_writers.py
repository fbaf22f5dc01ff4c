"""A process that changes a memory until its time is over, and tells of each call when it began and when it returned.

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from agentformer.errors import Conflict, NotFound
from agentformer.factory import AgentFormer, connect

SESSION = "talk of {}"


def opened(index: Path, uploads: Path) -> AgentFormer:
    return connect(index_dir=index, upload_dir=uploads, embedder="hashing", clean_every=0, lease_seconds=1.0)


class Writer:
    """One process's work. `name` makes its texts unlike anybody else's."""

    def __init__(self, af: AgentFormer, log: Path, name: str) -> None:
        self._af = af
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._name = name
        self._choose = random.Random(name)
        self._facts: list[str] = []
        self._documents: list[str] = []
        self._number = 0

    def step(self) -> None:
        chosen = self._choose.random()
        began = time.monotonic()
        self._number += 1
        if chosen < 0.35 or not self._facts:
            entry = self._af.memory.store(f"numbat {self._number} of {self._name}")
            self._facts.append(entry.id)
            self._tell("add", began, id=entry.id, version=1)
        elif chosen < 0.55:
            fact = self._choose.choice(self._facts)
            entry = self._af.memory.update(fact, content=f"numbat {self._number} of {self._name}, changed")
            self._tell("update", began, id=fact, version=entry.version)
        elif chosen < 0.65:
            fact = self._facts.pop(self._choose.randrange(len(self._facts)))
            self._af.memory.remove(fact)
            self._tell("remove", began, id=fact)
        elif chosen < 0.8:
            entry = self._af.memory.add_message(SESSION.format(self._name), "user", f"said {self._number} {self._name}")
            self._tell("add", began, id=entry.id, version=1)
        elif chosen < 0.85:
            self._consolidate(began)
        else:
            self._document(began)

    def _consolidate(self, began: float) -> None:
        summaries = self._af.memory.clean(session_id=SESSION.format(self._name)).summaries
        for summary in summaries:
            self._tell("add", began, id=summary, version=1)

    def _document(self, began: float) -> None:
        if len(self._documents) > 3 and self._choose.random() < 0.5:
            document = self._documents.pop(0)
            self._af.rag.remove(document)
            self._tell("remove", began, id=document)
            return
        text = f"# Part {self._number}\n\nThe harbour of {self._name} closes in November.\n" * 5
        document = self._af.rag.upload(text.encode(), name=f"{self._name} {self._number}.md").id
        self._documents.append(document)
        self._tell("add", began, id=document, version=1)

    def _tell(self, call: str, began: float, **details: Any) -> None:
        line = {"call": call, "began": began, "returned": time.monotonic(), **details}
        os.write(self._log, (json.dumps(line) + "\n").encode())


def main() -> None:
    index, uploads, log, name, seconds = sys.argv[1:]
    with opened(Path(index), Path(uploads)) as af:
        writer = Writer(af, Path(log), name)
        print("ready", flush=True)
        ends = time.monotonic() + float(seconds)
        while time.monotonic() < ends:
            try:
                writer.step()
            except (Conflict, NotFound):
                continue


if __name__ == "__main__":
    main()
