"""Evaluates a search. Each question is asked in each search mode, and the ranks of its relevant passages are recorded.
Metrics are computed from the ranks for all questions, for each language and for each category."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agentformer.errors import InvalidInput
from agentformer.evaluation import corpus_loader
from agentformer.evaluation.corpus_loader import CATEGORY, LANGUAGE, text_value
from agentformer.evaluation.dataset import Dataset, Question
from agentformer.evaluation.metrics import METRICS, Interval, intervals, metric
from agentformer.text.languages.detection import detect_language
from agentformer.types import NOT_INDEXED, Hit, Hits, Query, Scope

UNKNOWN = "unknown"  # name of the part with the questions whose language is unknown


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one question. `ranks` maps each search mode to the ranks of the relevant passages, in the order of
    `question.relevant`. A rank is None if the passage was not found."""

    question: Question
    ranks: Mapping[str, tuple[int | None, ...]]
    language: str = UNKNOWN  # ISO 639-1

    @property
    def category(self) -> str:
        """The category in the `meta` of the question, or "" if there is no category."""
        return text_value(self.question.meta, CATEGORY)


@dataclass(frozen=True, slots=True)
class Part:
    """The results of a group of questions. `figures` maps each search mode to the mean of each metric. `differences`
    compares hybrid search with every other mode. If a difference is above 0, hybrid search is better."""

    name: str
    questions: int
    figures: Mapping[str, Mapping[str, Interval]]
    differences: Mapping[str, Mapping[str, Interval]]

    def as_json(self) -> dict[str, Any]:
        """Return the results as JSON values. A mean with its confidence interval is `[mean, low, high]`."""
        return {
            "name": self.name,
            "questions": self.questions,
            "figures": _rounded(self.figures),
            "differences": _rounded(self.differences),
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation. `languages` has a part for each language, if the questions have at least two
    languages. `categories` has a part for each category, if the questions have at least two categories."""

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
        """Return the mean of a metric over all questions in a search mode, with its confidence interval."""
        return self.overall.figures[mode][name]

    def values(self, name: str, mode: str = "hybrid") -> list[float]:
        """Return one value of a metric for each question, in the order of `outcomes`. To compare two evaluations of the
        same questions, give the values of each to `metrics.difference`."""
        measure = metric(name)
        return [measure(outcome.ranks[mode]) for outcome in self.outcomes]

    def as_json(self) -> dict[str, Any]:
        """Return the evaluation as JSON values. A mean with its confidence interval is `[mean, low, high]`."""
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


Mode = Literal["hybrid", "lexical", "dense"]
MODES: tuple[Mode, ...] = get_args(Mode)
LIMIT = 10
MAX_LIMIT = 100  # passages of a question
_MOST_HITS = 1_000  # largest number of hits that are requested for a question if several hits are of one passage
_SPREAD = 4  # the next request is larger by this factor, if the hits belong to too few passages

Search = Callable[[Query], Hits]
Progress = Callable[[int, int], None]  # receives the number of asked questions, and of all questions


def check_modes(modes: Sequence[str]) -> None:
    """Raise `InvalidInput` if the list of search modes is empty or contains an unknown mode."""
    listed = isinstance(modes, Iterable) and not isinstance(modes, str)
    if not listed or not modes or any(mode not in MODES for mode in modes):
        raise InvalidInput("modes", f"must be a list of modes ({', '.join(MODES)}), got {modes!r:.80}")


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """The options of `evaluate`. The metrics use the first `limit` passages of each search; metrics that need more are
    skipped. `scope_of(question)` returns the scope to search. `passage_of(hit, question)` returns the id of the passage
    of a hit, to be compared with the ids in `question.relevant`. The defaults of both functions are for a corpus that a
    `Loader` stored. `seed` determines the random draws for the confidence intervals. Raises `InvalidInput` for an
    invalid value."""

    modes: Sequence[Mode] = MODES
    limit: int = LIMIT
    metrics: Sequence[str] = METRICS
    scope_of: Callable[[Question], Scope] = corpus_loader.scope_of
    passage_of: Callable[[Hit, Question], str] = lambda hit, question: corpus_loader.passage_of(hit)
    seed: int = 0
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_modes(self.modes)
        if not isinstance(self.limit, int) or isinstance(self.limit, bool) or not 1 <= self.limit <= MAX_LIMIT:
            raise InvalidInput("limit", f"must be a whole number in 1..{MAX_LIMIT}, got {self.limit!r:.80}")
        if isinstance(self.metrics, str) or not isinstance(self.metrics, Iterable):
            raise InvalidInput("metrics", f"must be a list of names such as recall@5, got {self.metrics!r:.80}")
        for name in self.metrics:
            metric(name)


def evaluate(search: Search, dataset: Dataset, options: EvaluationOptions) -> Evaluation:
    """Search each question in each search mode, and rank the passages that are found. Questions without a relevant
    passage are skipped. `search` is the method `search` of a backend. This method does not count the uses of entries
    and does not rank by salience (importance), so an evaluation does not change later results. If several hits belong
    to one passage, the best hit counts. Raises `InvalidInput` if no question has a relevant passage."""
    questions = dataset.answerable
    if not questions:
        raise InvalidInput("questions", "no question has a relevant passage; list the ids of passages under 'relevant'")
    outcomes: list[Outcome] = []
    warnings: dict[str, None] = {}
    for number, question in enumerate(questions, 1):
        ranks: dict[str, tuple[int | None, ...]] = {}
        for mode in options.modes:
            passages, notices = _search_passages(search, question, mode, options)
            ranks[mode] = tuple(passages.get(passage) for passage in question.relevant)
            warnings.update(dict.fromkeys(notices))
        language = text_value(question.meta, LANGUAGE) or detect_language(question.text) or UNKNOWN
        outcomes.append(Outcome(question, ranks, language))
        if options.progress:
            options.progress(number, len(questions))
    return _summarize(dataset, outcomes, options, tuple(warnings))


def _search_passages(
    search: Search, question: Question, mode: Mode, options: EvaluationOptions
) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Search with the question's text. Return (passage -> rank, warnings). The best passage has rank 1."""
    limit, scope = options.limit, options.scope_of(question)
    while True:
        hits = search(Query(question.text, scope, limit, mode=mode))
        if any(warning.startswith(NOT_INDEXED) for warning in hits.warnings):
            continue  # the search has waited for the word index; another result would be measured later
        passages = list(dict.fromkeys(options.passage_of(hit, question) for hit in hits))
        if len(passages) >= options.limit or len(hits) < limit or limit >= _MOST_HITS:
            return {passage: rank for rank, passage in enumerate(passages[: options.limit], 1)}, hits.warnings
        limit = min(limit * _SPREAD, _MOST_HITS)


def _summarize(
    dataset: Dataset, outcomes: Sequence[Outcome], options: EvaluationOptions, warnings: tuple[str, ...]
) -> Evaluation:
    """Return the evaluation. Metrics that need over `limit` hits are left out, and so is a part that is the whole."""
    metrics = tuple(name for name in options.metrics if int(name.partition("@")[2]) <= options.limit)

    def parts(name_of: Callable[[Outcome], str]) -> tuple[Part, ...]:
        groups: defaultdict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            groups[name_of(outcome)].append(outcome)
        names = sorted(groups) if len(groups) > 1 else ()
        return tuple(_measure_part(name, groups[name], metrics, options) for name in names)

    unanswerable = len(dataset.questions) - len(outcomes)
    note = f"{unanswerable} questions have no answer and were not asked"
    return Evaluation(
        dataset.name,
        len(dataset.passages),
        tuple(options.modes),
        metrics,
        _measure_part("all", outcomes, metrics, options),
        parts(lambda outcome: outcome.language),
        parts(lambda outcome: outcome.category or "none"),
        tuple(outcomes),
        (*dataset.notes, *((note,) if unanswerable else ())),
        warnings,
    )


def _measure_part(name: str, outcomes: Sequence[Outcome], metrics: Sequence[str], options: EvaluationOptions) -> Part:
    """Return the mean measures of a group of questions, and the gains of `hybrid` over each other mode. All intervals
    come from one call, so that they use the same random draws."""
    modes: Sequence[str] = options.modes
    others = [mode for mode in modes if mode != "hybrid"] if "hybrid" in modes else []
    columns = {
        (mode, measure): [metric(measure)(outcome.ranks[mode]) for outcome in outcomes]
        for mode in modes
        for measure in metrics
    }
    gains = {
        (mode, measure): [a - b for a, b in zip(columns["hybrid", measure], columns[mode, measure], strict=True)]
        for mode in others
        for measure in metrics
    }
    computed = iter(intervals([*columns.values(), *gains.values()], seed=options.seed))
    figures = {mode: {measure: next(computed) for measure in metrics} for mode in modes}
    differences = {mode: {measure: next(computed) for measure in metrics} for mode in others}
    return Part(name, len(outcomes), figures, differences)


def _rounded(figures: Mapping[str, Mapping[str, Interval]]) -> dict[str, dict[str, list[float]]]:
    return {mode: {name: each.as_json() for name, each in named.items()} for mode, named in figures.items()}
