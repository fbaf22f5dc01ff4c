"""Targets, and what a run measured for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.speed.figures import (
    Figure,
    best_of_peers,
    compared,
    cosine,
    grown,
    loaded,
    over,
    started,
    worst_loss,
)
from bench.speed.timing import Values
from bench.speed.variants import FAST, INT8, TORCH

_ADDED_MS = {10_000: 1.0, 100_000: 2.0, 1_000_000: 6.0}
_MILLION, _TEN_MILLION = 1_000_000, 10_000_000
_ALIKE, _NEAR = 0.9999, 0.995  # mean cosines to fp32: of one space, and of int8


@dataclass(frozen=True)
class Target:
    """A `value` that must be at least or at most `bound`; None was not measured."""

    what: str
    bound: float
    value: Figure
    at_least: bool = False

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        return "met" if (self.value >= self.bound if self.at_least else self.value <= self.bound) else "not met"

    @property
    def share(self) -> Figure:
        """Return the degree to which the target is reached: 1 or more is met."""
        if not self.value or self.value < 0:  # no loss, or a gain
            return None
        return self.value / self.bound if self.at_least else self.bound / self.value


def targets(results: Values) -> list[Target]:
    """Return every target in order."""
    return [
        *_ingest(results),
        *_quality(results),
        *_query(results),
        *_growth(results),
        *_sharing(results),
        *_ten_million(results),
        *_start(results),
        *_lean(results),
    ]


def lossless(results: Values) -> str:
    """Return the faster of the runtimes in the fp32 model's space."""
    names = [name for name in (FAST.name, TORCH.name) if (cosine(results, name) or 0.0) >= _ALIKE]
    speeds = {name: compared(results, name, "ingest", "per_second") or 0.0 for name in names}
    return max(speeds, key=lambda name: speeds[name], default=FAST.name)


def _ingest(results: Values) -> Iterator[Target]:
    fastest = best_of_peers(results, "ingest", "per_second", most=True)
    same = lossless(results)
    bound = 5.0 if "avx512f" in results.get("machine", {}).get("has", ()) else 3.0
    for name in (same, INT8.name):
        speed = compared(results, name, "ingest", "per_second")
        yield Target(
            f"ingest, {name}: passages/s, times the fastest peer's", bound, over(speed, fastest), at_least=True
        )
    for name in (same, INT8.name):
        whole, alone = (compared(results, name, "ingest", figure) for figure in ("seconds", "encode_s"))
        yield Target(f"ingest, {name}: end to end, times the model alone", 1.10, over(whole, alone))


def _quality(results: Values) -> Iterator[Target]:
    same = lossless(results)
    yield Target(f"mean cosine to fp32, {same}", _ALIKE, cosine(results, same), at_least=True)
    yield Target(f"mean cosine to fp32, {INT8.name}", _NEAR, cosine(results, INT8.name), at_least=True)
    for mode in ("dense", "hybrid"):
        loss = worst_loss(results, FAST.name, INT8.name, mode)
        yield Target(f"R@5 that int8 loses at most on any set, {mode}", 0.005, loss)


def _query(results: Values) -> Iterator[Target]:
    for size, bound in _ADDED_MS.items():
        yield Target(f"{size:,} entries: what a search adds, p50, ms", bound, grown(results, size, "hybrid", "p50"))
        recall = grown(results, size, "recall")
        yield Target(f"{size:,} entries: recall@10 of the dense side", 0.99, recall, at_least=True)
    yield from _tail(results, 10_000)
    name = lossless(results)
    own = compared(results, name, "query", "p50")
    fastest = best_of_peers(results, "query", "p50")
    yield Target(f"warm query p50, {name}, times the fastest peer's", 0.35, over(own, fastest))
    hybrid = compared(results, "txtai hybrid", "query", "p50")
    yield Target(f"warm query p50, {name}, times txtai's hybrid", 0.3, over(own, hybrid))


def _tail(results: Values, size: int) -> Iterator[Target]:
    half, most, last = (grown(results, size, "hybrid", name) for name in ("p50", "p95", "p99"))
    yield Target(f"{size:,} entries: p95 of a search, times its p50", 1.5, over(most, half))
    yield Target(f"{size:,} entries: p99 of a search, times its p50", 2.5, over(last, half))
    timed = grown(results, size, "timed", "p50")
    yield Target(f"{size:,} entries: a question that names a time, times one that does not", 1.2, over(timed, half))


def _growth(results: Values) -> Iterator[Target]:
    yield Target("1% of a million: recall@10", 1.0, grown(results, _MILLION, "scope_recall"), at_least=True)
    yield Target("1% of a million: p50, ms", _ADDED_MS[_MILLION], grown(results, _MILLION, "scope", "p50"))
    resident = grown(results, _MILLION, "resident", "rss_mb")
    yield Target("a million: resident memory, MB", 1200, resident)
    rate = loaded(results, _MILLION)
    yield Target("a million: entries/s until all are found", 5000, rate, at_least=True)
    yield Target("a million: an entry stored and found, p50, ms", 50, grown(results, _MILLION, "add", "p50"))
    yield Target("a million: an entry removed and gone, p50, ms", 50, grown(results, _MILLION, "delete", "p50"))
    yield Target("a million: start-up from a snapshot, s", 5, grown(results, _MILLION, "start_s"))
    small, great = (grown(results, size, "hybrid", "p50") for size in (100_000, _MILLION))
    yield Target("a million: latency, times that of 100,000", 4, over(great, small))


def _sharing(results: Values) -> Iterator[Target]:
    shared = results.get("growth", {}).get(str(_MILLION), {}).get("shared", {})
    yield Target("a million: memory of two processes, times that of one", 1.3, shared.get("times"))


def _ten_million(results: Values) -> Iterator[Target]:
    """Yield the targets of the largest store, which only a run with `BENCH_ENTRIES=10000000` measures."""
    if str(_TEN_MILLION) not in results.get("growth", {}):
        return
    size = _TEN_MILLION
    yield Target("ten million: recall@10 of the dense side", 0.98, grown(results, size, "recall"), at_least=True)
    yield Target("ten million: what a search adds, p50, ms", 25, grown(results, size, "hybrid", "p50"))
    yield Target("ten million: resident memory, MB", 6000, grown(results, size, "resident", "rss_mb"))
    yield Target("ten million: start-up from a snapshot, s", 15, grown(results, size, "start_s"))
    yield Target("ten million: entries/s until all are found", 5000, loaded(results, size), at_least=True)
    yield Target("ten million: an entry stored and found, p50, ms", 100, grown(results, size, "add", "p50"))


def _start(results: Values) -> Iterator[Target]:
    yield Target(f"first answer of `search`, {FAST.name}, s", 1.5, started(results, f"search, {FAST.name}"))
    for command in ("--help", "list", "status"):
        yield Target(f"`agentformer {command}`, s", 0.3, started(results, command))
    yield Target("`import agentformer`, s", 0.15, started(results, "import agentformer"))


def _lean(results: Values) -> Iterator[Target]:
    name = lossless(results)
    for phase in ("ingest", "query"):
        own, leanest = compared(results, name, phase, "peak_mb"), best_of_peers(results, phase, "peak_mb")
        yield Target(f"resident memory of {phase}, {name}, times the leanest peer's", 0.8, over(own, leanest))
