"""The settings that an optimisation may change, and the search for the best settings. A configuration is a set of
values for these settings.

A name in `PARAMETERS` that is not the name of a setting is skipped. If a setting has a fixed list of allowed values,
such as the names of analyzers, all values of the list are tried.

The search is a coordinate descent within a time budget. It changes one setting at a time and tries the values of this
setting while all other settings stay the same. The best value is chosen if it is an improvement: its gain must exceed
one standard error of the paired difference over the questions (after the one-standard-error rule of Breiman et al.
1984), because among many values some look better by chance. The level `full` goes through all settings up to three
times, until a pass changes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentformer.errors import MissingExtra
from agentformer.settings import Settings
from agentformer.settings.fields import CHOICES
from agentformer.text.analyzers import choose_analyzers

Level = Literal["eval", "quick", "full"]
# The data that a change rebuilds. Each value includes the values before it.
Cost = Literal["search", "words", "vectors", "chunks"]
Value = int | float | str
Configuration = Mapping[str, Value]  # name -> value for every setting that may be searched

BALANCE = ("fusion", "dense_weight")  # the weights of lexical and dense search
# Shares of a chunk. With a larger share, neighbouring chunks have mostly the same text.
OVERLAP_SHARES = (0.0, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting that can be searched. `full` and `quick` are the values that the levels of the same name try in
    addition to the current value. If `quick` is empty, the level `quick` tries the values of `full`. `cost` is the data
    that must be built again after a change."""

    name: str
    cost: Cost
    full: tuple[Value, ...] = ()
    quick: tuple[Value, ...] = ()
    dense: bool = False  # True if the setting affects only stores with vectors
    language: str = ""  # the only language that the setting affects; "" for all languages


