"""Finds the best settings for given questions. Settings are chosen with one half of the questions (the development
half) and judged with the other half (the test half), which the search does not see.

To measure a configuration (a set of settings), the passages are stored in a temporary memory with these settings, and
the questions of a half are asked. Ranks and vectors are kept in the work folder, so an interrupted run continues."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from filelock import Timeout

from agentformer._version import __version__
from agentformer.embedders.guarded import estimated_spans
from agentformer.errors import Conflict, EmbedderUnavailable, InvalidInput, MissingExtra
from agentformer.evaluation import synthetic
from agentformer.evaluation.cache import CachingEmbedder, Rows, short_name, using, work_folder
from agentformer.evaluation.dataset import Dataset, Question, halves
from agentformer.evaluation.memory_evaluation import Trial
from agentformer.evaluation.metrics import DEPTH, Interval, Ranks, difference, intervals, metric
from agentformer.evaluation.optimizing import grid as grids
from agentformer.evaluation.optimizing.grid import Configuration, Level, OutOfTime, Value, differing, settings_of
from agentformer.index.words.fields import ANALYSIS
from agentformer.records.integrity.files import delete
from agentformer.records.offers import vectors_of
from agentformer.rerankers.guarded import NOT_RERANKED
from agentformer.settings import Settings
from agentformer.settings.access import file_lock, make_folder
from agentformer.text.languages.detection import detect_language
from agentformer.types import Hit

METRIC = "recall@5"
_LEAST, _LEAST_HALF = 20, 5  # least numbers of questions; with fewer, the halves cannot compare settings
_STORES = 4  # temporary memories that are kept during an optimisation
_FEW = 100  # with fewer questions, a note warns that the figures are uncertain
_FEW_NOTE = "{} questions are few: the true value of a figure may lie anywhere in its interval; add questions"
_SAMPLE = 500  # number of passages whose languages are detected, from this number of code points:
_BEGINNING = 1_000
# Other settings that a ranking depends on. If one of them changes, earlier measurements are not valid.
_FIXED = (
    *("backend", "hierarchical_backend", "routes", "target_recall"),
    *("embed_languages", "runtime", "reranker", "rerank_hits"),
)
_AUTOMATIC = dict.fromkeys(("language_detector", "compounds", "japanese"), "auto")  # the analyzers of this machine

Half = Literal["development", "test"]
Verdict = Literal["keep", "better", "unproven", "worse"]
Progress = Callable[[str], None]  # receives what is done now


@dataclass(frozen=True, slots=True)
class Corpus:
    """The passages, questions and current settings of an optimisation. `opens(settings, folder)` opens a memory that
    uses `embedder`. `passage_of(hit, question)` returns the id of the passage that the hit belongs to."""

    dataset: Dataset
    settings: Settings
    embedder: CachingEmbedder
    opens: Callable[[Settings, Path], AbstractContextManager[Trial]]
    passage_of: Callable[[Hit, Question], str] = synthetic.passage_of


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """The options of `optimize`. If `only` is not empty, only the settings that it names may change, and otherwise all
    except those in `without`. `seed` changes how the questions are divided into halves. When the `budget`, in seconds,
    is over, the measurement that is running is interrupted. Raises `InvalidInput` for an unknown setting or metric."""

    level: Level = "quick"
    metric: str = METRIC
    only: Collection[str] = ()
    without: Collection[str] = ()
    seed: int = 0
    budget: float | None = None

    def __post_init__(self) -> None:
        metric(self.metric)
        if int(self.metric.partition("@")[2]) > DEPTH:
            problem = f"must use at most {DEPTH} passages, such as recall@{DEPTH}, got {self.metric!r:.80}"
            raise InvalidInput("metric", problem)
        known = [parameter.name for parameter in grids.PARAMETERS]
        for name in sorted({*self.only} - {*known}):
            problem = f"is not a setting that can be optimised; known settings are {', '.join(known)}"
            raise InvalidInput("only", f"{name!r:.80} {problem}")


class Tried(NamedTuple):
    """A measured configuration. `changed` are the settings that differ from the current settings. `value` is the mean
    of the metric on the development half, and `gain` is its increase over the current settings. If the configuration
    cannot run on this machine, both are None, and `skipped` is the reason. `seconds` is 0 for an earlier run."""

    changed: Mapping[str, Value]
    value: float | None
    gain: float | None
    seconds: float
    skipped: str


@dataclass(frozen=True, slots=True)
class Optimization:
    """The result of an optimisation. `current` and `best` are the means of the metric with the current and with the
    chosen settings, and `gain` is the paired difference, for each half of the questions. Only the development half was
    used to choose the settings. A half that was not measured before the time was over is left out."""

    name: str
    level: Level
    metric: str
    passages: int
    questions: Mapping[Half, int]
    settings: Configuration  # the current settings
    chosen: Configuration
    current: Mapping[Half, Interval]
    best: Mapping[Half, Interval]
    gain: Mapping[Half, Interval]
    tried: tuple[Tried, ...]  # in the order of measurement; the first has the current settings
    finished: bool  # False: the time was over before the search had finished
    reused: int  # measurements that an earlier run had made
    embedded: int  # number of texts that the model embedded in this run
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> dict[str, tuple[Value, Value]]:
        """A mapping: setting -> (current value, chosen value), for each setting whose chosen value differs."""
        return differing(self.settings, self.chosen)

    @property
    def verdict(self) -> Verdict:
        """A judgement about the chosen settings. `keep`: no better settings were found on the development half.
        `better` or `worse`: the 95% interval of the gain on the test half does not contain 0. `unproven`: it does."""
        gain = self.gain.get("test")
        if self.changed and gain and gain.significant:
            return "better" if gain.value > 0 else "worse"
        return "unproven" if self.changed else "keep"

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values. A mean with its confidence interval is `[mean, low, high]`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("current", "best", "gain"):
            values[name] = {half: interval.as_json() for half, interval in values[name].items()}
        values["chosen"] = {name: value for name, (_, value) in self.changed.items()}
        values["tried"] = [
            {name: round(value, 4) if isinstance(value, float) else value for name, value in each._asdict().items()}
            for each in self.tried
        ]
        return {**values, "verdict": self.verdict, "notes": list(self.notes)}


def optimize(
    corpus: Corpus, work: Path, options: OptimizeOptions, progress: Progress = lambda state: None
) -> Optimization:
    """Search for the settings with the highest mean of a metric. Measurements are stored in a folder inside `work`, so
    the same call continues an interrupted optimisation. If the passages, questions, model, version, installed analyzers
    or other retrieval settings have changed, everything is measured again.

    Raises `InvalidInput` for too few questions, `Conflict` while another process uses the folder, `StoreFull` if the
    folder cannot be written, and `EmbedderUnavailable` if the embedder fails."""
    ends = None if options.budget is None else time.monotonic() + options.budget
    dataset, divided = corpus.dataset, question_halves(corpus.dataset.answerable, options.level, options.seed)
    choice: Half = "development" if "development" in divided else "test"
    own, value_of = work_folder(work), metric(options.metric)
    with _lock(own), closing(_Measurements(corpus, divided, own, ends, progress)) as run:

        def scores(configuration: Configuration, half: Half = choice) -> list[float]:
            return [value_of(ranks) for ranks in run.ranks(configuration, half)]

        def judged(configuration: Configuration) -> dict[Half, list[float]]:
            found: dict[Half, list[float]] = {}
            for half in divided:
                with suppress(OutOfTime):
                    found[half] = scores(configuration, half)
            return found

        chosen, finished = run.current, False
        only, without = frozenset(options.only), frozenset(options.without)
        grid = grids.Grid(options.level, only, without, run.model_tokens, *_kinds_of_text(corpus, run.model_tokens))
        with suppress(OutOfTime):
            for chosen in grids.search(grid, run.current, scores):  # noqa: B007 - the last one is the best
                pass
            finished = True
        run.searching = False
        current, best = judged(run.current), judged(chosen)
    few = sum(map(len, divided.values()))
    return Optimization(
        dataset.name,
        options.level,
        options.metric,
        len(dataset.passages),
        {half: len(group) for half, group in divided.items()},
        run.current,
        chosen,
        {half: intervals([values])[0] for half, values in current.items()},
        {half: intervals([values])[0] for half, values in best.items()},
        {half: difference(values, current[half]) for half, values in best.items() if half in current},
        tuple(run.tried(choice, value_of)),
        finished and len(best) == len(divided),
        run.reused,
        corpus.embedder.embedded,
        (*dataset.notes, *((_FEW_NOTE.format(few),) if few < _FEW else ()), *run.notes),
    )


def _lock(folder: Path) -> AbstractContextManager[Any]:
    """Create the folder and lock it, so that only one process uses it."""
    with using(folder.parent):
        make_folder(folder)
        try:
            return file_lock(folder / "lock", timeout=0).acquire()
        except Timeout:
            message = f"another process uses {folder.parent}; wait until it ends, or choose another folder with --work"
            raise Conflict(message) from None


def question_halves(questions: Sequence[Question], level: Level, seed: int = 0) -> dict[Half, tuple[Question, ...]]:
    """Return half -> questions. A half without questions is left out. Raises `InvalidInput` if there are too few
    questions; for the level `eval`, which chooses no settings, one question is enough."""
    if not questions:
        raise InvalidInput("questions", "no question has a relevant passage; list the ids of passages under 'relevant'")
    development, test = halves(questions, seed)
    if level != "eval" and len(questions) < _LEAST:
        problem = (
            f"there are only {len(questions)}; a choice of settings needs at least {_LEAST}. Use --level eval to "
            "measure only the current settings, or add questions; a hundred questions of your own are best. "
            "--synthetic generates questions from the corpus of a folder"
        )
        raise InvalidInput("questions", problem)
    if level != "eval" and min(len(development), len(test)) < _LEAST_HALF:
        problem = (
            f"one half has too few questions: {len(development)} to choose the settings and {len(test)} to test them. "
            "Questions with a common passage are in the same half, so ask about more passages, or try another --seed"
        )
        raise InvalidInput("questions", problem)
    divided: dict[Half, tuple[Question, ...]] = {"development": development, "test": test}
    return {half: group for half, group in divided.items() if group}


def _kinds_of_text(corpus: Corpus, model_tokens: int) -> tuple[int, frozenset[str]]:
    """Return the number of tokens of the longest passage, and the languages of the questions and of a sample of the
    passages."""
    passages, count = corpus.dataset.passages, corpus.embedder.token_spans if model_tokens else estimated_spans
    longest = sorted(passages, key=lambda passage: len(passage.text))[-50:]
    texts = [each.text for each in passages[:: max(1, len(passages) // _SAMPLE)]]
    texts += [each.text for each in corpus.dataset.questions]
    languages = frozenset(detect_language(text[:_BEGINNING]) for text in texts)
    return max(len(count(passage.text)) for passage in longest), languages


class _Measured(NamedTuple):
    """The ranks of the relevant passages of each question, in order. If the configuration cannot run on this machine,
    there are no ranks, and `skipped` is the reason. `seconds` is 0 for a measurement of an earlier run."""

    configuration: Configuration
    ranks: Sequence[Ranks]
    seconds: float = 0.0
    skipped: str = ""


class _Measurements:
    """The measurements of configurations with the questions of a half, each made once, and stored in a folder for the
    next run. `ends` is the moment at which the time is over, in seconds of `time.monotonic`, or None."""

    def __init__(
        self,
        corpus: Corpus,
        divided: Mapping[Half, Sequence[Question]],
        folder: Path,
        ends: float | None,
        progress: Progress,
    ) -> None:
        self.current = grids.present(corpus.settings)
        self.reused = 0  # measurements of earlier runs
        self.notes: dict[str, None] = {}  # without repetition
        self.model_tokens = 0  # tokens that the model can read; 0 if there are no vectors
        self.searching = True  # False when the current and the chosen settings are judged with the test half
        self._reserved = 0.0  # seconds of the budget that the search leaves for these two last measurements
        self._corpus, self._ends, self._progress = corpus, ends, progress
        self._measured: dict[tuple[str, Half], _Measured] = {}  # in the order of measurement
        model = ""
        try:
            space = corpus.embedder.space
            self.model_tokens, model = space.max_tokens, f"{space.spec} {space.max_tokens} {short_name(space)}"
        except EmbedderUnavailable as error:
            self.notes[f"only words were searched: {error}"] = None
        # Ranks of an earlier run are used again only if all of this is the same.
        fixed = {name: str(getattr(corpus.settings, name)) for name in _FIXED}
        same = [model, __version__, ANALYSIS, fixed, grids.analyzer_names(settings_of(corpus.settings, _AUTOMATIC))]
        self._asked = {half: corpus.dataset.asking(questions) for half, questions in divided.items()}
        self._inputs = {half: json.dumps([dataset.digest(), *same]) for half, dataset in self._asked.items()}
        self._rows = Rows(folder / "measured.sqlite3")
        self._folder = folder / "stores"
        self._filled: dict[str, None] = {}  # names of filled memories; the first is that of the current settings
        corpus.embedder.before = self._check_time

    def tried(self, half: Half, value_of: Callable[[Ranks], float]) -> Iterator[Tried]:
        """Yield what a report shows about the measurements with the questions of a half, in their order."""
        measured = [each for (_, other), each in self._measured.items() if other == half]
        means = [statistics.fmean(map(value_of, each.ranks)) if each.ranks else None for each in measured]
        for (configuration, _, seconds, skipped), mean in zip(measured, means, strict=True):
            changed = {name: value for name, (_, value) in differing(self.current, configuration).items()}
            yield Tried(changed, mean, None if mean is None else mean - (means[0] or 0.0), seconds, skipped)

    def ranks(self, configuration: Configuration, half: Half) -> Sequence[Ranks]:
        """Return the ranks of a configuration, or none if it cannot run. Raises `InvalidInput` if the current settings
        cannot run, and `OutOfTime` if the time is over; the vectors that were made until then are kept."""
        key = json.dumps(dict(configuration), sort_keys=True)
        found = self._measured.get((key, half))
        if found is None:
            row = hashlib.blake2b(f"{self._inputs[half]}\n{key}".encode(), digest_size=16).digest()
            stored = self._rows.get([row])
            self.reused += len(stored)
            known = _Measured(configuration, json.loads(stored[row])) if stored else None
            found = self._measured[key, half] = known or self._measure(configuration, half, row)
        if found.skipped and configuration == self.current:
            raise InvalidInput("settings", f"the current settings cannot be used: {found.skipped}")
        return found.ranks

    def close(self) -> None:
        """Close the file of measurements, and delete the temporary memories."""
        self._corpus.embedder.before = lambda: None
        self._rows.close()
        with using(self._folder):
            delete(self._folder)

    def _measure(self, configuration: Configuration, half: Half, row: bytes) -> _Measured:
        """Measure a configuration. The ranks are stored under the key `row` if the reranker ranked every question."""
        started = time.monotonic()
        try:
            ranks, complete = self._ask(configuration, self._asked[half])
        except (InvalidInput, MissingExtra) as error:
            if isinstance(error, InvalidInput) and error.field == "DIR":  # no memory can store this passage
                raise
            return _Measured(configuration, (), time.monotonic() - started, str(error))
        if complete:
            self._rows.put({row: json.dumps(ranks).encode()})
        return _Measured(configuration, ranks, time.monotonic() - started)

    def _ask(self, configuration: Configuration, dataset: Dataset) -> tuple[list[Ranks], bool]:
        """Return the ranks, and whether the reranker, if there is one, ranked the passages of every question."""
        changed = differing(self.current, configuration)
        name = ", ".join(f"{each}={value}" for each, (_, value) in changed.items()) or "the current settings"

        def report(what: str, number: int, total: int) -> None:
            self._check_time()
            self._progress(f"{len(self._measured)} measured, {name}: {number} of {total} {what}")

        self._check_time()
        with self._opened(configuration, partial(report, "passages stored")) as trial:
            opened = time.monotonic()
            if self.model_tokens:  # embed before the search, which would ignore a failure and search only by words
                for question in dataset.answerable:
                    trial.embedder.embed_query(question.text)
            options = {"modes": ("hybrid",), "limit": DEPTH, "metrics": (), "passage_of": self._corpus.passage_of}
            evaluation = trial.evaluate(dataset, progress=partial(report, "questions asked"), **options)
        self._reserved = 2 * (time.monotonic() - opened)  # each of the two takes about as long as this one
        self.notes.update(dict.fromkeys(evaluation.warnings))
        complete = not any(warning.startswith(NOT_RERANKED) for warning in evaluation.warnings)
        return [outcome.ranks["hybrid"] for outcome in evaluation.outcomes], complete

    @contextmanager
    def _opened(self, configuration: Configuration, progress: Callable[[int, int], None]) -> Iterator[Trial]:
        """Yield a memory with the passages. Configurations that only rank otherwise use the same memory."""
        name = hashlib.blake2b(grids.stored_key(configuration).encode(), digest_size=8).hexdigest()
        if name not in self._filled:
            with using(self._folder):
                if len(self._filled) == _STORES:
                    oldest = [*self._filled][1]
                    delete(self._folder / oldest)
                    del self._filled[oldest]
                delete(self._folder / name)
                make_folder(self._folder / name)
        with self._corpus.opens(settings_of(self._corpus.settings, configuration), self._folder / name) as trial:
            if name not in self._filled:
                trial.load(self._corpus.dataset, progress)
                if self.model_tokens and vectors_of(trial.backend).embed_pending(refused=False):
                    reason = "the embedder became unavailable while passages were embedded"
                    raise EmbedderUnavailable(f"{reason}; start it and repeat the command")
                self._filled[name] = None
            yield trial

    def _check_time(self) -> None:
        reserved = self._reserved if self.searching else 0.0
        if self._ends is not None and time.monotonic() + reserved >= self._ends:
            raise OutOfTime
