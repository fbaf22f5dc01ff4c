"""Figures of a run's results for tables and targets; None if one is missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from bench.speed.comparing import PEERS
from bench.speed.timing import Values

Figure = float | None


def middle(values: Iterable[Figure]) -> Figure:
    """Return the median of the existing values."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def over(part: Figure, whole: Figure) -> Figure:
    """Return the ratio."""
    return part / whole if part is not None and whole else None


def turns(results: Values, system: str) -> list[Values]:
    """Return a system's turns that did not fail."""
    return [turn for turn in results.get("compare", {}).get(system, []) if "error" not in turn]


def compared(results: Values, system: str, phase: str, name: str) -> Figure:
    """Return the median over a system's turns of one figure of `ingest` or `query`."""
    return middle(turn[phase].get(name) for turn in turns(results, system))


def of_peers(results: Values, phase: str, name: str) -> list[float]:
    """Return one figure of every peer that has it."""
    told = (compared(results, peer, phase, name) for peer in PEERS)
    return [value for value in told if value is not None]


def best_of_peers(results: Values, phase: str, name: str, *, most: bool = False) -> Figure:
    """Return the least figure of all peers or, with `most`, the greatest."""
    return (max if most else min)(of_peers(results, phase, name), default=None)


def grown(results: Values, size: int, *path: str) -> Figure:
    """Return the median over the turns of one figure of a store of this size."""
    return middle(_inside(turn, path) for turn in results.get("growth", {}).get(str(size), {}).get("turns", []))


def loaded(results: Values, size: int) -> Figure:
    """Return entries/s of a store of this size, until all of them are found."""
    return over(size, results.get("growth", {}).get(str(size), {}).get("made", {}).get("followed_s"))


def started(results: Values, command: str) -> Figure:
    """Return the median seconds of a command."""
    return results.get("starting", {}).get(command, {}).get("p50")


def cosine(results: Values, variant: str) -> Figure:
    """Return the lower mean cosine of short and long passages."""
    return min(results.get("embedding", {}).get(variant, {}).get("cosine", ()), default=None)


def worst_loss(results: Values, former: str, other: str, mode: str) -> Figure:
    """Return the greatest loss of R@5 by the second runtime, over all sets."""
    sets = [values for values in results.get("quality", {}).values() if former in values and other in values]
    losses = [
        values[former][mode] - values[other][mode]
        for values in sets
        if mode in values[former] and mode in values[other]
    ]
    return max(losses, default=None)


def _inside(values: Values, path: Sequence[str]) -> Figure:
    found: object = values
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return float(found) if isinstance(found, (int, float)) else None
