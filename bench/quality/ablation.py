"""What each weight of the search gives: `python -m bench.quality.ablation [--embedder E] [--sample N] [FAMILY ...]`.

The development sets form families (`bench/ablate.py`). Each set is stored once. Then its questions are asked with the
weights of the code, and with one weight at another value; the first value switches the mechanism off. A cell of the
first table is the gain of the mechanism with its 95% interval (paired bootstrap over the questions); a negative number
is what it costs. The second table has, for each family, the figure of the code, and the figure with the value that is
best on the mean of the *other* families, for each weight alone: no weight may gain only where it was chosen.

The figure is recall@5, or recall@10 for conversations, pages and code. Facts have their own bench (`bench.precision`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import numpy as np

from agentformer.evaluation.cache import CachingEmbedder
from agentformer.factory import build_embedder, trial
from agentformer.search import boosts
from agentformer.search import message_ranking as statements
from agentformer.search import vector_weight as weights
from bench.ablate import FAMILIES, Effect, table
from bench.quality.__main__ import settings_of
from bench.quality.filings import page_of
from bench.quality.sets import cache, load, present

SEARCHED = {
    **{name: tuple(one for one in sets if one != "pdfs") for name, sets in FAMILIES.items() if name != "facts"},
    "pages": ("filings",),
    "code": ("cosqa_dev", "code_pypdf"),
}
_LATER = frozenset({"two people", "an assistant", "pages", "code"})  # measured by the first ten hits


class Weight(NamedTuple):
    """A constant of the search, and the values to try. The first value switches its mechanism off."""

    module: ModuleType
    name: str
    values: tuple[float, ...]


WEIGHTS = {
    "usual weight of vectors": Weight(weights, "_USUAL", (1e-9, 0.35, 0.5, 1.0, 1.4)),
    "language": Weight(weights, "UNKNOWN", (1e9,)),
    "missed words": Weight(weights, "_COVERED", (0.0, 0.4, 0.7)),
    "code": Weight(weights, "_CODE_WEIGHT", (0.0, 2.0, 4.0)),
    "document": Weight(boosts, "_DOCUMENT_WEIGHT", (0.0, 0.25, 1.0)),
    "mentions": Weight(boosts, "_TITLE_WEIGHT", (0.0, 0.4, 1.2)),
    "identifiers": Weight(boosts, "_IDENTIFIER_OWNERS", (0,)),
    "period": Weight(boosts, "_DATE_WEIGHT", (0.0, 0.6)),
    "answer to a question": Weight(statements, "_ANSWER_GAIN", (0.0, 0.2, 0.6)),
    "states little": Weight(statements, "_SHORT_LOSS", (0.0, 0.25, 0.6)),
    "assistant": Weight(statements, "_ASSISTANT_COST", (0.0, 0.2, 0.4)),
}
_CODE = ("", 0.0)  # the weights of the code
Results = dict[tuple[str, float], list[float]]  # weight and value -> the figure of each question


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=[*SEARCHED])
    parser.add_argument("--embedder", default="minilm")
    parser.add_argument("--sample", type=int, default=100, help="questions of a set at most, evenly spread; 0: all")
    chosen = parser.parse_args()
    found: dict[str, Results] = {}
    for family in chosen.families:
        for name in SEARCHED[family]:
            if present(name):
                found.setdefault(family, {})
                for key, values in measured(name, chosen.embedder, chosen.sample, later=family in _LATER).items():
                    found[family].setdefault(key, []).extend(values)
                print(f"{family}: {name} is measured", file=sys.stderr, flush=True)
    effects = {family: [Effect(name, own[_CODE], own[name, WEIGHTS[name].values[0]]) for name in WEIGHTS]
               for family, own in found.items()}  # fmt: skip
    print("\n".join(table(f"gain, {chosen.embedder}", effects)))
    print("\n".join(left_out(found)))


def measured(name: str, embedder: str, sample: int, *, later: bool) -> Results:
    """Return the figure of each question of a set, with the weights of the code and with each other value."""
    dataset, cached = load(name, sample), CachingEmbedder(build_embedder(settings_of(embedder, [])), cache())
    results: Results = {}
    pages = {"passage_of": page_of} if dataset.documents else {}
    figure = "recall@10" if later else "recall@5"
    try:
        with trial(settings_of(embedder, []), cached) as apart:
            apart.load(dataset)
            for key in [_CODE, *((title, value) for title, weight in WEIGHTS.items() for value in weight.values)]:
                with changed(*key):
                    results[key] = apart.evaluate(dataset, modes=["hybrid"], **pages).values(figure)
    finally:
        cached.close()
    return results


@contextmanager
def changed(title: str, value: float) -> Iterator[None]:
    """Give a weight another value for a while. Without a title, change nothing."""
    if not title:
        yield
        return
    weight = WEIGHTS[title]
    former = getattr(weight.module, weight.name)
    setattr(weight.module, weight.name, value)
    try:
        yield
    finally:
        setattr(weight.module, weight.name, former)


def left_out(found: Mapping[str, Results]) -> list[str]:
    """Return the lines of a table: for each weight and family, the change of the figure if the weight has the value
    that is best for the other families, and this value."""
    head = [f"\n| chosen without the family | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    figures = " | ".join(f"{np.mean(own[_CODE]):.3f}" for own in found.values())
    rows = [f"| figure of the code | {figures} |"]
    for title, weight in WEIGHTS.items():
        cells = [_chosen(found, title, weight.values, family) for family in found]
        rows.append(f"| {title} ({getattr(weight.module, weight.name)}) | {' | '.join(cells)} |")
    return head + rows


def _chosen(found: Mapping[str, Results], title: str, values: Sequence[float], family: str) -> str:
    others = [own for name, own in found.items() if name != family] or [found[family]]
    means = {key: np.mean([np.mean(own[key]) for own in others]) for key in [_CODE, *((title, v) for v in values)]}
    best = max(means, key=lambda key: (means[key], key == _CODE))
    gain = np.mean(found[family][best]) - np.mean(found[family][_CODE])
    return "=" if best == _CODE else f"{gain:+.3f} at {best[1]:g}"


if __name__ == "__main__":
    main()
