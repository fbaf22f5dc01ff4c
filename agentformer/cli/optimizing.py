"""`agentformer optimize`: the settings with which one's own questions are answered best, and how sure that is."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import click

from agentformer.cli.group import common, examples, main
from agentformer.cli.output import INTERRUPTED, print_json, print_table, print_warnings, safe, say
from agentformer.cli.progress import duration, on_terminal
from agentformer.errors import InvalidInput
from agentformer.evaluation.dataset import read_dataset
from agentformer.evaluation.metrics import Interval
from agentformer.evaluation.optimizing.cache import OWN, CachingEmbedder, work_folder
from agentformer.evaluation.optimizing.corpus import Corpus
from agentformer.evaluation.optimizing.corpus import synthetic as built
from agentformer.evaluation.optimizing.journal import Half
from agentformer.evaluation.optimizing.measuring import Optimization, Progress, Tried, Verdict
from agentformer.evaluation.optimizing.run import METRIC, check_metric, check_only, optimize, question_halves
from agentformer.evaluation.optimizing.space import BALANCE, PARAMETERS, Level, present
from agentformer.evaluation.optimizing.writing import Written, check_writable, write_settings
from agentformer.evaluation.synthetic import COUNT
from agentformer.factory import build_embedder, build_model, trial
from agentformer.settings import Settings, load_settings

_HALVES: dict[Half, str] = {"development": "to choose by", "test": "to judge by"}
_SHOWN = 10  # configurations that a person is shown
_EACH = 5.0  # seconds between two lines where there is no terminal
_STORED = {each.name for each in PARAMETERS if each.cost in ("vectors", "chunks")}
_UNBALANCED = "{} were not searched, since such questions favour words; --only searches them all the same"
_SAID: dict[Verdict, str] = {
    "keep": "nothing that was tried is better by more than chance: keep what you have",
    "better": "better, also on questions that had no part in the choice",
    "unproven": "the gain on the test half may be chance: keep what you have, or bring more questions",
    "worse": "worse on questions that had no part in the choice: keep what you have",
}


@main.command(
    "optimize",
    epilog=examples(
        "agentformer optimize questions/",
        "agentformer optimize questions/ --level full --budget 3600 --write .env",
        "agentformer optimize questions/ --level eval --metric mrr@10 --json",
        "agentformer optimize questions/ --synthetic 200",
    ),
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--level",
    type=click.Choice(get_args(Level)),
    default="quick",
    help="What is searched: nothing, what needs no new vectors, or all [quick].",
)
@click.option(
    "--metric", metavar="NAME", default=METRIC, help=f"What is to be best: recall@5, mrr@10, ndcg@10 [{METRIC}]."
)
@click.option(
    "--synthetic",
    metavar="N",
    type=click.IntRange(min=1),
    is_flag=False,
    flag_value=COUNT,
    help=f"Build N questions from the corpus, and read none [{COUNT}].",
)
@click.option("--only", metavar="NAME", multiple=True, help="Search this setting alone; repeatable.")
@click.option("--budget", metavar="SECONDS", type=click.FloatRange(min=0), help="Begin nothing that would end later.")
@click.option("--seed", metavar="N", type=int, default=0, help="Which questions make which half [0].")
@click.option(
    "--work",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Where measurements and vectors are kept, in a folder {OWN} [the cache folder].",
)
@click.option(
    "--write",
    "target",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Set what was chosen in this file, such as .env; its other lines stay.",
)
@click.option("--force", is_flag=True, help="Write it also where the gain is not proven.")
@common
def optimize_command(
    folder: Path,
    level: Level,
    metric: str,
    synthetic: int | None,
    only: tuple[str, ...],
    budget: float | None,
    seed: int,
    work: Path | None,
    target: Path | None,
    force: bool,
    namespace: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Search the settings with which questions of your own are answered best.

    DIR holds `corpus.jsonl` and `queries.jsonl`, as for `eval`; nothing is written there. One half of the questions
    chooses, and the other half, which has no part in that, tells whether the choice is better: questions that share a
    passage are in one half. `quick` changes one setting of the ranking after another; `full` also how texts are cut
    and embedded, and begins again as long as something changes.

    Each measurement is kept: interrupted by whatever, the same command goes on. The exit code is 1 where --write was
    asked for and nothing was written, since no better settings are proven.
    """
    settings = load_settings(options)
    check_metric(metric)
    check_only(only, present(settings))
    if target is not None:
        check_writable(target)
    work = work or _work_folder(settings, folder)
    dataset = read_dataset(folder, questions=not synthetic)
    without: tuple[str, ...] = ()
    if synthetic:
        dataset = built(dataset, synthetic, work, seed=seed, model=build_model(settings), name=settings.llm_model)
        without = () if settings.llm_model or only else BALANCE  # a cloze shares its words with its passage
    question_halves(dataset.answerable, level, seed)  # before an embedder is loaded
    embedder = CachingEmbedder(build_embedder(settings).current, work)
    corpus = Corpus(dataset, settings, embedder, lambda other, place: trial(other, embedder, place))
    try:
        with _watched(as_json) as progress:
            found = optimize(
                corpus,
                work,
                level=level,
                metric=metric,
                only=only,
                without=without,
                seed=seed,
                budget=budget,
                progress=progress,
            )
    except KeyboardInterrupt:
        say("\ninterrupted; what is done is kept, and the same command goes on from there", err=True)
        sys.exit(INTERRUPTED)
    finally:
        embedder.close()
    written = _write(target, found, force) if target is not None else None
    if as_json:
        more = {"without": list(without), "work": str(work), "written": str(written.path) if written else None}
        print_json({**found.as_json(), **more})
    else:
        if without:
            print_warnings([_UNBALANCED.format(" and ".join(without))])
        _print(found, work)
        _print_written(target, written, found)
    if target is not None and written is None:
        sys.exit(1)


