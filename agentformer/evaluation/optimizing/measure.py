"""Measures configurations (sets of settings) of a memory. Each configuration is measured once, because the result is
stored in a journal, and later runs read the result from this journal."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from agentformer.errors import EmbedderUnavailable, InvalidInput, MissingExtra
from agentformer.evaluation.dataset import Question
from agentformer.evaluation.metrics import DEPTH, Interval, Ranks, difference, intervals, metric
from agentformer.evaluation.optimizing.cache import Half, Journal, Measured
from agentformer.evaluation.optimizing.corpus import Stores
from agentformer.evaluation.optimizing.space import (
    Clock,
    Configuration,
    Level,
    OutOfTime,
    Space,
    Value,
    descend,
    differing,
    key,
    present,
)
from agentformer.rerankers import NOT_RERANKED

Verdict = Literal["keep", "better", "unproven", "worse"]


@dataclass(frozen=True, slots=True)
class Tried:
    """A measured configuration. `changed` are the settings that differ from the current settings. `value` is the mean
    of the metric over the questions with which settings are chosen. `gain` is the increase of this mean over the
    current settings. If the configuration cannot run on this machine, `value` is None, and `skipped` is the reason."""

    changed: Mapping[str, Value]
    value: float | None
    gain: float | None
    seconds: float
    skipped: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "changed": dict(self.changed),
            "value": None if self.value is None else round(self.value, 4),
            "gain": None if self.gain is None else round(self.gain, 4),
            "seconds": round(self.seconds, 1),
            "skipped": self.skipped,
        }


@dataclass(frozen=True, slots=True)
class Optimization:
    """The result of an optimisation. `current` and `best` are the means of the metric with the current and with the
    chosen settings. `gain` is the difference of these means. Each of these fields, and `questions`, has one value for
    each half of the questions. Only the development half was used to choose the settings. If the time was over before a
    half was measured, `current`, `best` and `gain` have no value for this half."""

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
        `better` or `worse`: the test half shows a difference, because the 95% interval of the gain does not contain 0.
        `unproven`: the test half shows no clear difference."""
        if not self.changed:
            return "keep"
        gain = self.gain.get("test")
        if gain is None or not gain.significant:
            return "unproven"
        return "better" if gain.value > 0 else "worse"

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values. A mean with its confidence interval is `[mean, low, high]`."""
        return {
            "name": self.name,
            "level": self.level,
            "metric": self.metric,
            "passages": self.passages,
            "questions": dict(self.questions),
            "verdict": self.verdict,
            "settings": dict(self.settings),
            "chosen": {name: value for name, (_, value) in self.changed.items()},
            "current": {half: interval.as_json() for half, interval in self.current.items()},
            "best": {half: interval.as_json() for half, interval in self.best.items()},
            "gain": {half: interval.as_json() for half, interval in self.gain.items()},
            "tried": [each.as_json() for each in self.tried],
            "finished": self.finished,
            "reused": self.reused,
            "embedded": self.embedded,
            "notes": list(self.notes),
        }


_FEW = 100  # with fewer questions, a note warns that the figures are uncertain


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an optimisation: the number of finished measurements, the number of planned configurations, the
    estimated seconds for the planned configurations (None if unknown), and the current step."""

    done: int
    left: int
    seconds_left: float | None
    doing: str


