"""What quality costs: `python -m bench.quality.timing [SET ...]`. Milliseconds of a search as it is by default beside
one by plain reciprocal rank fusion (`fusion=rrf`), on one store, with the same embedder; the two take turns at each
question, and each embeds it anew. The ratio is the median of the questions' ratios.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path

from agentformer.evaluation.loading import scope_of
from agentformer.evaluation.optimizing.vectors import RememberingEmbedder
from agentformer.factory import build_backend, build_embedder, trial
from agentformer.types import MemoryBackend, Query
from bench.quality.__main__ import settings_of
from bench.quality.sets import cache, load

_SETS = ("hotpot_small", "locomo_dev", "squad_fi", "jsquad_valid")
_QUESTIONS = 100
_WARM = 5  # questions that are asked before any is timed


def main() -> None:
    print("| set | questions | plain, ms | default, ms | ratio |\n|---|---|---|---|---|")
    for name in sys.argv[1:] or _SETS:
        print(measure(name), flush=True)


def measure(name: str) -> str:
    """The set's row of the table."""
    settings = settings_of("minilm", [])
    embedder = build_embedder(settings)
    dataset = load(name, _QUESTIONS)
    with tempfile.TemporaryDirectory() as folder:
        with trial(settings, RememberingEmbedder(embedder, cache()), Path(folder)) as apart:
            apart.load(dataset)
            settings = apart.settings
        ways: list[MemoryBackend] = [
            build_backend(dataclasses.replace(settings, fusion=fusion), embedder) for fusion in ("rrf", "adaptive")
        ]
        taken: list[list[float]] = [[], []]
        for number, question in enumerate(dataset.answerable):
            query = Query(question.text, scope_of(question), 10)
            for way, times in zip(ways, taken, strict=True):
                started = time.perf_counter()
                way.search(query)
                if number >= _WARM:
                    times.append((time.perf_counter() - started) * 1000)
        for way in ways:
            way.close()
    plain, default = (statistics.median(times) for times in taken)
    ratio = statistics.median(b / a for a, b in zip(*taken, strict=True))
    return f"| {name} | {len(taken[0])} | {plain:.1f} | {default:.1f} | {ratio:.2f} |"


if __name__ == "__main__":
    main()
