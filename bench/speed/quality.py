"""R@5 of int8 and fp32 on every development set. `python -m bench.speed.quality VARIANT SET SAMPLE`.

The figures depend on code and data alone, so they are cached between runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable

from agentformer.evaluation.run import Mode
from agentformer.factory import trial
from agentformer.settings import load_settings
from bench.quality.sets import SETS, load
from bench.speed.children import python, run
from bench.speed.kept import cache, fingerprint
from bench.speed.timing import Values, report
from bench.speed.variants import FAST, INT8, VARIANTS, Variant, missing

MODES: tuple[Mode, ...] = ("dense", "hybrid")
_OF = ("embedders", "evaluation", "index", "records", "text", "memory")  # the folders that determine the results
_K = 5

Say = Callable[[str], None]


def compare(sample: int, say: Say, sets: Iterable[str] = SETS) -> dict[str, Values]:
    """Return R@5 of each runtime and mode by set, over at most `sample` questions of each."""
    for variant in (FAST, INT8):
        if reason := missing(variant):
            return {variant.name: {"error": reason}}
    told: dict[str, Values] = {}
    for name in sets:
        told[name] = {}
        for variant in (FAST, INT8):
            values = _known(variant, name, sample)
            told[name][variant.name] = values
            say(f"  {name}, {variant.name}: {values.get('dense')}{', known' if values.get('known') else ''}")
    return told


def _known(variant: Variant, name: str, sample: int) -> Values:
    key = f"quality-{fingerprint(_OF)}-{variant.name}-{name}-{sample}.json".replace("/", "-").replace(" ", "-")
    kept = cache() / key
    if kept.exists():
        values: Values = json.loads(kept.read_text(encoding="utf-8"))
        return {**values, "known": True}
    values = run(python("bench.speed.quality", variant.name, name, str(sample)))
    if "error" not in values:
        kept.write_text(json.dumps(values), encoding="utf-8")
    return values


def measure(variant: Variant, name: str, sample: int) -> Values:
    """Return R@5 of each mode."""
    dataset = load(name, sample)
    with trial(load_settings(variant.settings())) as apart:
        apart.load(dataset)
        found = apart.evaluate(dataset, modes=MODES)
    return {"questions": found.questions, **{mode: found.figure(f"recall_any@{_K}", mode).value for mode in MODES}}


if __name__ == "__main__":
    report(measure(VARIANTS[sys.argv[1]], sys.argv[2], int(sys.argv[3])))
