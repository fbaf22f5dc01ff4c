"""What an evaluation tells: each question's ranks, and means with confidence intervals, whole and by parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentformer.evaluation.bootstrap import Interval, intervals
from agentformer.evaluation.dataset import Question
from agentformer.evaluation.loading import CATEGORY, LANGUAGE, said
from agentformer.evaluation.metrics import metric
from agentformer.text.languages import detect_language

UNKNOWN = "unknown"  # the part of questions whose language cannot be told


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question, and by mode the rank of each of its relevant passages, in the order of `question.relevant`; None is
    not among those looked at."""

    question: Question
    ranks: Mapping[str, tuple[int | None, ...]]
    language: str = UNKNOWN  # ISO 639-1

    @property
    def category(self) -> str:
        """What its `meta` says; "" where it says nothing."""
        return said(self.question.meta, CATEGORY)


@dataclass(frozen=True, slots=True)
class Part:
    """Questions of one kind. `figures` are by mode and metric; `differences` are of the hybrid mode to each other one,
    paired by question, above 0 where the hybrid one is better."""

    name: str
    questions: int
    figures: Mapping[str, Mapping[str, Interval]]
    differences: Mapping[str, Mapping[str, Interval]]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "questions": self.questions,
            "figures": _rounded(self.figures),
            "differences": _rounded(self.differences),
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well `questions` found their passages among `passages`. A part by language or by category is told where there
    are two or more."""

    name: str
    passages: int
    modes: tuple[str, ...]
    metrics: tuple[str, ...]
    overall: Part
    languages: tuple[Part, ...]
    categories: tuple[Part, ...]
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def questions(self) -> int:
        return len(self.outcomes)

    def figure(self, name: str, mode: str = "hybrid") -> Interval:
        """The mean of a metric over all questions, with its confidence interval."""
        return self.overall.figures[mode][name]

    def values(self, name: str, mode: str = "hybrid") -> list[float]:
        """A metric of each question, in the order of `outcomes`: what a paired difference to another evaluation of the
        same questions is made of (`bootstrap.difference`)."""
        measure = metric(name)
        return [measure(outcome.ranks[mode]) for outcome in self.outcomes]

    def as_json(self) -> dict[str, Any]:
        """As JSON values; intervals are `[mean, low, high]`."""
        return {
            "name": self.name,
            "passages": self.passages,
            "questions": self.questions,
            "modes": list(self.modes),
            "overall": self.overall.as_json(),
            "languages": [part.as_json() for part in self.languages],
            "categories": [part.as_json() for part in self.categories],
            "results": [
                {
                    "id": outcome.question.id,
                    "question": outcome.question.text,
                    "language": outcome.language,
                    "category": outcome.category,
                    "relevant": list(outcome.question.relevant),
                    "ranks": {mode: list(ranks) for mode, ranks in outcome.ranks.items()},
                }
                for outcome in self.outcomes
            ],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def languages_of(questions: Sequence[Question]) -> list[str]:
    """Each question's language: as its `meta` tells it, else as its text does; `UNKNOWN` where that is too short."""
    return [said(question.meta, LANGUAGE) or detect_language(question.text) or UNKNOWN for question in questions]


def summarised(
    name: str,
    passages: int,
    outcomes: Sequence[Outcome],
    *,
    modes: Sequence[str],
    metrics: Sequence[str],
    notes: tuple[str, ...],
    warnings: tuple[str, ...],
    seed: int,
) -> Evaluation:
    """The measures of all questions, of each language and of each category."""

    def part(label: str, some: Sequence[Outcome]) -> Part:
        return measured(label, some, modes=modes, metrics=metrics, seed=seed)

    languages: defaultdict[str, list[Outcome]] = defaultdict(list)
    categories: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        languages[outcome.language].append(outcome)
        categories[outcome.category or "none"].append(outcome)
    return Evaluation(
        name,
        passages,
        tuple(modes),
        tuple(metrics),
        part("all", outcomes),
        tuple(part(*each) for each in sorted(languages.items())) if len(languages) > 1 else (),
        tuple(part(*each) for each in sorted(categories.items())) if len(categories) > 1 else (),
        tuple(outcomes),
        notes,
        warnings,
    )


def measured(
    name: str, outcomes: Sequence[Outcome], *, modes: Sequence[str], metrics: Sequence[str], seed: int = 0
) -> Part:
    """The measures of some questions; at least one."""
    columns: dict[tuple[str, str], list[float]] = {}
    for mode in modes:
        for each in metrics:
            measure = metric(each)
            columns[mode, each] = [measure(outcome.ranks[mode]) for outcome in outcomes]
    others = [mode for mode in modes if mode != "hybrid"] if "hybrid" in modes else []
    apart = {
        (mode, each): [a - b for a, b in zip(columns["hybrid", each], columns[mode, each], strict=True)]
        for mode in others
        for each in metrics
    }
    found = intervals([*columns.values(), *apart.values()], seed=seed)
    told = dict(zip(columns, found, strict=False))
    gaps = dict(zip(apart, found[len(columns) :], strict=True))
    return Part(
        name,
        len(outcomes),
        {mode: {each: told[mode, each] for each in metrics} for mode in modes},
        {mode: {each: gaps[mode, each] for each in metrics} for mode in others},
    )


def _rounded(figures: Mapping[str, Mapping[str, Interval]]) -> dict[str, dict[str, list[float]]]:
    return {
        mode: {name: [round(value, 4) for value in interval] for name, interval in named.items()}
        for mode, named in figures.items()
    }
