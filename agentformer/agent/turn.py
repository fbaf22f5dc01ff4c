"""The result of an agent's turn, the events during it, and its limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from agentformer.errors import InvalidInput
from agentformer.types import Reply

# Why a turn ended: the model answered; a limit of steps, time or tokens was reached; the model repeated itself, or its
# replies were unusable; or the model failed.
Finish = Literal["answer", "steps", "time", "tokens", "repeating", "failed"]

_TOOL_SHARE = 0.8  # share of the time for tools; the remaining time is for the answer
_MIN_SECONDS = 0.5  # least seconds in which a model can answer


@dataclass(frozen=True, slots=True)
class UsedMemory:
    """A memory that the model got before its first reply. `share` is core, episodic or semantic."""

    id: str
    share: str
    kind: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A call of the model that starts now."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A finished call. `text` is the beginning of the result for the model. `failed` is also True for a call that was
    not run; `text` is then the reason."""

    name: str
    arguments: Mapping[str, Any]
    failed: bool
    text: str
    ms: float


@dataclass(frozen=True, slots=True)
class Cited:
    """A position in a document that the answer cites and that the model has read. `quote` is a part of its text."""

    document: str
    page: int | None
    label: str
    quote: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a turn. `steps` counts the replies of the model. Token counts are from the server, or 0 if the
    server reports none."""

    session_id: str
    text: str
    finish: Finish
    steps: int
    tool_runs: tuple[ToolRun, ...] = ()
    memories: tuple[UsedMemory, ...] = ()
    citations: tuple[Cited, ...] = ()
    warnings: tuple[str, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Recalled:
    """The event that the context is built. It holds the memories in the context."""

    memories: tuple[UsedMemory, ...]


TurnEvent = Recalled | ToolStart | ToolRun
OnEvent = Callable[[TurnEvent], object]  # called in the thread of the turn, in order


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a turn. `steps` counts replies that may call tools. `seconds` is the time of the turn. `tokens`
    counts the tokens that the model reads and writes. When a limit is reached, the model answers once more, without
    tools. Raises `InvalidInput`."""

    steps: int
    seconds: float
    tokens: int

    def __post_init__(self) -> None:
        for name, value in (("max_steps", self.steps), ("max_seconds", self.seconds), ("max_tokens", self.tokens)):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and 1 <= value < math.inf):
                raise InvalidInput(name, f"must be a number of at least 1, got {value!r:.80}")


class Meter:
    """Measures the time and the tokens of one turn, from the construction of this object."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps = self.tokens_in = self.tokens_out = 0
        self._spent = self._last = 0
        self._started = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock during the `with` block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._started += time.monotonic() - started

    @property
    def ms(self) -> float:
        """Milliseconds since the start."""
        return round((time.monotonic() - self._started) * 1000, 1)

    @property
    def seconds_left(self) -> float:
        """Seconds until the end of the turn."""
        return max(0.0, self._started + self.limits.seconds - time.monotonic())

    @property
    def seconds_for_tools(self) -> float:
        """Seconds in which tools may run."""
        return max(0.0, self._started + _TOOL_SHARE * self.limits.seconds - time.monotonic())

    @property
    def may_ask(self) -> bool:
        """True while there is enough time for another reply."""
        return self.seconds_left >= _MIN_SECONDS

    def count(self, reply: Reply, estimate: int) -> None:
        """Count the tokens of a reply. Use `estimate` if the server reports none."""
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        self._last = reply.tokens_in + reply.tokens_out or estimate
        self._spent += self._last

    def reached(self) -> Literal["", "steps", "time", "tokens"]:
        """Return the limit that prevents another reply with tools, or "".

        Conversations grow. So the next reply and the final answer each cost at least as much as the last reply.
        """
        if self.steps >= self.limits.steps:
            return "steps"
        if not self.seconds_for_tools:
            return "time"
        return "tokens" if self._spent and self._spent + 2 * self._last > self.limits.tokens else ""