def _work_folder(settings: Settings, folder: Path) -> Path:
    """One for each folder of questions. Raises `InvalidInput` where nothing is cached here."""
    if str(settings.cache_dir) == os.devnull:
        raise InvalidInput("--work", "there is no cache folder here; name one where measurements can be kept")
    digest = hashlib.blake2b(str(folder.resolve()).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return settings.cache_dir / "optimize" / f"{folder.resolve().name}-{digest}"


@contextmanager
def _watched(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Where it is, on one line of a terminal, else now and then; with --json on a terminal alone."""
    terminal = on_terminal()
    told, shown = 0.0, 0

    def tell(progress: Progress) -> None:
        nonlocal told, shown
        now = time.monotonic()
        if now - told < (0.1 if terminal else _EACH):
            return
        told = now
        left = f"about {duration(progress.seconds_left)} left, " if progress.seconds_left else ""
        line = safe(f"{progress.done} measured, {progress.left} planned, {left}{progress.doing}")
        if terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            shown = max(shown, len(line))
            line = f"\r{line:{shown}}"
        click.echo(line, err=True, nl=not terminal)

    yield tell if terminal or not quiet else None
    if terminal and shown:
        click.echo(f"\r{'':{shown}}\r", err=True, nl=False)


def _write(target: Path, found: Optimization, force: bool) -> Written | None:
    """None where nothing is chosen, or not proven."""
    if not found.changed or (found.verdict != "better" and not force):
        return None
    gain = found.gain.get("test")
    said = (
        f" {gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f}) on {found.questions['test']} questions"
        if gain
        else ""
    )
    comment = f"agentformer optimize {found.name}, {datetime.now(UTC):%Y-%m-%d}: {found.metric}{said}"
    return write_settings(target, {name: value for name, (_, value) in found.changed.items()}, comment)


def _print(found: Optimization, work: Path) -> None:
    print_warnings(found.notes)
    counts = ", ".join(f"{count} questions {_HALVES[half]}" for half, count in found.questions.items())
    say(f"{found.name}: {found.passages} passages, {counts}")
    if not found.finished:
        say("the time was up before everything was tried; the same command goes on from there")
    _print_tried(found)
    say()
    rows = [("present", found.current), *([("chosen", found.best), ("gain", found.gain)] if found.changed else [])]
    headings = (found.metric, *(_HALVES[half] for half in found.questions))
    say(_columns(headings))
    for name, figures in rows:
        say(_columns((name, *(_shown(figures[half], signed=name == "gain") for half in found.questions))))
    if found.level == "eval":
        return
    say()
    for name, (former, value) in found.changed.items():
        say(f"{name}: {former} -> {value}")
    say(_SAID[found.verdict])
    if found.changed.keys() & _STORED:
        say("how texts are cut counts for what is stored from then on: bring documents in anew, into a new memory")
    say(f"measurements are kept in {work_folder(work)}")


def _print_tried(found: Optimization) -> None:
    """The best ones, and those that cannot be had here."""
    others = [each for each in found.tried if each.changed]
    if not others:
        return
    say(f"{len(others)} others were tried; an earlier run had measured {found.reused}\n")
    best = sorted((each for each in others if each.gain is not None), key=lambda each: -(each.gain or 0.0))[:_SHOWN]
    print_table(("GAIN", "SETTINGS"), [(f"{each.gain:+.3f}", _named(each)) for each in best])
    for each in others:
        if each.skipped:
            say(f"not tried: {_named(each)}: {each.skipped}")


def _print_written(target: Path | None, written: Written | None, found: Optimization) -> None:
    if written:
        say(f"written to {written.path}: {', '.join(name for name in found.changed)}")
        for line in written.replaced:
            say(f"  in the place of {line}")
    elif target is not None:
        forced = "; --force writes it all the same" if found.changed else ""
        say(f"nothing was written to {target}{forced}", err=True)


def _named(tried: Tried) -> str:
    return ", ".join(f"{name}={value}" for name, value in tried.changed.items())


def _shown(interval: Interval, *, signed: bool) -> str:
    sign = "+" if signed else ""
    return f"{interval.value:{sign}.3f} ({interval.low:{sign}.3f} to {interval.high:{sign}.3f})"


def _columns(cells: tuple[str, ...]) -> str:
    return "  ".join([f"{cells[0]:10}", *(f"{cell:26}" for cell in cells[1:])]).rstrip()
