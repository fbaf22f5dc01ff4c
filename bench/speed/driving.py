"""The work of ours and of every peer: ingest passages into a folder, and answer from it in a new process.

`python -m MODULE ingest|query|crowd WORK FOLDER MODEL`; WORK holds `passages.json`, `questions.json` and `first.json`.
Ingest is timed from a loaded and warm model until everything is searchable and on disk; the first answer is timed from
the start of the process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from bench.speed.timing import WARMING, Ask, Values, crowd, disk_mb, memory, percentiles, report, since_start, timed

PARTS = 3  # of the questions: asked one by one, embedded alone, and asked by many threads


class System(Protocol):
    """A library. It loads its parts when it is built, or in `warm` and `open`."""

    def warm(self, text: str) -> None:
        """Encode something, so that lazily built parts exist."""
        ...

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        """Make passages searchable, and write them to disk."""
        ...

    def open(self, folder: Path) -> Ask:
        """Return a function that answers a question from the files that `ingest` wrote."""
        ...


@runtime_checkable
class Apart(Protocol):
    """A system that can also encode with its model alone."""

    def encode(self, passages: Sequence[str]) -> object: ...

    def embed(self, text: str) -> object: ...


def drive(make: Callable[[], System], phase: str, work: Path, folder: Path) -> None:
    """Run one phase of one system and print the measurements."""
    system = make()
    report({"ingest": _ingest, "query": _query, "crowd": _crowd}[phase](system, work, folder))


def _texts(work: Path, name: str) -> list[str]:
    texts: list[str] = json.loads((work / f"{name}.json").read_text(encoding="utf-8"))
    return texts


def _ingest(system: System, work: Path, folder: Path) -> Values:
    passages = _texts(work, "passages")
    system.warm(passages[0])
    alone = _encoding(system, passages[::4])
    started = time.perf_counter()
    system.ingest(folder, passages)
    seconds = time.perf_counter() - started
    told = memory()
    alone += _encoding(system, passages[2::4])  # before and after, since the speed of the machine varies
    return {
        "seconds": seconds,
        "per_second": len(passages) / seconds,
        "disk_mb": disk_mb(folder),
        "encode_s": 2 * alone,  # of every second passage
        **told,
    }


def _encoding(system: System, passages: Sequence[str]) -> float:
    """Return the seconds of the model alone for these passages; 0 if it cannot be called alone."""
    started = time.perf_counter()
    if isinstance(system, Apart):
        system.encode(passages)
        return time.perf_counter() - started
    return 0.0


def _query(system: System, work: Path, folder: Path) -> Values:
    ask, first = _opened(system, work, folder)
    single, embedded, _ = _questions(work)
    whole, apart = [], []
    for asked, other in zip(single, embedded, strict=False):  # different texts, since answers may be cached
        whole.append(timed(ask, asked))
        if isinstance(system, Apart):
            apart.append(timed(system.embed, other))
    told = {"first_s": first, **percentiles(whole), **memory()}
    return {**told, "embed_p50": percentiles(apart)["p50"]} if apart else told


def _crowd(system: System, work: Path, folder: Path) -> Values:
    """Run threads in a process of their own, since some libraries crash with several threads."""
    ask, _ = _opened(system, work, folder)
    return crowd(ask, _questions(work)[2])


def _opened(system: System, work: Path, folder: Path) -> tuple[Ask, float]:
    """Return the warm system, and the seconds from the start of the process to its first answer."""
    ask = system.open(folder)
    ask(_texts(work, "first")[0])
    first = since_start()
    for text in _texts(work, "questions")[:WARMING]:
        ask(text)
    return ask, first


def _questions(work: Path) -> list[list[str]]:
    """Return the questions to ask one by one, to embed alone, and to ask by many threads."""
    questions = _texts(work, "questions")[WARMING:]
    return [questions[part::PARTS] for part in range(PARTS)]
