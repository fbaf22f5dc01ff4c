"""`agentformer eval`: how well one's own documents answer one's own questions, in a file, in a folder, or built."""

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

from agentformer.cli.group import common, examples, main
from agentformer.cli.hints import tell_elsewhere
from agentformer.cli.measuring import Options, measure
from agentformer.cli.output import print_json, print_warnings, say
from agentformer.cli.progress import bar
from agentformer.cli.questions import Question, read_questions
from agentformer.errors import InvalidInput
from agentformer.evaluation.synthetic import COUNT
from agentformer.factory import AgentFormer, connect
from agentformer.types import Hit, Query, Scope

Mode = Literal["hybrid", "dense", "lexical"]
MODES: tuple[Mode, ...] = get_args(Mode)

_DEPTH = 10  # passages looked at
_CUTS = (1, 3, 5, 10)
_SHOWN = 10  # questions without a right passage
# Chinese and Japanese, Korean, Thai, Lao, Myanmar and Khmer: words stand without spaces, or with endings.
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one question got; ranks count from 1, and None is not among the first ten."""

    question: Question
    rank: int | None  # of the first right passage: of the document, with the answer in it
    page_rank: int | None  # of the first one that is on the right page, too
    declined: bool | None  # did the answer say that there is none? None: not asked
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
@click.option("--top-k", metavar="N", type=click.IntRange(1, 100), help="Of a FILE: passages of each answer [3].")
@click.option("--mode", type=click.Choice(MODES), help="Of a FILE: how passages are searched [hybrid].")
@click.option("--no-answers", is_flag=True, help="Of a FILE: only search; no answer is made, and no model is asked.")
@click.option("--modes", metavar="MODES", help=f"Of a DIR or --synthetic: those compared [{','.join(MODES)}].")
@click.option("--half", type=click.Choice(["dev", "test"]), help="Of a DIR: only this half of the questions.")
@click.option(
    "--sample", metavar="N", type=click.IntRange(1), help="Of a DIR or --synthetic: at most so many questions."
)
@click.option(
    "--synthetic",
    metavar="[N]",
    is_flag=False,
    flag_value=COUNT,
    type=click.IntRange(1, 10_000),
    help=f"Build N questions [{COUNT}] from the documents of the namespace, or from the corpus of DIR.",
)
@click.option(
    "--seed", metavar="N", type=int, help="Of a DIR or --synthetic: of halves, built questions and intervals [0]."
)
@common
def evaluate(path: Path | None, namespace: str, as_json: bool, **options: Any) -> None:
    """Measure how well the documents answer questions of your own.

    A FILE has one JSON object a line, about the documents that are stored. Where the answer is, is told by the
    document's name and page, or by words that the right passage holds, or by both; or that there is none:

    \b
    {"question": "Who keeps the keys?", "document": "rules.pdf", "page": 2}
    {"question": "When are boats lifted?", "answer": "in October"}
    {"question": "What does the crane cost?", "unanswerable": true}

    recall@k is the share of questions with a right passage among the first k, page recall@k that of those that name a
    page with a right passage on it, and MRR@10 the mean of 1/rank. Then every question is asked as `ask` does, with
    its hybrid search, and counted when the answer is that there is none. No language model is needed.

    A DIR holds `corpus.jsonl` with {"id", "text", "meta"} and `queries.jsonl` with {"id", "text", "relevant": [ids],
    "meta"}. The corpus is stored in a memory of its own, which is gone afterwards, and each question is searched by
    words, by vectors and by both; docs/EVALUATION.md explains the figures.

    With `--synthetic`, the questions are built from the documents: by a language model where one is configured, else
    from their sentences.
    """
    file_options = {name: options.pop(name) for name in ("top_k", "mode", "no_answers")}
    folder_options = {name: options.pop(name) for name in ("modes", "half", "sample", "synthetic", "seed")}
    if path is not None and not path.is_dir() and folder_options["synthetic"] is None:
        _refuse(folder_options, "a FILE of questions")
        _evaluate_file(path, namespace=namespace, as_json=as_json, **file_options, **options)
        return
    _refuse(file_options, "a DIR and for --synthetic")
    folder_options["seed"] = folder_options["seed"] or 0
    measure(path, Options(namespace=namespace, as_json=as_json, **folder_options), options)


def _refuse(options: dict[str, Any], where: str) -> None:
    """Raises `InvalidInput` for an option that means nothing there."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise InvalidInput(f"--{name.replace('_', '-')}", f"is not for {where}")


