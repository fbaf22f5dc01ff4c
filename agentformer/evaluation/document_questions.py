"""Measures how well the stored documents answer the questions of a file: the ranks of the correct passages, and the
number of declined questions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentformer.evaluation.memory_evaluation import DocumentQuestion, is_correct
from agentformer.evaluation.run import Mode
from agentformer.types import Answer, Hit, MemoryBackend, Query, Scope

DEPTH = 10  # passages that a search returns
_CUTOFFS = (1, 3, 5, 10)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one question. A rank is the position of the first correct passage among the hits, from 1, or None
    if none of the first ten hits is correct."""

    question: DocumentQuestion
    rank: int | None  # rank of the first passage of the correct document that contains the answer
    page_rank: int | None  # rank of the first such passage that is on the correct page
    declined: bool | None  # True if no answer was found; None if no answer was requested
    search_ms: float
    answer_ms: float | None
    warnings: tuple[str, ...]


def ask(
    backend: MemoryBackend,
    question: DocumentQuestion,
    namespace: str,
    mode: Mode,
    answered: Callable[[str], Answer] | None = None,
) -> Outcome:
    """Search for the answer to a question, and return the outcome. `answered` returns the answer to a question, or is
    None if only the search is measured."""
    started = time.perf_counter()
    # A direct search of the backend: salience does not influence the ranks, and uses are not counted.
    hits = backend.search(Query(question.text, Scope(namespace, kinds=("chunk",)), DEPTH, mode=mode))
    searched = time.perf_counter()
    answer = answered(question.text) if answered else None
    answer_ms = (time.perf_counter() - searched) * 1000 if answer else None
    given = None if question.unanswerable else question
    correct = [hit if given and is_correct(hit, given.document, None, given.answer) else None for hit in hits]
    return Outcome(
        question,
        _rank(hit is not None for hit in correct),
        _rank(hit is not None and _page(hit) == question.page for hit in correct) if question.page else None,
        answer.mode == "none" if answer else None,
        (searched - started) * 1000,
        answer_ms,
        tuple(dict.fromkeys((*hits.warnings, *(answer.warnings if answer else ())))),
    )


def _page(hit: Hit) -> int | None:
    return hit.entry.source.page if hit.entry.source else None


def _rank(correct: Iterable[bool]) -> int | None:
    return next((rank for rank, is_correct in enumerate(correct, 1) if is_correct), None)


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the metrics of all questions, as JSON values. A metric without questions is None."""
    unanswerable = [outcome for outcome in outcomes if outcome.question.unanswerable]
    answerable = [outcome for outcome in outcomes if not outcome.question.unanswerable]
    paged = [outcome for outcome in answerable if outcome.question.page is not None]
    ranks = [outcome.rank for outcome in answerable]
    answer_ms = [outcome.answer_ms for outcome in outcomes if outcome.answer_ms is not None]
    return {
        "questions": len(outcomes),
        "answerable": len(answerable),
        "recall": _recall(ranks),
        "mrr@10": _share(sum(1 / rank for rank in ranks if rank), len(ranks)),
        "with_page": len(paged),
        "page_recall": _recall([outcome.page_rank for outcome in paged]),
        "declined": {"unanswerable": _declined(unanswerable), "answerable": _declined(answerable)},
        "median_ms": {
            "search": round(statistics.median(outcome.search_ms for outcome in outcomes), 2),
            "answer": round(statistics.median(answer_ms), 2) if answer_ms else None,
        },
        "warnings": list(dict.fromkeys(warning for outcome in outcomes for warning in outcome.warnings)),
    }


def _recall(ranks: Sequence[int | None]) -> dict[str, float] | None:
    """Return for each cutoff k the share of the questions whose rank is at most k. Return None if there are no
    questions."""
    if not ranks:
        return None
    return {str(cut): round(sum(bool(rank and rank <= cut) for rank in ranks) / len(ranks), 4) for cut in _CUTOFFS}


def _declined(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return for how many questions an answer was requested, and for how many of them none was found (declined).
    Return None if no answer was requested."""
    declined = [outcome.declined for outcome in outcomes if outcome.declined is not None]
    count = sum(declined)
    return {"asked": len(declined), "declined": count, "share": _share(count, len(declined))} if declined else None


def _share(part: float, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def result(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of one question, as JSON values."""
    question = outcome.question
    return {
        "line": question.line,
        "question": question.text,
        "unanswerable": question.unanswerable,
        "rank": outcome.rank,
        "page_rank": outcome.page_rank,
        "declined": outcome.declined,
        "search_ms": round(outcome.search_ms, 2),
        "answer_ms": None if outcome.answer_ms is None else round(outcome.answer_ms, 2),
    }