# In the order of the search: settings of storing, then of indexing, then of ranking.
PARAMETERS = (
    Parameter("chunk_tokens", "chunks", (100, 200, 300, 500, 800)),
    Parameter("chunk_overlap", "chunks"),  # its values are shares of a chunk
    Parameter("window_tokens", "vectors", (0, 32, 64, 128, 256), dense=True),
    Parameter("language_detector", "words"),
    Parameter("compounds", "words", language="fi"),
    Parameter("japanese", "words", language="ja"),
    Parameter("fusion", "search", dense=True),
    Parameter("dense_weight", "search", (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), (0.0, 0.5, 1.0, 2.0), dense=True),
    Parameter("rrf_k", "search", (5, 10, 20, 60, 120), (10, 60), dense=True),
    Parameter("fanout", "search", (30, 100, 300), (30, 100), dense=True),
)
_ANALYSIS = {each.name for each in PARAMETERS if each.cost == "words"}


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a corpus and its embedding model. They determine which settings and values are worth trying."""

    model_tokens: int  # tokens that the model can read; 0 if there are no vectors
    longest: int  # tokens of the longest passage
    languages: frozenset[str]  # languages of passages and questions


def present(settings: Settings) -> Configuration:
    """Return the current values of the settings that can be searched."""
    return {each.name: getattr(settings, each.name) for each in PARAMETERS if hasattr(settings, each.name)}


def settings_of(settings: Settings, configuration: Configuration) -> Settings:
    """Return a copy of `settings` with the values of a configuration. Raises `InvalidInput` if a value is invalid."""
    return dataclasses.replace(settings, **configuration)  # type: ignore[arg-type]  # each has the type of its field


def key(configuration: Configuration) -> str:
    """Return a text that identifies a configuration. Equal configurations have the same text."""
    return json.dumps(dict(configuration), sort_keys=True)


def stored_key(settings: Settings, configuration: Configuration) -> str:
    """Return a text that identifies the store that a configuration needs. Configurations have the same text if they
    split, embed and analyze passages in the same way, so they can use the same store."""
    stored = {each.name: configuration[each.name] for each in _of(configuration) if each.cost != "search"}
    try:
        analyzers = ",".join(analyzer_names(settings_of(settings, configuration)))
    except MissingExtra:
        return key(stored)
    return key({name: value for name, value in stored.items() if name not in _ANALYSIS} | {"analyzers": analyzers})


def analyzer_names(settings: Settings) -> list[str]:
    """Return the names of the text analyzers that the settings select, one for each kind of analyzer. The name is "" if
    no analyzer of this kind is selected."""
    chosen = choose_analyzers(settings)
    analyzers = [getattr(chosen, field.name) for field in dataclasses.fields(chosen)]
    return [analyzer.name if analyzer else "" for analyzer in analyzers]


@dataclass(frozen=True, slots=True)
class Space:
    """The search space of an optimisation: the settings that may change. If `only` is not empty, only the settings that
    it names are searched. Otherwise, the settings in `without` are not searched."""

    level: Level
    facts: Facts
    only: Collection[str] = ()
    without: Collection[str] = ()

    def parameters(self, configuration: Configuration) -> list[Parameter]:
        """Return the settings to search, in order, without those that cannot affect this corpus. At the level `quick`,
        settings that need new vectors or chunks are also left out, unless `only` names them."""
        if self.level == "eval":
            return []
        return [parameter for parameter in _of(configuration) if self._wanted(parameter) and self._matters(parameter)]

    def candidates(self, parameter: Parameter, configuration: Configuration) -> Iterator[Configuration]:
        """Yield configurations with other values of this setting. The overlap of chunks is scaled with their size."""
        now = configuration[parameter.name]
        for value in self._values(parameter, configuration):
            if value != now:
                changed = {**configuration, parameter.name: value}
                if parameter.name == "chunk_tokens":
                    changed["chunk_overlap"] = int(configuration["chunk_overlap"]) * int(value) // int(now)
                yield changed

    def _wanted(self, parameter: Parameter) -> bool:
        if self.only:
            return parameter.name in self.only
        return parameter.name not in self.without and (self.level == "full" or parameter.cost in ("search", "words"))

    def _matters(self, parameter: Parameter) -> bool:
        if parameter.dense and not self.facts.model_tokens:
            return False
        return not parameter.language or parameter.language in self.facts.languages

    def _values(self, parameter: Parameter, configuration: Configuration) -> Sequence[Value]:
        """Return the values to try for a setting in this configuration. Chunk sizes above the length of the longest
        passage all have the same effect, so only one of these sizes is tried."""
        values = (parameter.quick if self.level == "quick" else ()) or parameter.full
        longest, chunk = self.facts.longest, int(configuration["chunk_tokens"])
        if parameter.name == "chunk_tokens":
            cutting = tuple(value for value in values if int(value) < longest)
            whole = values[len(cutting) :][:1] if chunk < longest else ()
            return (*cutting, *whole)
        if parameter.name == "chunk_overlap":
            return tuple(int(share * chunk) for share in OVERLAP_SHARES) if chunk < longest else ()
        if parameter.name == "window_tokens":
            most = min(self.facts.model_tokens, longest, chunk)
            return (0, *(value for value in values if 0 < int(value) < most))
        return values or CHOICES.get(parameter.name, ())


def differing(one: Configuration, other: Configuration) -> dict[str, tuple[Value, Value]]:
    """Return setting -> (value in `one`, value in `other`) for each setting in which the configurations differ."""
    return {name: (value, other[name]) for name, value in one.items() if value != other[name]}


def _of(configuration: Configuration) -> list[Parameter]:
    return [parameter for parameter in PARAMETERS if parameter.name in configuration]


class Clock:
    """Measures and estimates the duration of measurements, and ends the search when the time is over. `budget` is the
    limit in seconds for all measurements together, or None for no limit."""

    def __init__(self, budget: float | None = None) -> None:
        self._end = None if budget is None else time.monotonic() + budget
        self._searching = True  # False: only the final measurements with the test half are left
        self._filling: list[float] = []
        self._asking: list[float] = []

    def took(self, opening: float, asking: float, *, filled: bool) -> None:
        """Record the duration of a measurement. `opening` is the time for opening its memory and `asking` is the time
        for its questions, both in seconds. `filled` is true if the passages also had to be stored in this memory."""
        self._asking.append(asking)
        if filled:
            self._filling.append(opening)

    def estimate(self, *, fills: bool) -> float | None:
        """Return the estimated seconds of another measurement. Return None if no similar measurement was made before.
        `fills` is true if the passages must first be stored."""
        if not self._asking or (fills and not self._filling):
            return None
        return statistics.fmean(self._asking) + (statistics.fmean(self._filling) if fills else 0.0)

    def check(self, *, fills: bool) -> None:
        """Raise `OutOfTime` if another measurement would probably end after the budget. For `fills`, see `estimate`."""
        if not self.has(self.estimate(fills=fills) or 0.0):
            raise OutOfTime

    def has(self, seconds: float) -> bool:
        """Return whether more than `seconds` are left, besides the time that is reserved for the final measurements."""
        if self._end is None:
            return True
        final = _FINAL * statistics.fmean(self._asking) if self._searching and self._asking else 0.0
        return self._end - time.monotonic() - final > seconds

    def tick(self) -> None:
        """Raise `OutOfTime` if no time is left. Call this method often during long work."""
        if not self.has(0.0):
            raise OutOfTime

    def finish(self) -> None:
        """Make the time for the final measurements available, because the search has ended."""
        self._searching = False


_FINAL = 2  # measurements with the test half: the current settings and the chosen settings
PASSES = {"eval": 0, "quick": 1, "full": 3}  # a third pass rarely changes anything, and the search must end

# A score for each question, higher is better; None if the configuration cannot run.
Measure = Callable[[Configuration], "Sequence[float] | None"]
Planned = Callable[[Sequence[Configuration]], None]  # called with the remaining configurations of this pass


class OutOfTime(Exception):
    """Too little of the time budget is left for another measurement, or the budget ended during a measurement."""


def descend(
    start: Configuration, space: Space, measure: Measure, planned: Planned = lambda left: None
) -> tuple[Configuration, bool]:
    """Search for the best configuration, beginning with `start`. Return the best configuration, and whether the search
    finished in time. `measure` returns the scores of a configuration; if it raises `OutOfTime`, the search ends.
    `planned` is called before each step with the configurations that are left to try."""
    best, order = start, space.parameters(start)
    try:
        scores = measure(best)
        if scores is None:
            return best, True
        for _ in range(PASSES[space.level]):
            before = best
            for place, parameter in enumerate(order):
                rest = [each for other in order[place:] for each in space.candidates(other, best)]
                planned(list({key(each): each for each in rest}.values()))
                best, scores = _step(best, scores, space.candidates(parameter, best), measure)
            if best == before:
                break
    except OutOfTime:
        return best, False
    return best, True


def is_improvement(scores: Sequence[float], former: Sequence[float]) -> bool:
    """Return whether the mean gain of `scores` over `former` exceeds the standard error of this gain. `scores` and
    `former` have one score for each question, in the same order."""
    gains = [new - old for new, old in zip(scores, former, strict=True)]
    gain = statistics.fmean(gains) if gains else 0.0
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return gain > 0 and gain > error


def _step(
    best: Configuration, scores: Sequence[float], tried: Iterable[Configuration], measure: Measure
) -> tuple[Configuration, Sequence[float]]:
    """Measure all candidates for one setting. Return the best configuration and its scores. If `measure` raises
    `OutOfTime`, no candidate is chosen, because a candidate that was not measured might be better."""
    best_so_far = best, scores
    for candidate in tried:
        values = measure(candidate)
        if values is not None and statistics.fmean(values) > statistics.fmean(best_so_far[1]):
            best_so_far = candidate, values
    return best_so_far if is_improvement(best_so_far[1], scores) else (best, scores)
