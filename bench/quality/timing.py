"""Cost of adaptive fusion: `python -m bench.quality.timing [SET ...]`.

Milliseconds of a default search compared with plain reciprocal rank fusion (`fusion=rrf`), on one store with the same
embedder. The two alternate at each question, and alternate in going first. Each embeds the question anew, with empty
caches of the analysis. What a background thread derives from the entries is complete before. The ratio is the median of
the questions' ratios.
"""

from __future__ import annotations

import dataclasses
import gc
import inspect
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

from agentformer.evaluation.cache import CachingEmbedder
from agentformer.evaluation.corpus_loader import scope_of
from agentformer.factory import build_backend, build_embedder, trial
from agentformer.types import Query
from bench.quality.__main__ import settings_of
from bench.quality.sets import cache, load

_SETS = ("hotpot_small", "locomo_dev", "squad_fi", "jsquad_valid")
_QUESTIONS = 100
_WARM = 5  # questions of the warm-up


def main() -> None:
    print("| set | questions | plain, ms | default, ms | ratio |\n|---|---|---|---|---|")
    for name in sys.argv[1:] or _SETS:
        print(measure(name), flush=True)


def measure(name: str) -> str:
    """Return the row of the set."""
    settings = settings_of("minilm", [])
    embedder = build_embedder(settings)
    dataset = load(name, _QUESTIONS)
    with tempfile.TemporaryDirectory() as folder:
        with trial(settings, CachingEmbedder(embedder, cache()), Path(folder)) as apart:
            apart.load(dataset)
            settings = apart.settings
        ways = [build_backend(dataclasses.replace(settings, fusion=fusion), embedder) for fusion in ("rrf", "adaptive")]
        queries = [Query(question.text, scope_of(question), 10) for question in dataset.answerable]
        for way in ways:
            way.search(queries[0])
        for thread in threading.enumerate():
            if thread.name == "agentformer-derivation":
                thread.join()
        plain, default = taken([way.search for way in ways], queries)
        for way in ways:
            way.close()
    ratio = statistics.median(b / a for a, b in zip(plain, default, strict=True))
    middle, other = statistics.median(plain), statistics.median(default)
    return f"| {name} | {len(plain)} | {middle:.1f} | {other:.1f} | {ratio:.2f} |"


def taken(ways: Sequence[Callable[[Query], Any]], queries: Sequence[Query], warm: int = _WARM) -> list[list[float]]:
    """Return the milliseconds of each variant for each query but the first `warm`."""
    times: list[list[float]] = [[] for _ in ways]
    for number, query in enumerate(queries):
        first = number % len(ways)
        for place in (*range(first, len(ways)), *range(first)):
            if number >= warm:
                forget()
            started = time.perf_counter()
            ways[place](query)
            if number >= warm:
                times[place].append((time.perf_counter() - started) * 1000)
    return times


def forget() -> None:
    """Empty the caches of texts in analysis, index and dictionaries; libraries stay loaded."""
    for kept in gc.get_objects():
        if type(kept) is _lru_cache_wrapper:
            module = getattr(kept, "__module__", None) or ""
            # A function without arguments returns a table, which stays loaded as a library does.
            own = getattr(inspect.unwrap(kept), "__code__", None)  # of a cache in a cache; a class has none
            if module.startswith(("agentformer.text.", "agentformer.index.")) and (own is None or own.co_argcount):
                kept.cache_clear()


if __name__ == "__main__":
    main()
