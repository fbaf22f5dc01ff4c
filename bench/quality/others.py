"""Sets with other figures than recall: what must not be found, pages of real PDFs, and declined questions.

Each is measured with the given settings, over at most `sample` questions of a set (0: all).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from agentformer.settings import Settings
from bench import abstaining, pages, precision
from bench.data import load

_ABSTAINING = ("xquad/en", "squad_fi", "swefaq")


def precise(settings: Settings, sample: int) -> dict[str, Any]:
    """Return mean precision and recall of precisionMemBench, with relevant hits only."""
    way = next(way for way in precision.WAYS if way.relevant_only and way.names)
    data = load(precision.SET)
    data = dataclasses.replace(data, queries=data.queries[:: -(-len(data.queries) // sample) if sample else 1])
    outcomes = precision.measure(data, dataclasses.replace(way, embedder=settings.embedder), settings)
    told = {
        name: [value for each in outcomes if (value := getattr(each, name)) is not None]
        for name in ("precision", "recall")
    }
    means = {name: round(sum(values) / len(values), 4) for name, values in told.items() if values}
    return {**means, "passed": sum(each.passed for each in outcomes), "cases": len(outcomes)}


def found_pages(settings: Settings, sample: int) -> dict[str, Any]:
    """Return the number of gold pages among the first three, and the ranks of all."""
    ranks = [asked.by_page for asked in pages.measure(settings, sample)]
    return {"in the top 3": sum(rank <= 3 for rank in ranks), "questions": len(ranks), "ranks": ranks}


def declined(settings: Settings, sample: int) -> dict[str, Any]:
    """Return the share of declined questions with odd numbers by kind, for each set; answerable ones are lost. The
    even ones chose the coefficients."""
    told: dict[str, Any] = {}
    for name in _ABSTAINING:
        asked = abstaining.half_of(abstaining.measure(name, settings, sample), "odd")
        for kind in dict.fromkeys(each.kind for each in asked):
            sure = [each.confidence for each in asked if each.kind == kind]
            told[f"{name} {kind}"] = round(sum(each < settings.abstain for each in sure) / len(sure), 4)
    return told


OTHERS: Mapping[str, Callable[[Settings, int], dict[str, Any]]] = {
    "precisionmembench": precise,
    "nordic_pdf_qa": found_pages,
    "abstaining": declined,
}
