"""Verification, repair and recovery of the records. Each check collects its results in `Findings`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentformer.errors import AgentFormerError
from agentformer.types import Check

MAX_REPORTED = 20  # findings of one check that are reported in words
REPAIR_ADVICE = "`agentformer doctor --repair` repairs it"


@dataclass
class Findings:
    """The results of one check while it runs. The fields of the same name are those of `Check`."""

    name: str
    asked: str
    advice: str = REPAIR_ADVICE  # for findings that are not repaired
    looked_at: int = 0
    found: int = 0
    mended: int = 0
    lost: int = 0
    keys: list[Any] = field(default_factory=list)  # what the repair of this check needs to know about each finding
    incomplete: bool = False  # some of the data could not be read
    _texts: list[str] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _repair: str = ""

    def add(self, text: str, *keys: Any) -> None:
        """Add one finding."""
        self.found += 1
        self.keys += keys
        if len(self._texts) < MAX_REPORTED:
            self._texts.append(text)

    def note(self, text: str) -> None:
        """Add a remark about something that is not wrong."""
        self._notes.append(text)

    def add_all(self, findings: Iterable[tuple[str, Any]]) -> Findings:
        """Add findings, each with its key."""
        for text, key in findings:
            self.add(text, key)
        return self

    def mark_repaired(self, count: int, how: str) -> None:
        """Count `count` of the findings as repaired. `how` is for people."""
        self.mended += count
        if count:
            self._repair = how

    @contextmanager
    def reading(self, *errors: type[BaseException]) -> Iterator[None]:
        """Add a finding for data that cannot be read, instead of raising one of `errors` or `AgentFormerError`."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, (AgentFormerError, *errors)):
                raise
            self.incomplete = True
            self.add(f"it cannot be read to its end: {' '.join(str(error).split())[:200]}")

    @contextmanager
    def repairing(self) -> Iterator[None]:
        """Report an `AgentFormerError` of a repair as advice instead of raising it."""
        try:
            yield
        except AgentFormerError as error:
            self.advice = f"it could not be repaired: {error}"

    def to_check(self) -> Check:
        """Return the final result."""
        end = self._repair if self._repair and self.mended >= self.found else self.advice
        if self._repair and self.mended < self.found:
            end = f"{self.mended} of {self.found}: {self._repair}; the others: {self.advice}"
        texts = [f"{text}; {end}" if end else text for text in self._texts]
        mended = min(self.mended, self.found)
        return Check(self.name, self.asked, self.looked_at, self.found, mended, (*texts, *self._notes), self.lost)
