"""Speed compared with the peers: `python -m bench.speed [--short] [--parts PART ...] [--write]`.

Parts: embedding, compare (ingest and queries, ours and those of eight libraries), starting, quality, growth,
and steps (where the time of a search, of a request and of an upload goes).
Every run is stored as JSON; `--of FILE` prints the tables of one again. `--write` puts the tables into
`bench/log/speed.md` and the plots beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.data import DATA
from bench.speed import comparing, embedding, growing, plots, quality, starting, steps
from bench.speed.children import ROOT
from bench.speed.kept import cache
from bench.speed.machine import load, machine
from bench.speed.tables import report
from bench.speed.timing import Values
from bench.speed.writing import between

DOCUMENT = ROOT / "bench" / "log" / "speed.md"
PLOTS = DOCUMENT.parent / "plots"
PARTS = ("embedding", "compare", "starting", "quality", "growth", "steps")


@dataclass(frozen=True)
class Size:
    """Sizes of all measurements."""

    parts: tuple[str, ...]
    rounds: int
    encoded: int  # passages of a round
    passages: int  # ingested by every system
    asked: int  # questions of each kind
    sample: int  # questions of each set
    sizes: tuple[int, ...]
    repeats: int


def main() -> int:
    chosen = _arguments()
    if chosen.of:
        results = json.loads(chosen.of.read_text(encoding="utf-8"))
    elif not DATA.is_dir():
        print(f"the development sets are not in {DATA}; set AGENTFORMER_DATA to their folder", file=sys.stderr)
        return 2
    else:
        size = _size(chosen.short, int(os.environ.get("BENCH_ENTRIES") or growing.SIZES[-1]), chosen.largest)
        results = _measured(size, chosen.parts or size.parts, chosen.peers.absolute() / "bin" / "python")
    text = report(results)
    print(f"\n{text}")
    if chosen.write:
        drawn = [f"![{path.stem}]({PLOTS.name}/{path.name})" for path in plots.draw(results, PLOTS)]
        whole = between(DOCUMENT.read_text(encoding="utf-8"), "\n\n".join([text, *drawn]))
        DOCUMENT.write_text(whole, encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few minutes, without the peers")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="only these")
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-peers", help="virtual environment of the peers")
    parser.add_argument("--largest", action="store_true", help="in growth: only the largest store, and once")
    parser.add_argument("--write", action="store_true", help="write the tables into bench/log/speed.md")
    parser.add_argument("--of", type=Path, help="results of an earlier run, instead of measuring")
    return parser.parse_args()


def _size(short: bool, most: int, largest: bool = False) -> Size:
    """Return the sizes. `most` is the number of entries of the largest store. With `largest`, stores do not grow."""
    if short:
        sizes = tuple(size for size in growing.SIZES[:-1] if size <= most)
        return Size(("embedding", "starting", "growth"), 2, 40, 200, 40, 100, sizes, 1)
    sizes = tuple(sorted({*(size for size in growing.SIZES if size < most), most}))
    return Size(PARTS, 3, 100, 2_000, 200, 300, (most,) if largest else sizes, 1 if largest else 2)


def _measured(size: Size, parts: tuple[str, ...], interpreter: Path) -> Values:
    """Return the results of every part, also written to a file after each of them."""
    results: Values = {"machine": machine(), "load": load()}
    kept = cache() / f"results-{time.strftime('%Y%m%d-%H%M%S')}.json"
    with tempfile.TemporaryDirectory(prefix="agentformer-bench-") as folder:
        work = Path(folder)
        ways: dict[str, Callable[[], Values]] = {
            "embedding": lambda: embedding.compare(work / "embedding", size.rounds, size.encoded, _say),
            "compare": lambda: comparing.compare(work / "compare", size.passages, size.asked, interpreter, _say),
            "starting": lambda: starting.compare(work / "starting", 5, size.passages // 10, _say),
            "quality": lambda: quality.compare(size.sample, _say),
            "growth": lambda: growing.compare(size.sizes, size.repeats, _say),
            "steps": lambda: steps.compare(size.sizes, _say),
        }
        for part in parts:
            _say(f"{part} (load {load():.1f})")
            started = time.perf_counter()
            results[part] = ways[part]()
            results.setdefault("seconds", {})[part] = time.perf_counter() - started
            kept.write_text(json.dumps(results), encoding="utf-8")
    _say(
        f"kept as {kept}; seconds of each part: { {name: round(value) for name, value in results['seconds'].items()} }"
    )
    return results


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
