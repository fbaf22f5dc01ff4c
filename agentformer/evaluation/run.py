"""Questions are searched in each mode, the places of their passages noted, and the measures taken of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, get_args

from agentformer.errors import InvalidInput
from agentformer.evaluation import loading
from agentformer.evaluation.dataset import Dataset, Question
from agentformer.evaluation.metrics import METRICS, metric
from agentformer.evaluation.outcomes import Evaluation, Outcome, languages_of, summarised
from agentformer.types import Hit, Hits, Query, Scope

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
    """Ask each question that has an answer in each mode, and look at the first `limit` passages.

    `search` is a backend's: uses are not counted, and salience does not weigh. What is not by default a `Loader`'s
    corpus tells by `scope_of` where a question is asked, and by `passage_of` which passage a hit is of, as `relevant`
    names it. Several hits of one passage count once, the best. Measures of more than `limit` passages are left out.
    `seed` is that of the confidence intervals. Raises `InvalidInput`.
    """
    checked_modes(modes)
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
    return summarised(
        dataset.name,
        len(dataset.passages),
        outcomes,
        modes=modes,
        metrics=within,
        notes=notes,
        warnings=tuple(warnings),
        seed=seed,
    )


def checked_modes(modes: Sequence[str]) -> None:
    """Raises `InvalidInput` for one that there is not, or none."""
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
    """The ranks of the passages found, from 1, at most `limit` of them, and the search's warnings."""
    asked = limit
    while True:
        hits = search(Query(question.text, scope, asked, mode=mode))
        passages = list(dict.fromkeys(passage_of(hit, question) for hit in hits))
        if len(passages) >= limit or len(hits) < asked or asked >= _MOST_HITS:
            ranks = {passage: rank for rank, passage in enumerate(passages[:limit], 1)}
            return ranks, hits.warnings
        asked = min(asked * _SPREAD, _MOST_HITS)
