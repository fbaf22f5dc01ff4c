"""What one check of a store finds while it looks, and what is told of it in the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentformer.errors import AgentFormerError
from agentformer.types import Check

TOLD = 20  # findings of one check that are told in words
REPAIR = "`agentformer doctor --repair` mends it"


@dataclass
class Findings:
    """`todo` is what to do about a finding that is not mended."""

    name: str
    asked: str
    todo: str = REPAIR
    looked_at: int = 0
    found: int = 0
    mended: int = 0
    lost: int = 0  # of the mended: set aside, with nothing to make them anew from
    keys: list[Any] = field(default_factory=list)  # of what is wrong, for whoever mends it
    unread: bool = False  # a part of what was to be looked at could not be read
    _told: list[str] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _done: str = ""

    def add(self, text: str, *keys: Any) -> None:
        """One thing is wrong."""
        self.found += 1
        self.keys += keys
        if len(self._told) < TOLD:
            self._told.append(text)

    def note(self, text: str) -> None:
        """Something worth knowing that is not wrong."""
        self._notes.append(text)

    def mend(self, count: int, done: str) -> None:
        """`count` of what was found is put right."""
        self.mended += count
        if count:
            self._done = done

    def look(self, things: Iterable[tuple[str, Any]]) -> Findings:
        """Add all of these, each with its key."""
        for text, key in things:
            self.add(text, key)
        return self

    @contextmanager
    def reading(self, *errors: type[BaseException]) -> Iterator[None]:
        """What cannot be read is a finding, and ends this check alone. `AgentFormerError` always is."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, (AgentFormerError, *errors)):
                raise
            self.unread = True
            self.add(f"it cannot be read to its end: {' '.join(str(error).split())[:200]}")

    @contextmanager
    def mending(self) -> Iterator[None]:
        """What cannot be mended is told, and ends this repair alone."""
        try:
            yield
        except AgentFormerError as error:
            self.todo = f"it could not be mended: {error}"

    def check(self) -> Check:
        end = self._done if self._done and self.mended >= self.found else self.todo
        if self._done and self.mended < self.found:
            end = f"{self.mended} of {self.found}: {self._done}; of the others: {self.todo}"
        told = [f"{text}; {end}" if end else text for text in self._told]
        mended = min(self.mended, self.found)
        return Check(self.name, self.asked, self.looked_at, self.found, mended, (*told, *self._notes), self.lost)
