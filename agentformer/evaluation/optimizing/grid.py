"""The grid of an optimisation: the settings that may change, the values to try, and the choice of the best values.

One setting after another is changed, while all others stay the same. A value is chosen if its gain exceeds one standard
error of the paired difference over the questions (the one-standard-error rule of Breiman et al. 1984), because among
many values some look better by chance."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agentformer.settings import Settings
from agentformer.settings.fields import CHOICES
from agentformer.text.language_extras import choose_analyzers

Level = Literal["eval", "quick", "full"]  # "eval" only measures the present settings
Value = int | float | str
Configuration = Mapping[str, Value]  # name -> value for every setting that may be searched

BALANCE = ("fusion", "dense_weight")  # the weights of lexical and dense search
_OVERLAPS = (0.0, 0.1, 0.2)  # shares of a chunk; with a larger share, neighbouring chunks have mostly the same text


class Parameter(NamedTuple):
    """A setting that can be searched. `full` and `quick` are the values that these levels try. If `quick` is empty, it
    tries those of `full`. If both are empty, all values are tried that the setting allows."""

    name: str
    rebuilds: Literal["", "words", "vectors", "chunks"]  # the data that a change builds again
    full: tuple[Value, ...] = ()
    quick: tuple[Value, ...] = ()
    dense: bool = False  # True if the setting affects only stores with vectors
    language: str = ""  # the only language that the setting affects; "" for all languages


# In the order of the search: settings of storing, then of indexing, then of ranking. Numbers ascend.
PARAMETERS = (
    Parameter("chunk_tokens", "chunks", (100, 200, 300, 500, 800)),
    Parameter("chunk_overlap", "chunks"),
    Parameter("window_tokens", "vectors", (32, 64, 128, 256), dense=True),
    Parameter("language_detector", "words"),
    Parameter("compounds", "words", language="fi"),
    Parameter("japanese", "words", language="ja"),
    Parameter("fusion", "", dense=True),
    Parameter("dense_weight", "", (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), (0.0, 0.5, 1.0, 2.0), dense=True),
    Parameter("rrf_k", "", (5, 10, 20, 60, 120), (10, 60), dense=True),
    Parameter("fanout", "", (30, 100, 300), (30, 100), dense=True),
)


def present(settings: Settings) -> Configuration:
    """Return the current values of the settings that can be searched."""
    return {each.name: getattr(settings, each.name) for each in PARAMETERS}


def settings_of(settings: Settings, configuration: Configuration) -> Settings:
    """Return a copy of `settings` with the values of a configuration. Raises `InvalidInput` if a value is invalid."""
    return dataclasses.replace(settings, **configuration)  # type: ignore[arg-type]  # each has the type of its field


def differing(one: Configuration, other: Configuration) -> dict[str, tuple[Value, Value]]:
    """Return setting -> (value in `one`, value in `other`) for each setting in which the configurations differ."""
    return {name: (value, other[name]) for name, value in one.items() if value != other[name]}


def stored_key(configuration: Configuration) -> str:
    """Return a text that identifies the store that a configuration needs. Configurations that only rank otherwise have
    the same text."""
    return json.dumps([configuration[each.name] for each in PARAMETERS if each.rebuilds])


def analyzer_names(settings: Settings) -> list[str]:
    """Return the names of the text analyzers that the settings select, one for each kind of analyzer, or ""."""
    chosen = choose_analyzers(settings)
    return [getattr(getattr(chosen, field.name), "name", "") for field in dataclasses.fields(chosen)]


@dataclass(frozen=True, slots=True)
class Grid:
    """The settings and values to try. If `only` is not empty, only the settings that it names are searched, and else
    all except those in `without`. Settings and values that cannot affect the corpus are left out."""

    level: Level
    only: Collection[str]
    without: Collection[str]
    model_tokens: int  # tokens that the embedding model can read; 0 if there are no vectors
    longest: int  # tokens of the longest passage
    languages: Collection[str]  # languages of passages and questions

    def parameters(self) -> list[Parameter]:
        """Return the settings to search, in order: none at the level `eval`, those that `only` names, or all that
        `without` does not name. At the level `quick`, settings that need new vectors or chunks are left out, unless
        `only` names them. A setting of another language is left out, and one of vectors if there are none."""

        def is_searched(each: Parameter) -> bool:
            cheap = self.level == "full" or each.rebuilds in ("", "words")
            wanted = each.name in self.only if self.only else cheap and each.name not in self.without
            has_language = not each.language or each.language in self.languages
            return wanted and has_language and (self.model_tokens > 0 or not each.dense)

        return [each for each in PARAMETERS if is_searched(each)] if self.level != "eval" else []

    def row(self, parameter: Parameter, best: Configuration) -> list[Configuration]:
        """Return the configurations with another value of this setting. The overlap of chunks follows their size."""
        rows = [{**best, parameter.name: value} for value in self._values(parameter, best)]
        for row in rows if parameter.name == "chunk_tokens" else ():
            row["chunk_overlap"] = int(best["chunk_overlap"]) * int(row["chunk_tokens"]) // int(best["chunk_tokens"])
        return [row for row in rows if row[parameter.name] != best[parameter.name]]

    def _values(self, parameter: Parameter, best: Configuration) -> Sequence[Value]:
        """Return the values to try for a setting. Sizes that do not divide a passage all have the same effect, so at
        most one of these sizes is tried, and none if `best` has such a size already. An undivided passage has no
        overlap. The size 0 of windows is the limit of the model, and is always tried."""
        values = (parameter.quick if self.level == "quick" else ()) or parameter.full
        longest, chunk = self.longest, int(best["chunk_tokens"])
        if parameter.name == "chunk_tokens":
            dividing = [value for value in values if int(value) < longest]
            return [*dividing, *(values[len(dividing) :][:1] if chunk < longest else ())]
        if parameter.name == "chunk_overlap":
            return [int(share * chunk) for share in _OVERLAPS] if chunk < longest else []
        if parameter.name == "window_tokens":
            return [0, *(value for value in values if int(value) < min(self.model_tokens, longest, chunk))]
        return values or CHOICES[parameter.name]


class OutOfTime(Exception):
    """The time budget is over."""


# Returns a score for each question, higher is better; no scores if the configuration cannot run.
Measure = Callable[[Configuration], Sequence[float]]


def search(grid: Grid, start: Configuration, measure: Measure) -> Iterator[Configuration]:
    """Yield the best configuration so far: `start`, and then the one after each setting. The last one is the best. If
    `measure` raises `OutOfTime`, the setting that was not completed has changed nothing."""
    best, scores = start, measure(start)
    yield best
    for parameter in grid.parameters():
        measured = [(each, measure(each)) for each in grid.row(parameter, best)]
        able = [each for each in measured if each[1]]
        candidate, values = max(able, key=lambda each: statistics.fmean(each[1]), default=(best, scores))
        if is_improvement(values, scores):
            best, scores = candidate, values
        yield best


def is_improvement(scores: Sequence[float], former: Sequence[float]) -> bool:
    """Return whether the mean gain of `scores` over `former` exceeds the standard error of this gain. `scores` and
    `former` have one score for each question, in the same order."""
    gains = [new - old for new, old in zip(scores, former, strict=True)]
    return len(gains) > 1 and statistics.fmean(gains) > statistics.stdev(gains) / math.sqrt(len(gains))
