"""What each mechanism gives: `python -m bench.ablate [FAMILY ...] [--sample N] [--stores DIR]`.

The development sets form families. Each mechanism is switched off, and the questions of each family are measured with
and without it, for both packaged embedders. A cell is the gain of the mechanism with its 95% interval (paired bootstrap
over the questions); a negative number is what it costs. The weights are fitted without the family, with and without the
mechanism, so a mechanism is not needed only because other weights were fitted beside it.

`MECHANISMS` has the parts of the package. A part returns, for a family and an embedder, two lists for each mechanism:
the value of each question with the mechanism, and without it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agentformer.rag.answer.features import Features
from bench.answers import Measured, measure
from bench.answers_fit import Example, Floats, confidence_fitted, fit

FAMILIES = {
    "two people": ("locomo_dev",),
    "an assistant": ("beam_dev",),
    "facts": ("precisionmembench",),
    "passages": ("norquad", "squad_fi", "xquad/en", "xquad/de", "jsquad_valid", "hotpot_small", "pubmedqa", "swefaq"),
    "pages": ("filings", "pdfs", "nordic_pdf_qa"),
}
EMBEDDERS = ("minilm", "multilingual")
_DRAWS = 2_000  # of the bootstrap


class Effect(NamedTuple):
    """The value of each question (higher is better) with a mechanism and without it."""

    mechanism: str
    on: Floats
    off: Floats

    @property
    def cell(self) -> str:
        """The mean gain of the mechanism, with its 95% interval."""
        gains = np.asarray(self.on, dtype=float) - np.asarray(self.off, dtype=float)
        drawn = np.random.default_rng(1).integers(0, len(gains), (_DRAWS, len(gains)))
        low, high = np.quantile(gains[drawn].mean(axis=1), (0.025, 0.975))
        return f"{gains.mean():+.3f} ({low:+.3f} to {high:+.3f})"


Found = Mapping[str, Measured]  # set -> its results
Part = Callable[[Found, Sequence[str]], list[Effect]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=[*FAMILIES])
    parser.add_argument("--sample", type=int, default=100, help="questions of a set at most, evenly spread; 0: all")
    parser.add_argument("--stores", type=Path, help="a folder that keeps the stored sets for the next run")
    chosen = parser.parse_args()
    for embedder in EMBEDDERS:
        folder = chosen.stores / embedder if chosen.stores else None
        found = {
            name: measure(name, chosen.sample, embedder=embedder, fit=True, stores=folder)
            for family in chosen.families
            for name in FAMILIES[family]
        }
        for title, part in MECHANISMS.items():
            effects = {family: part(found, FAMILIES[family]) for family in chosen.families}
            print("\n".join(table(f"{title}, {embedder}", effects)), flush=True)


def table(title: str, effects: Mapping[str, Sequence[Effect]]) -> list[str]:
    """Return the lines of a table: a row for each mechanism, and a column for each family."""
    head = [f"\n| {title} | {' | '.join(effects)} |", "|---" * (len(effects) + 1) + "|"]
    rows = zip(*effects.values(), strict=True)
    return [*head, *(f"| {row[0].mechanism} | {' | '.join(effect.cell for effect in row)} |" for row in rows)]


def of_sentences(found: Found, family: Sequence[str]) -> list[Effect]:
    """Return the effects of the features of sentences on whether the best sentence is right."""
    others = {
        name: [e for e in each.examples if e.right.any() and not e.right.all()]
        for name, each in found.items()
        if name not in family or len(found) == len(family)
    }
    others = {name: each for name, each in others.items() if each}
    asked = [example for name in family for example in found[name].examples if example.right.any()]
    whole = _firsts(asked, fit(others))
    return [Effect(name, whole, _firsts(asked, fit(others, without=name))) for name in Features._fields]


def of_confidence(found: Found, family: Sequence[str]) -> list[Effect]:
    """Return the effects of the values of the confidence on its squared error, with the opposite sign."""
    others = {name: each.judged for name, each in found.items() if name not in family or len(found) == len(family)}
    judged = [one for name in family for one in found[name].judged if not one.grounds.elsewhere]
    right = np.array([one.right for one in judged], dtype=float)
    whole = _errors(np.array([one.grounds.values for one in judged]), right, confidence_fitted(others))
    effects = []
    for n, name in ((1, "score"), (2, "about")):
        values = np.array([one.grounds.values for one in judged])
        values[:, n] = 0.0
        effects.append(Effect(name, whole, _errors(values, right, confidence_fitted(others, without=n))))
    return effects


def _firsts(examples: Sequence[Example], weights: Floats) -> Floats:
    return np.array([bool(one.right[int(np.argmax(one.features @ weights))]) for one in examples], dtype=float)


def _errors(values: Floats, right: Floats, weights: Sequence[float]) -> Floats:
    sure = 1 / (1 + np.exp(-values @ np.array(weights)))
    return -((sure - right) ** 2)


MECHANISMS: dict[str, Part] = {"first sentence right": of_sentences, "error of the confidence": of_confidence}

if __name__ == "__main__":
    main()
