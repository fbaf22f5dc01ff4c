"""`agentformer eval`: measures how well searches find the answers to your own questions or to generated questions.

For a folder of questions and for generated questions, searches by words, by vectors, and by words and vectors together
are compared, with confidence intervals. For a file of questions, the answers are judged too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from agentformer.cli.group import common, examples, main
from agentformer.cli.inputs import hint_namespaces, lines_of, open_existing
from agentformer.cli.output import bar, interval_text, plural, print_json, print_warnings, say, table
from agentformer.errors import InvalidInput
from agentformer.evaluation import document_questions, synthetic
from agentformer.evaluation.dataset import Dataset, halves, read_dataset, sampled
from agentformer.evaluation.memory_evaluation import read_questions
from agentformer.evaluation.run import MODES, Evaluation, EvaluationOptions, Mode, Part, check_modes, evaluate
from agentformer.factory import build_model, trial
from agentformer.records.integrity.files import kind_of
from agentformer.settings import load_settings
from agentformer.types import Answer, Scope

_SIDES = {"lexical": "words", "dense": "vectors", "hybrid": "both"}
_SHOWN = ("recall@1", "recall@3", "recall@5", "recall@10", "precision@5", "mrr@10", "ndcg@10")
_SEVERAL = ("recall_any@5", "recall_any@10", "recall_all@5", "recall_all@10")  # if questions have several passages
_COMPARED = ("recall@5", "recall@10", "mrr@10")
_PART_METRIC = "recall@5"
_FEW = 20  # questions; with fewer questions, bootstrap intervals are too narrow
_MISSED = 10  # at most this many questions of a file without a correct passage are listed
_WIDTH = 160  # width of a table without a terminal, in cells


@dataclass(frozen=True, slots=True)
class _Options:
    """The command-line options that apply only to a folder of questions or to generated questions."""

    modes: str | None
    half: str | None
    sample: int | None
    synthetic: int | None
    seed: int | None

    @property
    def compared(self) -> tuple[Mode, ...]:
        """The search modes to compare. Raises `InvalidInput` for an unknown mode."""
        if self.modes is None:
            return MODES
        given = [mode.strip() for mode in self.modes.split(",") if mode.strip()]
        try:
            check_modes(given)
        except InvalidInput as error:
            raise InvalidInput("--modes", str(error).partition(": ")[2]) from None
        return tuple(mode for mode in MODES if mode in given)


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
@click.option("--no-answers", is_flag=True, help="Search, but do not answer the questions. Only with FILE.")
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
    flag_value=synthetic.COUNT,
    type=click.IntRange(1, 10_000),
    help=f"Generate N questions [default: {synthetic.COUNT}] from the documents of the namespace, "
    "or from the corpus of DIR.",
)
@click.option(
    "--seed", metavar="N", type=int, help="Only for a DIR or --synthetic: seed of the random numbers [default: 0]."
)
@common
def eval_command(path: Path | None, namespace: str, as_json: bool, **options: Any) -> None:
    """Measure how well your documents answer your own questions.

    A FILE has questions about the stored documents, one JSON object per line. The object names the document that
    contains the answer, with or without the page, or it quotes words of the correct passage. If it names only a
    document, every passage of this document is correct. If the documents have no answer, the object has the field
    `unanswerable`:

    \b
    {"question": "Who keeps the keys?", "document": "rules.pdf", "page": 2}
    {"question": "When are boats lifted?", "answer": "in October"}
    {"question": "What does the crane cost?", "unanswerable": true}

    recall@k is the share of questions that have a correct passage among the first k hits. Page recall@k counts only
    questions with a page, and the hit must be on that page. MRR@10 is the mean of 1/rank of the first correct passage.
    After the search, each question is answered as by the command `ask`, and the questions that get no answer are
    counted. No language model is needed.

    A DIR has `corpus.jsonl` with {"id", "text", "meta"} and `queries.jsonl` with {"id", "text", "relevant": [ids],
    "meta"}. The corpus is stored in a temporary memory. Each question is searched by words, by vectors, and by words
    and vectors together. docs/EVALUATION.md explains the figures.

    With `--synthetic`, the questions are generated from the documents. If a language model is configured, it writes
    the questions; otherwise they are made from sentences of the documents.
    """
    file_options = {name: options.pop(name) for name in ("top_k", "mode", "no_answers")}
    folder_options = {name: options.pop(name) for name in _Options.__dataclass_fields__}
    if path is not None and kind_of(path, "PATH") != "folder" and folder_options["synthetic"] is None:
        _refuse(folder_options, "a FILE of questions")
        _measure_file(path, namespace, as_json, file_options, options)
    else:
        _refuse(file_options, "a DIR or --synthetic")
        _measure(path, namespace, as_json, _Options(**folder_options), options)


def _measure_file(
    file: Path, namespace: str, as_json: bool, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
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
                outcomes.append(
                    document_questions.ask(af.backend, question, namespace, mode, answered if top_k else None)
                )
                progress(number, len(questions))
    measured = {"mode": mode, "namespace": namespace, **document_questions.report(outcomes)}
    if as_json:
        print_json({**measured, "results": [document_questions.result(outcome) for outcome in outcomes]})
    else:
        print_warnings(measured["warnings"])
        _print_file_report(measured, outcomes)


def _print_file_report(measured: dict[str, Any], outcomes: Sequence[document_questions.Outcome]) -> None:
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
        say(f"\nno correct passage among the first {document_questions.DEPTH}: {len(missed)}")
    for question in missed[:_MISSED]:
        say(f"  line {question.line}: {question.text}")


def _cutoffs(recall: dict[str, float]) -> str:
    return "  ".join(f"@{cut} {share:.3f}" for cut, share in recall.items())


def _refuse(options: Mapping[str, Any], target: str) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise InvalidInput(f"--{name.replace('_', '-')}", f"does not apply to {target}")


def _measure(folder: Path | None, namespace: str, as_json: bool, options: _Options, given: Mapping[str, Any]) -> None:
    """Measure how well searches find the answers to questions, and print the results. The questions are those of the
    folder, or with --synthetic, questions that are generated from its passages. If `folder` is None, they are generated
    from the stored documents. `given` has the settings of the command line."""
    modes = options.compared
    if folder is None and options.synthetic is None:
        raise InvalidInput("PATH", "is missing; give a file of questions, a folder, or --synthetic")
    if folder is not None and kind_of(folder, "PATH") != "folder":
        raise InvalidInput(
            "PATH", f"{folder} is not a folder; with --synthetic, give a folder that has a corpus, or no folder"
        )
    if options.half and options.synthetic is not None:
        raise InvalidInput("--half", "cannot be used with --synthetic; --seed changes which questions are generated")
    pages = None
    if folder is None:
        evaluation, pages = _measure_stored(namespace, options, modes, given)
    else:
        evaluation = _measure_folder(folder, options, modes, given)
    if as_json:
        extra = {"half": options.half, "synthetic": options.synthetic is not None}
        print_json({**evaluation.as_json(), **extra, **({"pages": pages.as_json()} if pages else {})})
        return
    print_warnings(evaluation.warnings)
    for number, section in enumerate(_sections(evaluation, pages)):
        say("\n".join(["", *section] if number else section))


def _measure_folder(folder: Path, options: _Options, modes: Sequence[Mode], given: Mapping[str, Any]) -> Evaluation:
    """Measure the search with the questions in a folder, or with questions that are generated from the corpus in this
    folder. The corpus is stored in a temporary memory."""
    settings = load_settings(given)
    seed = options.seed or 0
    dataset = read_dataset(folder, questions=options.synthetic is None)
    more: dict[str, Any] = {}
    if options.synthetic is not None:
        sources = synthetic.corpus_sources(dataset)
        generated = synthetic.build(sources, options.synthetic, seed=seed, model=build_model(settings))
        dataset, more = synthetic.with_questions(dataset, generated), {"passage_of": synthetic.passage_of}
    dataset = _select(dataset, options)
    with trial(settings) as memory:
        with bar("passages") as progress:
            memory.load(dataset, progress)
        with bar("questions") as progress:
            return memory.evaluate(dataset, modes=modes, seed=seed, progress=progress, **more)


def _measure_stored(
    namespace: str, options: _Options, modes: Sequence[Mode], given: Mapping[str, Any]
) -> tuple[Evaluation, Part | None]:
    """Measure questions that are generated from the documents of a namespace, in two ways. In the first result, a hit
    is correct if it is the right passage. In the second result, a hit is correct if it is on the right page. The second
    result is None if no question is about a page."""
    seed = options.seed or 0
    with open_existing(**given) as af:
        hint_namespaces(af, namespace)
        scope = Scope(namespace, kinds=("chunk",))
        sources = synthetic.stored_sources(af.backend, namespace)
        generated = synthetic.build(sources, options.synthetic or synthetic.COUNT, seed=seed, model=af.model)
        dataset = _select(Dataset(namespace, (), generated.questions, generated.notes), options)
        with bar("questions") as progress:
            measure = EvaluationOptions(
                modes, scope_of=lambda question: scope, passage_of=synthetic.entry_of, seed=seed, progress=progress
            )
            evaluation = evaluate(af.backend.search, dataset, measure)
        evaluation = replace(evaluation, passages=af.backend.count(scope))
        paged = synthetic.by_page(dataset.questions)
        if not paged:
            return evaluation, None
        measure = replace(measure, passage_of=synthetic.page_of, progress=None)
        pages = evaluate(af.backend.search, dataset.asking(paged), measure)
        return evaluation, replace(pages.overall, name="pages")


def _select(dataset: Dataset, options: _Options) -> Dataset:
    """Return the dataset with the questions that the options select: those of the half `--half`, and at most `--sample`
    questions. Raises `InvalidInput` if no question is left."""
    questions = dataset.questions
    if not dataset.answerable:
        raise InvalidInput("questions", "have no relevant passage; add ids of passages to their field `relevant`")
    if options.half:
        split = halves(questions, options.seed or 0)
        questions = split.development if options.half == "dev" else split.test
        if not questions:
            raise InvalidInput(
                "--half",
                f"{options.half} has no questions, since questions with a common passage stay together; add questions "
                "about more passages, or use another --seed",
            )
    if options.sample:
        questions = sampled(tuple(question for question in questions if question.relevant), options.sample)
    return dataset.asking(questions)


def _sections(evaluation: Evaluation, pages: Part | None) -> Iterator[list[str]]:
    """Yield the sections of the report. Each section is a list of lines."""
    modes = [mode for mode in _SIDES if mode in evaluation.modes]
    counts = f"{plural(evaluation.questions, 'question')}, {plural(evaluation.passages, 'passage')}"
    yield [f"{evaluation.name}: {counts}; means with 95% intervals"]
    several = any(len(outcome.question.relevant) > 1 for outcome in evaluation.outcomes)
    shown, more, compared = (
        [name for name in names if name in evaluation.metrics] for names in (_SHOWN, _SEVERAL, _COMPARED)
    )
    yield _figures(evaluation.overall, [*shown, *(more if several else ())], modes)
    if pages is not None:
        yield ["of the correct page:", *_figures(pages, shown, modes)]
    if evaluation.overall.differences:
        yield list(_differences(evaluation.overall, compared))
    for title, parts in (("language", evaluation.languages), ("category", evaluation.categories)):
        if parts:
            yield _parts(title, parts, modes)
    if evaluation.questions < _FEW:
        yield [f"note: {evaluation.questions} questions are too few for reliable intervals; use {_FEW} or more"]
    for note in evaluation.notes:
        yield [f"note: {note}"]


def _figures(part: Part, names: Sequence[str], modes: Sequence[str]) -> list[str]:
    rows = [[name, *(interval_text(part.figures[mode][name]) for mode in modes)] for name in names]
    return _table(["", *(_SIDES[mode] for mode in modes)], rows)


def _differences(part: Part, names: Sequence[str]) -> Iterator[str]:
    for mode, figures in part.differences.items():
        for name in names:
            interval = figures[name]
            certain = interval.significant or interval.value == interval.low == interval.high
            chance = "" if certain else ", and this difference may be chance"
            yield f"both - {_SIDES[mode]}, {name}: {interval_text(interval, '+')}{chance}"


def _parts(title: str, parts: Sequence[Part], modes: Sequence[str]) -> list[str]:
    rows = [
        [part.name, str(part.questions), *(interval_text(part.figures[mode][_PART_METRIC]) for mode in modes)]
        for part in sorted(parts, key=lambda part: -part.questions)
    ]
    return _table([title, "questions", *(f"{_SIDES[mode]}, {_PART_METRIC}" for mode in modes)], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return list(table(headings, rows, cells=max(shutil.get_terminal_size((_WIDTH, 0)).columns, 1)))
