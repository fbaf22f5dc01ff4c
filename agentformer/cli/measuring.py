"""`agentformer eval` of a folder, and of questions that are built: by words, by vectors and by both, with intervals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentformer.cli.hints import tell_elsewhere
from agentformer.cli.output import print_json, print_warnings, say
from agentformer.cli.progress import bar
from agentformer.cli.tables import table
from agentformer.errors import InvalidInput
from agentformer.evaluation import synthetic
from agentformer.evaluation.dataset import Dataset, read_dataset, sampled
from agentformer.evaluation.metrics import Interval
from agentformer.evaluation.optimizing.corpus import halves
from agentformer.evaluation.run import MODES, Evaluation, Mode, Part, check_modes, evaluate
from agentformer.factory import build_model, connect, trial
from agentformer.settings import load_settings
from agentformer.types import Scope

_SIDES = {"lexical": "words", "dense": "vectors", "hybrid": "both"}
_SHOWN = ("recall@1", "recall@3", "recall@5", "recall@10", "precision@5", "mrr@10", "ndcg@10")
_SEVERAL = ("recall_any@5", "recall_any@10", "recall_all@5", "recall_all@10")  # tell more where passages are several
_COMPARED = ("recall@5", "recall@10", "mrr@10")
_OF_PARTS = "recall@5"
_FEW = 20  # questions; the bootstrap of fewer is too narrow
_WIDTH = 160  # cells of a table where there is no terminal


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    namespace: str
    as_json: bool
    modes: str | None
    half: str | None
    sample: int | None
    synthetic: int | None
    seed: int

    @property
    def compared(self) -> tuple[Mode, ...]:
        if self.modes is None:
            return MODES
        given = [mode.strip() for mode in self.modes.split(",") if mode.strip()]
        try:
            check_modes(given)
        except InvalidInput as error:
            raise InvalidInput("--modes", str(error).partition(": ")[2]) from None
        return tuple(mode for mode in MODES if mode in given)


def measure(folder: Path | None, options: Options, given: Mapping[str, Any]) -> None:
    """Measure a folder's questions, or those that are built; `given` are settings. Raises `InvalidInput`."""
    modes = options.compared
    if folder is None and options.synthetic is None:
        raise InvalidInput("PATH", "is missing: a file of questions, a folder, or --synthetic")
    if folder is not None and not folder.is_dir():
        raise InvalidInput("PATH", f"{folder} is no folder; --synthetic needs one with a corpus, or nothing")
    if options.half and options.synthetic is not None:
        raise InvalidInput("--half", "is of questions that stay; those of --synthetic follow from --seed")
    if folder is None:
        told, pages = _of_stored(options, modes, given)
    else:
        told, pages = _of_folder(folder, options, modes, given), None
    if options.as_json:
        extra = {"half": options.half, "synthetic": options.synthetic is not None}
        print_json({**told.as_json(), **extra, **({"pages": pages.as_json()} if pages else {})})
        return
    print_warnings(told.warnings)
    for line in _report(told, pages):
        say(line)


def _of_folder(folder: Path, options: Options, modes: Sequence[Mode], given: Mapping[str, Any]) -> Evaluation:
    """The questions of a folder, asked of a memory that holds its corpus and nothing else."""
    settings = load_settings(given)
    dataset = read_dataset(folder, questions=options.synthetic is None)
    passage_of = None
    if options.synthetic is not None:
        built = synthetic.build(
            synthetic.corpus_sources(dataset), options.synthetic, seed=options.seed, model=build_model(settings)
        )
        dataset, passage_of = synthetic.with_questions(dataset, built), synthetic.passage_of
    dataset = _chosen(dataset, options)
    with trial(settings) as apart:
        with bar("passages") as progress:
            apart.load(dataset, progress)
        with bar("questions") as progress:
            more = {"passage_of": passage_of} if passage_of else {}
            return apart.evaluate(dataset, modes=modes, seed=options.seed, progress=progress, **more)


