"""Recall and times of the vectors of `postgres` beside `faiss`, with the entries of `bench.speed.entries`: real
sentences, and vectors of the packaged MiniLM with noise."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from agentformer.factory import AgentFormer
from agentformer.records.codec import now
from agentformer.types import MemoryEntry, Query, Scope, new_id
from bench.speed.entries import BLOCK, SCOPES, Rows, Source, nearest, open_quiet, small_source, source, user
from bench.speed.prepared import SHELF, SPEC, register

LIMIT = 10
_BATCH = 1_000  # entries of one call


def compare_vectors(url: str, count: int, sentence_count: int, query_count: int) -> None:
    """Store the same entries in both backends, and print recall and times. The queries of the backends alternate."""
    known = small_source(sentence_count, query_count) if sentence_count else source()
    asked = known.asked[:query_count]
    SHELF.update(zip(known.questions, known.asked, strict=True))
    register()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        memories = {}
        for name in ("faiss", "postgres"):
            place = {"backend": name, "postgres_url": url, "postgres_schema": "bench{folder}"}
            memories[name] = stack.enter_context(open_quiet(folder / name, embedder=SPEC, **place))
            started = time.perf_counter()
            numbers = _fill(memories[name], known, count)
            print(f"{name}: {count / (time.perf_counter() - started):,.0f} entries/s stored", flush=True)
        _settle(memories["postgres"], known.questions[0])
        print("\n| scope | mode | backend | recall@10 | p50 ms | p95 ms |\n|---|---|---|---|---|---|")
        for scope in (None, 7):
            exact = nearest(known, asked, count, LIMIT, scope)
            for mode in ("dense", "hybrid"):
                _compare(memories, known.questions[:query_count], exact, numbers, scope, mode)


def _fill(memory: AgentFormer, known: Source, count: int) -> dict[str, int]:
    """Store the entries, and return the number of each by its text; equal texts have the number of the first one."""
    numbers: dict[str, int] = {}
    for at in range(0, count, BLOCK):
        rows = known.block(at // BLOCK)
        block = range(at, min(at + BLOCK, count))
        texts = known.texts(block)
        for number, text in zip(block, texts, strict=True):
            if text not in numbers:
                numbers[text] = number
                SHELF[text] = rows[number - at]
        for start in range(0, len(texts), _BATCH):
            part = [_entry(texts[n], at + n) for n in range(start, min(start + _BATCH, len(texts)))]
            memory.backend.store(part)
    return numbers


def _entry(text: str, number: int) -> MemoryEntry:
    return MemoryEntry(new_id(), text, kind="fact", tier="semantic", user_id=user(number), created_at=now())


def _settle(memory: AgentFormer, question: str) -> None:
    """Wait for the index of the vectors, and let the server count its tables."""
    memory.backend.search(Query(question, Scope("default"), LIMIT))
    vectors: Any = memory.backend._vectors  # type: ignore[attr-defined]
    started = time.perf_counter()
    vectors.build(wait=True)
    print(f"HNSW index: {time.perf_counter() - started:.0f} s", flush=True)
    with memory.backend._database.statements() as connection:  # type: ignore[attr-defined]
        connection.run("ANALYZE", [])


def _compare(
    memories: dict[str, AgentFormer],
    asked: Sequence[str],
    exact: Rows,
    numbers: dict[str, int],
    scope: int | None,
    mode: Literal["dense", "hybrid"],
) -> None:
    where = Scope("default") if scope is None else Scope("default", user_id=user(scope))
    times: dict[str, list[float]] = {name: [] for name in memories}
    found: dict[str, list[float]] = {name: [] for name in memories}
    for text, best in zip(asked, exact, strict=True):
        for name, memory in memories.items():
            started = time.perf_counter()
            hits = memory.backend.search(Query(text, where, LIMIT, mode=mode))
            times[name].append(1000 * (time.perf_counter() - started))
            got = {numbers[hit.entry.content] for hit in hits}
            found[name].append(len(got & {*best.tolist()}) / len(best))
    for name, took in times.items():
        p95 = statistics.quantiles(took, n=20)[-1]
        recall = f"{statistics.mean(found[name]):.3f}" if mode == "dense" else ""
        where_name = "all" if scope is None else f"1 of {SCOPES} users"
        print(f"| {where_name} | {mode} | {name} | {recall} | {statistics.median(took):.2f} | {p95:.2f} |", flush=True)
