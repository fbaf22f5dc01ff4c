"""`agentformer optimize`: finds the settings with the best answers to your own questions, and how certain this is."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import click

from agentformer.cli.group import Number, common, examples, main
from agentformer.cli.inputs import hint_namespaces, lines_of, require_memory
from agentformer.cli.output import (
    INTERRUPTED,
    bar,
    interval_text,
    on_terminal,
    plural,
    print_json,
    print_table,
    print_warnings,
    say,
    watching,
)
from agentformer.errors import EmbedderUnavailable, InvalidInput
from agentformer.evaluation.cache import OWN, CachingEmbedder, work_folder
from agentformer.evaluation.dataset import read_dataset
from agentformer.evaluation.documents import answered_passage, document_dataset, stored_documents, with_documents
from agentformer.evaluation.memory_evaluation import read_questions
from agentformer.evaluation.optimizing import run as optimizing
from agentformer.evaluation.optimizing.grid import BALANCE, PARAMETERS, Level
from agentformer.evaluation.optimizing.run import METRIC, Corpus, Half, Optimization, OptimizeOptions, Verdict
from agentformer.evaluation.optimizing.settings_file import check_writable, write_settings
from agentformer.evaluation.synthetic import COUNT, with_generated
from agentformer.factory import AgentFormer, build_embedder, build_model, trial
from agentformer.records.integrity.files import kind_of, real_path
from agentformer.records.offers import vectors_of
from agentformer.settings import Settings, load_settings

_HALVES: dict[Half, str] = {"development": "used to choose", "test": "used to judge"}
_SHOWN = 10  # at most this many configurations are printed
_STORED = {parameter.name for parameter in PARAMETERS if parameter.rebuilds in ("vectors", "chunks")}
_UNBALANCED = (
    "{} were not searched, because generated questions favor the search by words; use --only to search these settings"
)
_CONTINUE = "measurements and vectors are kept: run the same command again to continue"
_VERDICTS: dict[Verdict, str] = {
    "keep": "no tried configuration is proven better than your settings; keep your settings",
    "better": "better, also for the questions that were not used to choose",
    "unproven": "the gain on the test half may be chance: keep your settings, or add questions",
    "worse": "worse for the questions that were not used to choose: keep your settings",
}


@main.command(
    "optimize",
    epilog=examples(
        "agentformer optimize questions.jsonl",
        "agentformer optimize questions.jsonl --namespace board --write .env",
        "agentformer optimize questions/ --level full --budget 3600 --write .env",
        "agentformer optimize questions/ --level eval --metric mrr@10 --json",
        "agentformer optimize questions/ --synthetic 200",
    ),
)
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option(
    "--level",
    type=click.Choice(get_args(Level)),
    default="quick",
    help="eval: measure only the present settings. quick: try settings that need no new vectors. full: try all "
    "settings [default: quick].",
)
@click.option(
    "--metric",
    metavar="NAME",
    default=METRIC,
    help=f"The metric, such as recall@5, mrr@10 or ndcg@10 [default: {METRIC}].",
)
@click.option(
    "--synthetic",
    metavar="N",
    type=click.IntRange(min=1),
    is_flag=False,
    flag_value=COUNT,
    help=f"Only for a DIR: generate N questions from the corpus, and do not read queries.jsonl [default: {COUNT}].",
)
@click.option("--only", metavar="NAME", multiple=True, help="Change only this setting. The option can be repeated.")
@click.option(
    "--budget",
    metavar="SECONDS",
    type=Number(min=0),
    help="Limit for the whole run: the measurement that is running at its end is interrupted.",
)
@click.option(
    "--seed",
    metavar="N",
    type=int,
    default=0,
    help="Seed of the random division of the questions into two halves [default: 0].",
)
@click.option(
    "--work",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder for measurements and vectors, which are stored in its subfolder {OWN} [default: the cache folder].",
)
@click.option(
    "--write",
    "target",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the chosen settings into this file, such as .env. Other lines of the file are kept.",
)
@click.option("--force", is_flag=True, help="Write the settings even if the gain is not proven.")
@common
def optimize_command(path: Path, namespace: str, as_json: bool, target: Path | None, force: bool, **given: Any) -> None:
    """Find the settings that give the best answers to your own questions.

    A FILE has questions about the stored documents of a namespace, as for `eval`. The documents are copied into
    temporary memories, and the memory itself is not changed. A hit is correct if it is from the document (and the page)
    that the question names, and if it contains the answer that the question gives. A DIR has `corpus.jsonl` and
    `queries.jsonl` instead, as for `eval`.

    One half of the questions is used to choose the settings. The other half is used to decide whether the chosen
    settings are better. Questions with a common passage or page are in the same half. With the level `quick`, the
    settings of the ranking are changed one after another. With the level `full`, chunking and embedding are changed
    too.

    All measurements and vectors are stored, so that the same command continues after an interruption or the end of
    --budget. The exit code is 1 if --write wrote nothing because no settings are proven better, or if the current
    settings could not be measured within --budget.
    """
    started = time.monotonic()
    options = OptimizeOptions(**{name: given.pop(name) for name in ("level", "metric", "only", "seed")})
    count, budget, work = given.pop("synthetic"), given.pop("budget"), given.pop("work")
    settings = load_settings(given)
    work = work or _work_folder(settings, path, namespace)
    if target is not None:
        check_writable(target)
    if kind_of(path, "PATH") == "folder":
        corpus = _folder_corpus(path, options, count, settings, work)
        if count and not (settings.llm_model or options.only):
            options = replace(options, without=BALANCE)  # a generated question repeats words of its passage
    else:
        corpus = _stored_corpus(path, namespace, options, count, settings, work)
    if budget is not None:
        options = replace(options, budget=budget - (time.monotonic() - started))
    result = _optimized(corpus, work, options, quiet=as_json)
    replaced = _write(target, result, force)
    if as_json:
        written = None if replaced is None else str(target)
        print_json({**result.as_json(), "without": list(options.without), "work": str(work), "written": written})
    else:
        _print(result, options, work)
        if replaced is not None:
            say("\n  instead of ".join([f"written to {target}: {', '.join(result.changed)}", *replaced]))
        elif target is not None:
            forced = "; --force writes the settings" if result.changed else ""
            say(f"nothing was written to {target}{forced}", err=True)
    if (target is not None and replaced is None) or not result.current:
        sys.exit(1)


def _folder_corpus(folder: Path, options: OptimizeOptions, count: int | None, settings: Settings, work: Path) -> Corpus:
    """Return the passages and the questions of a folder. If `count` is given, the questions are generated from the
    passages. The questions are checked before a model of vectors is loaded."""
    dataset = read_dataset(folder, questions=not count)
    if count:
        keeps, model = work_folder(work), build_model(settings)
        dataset = with_generated(dataset, count, keeps, seed=options.seed, model=model, name=settings.llm_model)
    optimizing.question_halves(dataset.answerable, options.level, options.seed)
    embedder = CachingEmbedder(build_embedder(settings).current, work)
    return Corpus(dataset, settings, embedder, lambda other, at: trial(other, embedder, at))


def _stored_corpus(
    file: Path, namespace: str, options: OptimizeOptions, count: int | None, settings: Settings, work: Path
) -> Corpus:
    """Return the documents of a namespace with the questions of a file. The memory is not changed."""
    if not kind_of(file, "PATH"):
        raise InvalidInput("PATH", f"{file} does not exist; give a file of questions, or a folder with a corpus")
    lines = lines_of(file, "FILE")
    if count:
        raise InvalidInput("--synthetic", "does not apply to a FILE of questions; give a folder with a corpus")
    require_memory(settings)
    with AgentFormer(settings) as af:
        hint_namespaces(af, namespace)
        documents = stored_documents(af.backend, namespace)
        pages = {document.about.name: document.about.pages for document in documents}
        asked = read_questions(lines, pages, settings.max_question_chars)
        dataset = document_dataset(file.stem, asked, documents)
        optimizing.question_halves(dataset.answerable, options.level, options.seed)
        with bar("documents") as progress:
            dataset = with_documents(dataset, documents, af.originals, settings, progress)
        active = next((space.space for space in vectors_of(af.backend).spaces() if space.state == "active"), None)
        with suppress(EmbedderUnavailable):
            af.embedder.for_space(active)
        embedder = CachingEmbedder(af.embedder.current, work)
        return Corpus(dataset, settings, embedder, lambda other, at: trial(other, embedder, at), answered_passage)


def _work_folder(settings: Settings, path: Path, namespace: str) -> Path:
    """Return the folder in the cache folder that keeps the measurements of these questions for the next run. A file of
    questions has one such folder for each memory and namespace, because the answers are in the stored documents. Raises
    `InvalidInput` if there is no cache folder."""
    if str(settings.cache_dir) == os.devnull:
        raise InvalidInput(
            "--work", "is required, because there is no cache folder; give a folder for the measurements"
        )
    path = real_path(path, "PATH")
    memory = "" if kind_of(path, "PATH") == "folder" else f"\n{settings.index_dir.resolve()}\n{namespace}"
    digest = hashlib.blake2b(f"{path}{memory}".encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return settings.cache_dir / "optimize" / f"{path.name}-{digest}"


def _optimized(corpus: Corpus, work: Path, options: OptimizeOptions, *, quiet: bool) -> Optimization:
    """Run the optimisation and show its progress, unless `quiet` is true and standard error is not a terminal."""
    state = "starting"

    def show(progress: str) -> None:
        nonlocal state
        state = progress

    try:
        with nullcontext() if quiet and not on_terminal() else watching(lambda: state):
            return optimizing.optimize(corpus, work, options, show)
    except KeyboardInterrupt:
        say("\ninterrupted; measurements are kept, and the same command continues", err=True)
        sys.exit(INTERRUPTED)
    finally:
        corpus.embedder.close()


def _write(target: Path | None, result: Optimization, force: bool) -> list[str] | None:
    """Write the chosen settings into the file `target`, and return the lines that were replaced. Return None if no
    settings were chosen, or if they are not proven better and `force` is false."""
    if target is None or not result.changed or (result.verdict != "better" and not force):
        return None
    gain = result.gain.get("test")
    text = f" {interval_text(gain, '+')} on {plural(result.questions['test'], 'question')}" if gain else ""
    comment = f"agentformer optimize {result.name}, {datetime.now(UTC):%Y-%m-%d}: {result.metric}{text}"
    return write_settings(target, {name: value for name, (_, value) in result.changed.items()}, comment)


def _print(result: Optimization, options: OptimizeOptions, work: Path) -> None:
    unbalanced = [_UNBALANCED.format(" and ".join(options.without))] if options.without else []
    print_warnings([*unbalanced, *result.notes])
    counts = ", ".join(f"{plural(count, 'question')} {_HALVES[half]}" for half, count in result.questions.items())
    say(f"{result.name}: {plural(result.passages, 'passage')}, {counts}")
    if not result.current:
        done = plural(result.embedded, "text")
        say(f"the time ended before the current settings were measured ({done} embedded); {_CONTINUE}")
        return
    if not result.finished:
        say(f"the time ended before everything was measured; {_CONTINUE}")
    _print_tried(result)
    means = [("present", "", result.current)]
    means += [("chosen", "", result.best), ("gain", "+", result.gain)] if result.changed else []
    halves, absent = result.questions, "not measured"
    rows = [
        (name, *(interval_text(figures[half], sign) if half in figures else absent for half in halves))
        for name, sign, figures in means
    ]
    say()
    print_table((result.metric, *(_HALVES[half] for half in halves)), rows)
    if result.level == "eval":
        return
    say()
    for name, (former, value) in result.changed.items():
        say(f"{name}: {former} -> {value}")
    judged = "test" in result.gain or not result.changed  # without a change, nothing is left to judge
    say(_VERDICTS[result.verdict] if judged else "the chosen settings are not judged yet: keep your settings")
    if result.changed.keys() & _STORED:
        say("chunking and embedding settings apply to new documents; ingest your documents again into a new memory")
    say(f"measurements are kept in {work_folder(work)}")


def _print_tried(result: Optimization) -> None:
    """Print the best configurations, and those that this machine cannot run."""
    named = [(", ".join(f"{name}={value}" for name, value in each.changed.items()), each) for each in result.tried]
    others = [(name, each) for name, each in named if name]
    if not others:
        return
    say(f"{plural(len(others), 'other configuration')} tried; {result.reused} of an earlier run reused\n")
    best = sorted(((each.gain, name) for name, each in others if each.gain is not None), key=lambda pair: -pair[0])
    print_table(("GAIN", "SETTINGS"), [(f"{gain:+.3f}", name) for gain, name in best[:_SHOWN]])
    for name, each in others:
        if each.skipped:
            say(f"not tried: {name}: {each.skipped}")