def _of_stored(options: Options, modes: Sequence[Mode], given: Mapping[str, Any]) -> tuple[Evaluation, Part | None]:
    """Questions built from the documents of a namespace, and the figures by page."""
    with connect(**given) as af:
        tell_elsewhere(af, options.namespace)
        scope = Scope(options.namespace, kinds=("chunk",))
        built = synthetic.build(
            synthetic.stored_sources(af.backend, options.namespace),
            options.synthetic or synthetic.COUNT,
            seed=options.seed,
            model=af.model,
        )
        dataset = _chosen(Dataset(options.namespace, (), built.questions, built.notes), options)
        with bar("questions") as progress:
            told = evaluate(
                af.backend.search,
                dataset,
                modes=modes,
                scope_of=lambda question: scope,
                passage_of=synthetic.entry_of,
                seed=options.seed,
                progress=progress,
            )
        told = replace(told, passages=af.backend.count(scope))
        paged = synthetic.by_page(dataset.questions)
        if not paged:
            return told, None
        pages = evaluate(
            af.backend.search,
            dataset.asking(paged),
            modes=modes,
            scope_of=lambda question: scope,
            passage_of=synthetic.page_of,
            seed=options.seed,
        )
        return told, replace(pages.overall, name="pages")


def _chosen(dataset: Dataset, options: Options) -> Dataset:
    """The questions of the half that is wanted, at most as many as wanted. Raises `InvalidInput` where none is left."""
    questions = dataset.questions
    if not dataset.answerable:
        raise InvalidInput("questions", "name no passage that answers them; put ids under relevant")
    if options.half:
        both = halves(questions, options.seed)
        questions = both.development if options.half == "dev" else both.test
        if not questions:
            raise InvalidInput(
                "--half",
                f"{options.half} has no questions, since those that share a passage stay together; ask about more "
                "passages, or try another --seed",
            )
    if options.sample:
        questions = sampled(tuple(question for question in questions if question.relevant), options.sample)
    return dataset.asking(questions)


def _report(told: Evaluation, pages: Part | None) -> Iterator[str]:
    yield f"{told.name}: {told.questions} questions, {told.passages} passages; means with 95% intervals"
    yield ""
    several = any(len(outcome.question.relevant) > 1 for outcome in told.outcomes)
    shown = [name for name in (*_SHOWN, *(_SEVERAL if several else ())) if name in told.metrics]
    yield from _figures(told.overall, shown, told.modes)
    if pages is not None:
        yield ""
        yield "of the right page:"
        yield from _figures(pages, [name for name in _SHOWN if name in told.metrics], told.modes)
    if told.overall.differences:
        yield ""
        yield from _differences(told.overall, [name for name in _COMPARED if name in told.metrics])
    for title, parts in (("language", told.languages), ("category", told.categories)):
        if parts:
            yield ""
            yield from _parts(title, parts, told.modes)
    if told.questions < _FEW:
        yield ""
        yield f"note: {told.questions} questions tell little, whatever the intervals say; bring {_FEW} or more"
    for note in told.notes:
        yield ""
        yield f"note: {note}"


def _figures(part: Part, names: Sequence[str], modes: Sequence[str]) -> Iterator[str]:
    shown = [mode for mode in _SIDES if mode in modes]
    rows = [[name, *(_interval(part.figures[mode][name]) for mode in shown)] for name in names]
    return _table(["", *(_SIDES[mode] for mode in shown)], rows)


def _differences(part: Part, names: Sequence[str]) -> Iterator[str]:
    for mode, figures in part.differences.items():
        for name in names:
            found = figures[name]
            clear = "" if found.significant or found.value == found.low == found.high else ", which may be chance"
            yield f"both - {_SIDES[mode]}, {name}: {found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f}){clear}"


def _parts(title: str, parts: Sequence[Part], modes: Sequence[str]) -> Iterator[str]:
    shown = [mode for mode in _SIDES if mode in modes]
    rows = [
        [part.name, str(part.questions), *(_interval(part.figures[mode][_OF_PARTS]) for mode in shown)]
        for part in sorted(parts, key=lambda part: -part.questions)
    ]
    return _table([title, "questions", *(f"{_SIDES[mode]}, {_OF_PARTS}" for mode in shown)], rows)


def _interval(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return table(headings, rows, cells=max(shutil.get_terminal_size((_WIDTH, 0)).columns, 1))
