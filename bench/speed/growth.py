"""Measurements that depend on the store's size: `python -m bench.speed.growth PHASE FOLDER ENTRIES`.

`build` stores entries through the public API, while `follow` updates the word index in another process, also while
`build` makes the vector index. `measure` opens the store in a new process and reports: the time that a search adds to
embedding the query, recall, the cost of a scope of one entry in a hundred, the delay of a change, and memory. `share`
measures the memory of two processes that use the store, with `beside` as the second one. The embedder is `prepared`: it
looks vectors up.
"""

from __future__ import annotations

import contextlib
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agentformer
from agentformer.types import Hits
from bench.speed import prepared
from bench.speed.children import python
from bench.speed.entries import BLOCK, QUESTIONS, Source, nearest, source, user
from bench.speed.timing import (
    LIMIT,
    THREADS,
    WARMING,
    Values,
    crowd,
    disk_mb,
    memory,
    percentiles,
    report,
    since_start,
    timed,
)

ASKED = 200
CHANGES = 20
_BATCH = 2_500  # entries of one call
SCOPE = 7  # the user of the scope of 1%
_QUIET = 1.5  # seconds without work after which an index has settled
_PATIENCE = 3_600.0
_EACH = 10  # questions of each thread of a crowd
STARTS = range(1, 1 + 3 * (WARMING + ASKED), WARMING + ASKED)  # of questions, each asked once
_NAMED = (
    "in May 2023",
    "on 7 March 2023",
    "last week",
    "in 2021",
    "two weeks ago",
)  # times that questions name
_TIMED = range(STARTS[-1] + WARMING + ASKED, QUESTIONS - 2 * THREADS * _EACH)  # questions that name one
_PAUSE = 0.5  # seconds between two searches of the following process


def main() -> None:
    phase, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    prepared.register()
    phases = {"build": build, "follow": follow, "measure": measure, "share": share, "beside": beside}
    report(phases[phase](folder, count))


def build(folder: Path, count: int) -> Values:
    """Store entries up to `count` in addition to existing ones, and wait until the index is idle. Also compute the
    nearest entries of every question, of all entries and of one user's."""
    known = source()
    truth = folder / "truth.npz"
    if not truth.exists():
        folder.mkdir(parents=True, exist_ok=True)
        asked = known.asked[:ASKED]
        np.savez(truth, all=nearest(known, asked, count, LIMIT), scope=nearest(known, asked, count, LIMIT, SCOPE))
    with opened(folder) as af:
        started, processor = time.perf_counter(), time.process_time()
        with _following(folder, count) as end:
            for at in range(0, count, BLOCK):
                _store(af, known, range(at, min(at + BLOCK, count)))
            stored = time.perf_counter() - started
            end()
            prepared.SHELF[known.questions[0]] = known.asked[0]
            af.memory.search(known.questions[0], mode="dense")  # while the other process writes the last words
        af.memory.search(known.questions[0])
        followed = time.perf_counter() - started
        af.backend.embed_pending()  # nothing is pending; this call trains an index that is due
        settled = settle(af)
    spent = time.process_time() - processor
    return {"stored_s": stored, "followed_s": followed, "settled": settled, "processor_s": spent, **memory()}


def follow(folder: Path, count: int) -> Values:
    """Search by words until the input ends, and once more, so that a second process writes the word index."""
    with opened(folder) as af:
        ended = False
        while not ended:
            ended = bool(select.select([sys.stdin], [], [], _PAUSE)[0])
            af.memory.search("anything", mode="lexical", limit=1)
    return memory()


def measure(folder: Path, count: int) -> Values:
    """Return all measurements of a store of this size."""
    known = source()
    prepared.SHELF.update(zip(known.questions, known.asked, strict=True))
    prepared.SHELF["what is loaded beside"] = known.asked[0]
    timed_questions = [f"{known.questions[n].rstrip('?')} {_NAMED[n % len(_NAMED)]}?" for n in _TIMED]
    prepared.SHELF.update(zip(timed_questions, known.asked[_TIMED[0] :], strict=False))
    ready, own = since_start(), memory()["rss_mb"]
    with opened(folder) as af, np.load(folder / "truth.npz") as truth:
        af.memory.search(known.questions[0], limit=LIMIT)
        start = since_start() - ready
        settle(af)
        before, general, scoped = (known.questions[at : at + WARMING + ASKED] for at in STARTS)
        early = asked(af, before)
        af.backend.embed_pending()  # a trained index is tuned again with the first questions
        settle(af)
        told = {
            "entries": count,
            "start_s": start,
            "early": early,
            "hybrid": asked(af, general),
            "timed": asked(af, timed_questions),
            "recall": recall(af, known, truth["all"], {}),
            "scope": asked(af, scoped, user_id=user(SCOPE)),
            "scope_recall": recall(af, known, truth["scope"], {"user_id": user(SCOPE)}),
            "resident": memory(),
            "index": index_status(af),
            **changes(af, known, count),
            **_crowds(af, known.questions[-2 * THREADS * _EACH :]),
        }
    return {**told, **memory(), "before_mb": own, "disk_mb": disk_mb(folder / "indexes")}


def share(folder: Path, count: int, mode: str = "hybrid") -> Values:
    """Return the memory of one process that has answered questions, and that of two which have answered others. The
    memory of the benchmark's own sentences, which each process has, is left out."""
    command = [*python("bench.speed.growth", "beside", str(folder), str(count)), mode]
    half = _half(0)
    own = memory()["pss_mb"]
    with opened(folder) as af:
        asked(af, half, mode=mode)
        alone = memory()["pss_mb"] - own
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            other.stdout.readline()
            together = memory()["pss_mb"] + memory(other.pid)["pss_mb"] - 2 * own
            other.communicate("\n")
    return {"own_mb": own, "one_mb": alone, "two_mb": together, "times": together / alone}


