"""Evaluate a search: ask each question in each mode, rank its relevant passages, and compute metrics in all and by
parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agentformer.errors import InvalidInput
from agentformer.evaluation import loading
from agentformer.evaluation.dataset import Dataset, Question
from agentformer.evaluation.loading import CATEGORY, LANGUAGE, text_value
from agentformer.evaluation.metrics import METRICS, Interval, intervals, metric
from agentformer.text.languages import detect_language
from agentformer.types import Hit, Hits, Query, Scope

UNKNOWN = "unknown"  # the part of questions whose language cannot be told


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question, and by mode the rank of each of its relevant passages in the order of `question.relevant`; None if
    it was not found."""

    question: Question
    ranks: Mapping[str, tuple[int | None, ...]]
    language: str = UNKNOWN  # ISO 639-1

    @property
    def category(self) -> str:
        """The category in the question's `meta`, or ""."""
        return text_value(self.question.meta, CATEGORY)


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of some questions by mode and metric. `differences` compare hybrid search with each other mode,
    paired by question; above 0, hybrid search is better."""

    name: str
    questions: int
    figures: Mapping[str, Mapping[str, Interval]]
    differences: Mapping[str, Mapping[str, Interval]]

    def as_json(self) -> dict[str, Any]:
        """Return the part as JSON values; intervals are `[mean, low, high]`."""
        return {
            "name": self.name,
            "questions": self.questions,
            "figures": _rounded(self.figures),
            "differences": _rounded(self.differences),
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation. Parts by language or category are present if there are at least two."""

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
        """Return the mean of a metric over all questions, with its confidence interval."""
        return self.overall.figures[mode][name]

    def values(self, name: str, mode: str = "hybrid") -> list[float]:
        """Return a metric of each question in the order of `outcomes`, for a paired difference to another evaluation
        (`metrics.difference`)."""
        measure = metric(name)
        return [measure(outcome.ranks[mode]) for outcome in self.outcomes]

    def as_json(self) -> dict[str, Any]:
        """Return the evaluation as JSON values; intervals are `[mean, low, high]`."""
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
    """Return the language of each question by its `meta`, else by its text; `UNKNOWN` if that is too short."""
    return [text_value(question.meta, LANGUAGE) or detect_language(question.text) or UNKNOWN for question in questions]


def summarize(
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
    """Return the metrics of all questions, of each language and of each category."""

    def part(label: str, some: Sequence[Outcome]) -> Part:
        return measure_part(label, some, modes=modes, metrics=metrics, seed=seed)

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


def measure_part(
    name: str, outcomes: Sequence[Outcome], *, modes: Sequence[str], metrics: Sequence[str], seed: int = 0
) -> Part:
    """Return the metrics of some questions, at least one."""
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


Mode = Literal["hybrid", "lexical", "dense"]
MODES: tuple[Mode, ...] = get_args(Mode)
LIMIT = 10
MAX_LIMIT = 100  # passages of a question
_MOST_HITS = 1_000  # looked at for as many passages, where several hits are of one
_SPREAD = 4  # times more hits are asked for, when those that came were of too few passages

Search = Callable[[Query], Hits]
Progress = Callable[[int, int], None]  # questions asked, questions in all


def evaluate(
    search: Search,
    dataset: Dataset,
    *,
    modes: Sequence[Mode] = MODES,
    limit: int = LIMIT,
    metrics: Sequence[str] = METRICS,
    scope_of: Callable[[Question], Scope] = loading.scope_of,
    passage_of: Callable[[Hit, Question], str] = lambda hit, question: loading.passage_of(hit),
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Ask each question that has an answer in each mode, and rank the first `limit` passages.

    `search` is a backend's search, without usage counts and salience. For a corpus that no `Loader` stored, `scope_of`
    returns the scope of a question, and `passage_of` the passage of a hit as `relevant` names it. Of several hits of
    one passage the best counts. Metrics of more than `limit` passages are skipped. `seed` is for the confidence
    intervals. Raises `InvalidInput`.
    """
    check_modes(modes)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput("limit", f"must be a whole number in 1..{MAX_LIMIT}, got {limit!r:.80}")
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise InvalidInput("metrics", f"must be a list of names such as recall@5, got {metrics!r:.80}")
    for name in metrics:
        metric(name)
    questions = dataset.answerable
    if not questions:
        raise InvalidInput("questions", "name no passage that answers them; put ids under relevant")
    outcomes: list[Outcome] = []
    languages = languages_of(questions)
    warnings: dict[str, None] = {}
    for number, question in enumerate(questions, 1):
        ranks: dict[str, tuple[int | None, ...]] = {}
        for mode in modes:
            found, told = _ranked(search, question, scope_of(question), mode, limit, passage_of)
            ranks[mode] = tuple(found.get(passage) for passage in question.relevant)
            warnings.update(dict.fromkeys(told))
        outcomes.append(Outcome(question, ranks, languages[number - 1]))
        if progress:
            progress(number, len(questions))
    within = [name for name in metrics if int(name.partition("@")[2]) <= limit]
    unanswerable = len(dataset.questions) - len(questions)
    notes = (
        *dataset.notes,
        *((f"{unanswerable} questions have no answer and were not asked",) if unanswerable else ()),
    )
    return summarize(
        dataset.name,
        len(dataset.passages),
        outcomes,
        modes=modes,
        metrics=within,
        notes=notes,
        warnings=tuple(warnings),
        seed=seed,
    )


def check_modes(modes: Sequence[str]) -> None:
    """Raise `InvalidInput` for an unknown mode, or for none."""
    listed = isinstance(modes, Iterable) and not isinstance(modes, str)
    if not listed or not modes or any(mode not in MODES for mode in modes):
        raise InvalidInput("modes", f"must be some of {', '.join(MODES)}, got {modes!r:.80}")


def _ranked(
    search: Search,
    question: Question,
    scope: Scope,
    mode: Mode,
    limit: int,
    passage_of: Callable[[Hit, Question], str],
) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Return the ranks of the passages found, from 1, at most `limit` of them, and the warnings of the search."""
    asked = limit
    while True:
        hits = search(Query(question.text, scope, asked, mode=mode))
        passages = list(dict.fromkeys(passage_of(hit, question) for hit in hits))
        if len(passages) >= limit or len(hits) < asked or asked >= _MOST_HITS:
            ranks = {passage: rank for rank, passage in enumerate(passages[:limit], 1)}
            return ranks, hits.warnings
        asked = min(asked * _SPREAD, _MOST_HITS)
