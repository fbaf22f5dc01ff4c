"""The development sets, each measured in a memory of its own by the code of `agentformer eval`.

Memories are built anew each time, so that no index of former code is measured. Vectors are cached between runs, by text
and model, in `BENCH_CACHE` (the system's temporary folder).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentformer.evaluation.cache import CachingEmbedder
from agentformer.evaluation.dataset import Dataset, read_dataset, sampled
from agentformer.evaluation.run import Evaluation, Mode
from agentformer.factory import build_embedder, trial
from agentformer.settings import Settings
from bench.data import DATA
from bench.quality.filings import QUESTIONS, page_of, read_filings

SETS = (
    "xquad/en",
    "xquad/de",
    "pubmedqa",
    "norquad",
    "squad_fi",
    "swefaq",
    "jsquad_valid",
    "hotpot_small",
    "locomo_dev",
    "beam_dev",
    "madial_en",
    "code_pypdf",
    "cosqa_dev",
    "filings",
)


def cache() -> Path:
    """Return the folder of cached vectors."""
    return Path(os.environ.get("BENCH_CACHE") or Path(tempfile.gettempdir()) / "agentformer-bench") / "quality"


def present(name: str) -> bool:
    """Return whether the folder of a set exists."""
    return any((DATA / name / file).exists() for file in ("corpus.jsonl", QUESTIONS))


def load(name: str, sample: int = 0) -> Dataset:
    """Return a set by its folder's name, with at most `sample` of its answerable questions, evenly spread."""
    folder = DATA / name
    dataset = read_filings(folder) if (folder / QUESTIONS).exists() else read_dataset(folder)
    return replace(dataset, name=name, questions=sampled(dataset.answerable, sample))


def measure(name: str, settings: Settings, modes: Sequence[Mode], sample: int = 0) -> Evaluation:
    """Evaluate each question in each mode."""
    started = time.perf_counter()
    dataset = load(name, sample)
    embedder = CachingEmbedder(build_embedder(settings), cache())
    try:
        with trial(settings, embedder) as apart:
            apart.load(dataset)
            loaded = time.perf_counter()
            pages = {"passage_of": page_of} if dataset.documents else {}
            found = apart.evaluate(dataset, modes=modes, **pages)
    finally:
        embedder.close()
    seconds = f"{loaded - started:.0f} s to store, {time.perf_counter() - loaded:.0f} s to ask"
    print(f"{name}: {found.questions} questions, {seconds}; {embedder.embedded} texts embedded", file=sys.stderr)
    return found
