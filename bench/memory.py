"""Cost of bookkeeping: `python -m bench.memory`. Ratios of two variants that alternate in one run, hashing embedder.

Counting uses: a search that counts its hits, compared with the backend alone and with one that writes its counts at
once. Equal facts: storing facts one by one with and without the check for equal ones. Contexts: milliseconds for a
budget of 2,000 tokens.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import agentformer
from agentformer.testing import make_entry
from agentformer.types import Query

ENTRIES = 20_000
ROUNDS = 200
WORDS = [f"{a}{b}" for a in ("num", "kak", "axo", "fos", "gha", "dug", "jer", "lor") for b in "bcdfghjklmnpqrst"]


def main() -> None:
    choose = random.Random(1)
    facts = [" ".join(choose.choices(WORDS, k=12)) + f" {n}" for n in range(ENTRIES)]
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(
            index_dir=Path(folder) / "index", upload_dir=Path(folder) / "uploads", embedder="hashing", clean_every=0
        ) as af,
    ):
        af.memory.store_many(facts)
        questions = [" ".join(choose.choices(WORDS, k=4)) for _ in range(ROUNDS)]
        af.memory.search(questions[0])
        rows = [_counting(af, questions), _storing(af, choose), _contexts(af, questions)]
    print("| what | ms | ratio |\n|---|---|---|")
    print("\n".join(row for group in rows for row in group))


def _counting(af: agentformer.AgentFormer, questions: list[str]) -> list[str]:
    def written(question: str) -> None:
        af.memory.search(question)
        af.memory.close()  # writes what is counted, and closes nothing else

    plain, counted, at_once = _timed(
        questions, lambda q: af.backend.search(Query(q, limit=20)), lambda q: af.memory.search(q), written
    )
    return [
        f"| search, not counted | {plain:.2f} | 1 |",
        f"| search, counted in batches | {counted:.2f} | {counted / plain:.2f} |",
        f"| search, counts written at once | {at_once:.2f} | {at_once / plain:.2f} |",
    ]


def _storing(af: agentformer.AgentFormer, choose: random.Random) -> list[str]:
    texts = [" ".join(choose.choices(WORDS, k=12)) + f" new {n}" for n in range(ROUNDS)]
    plain, unique = _timed(
        texts,
        lambda text: af.backend.store([make_entry(f"{text} plain")]),
        lambda text: af.backend.store([make_entry(f"{text} unique")], unique=True),
    )
    return [
        f"| store one fact | {plain:.2f} | 1 |",
        f"| store one fact, looking for an equal one | {unique:.2f} | {unique / plain:.2f} |",
    ]


def _contexts(af: agentformer.AgentFormer, questions: list[str]) -> list[str]:
    (built,) = _timed(questions[:50], lambda q: af.memory.build_context(q, max_tokens=2000))
    return [f"| context of 2,000 tokens out of {ENTRIES:,} facts | {built:.2f} | |"]


def _timed(items: list[str], *ways: Callable[[str], object]) -> list[float]:
    """Return the median milliseconds of each variant; the variants alternate at each item."""
    taken: list[list[float]] = [[] for _ in ways]
    for item in items:
        for times, way in zip(taken, ways, strict=True):
            started = time.perf_counter()
            way(item)
            times.append((time.perf_counter() - started) * 1000)
    return [statistics.median(times) for times in taken]


if __name__ == "__main__":
    main()
