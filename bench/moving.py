"""Cost of a move to another embedder: `python -m bench.moving [--to SPEC] [--passages N]`.

The bound is the new model alone, with the same texts in the same batches. During the move a client searches without
pause; its times are compared with those of a client while nothing moves.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import agentformer
from agentformer.factory import named_embedder
from agentformer.index.embedding.windows import GROUP, WindowCutter
from agentformer.types import Embedder, MemoryEntry, Query
from bench.data import load

SET = "squad_fi"
IDLE_SECONDS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", default="minilm", metavar="SPEC")
    parser.add_argument("--passages", type=int, default=1000)
    given = parser.parse_args()
    data = load(SET)
    texts = [row.text for row in itertools.islice(data.corpus, given.passages)]
    questions = [row.text for row in itertools.islice(data.queries, 200)]
    with tempfile.TemporaryDirectory() as folder:
        where = {"index_dir": Path(folder) / "i", "upload_dir": Path(folder) / "u", "embed_retry_seconds": 0}
        with agentformer.connect(**where, embedder="hashing", clean_every=0) as af:
            entries = af.memory.store_many(texts)
            target = named_embedder(given.to, af.settings)
            target.embed_documents(["loads the model"])
            bound = _bare(target, entries)
            af.embedder.use(target)
            idle = _asking(af, questions, lambda: time.sleep(IDLE_SECONDS))
            started = time.perf_counter()
            busy = _asking(af, questions, lambda: af.backend.reembed(target))
            took = time.perf_counter() - started
    print(f"{len(entries)} passages of {SET} from hashing:256 to {target.space.spec}\n")
    print("| what | figure | ratio |\n|---|---|---|")
    print(f"| the model alone, entries/s | {len(entries) / bound:.1f} | 1 |")
    print(f"| the move with a client, entries/s | {len(entries) / took:.1f} | {bound / took:.2f} |")
    for name, one, other in (
        ("query p50, ms", statistics.median(idle), statistics.median(busy)),
        ("query p95, ms", _p95(idle), _p95(busy)),
    ):
        print(f"| {name}: nothing moves | {one * 1000:.1f} | 1 |")
        print(f"| {name}: during the move | {other * 1000:.1f} | {other / one:.2f} |")


def _bare(target: Embedder, entries: Sequence[MemoryEntry]) -> float:
    """Return the seconds that the model needs for all windows."""
    cutter = WindowCutter(target)
    cuts = cutter.cut(entries)
    first, _ = cuts.texts()
    owners = cuts.owners()
    texts = sorted((cutter.text(entries[owners[p]], cuts.span(p)) for p in first), key=len)
    started = time.perf_counter()
    for i in range(0, len(texts), GROUP):
        target.embed_documents(texts[i : i + GROUP])
    return time.perf_counter() - started


def _asking(af: agentformer.AgentFormer, questions: Sequence[str], work: object) -> list[float]:
    """Return the seconds of each query while `work` runs."""
    times: list[float] = []
    done = threading.Event()

    def ask() -> None:
        for question in itertools.cycle(questions):
            if done.is_set():
                return
            started = time.perf_counter()
            af.backend.search(Query(question, limit=10))
            times.append(time.perf_counter() - started)

    af.backend.search(Query(questions[0]))
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        work()  # type: ignore[operator]
    finally:
        done.set()
        thread.join()
    return times


def _p95(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


if __name__ == "__main__":
    main()
