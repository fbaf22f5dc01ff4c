"""What an optimisation tells: the present and the chosen settings on both halves, and everything that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentformer.evaluation.bootstrap import Interval
from agentformer.evaluation.optimizing.journal import Half
from agentformer.evaluation.optimizing.space import Configuration, Level, Value, differing

Verdict = Literal["keep", "better", "unproven", "worse"]


@dataclass(frozen=True, slots=True)
class Tried:
    """A configuration on the development half: its mean and its mean gain over the present one, by `changed`, the
    settings in which it differs. None: `skipped` tells why it cannot be had here."""

    changed: Mapping[str, Value]
    value: float | None
    gain: float | None
    seconds: float
    skipped: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "changed": dict(self.changed),
            "value": None if self.value is None else round(self.value, 4),
            "gain": None if self.gain is None else round(self.gain, 4),
            "seconds": round(self.seconds, 1),
            "skipped": self.skipped,
        }


@dataclass(frozen=True, slots=True)
class Optimization:
    """`questions`, `current`, `best` and `gain` are by half; the gain is that of the chosen settings over the present
    ones, paired by question. Only the development half had a part in the choice."""

    name: str
    level: Level
    metric: str
    passages: int
    questions: Mapping[Half, int]
    settings: Configuration  # the present ones
    chosen: Configuration
    current: Mapping[Half, Interval]
    best: Mapping[Half, Interval]
    gain: Mapping[Half, Interval]
    tried: tuple[Tried, ...]  # in the order in which they were measured, the present one first
    finished: bool  # False: the time was up before the search was
    reused: int  # measurements that an earlier run had made
    embedded: int  # texts that the model was asked for by this run
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> dict[str, tuple[Value, Value]]:
        """What was chosen to be otherwise: the present and the chosen value by the name of the setting."""
        return differing(self.settings, self.chosen)

    @property
    def verdict(self) -> Verdict:
        """`keep` where nothing better was found on the development half; else what the test half says of the choice:
        `better` or `worse` where its 95% interval leaves out 0, and `unproven` where it does not."""
        if not self.changed:
            return "keep"
        gain = self.gain.get("test")
        if gain is None or not gain.significant:
            return "unproven"
        return "better" if gain.value > 0 else "worse"

    def as_json(self) -> dict[str, Any]:
        """As JSON values; intervals are `[mean, low, high]`."""
        return {
            "name": self.name,
            "level": self.level,
            "metric": self.metric,
            "passages": self.passages,
            "questions": dict(self.questions),
            "verdict": self.verdict,
            "settings": dict(self.settings),
            "chosen": {name: value for name, (_, value) in self.changed.items()},
            "current": _rounded(self.current),
            "best": _rounded(self.best),
            "gain": _rounded(self.gain),
            "tried": [each.as_json() for each in self.tried],
            "finished": self.finished,
            "reused": self.reused,
            "embedded": self.embedded,
            "notes": list(self.notes),
        }


def _rounded(figures: Mapping[Half, Interval]) -> dict[str, list[float]]:
    return {half: [round(value, 4) for value in interval] for half, interval in figures.items()}
