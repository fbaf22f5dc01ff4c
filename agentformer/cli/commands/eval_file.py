"""`agentformer eval`: measures how well the documents answer the questions of a file.

`eval_folder` measures the questions of a folder, and generated questions.
"""

from __future__ import annotations

import re
import statistics
import time
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import click

from agentformer.cli.commands.eval_folder import FolderOptions, measure
from agentformer.cli.commands.eval_questions import Question, read_questions
from agentformer.cli.group import common, examples, main
from agentformer.cli.inputs import hint_namespaces
from agentformer.cli.output import bar, print_json, print_warnings, say
from agentformer.errors import InvalidInput
from agentformer.evaluation.synthetic import COUNT
from agentformer.factory import AgentFormer, connect
from agentformer.types import Hit, Query, Scope

Mode = Literal["hybrid", "dense", "lexical"]
MODES: tuple[Mode, ...] = get_args(Mode)

_DEPTH = 10  # passages that a search returns
_CUTOFFS = (1, 3, 5, 10)
_SHOWN = 10  # at most this many questions without a correct passage are listed
# Scripts without spaces between words, or with endings written inside the word:
# Chinese, Japanese, Korean, Thai, Lao, Myanmar, Khmer.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one question. Ranks begin with 1. None means that the passage is not among the first ten hits."""

    question: Question
    rank: int | None  # rank of the first passage of the correct document that contains the answer
    page_rank: int | None  # rank of the first such passage that is on the correct page
    declined: bool | None  # True if the answer was declined; None if the question was not asked
    search_ms: float
    answer_ms: float | None
    warnings: tuple[str, ...]


@main.command(
    "eval",
    epilog=examples(
        "agentformer eval questions.jsonl",
        "agentformer eval questions.jsonl --mode lexical --no-answers",
        "agentformer eval questions.jsonl --namespace board --json > outcome.json",
        "agentformer eval my-questions/ --modes hybrid,lexical --half test",
        "agentformer eval --synthetic",
    ),
)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "--top-k",
    metavar="N",
    type=click.IntRange(1, 100),
    help="Only for a FILE: answer from at most this many passages [default: 3].",
)
@click.option("--mode", type=click.Choice(MODES), help="Only for a FILE: the search mode [default: hybrid].")
@click.option("--no-answers", is_flag=True, help="Only for a FILE: search, but do not answer the questions.")
@click.option(
    "--modes",
    metavar="MODES",
    help=f"Only for a DIR or --synthetic: compare these search modes [default: {','.join(MODES)}].",
)
@click.option("--half", type=click.Choice(["dev", "test"]), help="Only for a DIR: use only this half of the questions.")
@click.option(
    "--sample",
    metavar="N",
    type=click.IntRange(1),
    help="Only for a DIR or --synthetic: use at most this many questions.",
)
@click.option(
    "--synthetic",
    metavar="[N]",
    is_flag=False,
    flag_value=COUNT,
    type=click.IntRange(1, 10_000),
    help=f"Generate N questions [default: {COUNT}] from the documents of the namespace, or from the corpus of DIR.",
)
@click.option(
    "--seed", metavar="N", type=int, help="Only for a DIR or --synthetic: seed of the random numbers [default: 0]."
)
@common
def evaluate(path: Path | None, namespace: str, as_json: bool, **options: Any) -> None:
    """Measure how well your documents answer your own questions.

    A FILE has questions about the stored documents, one JSON object per line. The object gives the name and page of
    the document that contains the answer, or words of the correct passage, or all of these. Or it says that there is
    no answer:

    \b
    {"question": "Who keeps the keys?", "document": "rules.pdf", "page": 2}
    {"question": "When are boats lifted?", "answer": "in October"}
    {"question": "What does the crane cost?", "unanswerable": true}

    recall@k is the share of questions that have a correct passage among the first k hits. Page recall@k counts only
    questions with a page, and the hit must be on that page. MRR@10 is the mean of 1/rank of the first correct passage.
    After the search, each question is answered as by `ask`, and the declined answers are counted. No language model
    is needed.

    A DIR has `corpus.jsonl` with {"id", "text", "meta"} and `queries.jsonl` with {"id", "text", "relevant": [ids],
    "meta"}. The corpus is stored in a temporary memory. Each question is searched by words, by vectors, and by words
    and vectors together. docs/EVALUATION.md explains the figures.

    With `--synthetic`, the questions are generated from the documents. If a language model is configured, it writes
    the questions; otherwise they are made from sentences of the documents.
    """
    file_options = {name: options.pop(name) for name in ("top_k", "mode", "no_answers")}
    folder_options = {name: options.pop(name) for name in ("modes", "half", "sample", "synthetic", "seed")}
    if path is not None and not path.is_dir() and folder_options["synthetic"] is None:
        _refuse(folder_options, "a FILE of questions")
        _evaluate_file(path, namespace, as_json, file_options, options)
        return
    _refuse(file_options, "a DIR or --synthetic")
    folder_options["seed"] = folder_options["seed"] or 0
    measure(path, FolderOptions(namespace=namespace, as_json=as_json, **folder_options), options)


