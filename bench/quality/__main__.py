"""All development sets through the same code as `agentformer eval`: `python -m bench.quality`.

Recall@k is the mean share of a question's relevant passages among the first k, with a 95% interval by bootstrap; any@k
counts a question with at least one. Conversations are searched separately, and turns are stored as messages of their
sessions. Choose on questions with even places, and report those with odd ones.

    python -m bench.quality --json before.json
    python -m bench.quality --set neighbours=0 --json without.json --compare before.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from agentformer.evaluation.run import MODES
from agentformer.settings import Settings, load_settings
from bench.data import DATA
from bench.quality.others import OTHERS
from bench.quality.sets import SETS, measure, present
from bench.quality.table import TABLES, comparison, others_compared


def main() -> int:
    chosen = _arguments()
    settings = settings_of(chosen.embedder, chosen.set)
    names = [name.strip() for name in chosen.sets.split(",") if name.strip()] or [*SETS, *OTHERS]
    if unknown := [name for name in names if name not in OTHERS and not present(name)]:
        print(f"there is no set {unknown[0]} in {DATA}; AGENTFORMER_DATA names their folder", file=sys.stderr)
        return 2
    modes = [mode for mode in MODES if mode in chosen.modes.split(",")]
    told: dict[str, Any] = {}
    for name in names:
        if name not in OTHERS:
            told[name] = measure(name, settings, modes, chosen.sample).as_json()
    others = {name: OTHERS[name](settings, chosen.sample) for name in names if name in OTHERS}
    if chosen.json:
        values = {"set": chosen.set, "embedder": chosen.embedder, "sets": told, "others": others}
        chosen.json.write_text(json.dumps(values), encoding="utf-8")
    for table in TABLES if told else ():
        print("\n".join(table(told, modes)), end="\n\n")
    for name, values in others.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in values.items())}")
    if chosen.compare:
        former = json.loads(chosen.compare.read_text(encoding="utf-8"))
        print("\n".join(comparison(told, former["sets"])))
        print("\n".join(others_compared(others, former.get("others", {}))))
    return 0


def settings_of(embedder: str, changes: list[str]) -> Settings:
    """Return the settings of the environment with changes, each `NAME=VALUE`."""
    given = dict(change.partition("=")[::2] for change in changes)
    return load_settings({"embedder": embedder, **given})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="", help=f"separated by commas; default: {','.join([*SETS, *OTHERS])}")
    parser.add_argument("--modes", default=",".join(MODES), help="separated by commas")
    parser.add_argument("--sample", type=int, default=0, help="questions per set at most, evenly spread; 0: all")
    parser.add_argument("--embedder", default="minilm")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, such as fusion=rrf"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results, with those of each question")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="print the differences to a former --json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
