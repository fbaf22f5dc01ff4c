"""What a turn may cost, and what it has cost so far."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from agentformer.errors import InvalidInput
from agentformer.types import Reply

_FOR_TOOLS = 0.8  # of the time, so that there is some left to answer with what they gave
_LEAST = 0.5  # seconds in which a model can still be expected to answer


@dataclass(frozen=True, slots=True)
class Limits:
    """`steps`: replies of the model that may ask for tools. `seconds`: of the whole turn. `tokens`: read and written by
    the model in the turn. At each, the model is asked once more, without tools. Raises `InvalidInput`."""

    steps: int
    seconds: float
    tokens: int

    def __post_init__(self) -> None:
        for name, value in (("max_steps", self.steps), ("max_seconds", self.seconds), ("max_tokens", self.tokens)):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 1 <= value < math.inf):
                raise InvalidInput(name, f"must be a number of at least 1, got {value!r:.80}")


class Meter:
    """The cost of one turn, from the moment that this is made."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps = self.tokens_in = self.tokens_out = 0
        self._spent = self._last = 0
        self._began = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done within takes none of the turn's time."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._began += time.monotonic() - began

    @property
    def ms(self) -> float:
        return round((time.monotonic() - self._began) * 1000, 1)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._began + self.limits.seconds - time.monotonic())

    @property
    def seconds_for_tools(self) -> float:
        return max(0.0, self._began + _FOR_TOOLS * self.limits.seconds - time.monotonic())

    @property
    def may_ask(self) -> bool:
        return self.seconds_left >= _LEAST

    def count(self, reply: Reply, estimated: int) -> None:
        """`estimated`: tokens of the prompt and the reply, for a server that counts none."""
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        self._last = reply.tokens_in + reply.tokens_out or estimated
        self._spent += self._last

    def reached(self) -> Literal["", "steps", "time", "tokens"]:
        """The limit that leaves no room for another reply with tools. Conversations only grow, so the next reply costs
        as much as the last one, and so does the one that ends the turn."""
        if self.steps >= self.limits.steps:
            return "steps"
        if not self.seconds_for_tools:
            return "time"
        return "tokens" if self._spent and self._spent + 2 * self._last > self.limits.tokens else ""
