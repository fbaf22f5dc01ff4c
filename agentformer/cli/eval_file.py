"""`agentformer eval FILE`: asks the questions of a file (JSON Lines), and prints how well the stored documents answer
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentformer.cli.inputs import hint_namespaces, lines_of, open_existing
from agentformer.cli.output import bar, print_json, print_warnings, say
from agentformer.evaluation.memory_evaluation import read_questions
from agentformer.evaluation.question_file import DEPTH, Outcome, ask, report, result
from agentformer.evaluation.run import Mode
from agentformer.types import Answer

_SHOWN = 10  # at most this many questions without a correct passage are listed


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

        def answered(question: str) -> Answer:
            return af.rag.query(question, top_k=top_k, namespace=namespace)

        outcomes = []
        with bar("questions") as progress:
            for number, question in enumerate(questions, 1):
                outcomes.append(ask(af.backend, question, namespace, mode, answered if top_k else None))
                progress(number, len(questions))
    measured = {"mode": mode, "namespace": namespace, **report(outcomes)}
    if as_json:
        print_json({**measured, "results": [result(outcome) for outcome in outcomes]})
    else:
        print_warnings(measured["warnings"])
        _print_report(measured, outcomes)


def _print_report(measured: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    lines = [("questions", f"{measured['questions']}, {measured['answerable']} with an answer")]
    if measured["recall"]:
        lines += [("recall", _cutoffs(measured["recall"])), ("MRR@10", f"{measured['mrr@10']:.3f}")]
    if measured["page_recall"]:
        lines.append(("page recall", f"{_cutoffs(measured['page_recall'])}  of {measured['with_page']} with a page"))
    for kind, counts in measured["declined"].items():
        if counts:
            lines.append(("declined", f"{counts['declined']} of {counts['asked']} {kind} ({counts['share']:.3f})"))
    times = ", ".join(f"{name} {value:.1f} ms" for name, value in measured["median_ms"].items() if value is not None)
    for name, value in (*lines, ("median", times)):
        say(f"{name:13}{value}")
    missed = [outcome.question for outcome in outcomes if not outcome.rank and not outcome.question.unanswerable]
    if missed:
        say(f"\nno correct passage among the first {DEPTH}: {len(missed)}")
    for question in missed[:_SHOWN]:
        say(f"  line {question.line}: {question.text}")


def _cutoffs(recall: dict[str, float]) -> str:
    return "  ".join(f"@{cut} {share:.3f}" for cut, share in recall.items())