def _evaluate_file(
    file: Path,
    *,
    top_k: int | None,
    mode: Mode | None,
    no_answers: bool,
    namespace: str,
    as_json: bool,
    **options: Any,
) -> None:
    mode = mode or "hybrid"
    with connect(**options) as af:
        tell_elsewhere(af, namespace)
        documents = {each.name: each.pages for each in af.rag.documents(namespace=namespace) if each.chunks}
        questions = read_questions(file, documents, af.settings.max_question_chars)
        outcomes = []
        with bar("questions") as progress:
            for number, question in enumerate(questions, 1):
                outcomes.append(_ask(af, question, namespace, mode, None if no_answers else top_k or af.settings.top_k))
                progress(number, len(questions))
    report = {"mode": mode, "namespace": namespace, **_report(outcomes)}
    if as_json:
        print_json({**report, "results": [_result(outcome) for outcome in outcomes]})
    else:
        print_warnings(report["warnings"])
        _print_report(report, outcomes)


def _ask(af: AgentFormer, question: Question, namespace: str, mode: Mode, top_k: int | None) -> Outcome:
    """One question, searched for and, with `top_k`, answered."""
    started = time.perf_counter()
    # Not through the memory: measuring must not weigh by salience, nor count what it found as used.
    hits = af.backend.search(Query(question.text, Scope(namespace, kinds=("chunk",)), _DEPTH, mode=mode))
    searched = time.perf_counter()
    answer = af.rag.query(question.text, top_k=top_k, namespace=namespace) if top_k else None
    right = [_right(hit, question) for hit in hits]
    on_page = [each and _page(hit) == question.page for each, hit in zip(right, hits, strict=True)]
    return Outcome(
        question,
        _rank(right),
        _rank(on_page) if question.page is not None else None,
        answer.mode == "none" if answer else None,
        (searched - started) * 1000,
        (time.perf_counter() - searched) * 1000 if answer else None,
        tuple(dict.fromkeys((*hits.warnings, *(answer.warnings if answer else ())))),
    )


def _right(hit: Hit, question: Question) -> bool:
    """Is it a passage of the right document, with the answer in it, as far as the question tells them?"""
    source = hit.entry.source
    if question.unanswerable or (question.document is not None and (not source or source.name != question.document)):
        return False
    return question.answer is None or _says(_words(hit.entry.content), _words(question.answer))


def _says(text: str, answer: str) -> bool:
    """Is the answer in the text as whole words? Where a script leaves no spaces, anywhere."""
    start = text.find(answer)
    while start >= 0:
        end = start + len(answer)
        if not _continues(text[:start][-1:], answer[0]) and not _continues(text[end : end + 1], answer[-1]):
            return True
        start = text.find(answer, start + 1)
    return False


def _continues(beside: str, edge: str) -> bool:
    """Does a word go on, from the edge of an answer into the character beside it?"""
    if not beside or _SPACELESS.match(beside) or _SPACELESS.match(edge):
        return False
    return unicodedata.category(beside)[0] in "LMN"  # letters, their marks, and digits


def _words(text: str) -> str:
    """A text by its letters alone: line breaks and capitals are the page's, not the answer's."""
    return " ".join(text.casefold().split())


def _page(hit: Hit) -> int | None:
    return hit.entry.source.page if hit.entry.source else None


def _rank(right: Iterable[bool]) -> int | None:
    return next((rank for rank, each in enumerate(right, 1) if each), None)


def _report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    answerable = [each for each in outcomes if not each.question.unanswerable]
    paged = [each for each in answerable if each.question.page is not None]
    ranks = [each.rank for each in answerable]
    answered = [each.answer_ms for each in outcomes if each.answer_ms is not None]
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
            "answer": round(statistics.median(answered), 2) if answered else None,
        },
        "warnings": list(dict.fromkeys(warning for each in outcomes for warning in each.warnings)),
    }


def _recall(ranks: Sequence[int | None]) -> dict[str, float] | None:
    """The share of questions with a rank of at most k, by k; None where there are no questions."""
    if not ranks:
        return None
    return {str(cut): round(sum(bool(rank and rank <= cut) for rank in ranks) / len(ranks), 4) for cut in _CUTS}


def _declined(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """How many of those that were asked were declined; None where none was asked."""
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
        lines += [("recall", _cuts(report["recall"])), ("MRR@10", f"{report['mrr@10']:.3f}")]
    if report["page_recall"]:
        lines.append(("page recall", f"{_cuts(report['page_recall'])}  of {report['with_page']} that name a page"))
    for kind, told in report["declined"].items():
        if told:
            lines.append(("declined", f"{told['declined']} of {told['asked']} {kind} ({told['share']:.3f})"))
    times = ", ".join(f"{name} {value:.1f} ms" for name, value in report["median_ms"].items() if value is not None)
    lines.append(("median", times))
    for name, value in lines:
        say(f"{name:13}{value}")
    missed = [each.question for each in outcomes if each.rank is None and not each.question.unanswerable]
    if missed:
        say(f"\nno right passage among the first {_DEPTH}: {len(missed)}")
    for question in missed[:_SHOWN]:
        say(f"  line {question.line}: {question.text}")


def _cuts(recall: dict[str, float]) -> str:
    return "  ".join(f"@{cut} {share:.3f}" for cut, share in recall.items())