def beside(folder: Path, count: int) -> Values:
    """Answer the other half of the questions, and wait."""
    half = _half(1)
    with opened(folder) as af:
        asked(af, half, mode=sys.argv[4])
        print("ready", flush=True)
        sys.stdin.readline()
    return memory()


def _half(number: int) -> list[str]:
    """Return one half of the questions, whose vectors are known afterwards."""
    known = source()
    prepared.SHELF.update(zip(known.questions, known.asked, strict=True))
    prepared.SHELF["what is loaded beside"] = known.asked[0]
    return known.questions[number::2]


def _crowds(af: agentformer.AgentFormer, questions: Sequence[str]) -> Values:
    """Return the figures of one thread and of several, which ask different questions."""

    half, each = len(questions) // 2, partial(ask, af)
    return {"alone": crowd(each, questions[:half], 1), "crowd": crowd(each, questions[half:], THREADS)}


def opened(folder: Path) -> agentformer.AgentFormer:
    """Open the store of a folder."""
    return agentformer.connect(
        index_dir=folder / "indexes", upload_dir=folder / "uploads", embedder=prepared.SPEC, clean_every=0
    )


@contextlib.contextmanager
def _following(folder: Path, count: int) -> Iterator[Callable[[], None]]:
    """Run a process that updates the word index; on two cores this halves the time to build a store. Yield a function
    that tells the process to end after it has written all words. At the end, wait for the process."""
    command = python("bench.speed.growth", "follow", str(folder), str(count))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        try:
            yield process.stdin.close
        finally:
            process.stdin.close()
            process.wait(timeout=_PATIENCE)
    if process.returncode:
        raise RuntimeError(f"the process that follows ended with {process.returncode}")


def _store(af: agentformer.AgentFormer, known: Source, block: range) -> None:
    """Store the entries of one block in batches. Afterwards only their rows stay in memory."""
    rows = known.block(block[0] // BLOCK)
    texts = known.texts(block)
    prepared.SHELF.clear()
    prepared.SHELF.update(
        zip(reversed(texts), rows[: len(texts)][::-1], strict=True)
    )  # of equal texts the first counts
    for at in range(0, len(block), _BATCH):
        af.memory.store_many(
            {"content": text, "user_id": user(number), "metadata": {"n": number}}
            for number, text in zip(block[at : at + _BATCH], texts[at : at + _BATCH], strict=True)
        )


def index_status(af: agentformer.AgentFormer) -> Values:
    """Return the status of the vector index."""
    told: Values = af.backend.status().get("index") or {}
    return told


def settle(af: agentformer.AgentFormer) -> bool:
    """Wait until no background work runs, such as a training; return False at the time limit."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        spent = time.process_time()
        time.sleep(_QUIET)
        if time.process_time() - spent < _QUIET / 20 and not index_status(af).get("training"):
            return True
    return False


def ask(af: agentformer.AgentFormer, text: str, **options: Any) -> Hits:
    """Search by words and vectors. Raises `RuntimeError` if the search could use only one of them, or left entries out,
    because such a search is cheaper than those that are measured."""
    hits = af.memory.search(text, limit=LIMIT, **options)
    if hits.warnings:
        raise RuntimeError(hits.warnings[0])
    return hits


def asked(af: agentformer.AgentFormer, questions: Sequence[str], **options: Any) -> Values:
    """Return the milliseconds of the first question, and percentiles of those after the warm-up."""
    times = [timed(lambda text: ask(af, text, **options), text) for text in questions]
    return {"first": times[0], **percentiles(times[WARMING:])}


def recall(af: agentformer.AgentFormer, known: Source, truth: NDArray[np.int64], scope: dict[str, Any]) -> float:
    """Return the share of the ten nearest that the vector index finds."""
    found = 0
    for text, right in zip(known.questions[:ASKED], truth, strict=False):
        hits = ask(af, text, mode="dense", **scope)
        found += len({hit.entry.metadata["n"] for hit in hits} & set(right.tolist()))
    return found / (ASKED * LIMIT)


def changes(af: agentformer.AgentFormer, known: Source, count: int, mode: str = "hybrid") -> Values:
    """Return the milliseconds until a stored entry is found, and a removed one is not. All are removed at the end."""
    numbers = range(-(-count // BLOCK) * BLOCK, -(-count // BLOCK) * BLOCK + CHANGES)
    rows = known.block(numbers[0] // BLOCK)
    added, stored, gone = [], [], []
    for number in numbers:
        text = known.text(number)
        prepared.SHELF[text] = rows[number % BLOCK]
        started = time.perf_counter()
        entry = af.memory.store(text, user_id=user(number))
        stored.append((time.perf_counter() - started) * 1000)
        seen = entry.id in {hit.entry.id for hit in af.memory.search(text, limit=LIMIT, mode=mode)}
        added.append((time.perf_counter() - started) * 1000)
        started = time.perf_counter()
        af.memory.remove(entry.id)
        hidden = entry.id not in {hit.entry.id for hit in af.memory.search(text, limit=LIMIT, mode=mode)}
        gone.append((time.perf_counter() - started) * 1000)
        if not (seen and hidden):
            raise RuntimeError(f"entry {number} of {count}: found after storing {seen}, not after removing {hidden}")
    return {"store_ms": statistics.median(stored), "add": percentiles(added), "delete": percentiles(gone)}


if __name__ == "__main__":
    main()