class Optimizer:
    """Searches for the best settings, and measures each configuration that is tried."""

    def __init__(
        self,
        stores: Stores,
        journal: Journal,
        questions: Mapping[Half, tuple[Question, ...]],
        metric_name: str,
        clock: Clock,
        progress: Callable[[Progress], None] | None,
        notes: Sequence[str],
    ) -> None:
        self._corpus = stores.corpus
        self._stores = stores
        self._journal = journal
        self._questions = questions
        self._choice_half: Half = "development" if "development" in questions else "test"
        self._metric_name = metric_name
        self._metric: Callable[[Ranks], float] = metric(metric_name)
        self._clock = clock
        self._progress = progress
        self._current = present(stores.corpus.settings)
        self._planned: Sequence[Configuration] = ()
        self._used: dict[tuple[str, Half], Measured] = {}  # in the order of first use
        self._made: set[tuple[str, Half]] = set()  # measurements that this run made
        self._warnings = dict.fromkeys(notes)  # without repetition, in their order
        self._stopped = False  # True if the embedder stopped because the time budget would end
        self._unranked = False  # True if the last measurement was made without the reranker

    def optimum(self, space: Space) -> Optimization:
        """Search for the best settings, and return the result. `space` are the settings that may change. Raises
        `InvalidInput` if the current settings cannot be used."""
        chosen, finished = descend(self._current, space, self._choice_scores, self._plan)
        self._planned = ()
        self._clock.finish()
        current = self._final_scores(self._current)
        best = self._final_scores(chosen)
        return Optimization(
            self._corpus.dataset.name,
            space.level,
            self._metric_name,
            len(self._corpus.dataset.passages),
            {half: len(questions) for half, questions in self._questions.items()},
            self._current,
            chosen,
            {half: intervals([values])[0] for half, values in current.items()},
            {half: intervals([values])[0] for half, values in best.items()},
            {half: difference(best[half], current[half]) for half in best if half in current},
            self._tried(),
            finished and len(best) == len(self._questions),
            len(self._used.keys() - self._made),
            self._corpus.embedder.embedded,
            self._notes(),
        )

    def _plan(self, left: Sequence[Configuration]) -> None:
        self._planned = left

    def _choice_scores(self, configuration: Configuration) -> Sequence[float] | None:
        """Return a score for each question of the half with which settings are chosen, or None if the configuration
        cannot run on this machine. Raises `InvalidInput` if the current settings cannot run, and `OutOfTime` if too
        little time is left."""
        if configuration != self._current and self._find(configuration, self._choice_half) is None:
            self._clock.check(fills=not self._stores.has(configuration))
        measured = self._measured(configuration, self._choice_half)
        if measured.skipped and configuration == self._current:
            raise InvalidInput("settings", f"the current settings cannot be used: {measured.skipped}")
        return None if measured.skipped else self._scores(configuration, self._choice_half)

    def _final_scores(self, configuration: Configuration) -> dict[Half, list[float]]:
        """Return the scores of the current or the chosen settings for each half of the questions, for the final
        comparison. If the time is over before a half is measured, this half is left out."""
        scores: dict[Half, list[float]] = {}
        for half in self._questions:
            with suppress(OutOfTime):
                scores[half] = self._scores(configuration, half)
        return scores

    def _scores(self, configuration: Configuration, half: Half) -> list[float]:
        return [self._metric(ranks) for ranks in self._measured(configuration, half).ranks]

    def _measured(self, configuration: Configuration, half: Half) -> Measured:
        """Return the measurement of a configuration with one half of the questions. If the journal does not contain it,
        the configuration is measured, and the result is added to the journal. The result is not added if the
        configuration cannot run, or if the reranker failed. Raises `OutOfTime` if the time is over before the end of
        the measurement; the vectors that were made until then are kept."""
        measured = self._find(configuration, half)
        if measured is None:
            measured = self._measure(configuration, half)
            if not measured.skipped and not self._unranked:
                self._journal.add(measured)
            self._made.add((key(configuration), half))
        self._used[key(configuration), half] = measured
        return measured

    def _find(self, configuration: Configuration, half: Half) -> Measured | None:
        return self._used.get((key(configuration), half)) or self._journal.find(configuration, half)

    def _measure(self, configuration: Configuration, half: Half) -> Measured:
        started = time.monotonic()
        ranks: tuple[Ranks, ...] = ()
        skipped = ""
        try:
            self._clock.tick()
            ranks = self._ranks(configuration, half)
        except EmbedderUnavailable:
            if self._stopped:
                raise OutOfTime from None
            raise
        except (InvalidInput, MissingExtra) as error:
            if isinstance(error, InvalidInput) and error.field == "DIR":  # no memory can store this passage
                raise
            skipped = str(error)
        return Measured(configuration, half, tuple(map(tuple, ranks)), time.monotonic() - started, skipped)

    def _ranks(self, configuration: Configuration, half: Half) -> tuple[Ranks, ...]:
        dataset = self._corpus.dataset.asking(self._questions[half])
        report = self._reporter(configuration)
        embedder = self._corpus.embedder
        before = embedder.embedded
        started, filled = time.monotonic(), not self._stores.has(configuration)
        embedder.on_embedded = lambda texts: report(f"{texts - before} texts embedded")
        embedder.has_time = self._has_time

        def step(doing: str) -> None:
            self._clock.tick()
            report(doing)

        with self._stores.opened(configuration, lambda n, all_: step(f"{n} of {all_} passages stored")) as trial:
            opened = time.monotonic()
            if self._stores.vectors:  # embed before the search, which would ignore a failure and search only by words
                for question in dataset.questions:
                    self._clock.tick()
                    trial.embedder.embed_query(question.text)
            evaluation = trial.evaluate(
                dataset,
                modes=("hybrid",),
                limit=DEPTH,
                metrics=(self._metric_name,),
                passage_of=self._corpus.passage_of,
                progress=lambda n, all_: step(f"{n} of {all_} questions asked"),
            )
        self._clock.took(opened - started, time.monotonic() - opened, filled=filled)
        self._warnings.update(dict.fromkeys(evaluation.warnings))
        self._unranked = any(warning.startswith(NOT_RERANKED) for warning in evaluation.warnings)
        return tuple(outcome.ranks["hybrid"] for outcome in evaluation.outcomes)

    def _has_time(self, seconds: float) -> bool:
        self._stopped = not self._clock.has(seconds)
        return not self._stopped

    def _reporter(self, configuration: Configuration) -> Callable[[str], None]:
        progress, changed = self._progress, differing(self._current, configuration)
        name = ", ".join(f"{each}={value}" for each, (_, value) in changed.items()) or "the current settings"
        left = [each for each in self._planned if self._find(each, self._choice_half) is None]
        estimates = [self._clock.estimate(fills=not self._stores.has(each)) for each in left]
        known = [seconds for seconds in estimates if seconds is not None]
        seconds = sum(known) if len(known) == len(left) else None

        def report(doing: str) -> None:
            if progress:
                progress(Progress(len(self._journal), len(left), seconds, f"{name}: {doing}"))

        return report

    def _tried(self) -> tuple[Tried, ...]:
        if self._find(self._current, self._choice_half) is None:
            return ()
        first = statistics.fmean(self._scores(self._current, self._choice_half))
        return tuple(self._attempt(one, first) for one in self._used.values() if one.half == self._choice_half)

    def _attempt(self, measured: Measured, first: float) -> Tried:
        changed = {name: value for name, (_, value) in differing(self._current, measured.configuration).items()}
        if measured.skipped:
            return Tried(changed, None, None, measured.seconds, measured.skipped)
        value = statistics.fmean(self._metric(ranks) for ranks in measured.ranks)
        return Tried(changed, value, value - first, measured.seconds)

    def _notes(self) -> tuple[str, ...]:
        count = sum(map(len, self._questions.values()))
        few = f"{count} questions are few: the true value of a figure may lie anywhere in its interval; add questions"
        return (*self._corpus.dataset.notes, *((few,) if count < _FEW else ()), *self._warnings)
