"""The tail and the crowd: `python -m bench.tail [--entries N] [--embedder SPEC] [--folder DIR]`.

A store of messages and passages of the development sets is asked questions of both, each once. Reported are the
processor time of a search without and with a time expression (p50, p95, p99), and the searches a second of one thread
and of several. Processor time changes less than the clock while other programs run. To compare two versions of the
code, run both with a folder each, one after the other and again.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import agentformer
from agentformer.types import MemoryEntry, Scope, new_id
from bench.data import load
from bench.speed.timing import memory, percentiles

SETS = ("locomo_dev", "xquad/en", "hotpot_small", "pubmedqa", "squad_fi", "norquad")
ASKED = ("xquad/en", "hotpot_small", "pubmedqa", "locomo_dev")
NAMED = ("in May 2023", "on 7 March 2023", "last week", "in June 2024", "in 2023", "two weeks ago", "on 2023-08-14")
WARMING = 40
START = datetime(2023, 1, 1, tzinfo=UTC)
_BATCH = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--embedder", default="hashing")
    parser.add_argument("--questions", type=int, default=150, help="of each kind")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="of the store, which is kept; default: a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        with agentformer.connect(
            index_dir=folder / "indexes", upload_dir=folder / "uploads", embedder=given.embedder, clean_every=0
        ) as af:
            _fill(af, given.entries)
            _measure(af, given.questions, given.threads)


def sample_entries(count: int) -> Iterator[MemoryEntry]:
    """Yield a third of messages, which are turns and sentences, and passages."""
    turns, *others = ([row.text for row in load(name).corpus] for name in SETS)
    passages = list(itertools.chain.from_iterable(others))
    random.Random(1).shuffle(passages)
    turns += [sentence.strip() for text in passages for sentence in text.split(". ") if 40 <= len(sentence) <= 300]
    for number in range(count // 3):
        text, at = turns[number % len(turns)], START + timedelta(hours=7 * number)
        said = {"kind": "message", "tier": "episodic", "session_id": f"s{number // 40}", "speaker": "AB"[number % 2]}
        yield MemoryEntry(id=new_id(), content=text, occurred_at=at, **said)
    for number in range(count - count // 3):
        day = START + timedelta(days=number % 900)
        text = passages[number % len(passages)]
        repeated = f"Report of {day.day}.{day.month}.{day.year}. {text[len(text) // 3 :]}"
        at = START + timedelta(hours=13 * (number % 1500))
        yield MemoryEntry(id=new_id(), content=text if number < len(passages) else repeated, occurred_at=at)


def _fill(af: agentformer.AgentFormer, count: int) -> None:
    if af.backend.count(Scope()):
        return
    entries = sample_entries(count)
    while batch := list(itertools.islice(entries, _BATCH)):
        af.backend.store(batch)


def _settle(af: agentformer.AgentFormer) -> None:
    """Wait until no background work runs, such as the derivation of dates."""
    while True:
        spent = time.process_time()
        time.sleep(1.0)
        if time.process_time() - spent < 0.05:
            return


def _measure(af: agentformer.AgentFormer, count: int, threads: int) -> None:
    asked = itertools.zip_longest(*([row.text for row in load(name).queries] for name in ASKED))
    texts = list(dict.fromkeys(text for group in asked for text in group if text))
    random.Random(5).shuffle(texts)
    named = [f"{text.rstrip('?')} {NAMED[at % len(NAMED)]}?" for at, text in enumerate(texts)]

    def ask(text: str) -> object:
        return af.memory.search(text, limit=10)

    for text in (*texts[-WARMING:], *named[-WARMING:]):
        ask(text)
    _settle(af)
    plain, timed = _processor(ask, texts[:count]), _processor(ask, named[count : 2 * count])
    print("| processor time of a search, ms | p50 | p95 | p99 |\n|---|---|---|---|")
    for name, values in (("no time named", plain), ("a time named", timed)):
        print(f"| {name} | {values['p50']:.2f} | {values['p95']:.2f} | {values['p99']:.2f} |")
    print(f"\na time named, times none: {timed['p50'] / plain['p50']:.2f} (p50)\n")
    print("| threads | searches/s | processor ms of each | p50, ms | p99, ms |\n|---|---|---|---|---|")
    rest = texts[2 * count : 3 * count], texts[3 * count : 4 * count]
    for number, questions in zip((1, threads), rest, strict=True):
        print(_crowd(ask, questions, number))
    print(f"\nresident: {memory()['rss_mb']:.0f} MB")


def _processor(ask: Callable[[str], object], texts: Sequence[str]) -> dict[str, float]:
    times = []
    for text in texts:
        spent = time.process_time()
        ask(text)
        times.append((time.process_time() - spent) * 1000)
    return percentiles(times)


def _crowd(ask: Callable[[str], object], texts: Sequence[str], threads: int) -> str:
    times: list[float] = []

    def work(own: Sequence[str]) -> None:
        for text in own:
            started = time.perf_counter()
            ask(text)
            times.append((time.perf_counter() - started) * 1000)

    workers = [threading.Thread(target=work, args=(texts[at::threads],)) for at in range(threads)]
    started, spent = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds, each = time.perf_counter() - started, (time.process_time() - spent) * 1000 / len(texts)
    told = percentiles(times)
    return f"| {threads} | {len(texts) / seconds:.0f} | {each:.2f} | {told['p50']:.1f} | {told['p99']:.1f} |"


if __name__ == "__main__":
    main()
