"""Times, percentiles and memory of every measured process, ours and the peers'. Uses the standard library only,
because the peers' environment has no packages of ours."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STARTED = "BENCH_STARTED"  # the clock when the parent started this process
LIMIT = 10  # hits of a question
WARMING = 20  # questions of the warm-up
THREADS = 8

Ask = Callable[[str], Any]
Values = dict[str, Any]


def since_start() -> float:
    """Return the seconds since the parent started this process, with the interpreter's start."""
    return time.time() - float(os.environ[STARTED])


def memory(process: int | str = "self") -> Values:
    """Return resident megabytes of a process: now, the peak, and now with pages that several processes share divided
    among them (PSS). 0 if the system does not report them (`/proc`)."""
    told = {"VmRSS": 0.0, "VmHWM": 0.0, "Pss": 0.0}
    for name in ("status", "smaps_rollup"):
        file = Path(f"/proc/{process}/{name}")
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            name, _, value = line.partition(":")
            if name in told:
                told[name] = int(value.split()[0]) / 1024
    return {"rss_mb": told["VmRSS"], "peak_mb": told["VmHWM"], "pss_mb": told["Pss"]}


def disk_mb(folder: Path) -> float:
    """Return the megabytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def timed(ask: Ask, text: str) -> float:
    """Return the milliseconds of one call."""
    started = time.perf_counter()
    ask(text)
    return (time.perf_counter() - started) * 1000


def percentiles(times: Sequence[float]) -> Values:
    """Return p50, p95 and p99 by nearest rank, in the unit of `times`."""
    ranked = sorted(times)
    return {f"p{share}": ranked[max(0, math.ceil(len(ranked) * share / 100) - 1)] for share in (50, 95, 99)}


def spread(values: Sequence[float]) -> str:
    """Return the median, the least and the greatest."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def crowd(ask: Ask, questions: Sequence[str], threads: int = THREADS) -> Values:
    """Return percentiles and questions per second of `threads` that share the questions, or the error of the
    library."""
    times: list[float] = []
    errors: list[str] = []

    def work(own: Sequence[str]) -> None:
        try:
            times.extend([timed(ask, text) for text in own])
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}"[:160])

    workers = [threading.Thread(target=work, args=(questions[n::threads],)) for n in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    if errors:
        return {"error": errors[0]}
    return {**percentiles(times), "per_second": len(times) / seconds}


def report(values: Values) -> None:
    """Print the result of the process as its last line."""
    sys.stdout.flush()
    print(json.dumps(values), flush=True)
