"""`agentformer eval` for a folder of questions or for generated questions. It compares search by words, search by
vectors, and hybrid search, with confidence intervals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentformer.cli.inputs import hint_namespaces
from agentformer.cli.output import bar, plural, print_json, print_warnings, say, table
from agentformer.errors import InvalidInput
from agentformer.evaluation import synthetic
from agentformer.evaluation.dataset import Dataset, read_dataset, sampled
from agentformer.evaluation.metrics import Interval
from agentformer.evaluation.optimizing.corpus import halves
from agentformer.evaluation.run import MODES, Evaluation, EvaluationOptions, Mode, Part, check_modes, evaluate
from agentformer.factory import build_model, connect, trial
from agentformer.settings import load_settings
from agentformer.types import Scope

_SIDES = {"lexical": "words", "dense": "vectors", "hybrid": "both"}
_SHOWN = ("recall@1", "recall@3", "recall@5", "recall@10", "precision@5", "mrr@10", "ndcg@10")
_SEVERAL = (
    "recall_any@5",
    "recall_any@10",
    "recall_all@5",
    "recall_all@10",
)  # shown if questions have several passages
_COMPARED = ("recall@5", "recall@10", "mrr@10")
_PART_METRIC = "recall@5"
_FEW = 20  # questions; with fewer questions, bootstrap intervals are too narrow
_WIDTH = 160  # width of a table without a terminal, in cells


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """The options of the command line."""

    namespace: str
    as_json: bool
    modes: str | None
    half: str | None
    sample: int | None
    synthetic: int | None
    seed: int

    @property
    def compared(self) -> tuple[Mode, ...]:
        """Return the search modes to compare. Raises `InvalidInput`."""
        if self.modes is None:
            return MODES
        given = [mode.strip() for mode in self.modes.split(",") if mode.strip()]
        try:
            check_modes(given)
        except InvalidInput as error:
            raise InvalidInput("--modes", str(error).partition(": ")[2]) from None
        return tuple(mode for mode in MODES if mode in given)


def measure(folder: Path | None, options: FolderOptions, given: Mapping[str, Any]) -> None:
    """Measure the questions of a folder, or generated questions, and print the results. `given` are settings. Raises
    `InvalidInput`."""
    modes = options.compared
    if folder is None and options.synthetic is None:
        raise InvalidInput("PATH", "is missing: a file of questions, a folder, or --synthetic")
    if folder is not None and not folder.is_dir():
        raise InvalidInput("PATH", f"{folder} is not a folder; give --synthetic a folder with a corpus, or no folder")
    if options.half and options.synthetic is not None:
        raise InvalidInput("--half", "does not apply to --synthetic; generated questions are chosen by --seed")
    if folder is None:
        evaluation, pages = _measure_stored(options, modes, given)
    else:
        evaluation, pages = _measure_folder(folder, options, modes, given), None
    if options.as_json:
        extra = {"half": options.half, "synthetic": options.synthetic is not None}
        print_json({**evaluation.as_json(), **extra, **({"pages": pages.as_json()} if pages else {})})
        return
    print_warnings(evaluation.warnings)
    for line in _report(evaluation, pages):
        say(line)


def _measure_folder(
    folder: Path, options: FolderOptions, modes: Sequence[Mode], given: Mapping[str, Any]
) -> Evaluation:
    """Measure the questions of a folder in a temporary memory that contains only the corpus of the folder."""
    settings = load_settings(given)
    dataset = read_dataset(folder, questions=options.synthetic is None)
    passage_of = None
    if options.synthetic is not None:
        generated = synthetic.build(
            synthetic.corpus_sources(dataset), options.synthetic, seed=options.seed, model=build_model(settings)
        )
        dataset, passage_of = synthetic.with_questions(dataset, generated), synthetic.passage_of
    dataset = _select(dataset, options)
    with trial(settings) as memory:
        with bar("passages") as progress:
            memory.load(dataset, progress)
        with bar("questions") as progress:
            more = {"passage_of": passage_of} if passage_of else {}
            return memory.evaluate(dataset, modes=modes, seed=options.seed, progress=progress, **more)


def _measure_stored(
    options: FolderOptions, modes: Sequence[Mode], given: Mapping[str, Any]
) -> tuple[Evaluation, Part | None]:
    """Measure questions that are generated from the documents of a namespace. The first result counts passages as
    correct, the second counts pages."""
    with connect(**given) as af:
        hint_namespaces(af, options.namespace)
        scope = Scope(options.namespace, kinds=("chunk",))
        generated = synthetic.build(
            synthetic.stored_sources(af.backend, options.namespace),
            options.synthetic or synthetic.COUNT,
            seed=options.seed,
            model=af.model,
        )
        dataset = _select(Dataset(options.namespace, (), generated.questions, generated.notes), options)
        with bar("questions") as progress:
            measure = EvaluationOptions(
                modes,
                scope_of=lambda question: scope,
                passage_of=synthetic.entry_of,
                seed=options.seed,
                progress=progress,
            )
            evaluation = evaluate(af.backend.search, dataset, measure)
        evaluation = replace(evaluation, passages=af.backend.count(scope))
        paged = synthetic.by_page(dataset.questions)
        if not paged:
            return evaluation, None
        measure = replace(measure, passage_of=synthetic.page_of, progress=None)
        pages = evaluate(af.backend.search, dataset.asking(paged), measure)
        return evaluation, replace(pages.overall, name="pages")


def _select(dataset: Dataset, options: FolderOptions) -> Dataset:
    """Return the questions of the chosen half, up to the given number. Raises `InvalidInput` if no question is left."""
    questions = dataset.questions
    if not dataset.answerable:
        raise InvalidInput("questions", "have no relevant passage; add ids under `relevant`")
    if options.half:
        split = halves(questions, options.seed)
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


def _report(evaluation: Evaluation, pages: Part | None) -> Iterator[str]:
    counts = f"{plural(evaluation.questions, 'question')}, {plural(evaluation.passages, 'passage')}"
    yield f"{evaluation.name}: {counts}; means with 95% intervals"
    yield ""
    several = any(len(outcome.question.relevant) > 1 for outcome in evaluation.outcomes)
    shown = [name for name in (*_SHOWN, *(_SEVERAL if several else ())) if name in evaluation.metrics]
    yield from _figures(evaluation.overall, shown, evaluation.modes)
    if pages is not None:
        yield ""
        yield "of the correct page:"
        yield from _figures(pages, [name for name in _SHOWN if name in evaluation.metrics], evaluation.modes)
    if evaluation.overall.differences:
        yield ""
        yield from _differences(evaluation.overall, [name for name in _COMPARED if name in evaluation.metrics])
    for title, parts in (("language", evaluation.languages), ("category", evaluation.categories)):
        if parts:
            yield ""
            yield from _parts(title, parts, evaluation.modes)
    if evaluation.questions < _FEW:
        yield ""
        yield f"note: {evaluation.questions} questions are too few for reliable intervals; use {_FEW} or more"
    for note in evaluation.notes:
        yield ""
        yield f"note: {note}"


def _figures(part: Part, names: Sequence[str], modes: Sequence[str]) -> Iterator[str]:
    shown = [mode for mode in _SIDES if mode in modes]
    rows = [[name, *(_interval(part.figures[mode][name]) for mode in shown)] for name in names]
    return _table(["", *(_SIDES[mode] for mode in shown)], rows)


def _differences(part: Part, names: Sequence[str]) -> Iterator[str]:
    for mode, figures in part.differences.items():
        for name in names:
            interval = figures[name]
            certain = interval.significant or interval.value == interval.low == interval.high
            text = f"{interval.value:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"
            yield f"both - {_SIDES[mode]}, {name}: {text}{'' if certain else ', and this difference may be chance'}"


def _parts(title: str, parts: Sequence[Part], modes: Sequence[str]) -> Iterator[str]:
    shown = [mode for mode in _SIDES if mode in modes]
    rows = [
        [part.name, str(part.questions), *(_interval(part.figures[mode][_PART_METRIC]) for mode in shown)]
        for part in sorted(parts, key=lambda part: -part.questions)
    ]
    return _table([title, "questions", *(f"{_SIDES[mode]}, {_PART_METRIC}" for mode in shown)], rows)


def _interval(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return table(headings, rows, cells=max(shutil.get_terminal_size((_WIDTH, 0)).columns, 1))
