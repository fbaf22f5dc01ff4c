"""`make bench`: the tables of docs/BENCHMARKS.md in a shorter form, on the development sets beside the repository.

`make bench-full` is `python -m bench.speed` in its long form, with other libraries.
"""

from __future__ import annotations

import subprocess
import sys

from bench.data import DATA
from bench.quality.sets import SETS

PARTS = (
    ("bench.readers",),
    ("bench.quality", "--sets", ",".join(SETS), "--sample", "300"),
    ("bench.answers", "--sample", "300"),
    ("bench.abstaining", "--sample", "150", "--curve"),
    ("bench.claims",),
    ("bench.pages",),
    ("bench.precision",),
    ("bench.facts",),
    ("bench.learn",),
    ("bench.cleaning",),
    ("bench.memory",),
    ("bench.moving",),
    ("bench.serving",),
    ("bench.speed", "--short"),
)


def main() -> int:
    if not DATA.is_dir():
        print(f"the development sets are not in {DATA}; set AGENTFORMER_DATA to their folder", file=sys.stderr)
        return 2
    worst = 0
    for part in PARTS:
        print(f"\n$ python -m {' '.join(part)}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", *part]).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
