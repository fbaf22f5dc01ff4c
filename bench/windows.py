"""Size and speed of small windows: `python -m bench.windows [--entries N] [--tokens 0,64,32]`.

The same entries, each of some 150 tokens, are stored once for each limit of the tokens of a window (`window_tokens`; 0:
one window for each entry), and asked the same questions. An entry consists of six sentences that are near each other,
and the vector of a window lies between the embeddings of its sentences, because embedding 100,000 entries takes hours.
So sizes and times are those of a real store, and recall must be measured with real entries: `python -m bench.quality
--set window_tokens=32`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from agentformer.factory import AgentFormer
from agentformer.records.codec import now
from agentformer.registry import PARTS
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Matrix, MemoryEntry, Query, Scope, Span, Vector, new_id
from bench.speed.entries import Source, open_quiet, small_source
from bench.speed.passages import WINDOW, tokenizer
from bench.speed.timing import disk_mb, memory, percentiles, timed

SPEC = "sentences"
SENTENCES = 6  # of an entry
_KEY = 12  # code points by which the beginning or the end of a sentence is recognised
_NOISE = 0.012  # of each component, as in bench.speed.entries
_BATCH = 500
_WARMING = 20
_SOURCE: list[Source] = []  # of this run; the embedder is built by its name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--tokens", default="0,32", help="limits of a window, separated by commas")
    parser.add_argument("--sentences", type=int, default=3_000, help="sentences that are embedded")
    parser.add_argument("--queries", type=int, default=200)
    given = parser.parse_args()
    _SOURCE.append(small_source(given.sentences, given.queries))
    PARTS["embedders"][SPEC] = f"{__name__}:Sentences"
    names = ("tokens", "windows an entry", "bytes an entry", "entries/s", "dense, ms", "hybrid, ms", "MB of memory")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)
    for tokens in map(int, given.tokens.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            print(_measure(Path(folder), tokens, given.entries), flush=True)


class Sentences:
    """An embedder whose vector of a text lies between those of the sentences that the text contains. The beginning or
    the end of a sentence is enough."""

    def __init__(self, model: str, settings: Settings) -> None:
        self.space = EmbeddingSpace(SPEC, "near", 384, WINDOW)
        self._tokenizer = tokenizer()
        self._known = _SOURCE[0]
        self._place: dict[str, int] = {}
        for number, text in enumerate(self._known.sentences):
            self._place |= {text[:_KEY]: number, text[-_KEY:]: number}
        self._asked = dict(zip(self._known.questions, self._known.asked, strict=True))

    def token_spans(self, text: str) -> list[Span]:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return [Span(start, end) for start, end in offsets]

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        return np.stack([self._embed(text) for text in texts])

    def embed_query(self, text: str) -> Vector:
        return self._asked[text]

    def _embed(self, text: str) -> Vector:
        lines = text.split("\n")
        keys = [key for line in lines for key in (line[:_KEY], line[-_KEY:]) if key in self._place]
        places = sorted({self._place[key] for key in keys}) or [len(text) % len(self._known.sentences)]
        chance = np.random.default_rng([*text.encode()[:40], len(text)])
        row = self._known.vectors[places].mean(axis=0)
        row = row + np.float32(_NOISE) * chance.standard_normal(row.shape, np.float32)
        unit: Vector = row / np.linalg.norm(row)
        return unit


def _entries(known: Source, count: int) -> Iterator[MemoryEntry]:
    """Yield entries of a sentence and five near ones, each entry with others or in another order."""
    width = known.near.shape[1]
    for number in range(count):
        first, turn = number % len(known.sentences), number // len(known.sentences)
        chosen = [first, *(known.near[first, (turn + 7 * place) % width] for place in range(1, SENTENCES))]
        text = "\n".join(known.sentences[n] for n in chosen)
        yield MemoryEntry(new_id(), text, kind="fact", tier="semantic", created_at=now())


def _measure(folder: Path, tokens: int, count: int) -> str:
    """Return the row of the table for one limit."""
    with open_quiet(folder, embedder=SPEC, window_tokens=tokens) as af:
        started = time.perf_counter()
        batch: list[MemoryEntry] = []
        for entry in _entries(_SOURCE[0], count):
            batch.append(entry)
            if len(batch) == _BATCH:
                af.backend.store(batch)
                batch = []
        af.backend.store(batch)
        rate = count / (time.perf_counter() - started)
        dense, hybrid = (_p50(af, mode) for mode in ("dense", "hybrid"))
        windows = af.backend.status()["windows"] / count
        used = memory()["rss_mb"]
    size = 1e6 * disk_mb(folder / "i") / count
    return f"| {tokens} | {windows:.2f} | {size:,.0f} | {rate:,.0f} | {dense:.1f} | {hybrid:.1f} | {used:,.0f} |"


def _p50(af: AgentFormer, mode: Literal["dense", "hybrid"]) -> float:
    """Return the median milliseconds of the questions, after a warm-up that waits for the indexes."""
    asked = _SOURCE[0].questions

    def ask(text: str) -> object:
        return af.backend.search(Query(text, Scope(), 10, mode=mode))

    for text in asked[:_WARMING]:
        ask(text)
    return float(percentiles([timed(ask, text) for text in asked[_WARMING:] or asked])["p50"])


if __name__ == "__main__":
    main()
