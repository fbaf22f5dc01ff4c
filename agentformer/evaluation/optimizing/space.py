"""The settings that an optimisation may change, and the search of the best ones.

Settings that this version lacks are skipped. For a setting with named values all of them are tried.

The search is a coordinate descent within a time budget. The values of a setting are tried with all others unchanged,
and the best is taken if it is an improvement. `full` repeats all settings while something changes. An improvement gains
more than one standard error of the paired difference over the questions (after the one-standard-error rule of Breiman
et al. 1984), because among many values some look better by chance.
"""

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
Cost = Literal["search", "words", "vectors", "chunks"]  # what a change makes anew, each with what stands before it
Value = int | float | str
Configuration = Mapping[str, Value]  # every setting that may be searched, by its name

BALANCE = ("fusion", "dense_weight")  # what words and vectors weigh beside each other
OVERLAP_SHARES = (0.0, 0.1, 0.2)  # of a chunk; from a fifth on, neighbours say mostly the same


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting, and the values that the levels try besides the current one; without values, all possible ones."""

    name: str
    cost: Cost
    full: tuple[Value, ...] = ()
    quick: tuple[Value, ...] = ()
    dense: bool = False  # does it mean something only where there are vectors?
    language: str = ""  # in which alone it means something; "": in any


# In the order in which they are searched: what is stored, then what is indexed, then how a search ranks it.
PARAMETERS = (
    Parameter("chunk_tokens", "chunks", (100, 200, 300, 500, 800)),
    Parameter("chunk_overlap", "chunks"),  # shares of the chunk
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
    """Properties of a corpus and its model that limit the choice."""

    model_tokens: int  # that the model reads at once; 0: there are no vectors
    longest: int  # tokens of the longest passage
    languages: frozenset[str]  # that passages or questions are in


def present(settings: Settings) -> Configuration:
    """Return the current values of the settings."""
    return {
        parameter.name: getattr(settings, parameter.name)
        for parameter in PARAMETERS
        if hasattr(settings, parameter.name)
    }


def settings_of(settings: Settings, configuration: Configuration) -> Settings:
    """Return `settings` with the values of a configuration. Raises `InvalidInput`."""
    return dataclasses.replace(settings, **configuration)  # type: ignore[arg-type]  # each has the type of its field


def key(configuration: Configuration) -> str:
    """Return a text that is equal for equal values."""
    return json.dumps(dict(configuration), sort_keys=True)


def stored_key(settings: Settings, configuration: Configuration) -> str:
    """Return a text that is equal for configurations that can share a store: split, embedded and analysed alike."""
    stored = {each.name: configuration[each.name] for each in _of(configuration) if each.cost != "search"}
    try:
        chosen = choose_analyzers(settings_of(settings, configuration))
    except MissingExtra:
        return key(stored)
    analyzers = [getattr(chosen, each.name) for each in dataclasses.fields(chosen)]
    in_force = ",".join(each.name if each else "" for each in analyzers)
    return key({name: value for name, value in stored.items() if name not in _ANALYSIS} | {"analyzers": in_force})


@dataclass(frozen=True, slots=True)
class Space:
    """The settings of a level that are searched in a corpus, except those in `without`; with `only`, just these."""

    level: Level
    facts: Facts
    only: Collection[str] = ()
    without: Collection[str] = ()

    def parameters(self, configuration: Configuration) -> list[Parameter]:
        """Return the settings that can make a difference, in order. `quick` rebuilds no vectors and chunks unless a
        setting is asked for by name."""
        if self.level == "eval":
            return []
        return [parameter for parameter in _of(configuration) if self._wanted(parameter) and self._matters(parameter)]

    def candidates(self, parameter: Parameter, configuration: Configuration) -> Iterator[Configuration]:
        """Return configurations that differ in this setting; an overlap keeps its share of the chunk."""
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
        """Return the values to try. Of the sizes that split nothing, one is tried, unless the current one is such."""
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
    """Return the settings in which two configurations differ, with both values."""
    return {name: (value, other[name]) for name, value in one.items() if value != other[name]}


def _of(configuration: Configuration) -> list[Parameter]:
    return [parameter for parameter in PARAMETERS if parameter.name in configuration]


class Clock:
    """Estimates the time of measurements. `budget` is in seconds; None for no limit."""

    def __init__(self, budget: float | None = None) -> None:
        self._end = None if budget is None else time.monotonic() + budget
        self._filling: list[float] = []
        self._asking: list[float] = []

    def took(self, opening: float, asking: float, *, filled: bool) -> None:
        """Record a measurement: seconds until its memory was open, and for its questions."""
        self._asking.append(asking)
        if filled:
            self._filling.append(opening)

    def estimate(self, *, fills: bool) -> float | None:
        """Return the estimated seconds of another measurement, with or without filling a store; None if unknown."""
        if not self._asking or (fills and not self._filling):
            return None
        return statistics.fmean(self._asking) + (statistics.fmean(self._filling) if fills else 0.0)

    def check(self, *, fills: bool) -> None:
        """Raise `OutOfTime` if another measurement would probably end too late."""
        if self._end is not None and time.monotonic() + (self.estimate(fills=fills) or 0.0) > self._end:
            raise OutOfTime


PASSES = {"eval": 0, "quick": 1, "full": 3}  # a third one rarely changes anything, and a cycle must end

Measure = Callable[[Configuration], "Sequence[float] | None"]  # per question, higher is better; None: cannot be had
Planned = Callable[[Sequence[Configuration]], None]  # told what is left of this pass, as far as it is known


class OutOfTime(Exception):
    """Too little time is left for another measurement."""


def descend(
    start: Configuration, space: Space, measure: Measure, planned: Planned = lambda left: None
) -> tuple[Configuration, bool]:
    """Return the best configuration found, and whether the search finished; `measure` may raise `OutOfTime`."""
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
    """Return whether the mean gain of `scores` over `former`, by question, exceeds its standard error."""
    gains = [new - old for new, old in zip(scores, former, strict=True)]
    gain = statistics.fmean(gains) if gains else 0.0
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return gain > 0 and gain > error


def _step(
    best: Configuration, scores: Sequence[float], tried: Iterable[Configuration], measure: Measure
) -> tuple[Configuration, Sequence[float]]:
    """Return the best value of one setting. `OutOfTime` leaves the setting unchanged, because an untried value might be
    better."""
    best_so_far = best, scores
    for candidate in tried:
        values = measure(candidate)
        if values is not None and statistics.fmean(values) > statistics.fmean(best_so_far[1]):
            best_so_far = candidate, values
    return best_so_far if is_improvement(best_so_far[1], scores) else (best, scores)
