"""The results of the checks of a store. Each check collects them in a `Findings` object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentformer.errors import AgentFormerError
from agentformer.types import Check

MAX_REPORTED = 20  # number of findings of one check that are reported as text
REPAIR_ADVICE = "run `agentformer doctor --repair` to repair it"


@dataclass
class Findings:
    """The results of a check while it is running. Fields with the same name as in `Check` have the same meaning."""

    name: str
    asked: str
    advice: str = REPAIR_ADVICE  # advice for findings that are not repaired
    looked_at: int = 0
    found: int = 0
    mended: int = 0
    lost: int = 0
    keys: list[Any] = field(default_factory=list)  # data about each finding for the repair
    replaced: dict[str, str] = field(default_factory=dict)
    incomplete: bool = False  # some of the data could not be read
    _texts: list[str] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _repair: str = ""

    def add(self, text: str, *keys: Any) -> None:
        """Add one finding. `text` describes the damage to users; `keys` identify the damaged data for the repair."""
        self.found += 1
        self.keys += keys
        if len(self._texts) < MAX_REPORTED:
            self._texts.append(text)

    def note(self, text: str) -> None:
        """Add a remark about something that is not damage. A remark is not counted as a finding."""
        self._notes.append(text)

    def add_all(self, findings: Iterable[tuple[str, Any]]) -> Findings:
        """Add several findings: pairs of a text for users and a key that identifies the damaged data."""
        for text, key in findings:
            self.add(text, key)
        return self

    def mark_repaired(self, count: int, how: str) -> None:
        """Record that `count` findings were repaired. `how` describes the repair to users."""
        self.mended += count
        if count:
            self._repair = how

    @contextmanager
    def reading(self, *errors: type[BaseException]) -> Iterator[None]:
        """Run a block of code that reads data. If the block raises `AgentFormerError` or one of the exception types
        `errors`, the exception is added as a finding."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, (AgentFormerError, *errors)):
                raise
            self.incomplete = True
            self.add(f"some data cannot be read: {' '.join(str(error).split())[:200]}")

    @contextmanager
    def repairing(self) -> Iterator[None]:
        """Run a block of code that repairs the findings. If the block raises `AgentFormerError`, users see this error
        instead of the advice to repair."""
        try:
            yield
        except AgentFormerError as error:
            self.advice = f"it could not be repaired: {error}"

    def to_check(self) -> Check:
        """Return the results for users, after the check and any repair have ended. Each finding is followed by the
        description of the repair, or by the advice if nothing was repaired."""
        end = self._repair or self.advice
        if self._repair and self.mended < self.found:
            end = f"{self.mended} of {self.found}: {self._repair}; for the others: {self.advice}"
        texts = [f"{text}; {end}" if end else text for text in self._texts]
        mended = min(self.mended, self.found)
        findings = (*texts, *self._notes)
        return Check(self.name, self.asked, self.looked_at, self.found, mended, findings, self.lost, self.replaced)
