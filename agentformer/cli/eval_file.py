"""`agentformer eval FILE`: measures how well the stored documents answer the questions of a file (JSON Lines)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentformer.cli.inputs import hint_namespaces, lines_of, open_existing
from agentformer.cli.output import bar, print_json, print_warnings, say
from agentformer.evaluation.memory_evaluation import DocumentQuestion, is_correct, read_questions
from agentformer.evaluation.run import Mode
from agentformer.factory import AgentFormer
from agentformer.types import Hit, Query, Scope

_DEPTH = 10  # passages that a search returns
_CUTOFFS = (1, 3, 5, 10)
_SHOWN = 10  # at most this many questions without a correct passage are listed


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


def measure(file: Path, namespace: str, as_json: bool, options: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Ask the questions of a file, and print the results. All lines of the file are checked before the first question
    is asked. `options` are the options of the command `eval`, and `settings` are the settings of the memory."""
    mode: Mode = options["mode"] or "hybrid"
    lines = lines_of(file, "FILE")
    with open_existing(**settings) as af:
        hint_namespaces(af, namespace)
        pages = {document.name: document.pages for document in af.rag.documents(namespace=namespace) if document.chunks}
        questions = read_questions(lines, pages, af.settings.max_question_chars)
        top_k = None if options["no_answers"] else options["top_k"] or af.settings.top_k
        outcomes = []
        with bar("questions") as progress:
            for number, question in enumerate(questions, 1):
                outcomes.append(_ask(af, question, namespace, mode, top_k))
                progress(number, len(questions))
    report = {"mode": mode, "namespace": namespace, **_report(outcomes)}
    if as_json:
        print_json({**report, "results": [_result(outcome) for outcome in outcomes]})
    else:
        print_warnings(report["warnings"])
        _print_report(report, outcomes)


# ------------------------------------------------------------------ one question


def _ask(af: AgentFormer, question: DocumentQuestion, namespace: str, mode: Mode, top_k: int | None) -> Outcome:
    """Search for the answer to a question, and return the outcome. If `top_k` is given, also answer the question from
    this number of passages."""
    started = time.perf_counter()
    # A direct search of the backend: salience does not influence the ranks, and uses are not counted.
    hits = af.backend.search(Query(question.text, Scope(namespace, kinds=("chunk",)), _DEPTH, mode=mode))
    searched = time.perf_counter()
    answer = af.rag.query(question.text, top_k=top_k, namespace=namespace) if top_k else None
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


# ------------------------------------------------------------------ the report


def _report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
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


def _result(outcome: Outcome) -> dict[str, Any]:
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


def _print_report(report: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    lines = [("questions", f"{report['questions']}, {report['answerable']} with an answer")]
    if report["recall"]:
        lines += [("recall", _cutoffs(report["recall"])), ("MRR@10", f"{report['mrr@10']:.3f}")]
    if report["page_recall"]:
        lines.append(("page recall", f"{_cutoffs(report['page_recall'])}  of {report['with_page']} with a page"))
    for kind, counts in report["declined"].items():
        if counts:
            lines.append(("declined", f"{counts['declined']} of {counts['asked']} {kind} ({counts['share']:.3f})"))
    times = ", ".join(f"{name} {value:.1f} ms" for name, value in report["median_ms"].items() if value is not None)
    for name, value in (*lines, ("median", times)):
        say(f"{name:13}{value}")
    missed = [outcome.question for outcome in outcomes if not outcome.rank and not outcome.question.unanswerable]
    if missed:
        say(f"\nno correct passage among the first {_DEPTH}: {len(missed)}")
    for question in missed[:_SHOWN]:
        say(f"  line {question.line}: {question.text}")


def _cutoffs(recall: dict[str, float]) -> str:
    return "  ".join(f"@{cut} {share:.3f}" for cut, share in recall.items())