def _refuse(options: dict[str, Any], target: str) -> None:
    """Raise `InvalidInput` if an option does not apply."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise InvalidInput(f"--{name.replace('_', '-')}", f"does not apply to {target}")


def _evaluate_file(
    file: Path, namespace: str, as_json: bool, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    mode: Mode = options["mode"] or "hybrid"
    with connect(**settings) as af:
        hint_namespaces(af, namespace)
        documents = {each.name: each.pages for each in af.rag.documents(namespace=namespace) if each.chunks}
        questions = read_questions(file, documents, af.settings.max_question_chars)
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


def _ask(af: AgentFormer, question: Question, namespace: str, mode: Mode, top_k: int | None) -> Outcome:
    """Search for a question. With `top_k`, also answer the question."""
    started = time.perf_counter()
    # A direct search of the backend: salience does not influence the ranks, and uses are not counted.
    hits = af.backend.search(Query(question.text, Scope(namespace, kinds=("chunk",)), _DEPTH, mode=mode))
    searched = time.perf_counter()
    answer = af.rag.query(question.text, top_k=top_k, namespace=namespace) if top_k else None
    correct = [_is_correct(hit, question) for hit in hits]
    on_page = [each and _page(hit) == question.page for each, hit in zip(correct, hits, strict=True)]
    return Outcome(
        question,
        _rank(correct),
        _rank(on_page) if question.page is not None else None,
        answer.mode == "none" if answer else None,
        (searched - started) * 1000,
        (time.perf_counter() - searched) * 1000 if answer else None,
        tuple(dict.fromkeys((*hits.warnings, *(answer.warnings if answer else ())))),
    )


def _is_correct(hit: Hit, question: Question) -> bool:
    """Return whether the passage is from the correct document and contains the answer. Ignore what the question does
    not give."""
    source = hit.entry.source
    if question.unanswerable or (question.document is not None and (not source or source.name != question.document)):
        return False
    return question.answer is None or _contains(_normalize(hit.entry.content), _normalize(question.answer))


def _contains(text: str, answer: str) -> bool:
    """Return whether the text contains the answer as whole words. In a script without spaces, the answer may occur
    anywhere."""
    start = text.find(answer)
    while start >= 0:
        end = start + len(answer)
        if not _same_word(text[:start][-1:], answer[0]) and not _same_word(text[end : end + 1], answer[-1]):
            return True
        start = text.find(answer, start + 1)
    return False


def _same_word(outside: str, inside: str) -> bool:
    """Return whether these two characters belong to the same word."""
    if not outside or _UNSPACED.match(outside) or _UNSPACED.match(inside):
        return False
    return unicodedata.category(outside)[0] in "LMN"  # letters, marks and digits


def _normalize(text: str) -> str:
    """Return the text without capitals and line breaks."""
    return " ".join(text.casefold().split())


def _page(hit: Hit) -> int | None:
    return hit.entry.source.page if hit.entry.source else None


def _rank(correct: Iterable[bool]) -> int | None:
    return next((rank for rank, each in enumerate(correct, 1) if each), None)


def _report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    answerable = [each for each in outcomes if not each.question.unanswerable]
    paged = [each for each in answerable if each.question.page is not None]
    ranks = [each.rank for each in answerable]
    answer_ms = [each.answer_ms for each in outcomes if each.answer_ms is not None]
    return {
        "questions": len(outcomes),
        "answerable": len(answerable),
        "recall": _recall(ranks),
        "mrr@10": _share(sum(1 / rank for rank in ranks if rank), len(ranks)),
        "with_page": len(paged),
        "page_recall": _recall([each.page_rank for each in paged]),
        "declined": {
            "unanswerable": _declined([each for each in outcomes if each.question.unanswerable]),
            "answerable": _declined(answerable),
        },
        "median_ms": {
            "search": round(statistics.median(each.search_ms for each in outcomes), 2),
            "answer": round(statistics.median(answer_ms), 2) if answer_ms else None,
        },
        "warnings": list(dict.fromkeys(warning for each in outcomes for warning in each.warnings)),
    }


def _recall(ranks: Sequence[int | None]) -> dict[str, float] | None:
    """Return the share of ranks up to each cutoff, or None if there are no questions."""
    if not ranks:
        return None
    return {str(cut): round(sum(bool(rank and rank <= cut) for rank in ranks) / len(ranks), 4) for cut in _CUTOFFS}


def _declined(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Count the declined questions among the questions that were asked. Return None if no question was asked."""
    asked = [each for each in outcomes if each.declined is not None]
    count = sum(bool(each.declined) for each in asked)
    return {"asked": len(asked), "declined": count, "share": _share(count, len(asked))} if asked else None


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
    lines.append(("median", times))
    for name, value in lines:
        say(f"{name:13}{value}")
    missed = [each.question for each in outcomes if each.rank is None and not each.question.unanswerable]
    if missed:
        say(f"\nno correct passage among the first {_DEPTH}: {len(missed)}")
    for question in missed[:_SHOWN]:
        say(f"  line {question.line}: {question.text}")


def _cutoffs(recall: dict[str, float]) -> str:
    return "  ".join(f"@{cut} {share:.3f}" for cut, share in recall.items())
