"""The result of a turn, the events during a turn, and its limits. A turn is one message of the user with the answer of
the agent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from agentformer.agent.cited_pages import Cited
from agentformer.errors import InvalidInput
from agentformer.types import Reply

# Why a turn ended: the model answered; a limit of steps, time or tokens was reached; the model repeated itself, or its
# replies were unusable; or the model failed.
Finish = Literal["answer", "steps", "time", "tokens", "repeating", "failed"]

_TOOL_SHARE = 0.8  # share of the time for tools; the remaining time is for the answer
_MIN_SECONDS = 0.5  # least seconds in which a model can answer


@dataclass(frozen=True, slots=True)
class UsedMemory:
    """A memory in the first prompt of a turn. `share` is the section of the prompt that contains the memory: core,
    instructions, episodic or semantic."""

    id: str
    share: str
    kind: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """The event at the start of a tool call."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """The event at the end of a tool call. `text` is the beginning of the result. If the call was not run, `failed` is
    True, and `text` is the reason."""

    name: str
    arguments: Mapping[str, Any]
    failed: bool
    text: str
    ms: float


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a turn. `text` is the answer, or the reason why there is no answer. `finish` is the reason why the
    turn ended. `steps` is the number of requests to the model. `tokens_in` and `tokens_out` are the numbers of
    tokens that the model read and wrote. The model server counts them; if it does not, they are 0."""

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
    """The event after the memories for the first prompt were chosen."""

    memories: tuple[UsedMemory, ...]


TurnEvent = Recalled | ToolStart | ToolRun
OnEvent = Callable[[TurnEvent], object]  # called in the thread of the turn, in order


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a turn. `steps` is a number of requests to the model, `seconds` is the duration, and `tokens` is
    the number of tokens that the model reads and writes. When a limit is reached, the model is asked once more for an
    answer, without tools. Raises `InvalidInput` for a value below 1."""

    steps: int
    seconds: float
    tokens: int

    def __post_init__(self) -> None:
        for name, value in (("max_steps", self.steps), ("max_seconds", self.seconds), ("max_tokens", self.tokens)):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and 1 <= value < math.inf):
                raise InvalidInput(name, f"must be a number of at least 1, got {value!r:.80}")


class Meter:
    """Measures the time and the tokens of one turn. The time starts when this object is created."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps = self.tokens_in = self.tokens_out = 0
        self._spent = self._last = 0
        self._started = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock during the `with` block, so that this time does not count for the limits."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._started += time.monotonic() - started

    @property
    def ms(self) -> float:
        """Milliseconds since the start, without the pauses."""
        return round((time.monotonic() - self._started) * 1000, 1)

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit of the turn."""
        return max(0.0, self._started + self.limits.seconds - time.monotonic())

    @property
    def seconds_for_tools(self) -> float:
        """Seconds until tools must stop. The last fifth of the time of a turn is for the answer."""
        return max(0.0, self._started + _TOOL_SHARE * self.limits.seconds - time.monotonic())

    @property
    def may_ask(self) -> bool:
        """True if there is enough time for another reply of the model."""
        return self.seconds_left >= _MIN_SECONDS

    def count(self, reply: Reply, estimate: int) -> None:
        """Add the tokens of a reply. If the model server does not count them, `estimate` is used for the limit."""
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        self._last = reply.tokens_in + reply.tokens_out or estimate
        self._spent += self._last

    def reached(self) -> Literal["", "steps", "time", "tokens"]:
        """Return the name of the limit that prevents another request with tools, or "". The limit of tokens is reached
        if two more requests as long as the last one would exceed it: one with tools, and one for the final answer."""
        if self.steps >= self.limits.steps:
            return "steps"
        if not self.seconds_for_tools:
            return "time"
        return "tokens" if self._spent and self._spent + 2 * self._last > self.limits.tokens else ""
