"""The sets that are not told by recall: what must not come back, the pages of real PDFs, and who is not answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentformer.settings import Settings
from bench import abstaining, pages, precision
from bench.data import load


def precise() -> dict[str, Any]:
    """precisionMemBench: mean precision and recall of the cases, with what bears on the query alone."""
    way = next(way for way in precision.WAYS if way.relevant_only and way.names)
    outcomes = precision.measure(load(precision.SET), way)
    told = {
        name: [value for each in outcomes if (value := getattr(each, name)) is not None]
        for name in ("precision", "recall")
    }
    means = {name: round(sum(values) / len(values), 4) for name, values in told.items()}
    return {**means, "passed": sum(each.passed for each in outcomes), "cases": len(outcomes)}


def found_pages() -> dict[str, Any]:
    """Gold pages among the first three, and the ranks of all of them."""
    ranks = [rank for _, rank, _ in pages.measure()]
    return {"in the top 3": sum(rank <= 3 for rank in ranks), "questions": len(ranks), "ranks": ranks}


def declined(sample: int = 150) -> dict[str, Any]:
    """The share of each set's questions that is declined, by kind: of the answerable ones, these are lost."""
    bound = Settings().abstain
    told: dict[str, Any] = {}
    for name in ("xquad/en", "squad_fi", "swefaq"):
        asked = abstaining.measure(name, sample, "minilm")
        for kind in dict.fromkeys(each.kind for each in asked):
            sure = [each.confidence for each in asked if each.kind == kind]
            told[f"{name} {kind}"] = round(sum(each < bound for each in sure) / len(sure), 4)
    return told


OTHERS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "precisionmembench": precise,
    "nordic_pdf_qa": found_pages,
    "abstaining": declined,
}
