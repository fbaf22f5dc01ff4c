"""The calls of a model's reply, run: those that only read beside each other, those that write in their order."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from agentformer.agent.permission import Permission
from agentformer.agent.turns import OnEvent, ToolRun, ToolStart
from agentformer.agent.workers import OutOfTime, Workers, result
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import Toolbox, ToolResult
from agentformer.types import ToolCall

_AT_ONCE = 8  # calls of one reply; a model that asks for more is guessing
_TIMES = 2  # that the same call is run in a turn: a second time it may have changed what it asks for
_MOST_ARGUMENTS = 32_000  # bytes of one call's, as JSON; every later reply of the turn reads them again
_MOST_ID = 200  # characters
_SHOWN = 500  # characters of a result that a person is shown
_MS = 1000

_TOO_MANY = "not run: at most {most} calls of one reply are; look at their results first, then call what you still need"
_REPEATED = "not run: you made this very call {times} times in this turn, and have its result; use it, or do otherwise"
_NO_OBJECT = "not run: the arguments must be one JSON object, as the parameters of the tool say"
_TOO_LONG = (
    "not run: the arguments have {size} bytes as JSON, over {most}; give less in one call, or a file by its path, and "
    "leave out what the user has said already"
)
_UNDONE = "not run: the time of this turn is up"
_UNKNOWN = "it has not finished in the time of this turn, and may still do so; say that it is not known to be done"


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it can be told back to a server. `fault`: why it cannot be run; "" where it can."""

    call: ToolCall
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A call that was asked for, with all that the model is told of it."""

    call: ToolCall
    text: str
    failed: bool
    ms: float
    value: dict[str, Any] | None = None  # of the tool; None where it failed

    @property
    def run(self) -> ToolRun:
        return ToolRun(self.call.name, self.call.arguments, self.failed, self.text[:_SHOWN], self.ms)


class Calls:
    """Runs the calls of one turn. What cannot be run, or failed, is told to the model; nothing is raised for it."""

    def __init__(
        self, toolbox: Toolbox, caller: Caller, permission: Permission, workers: Workers, on_event: OnEvent
    ) -> None:
        self._toolbox = toolbox
        self._caller = caller
        self._permission = permission
        self._workers = workers
        self._on_event = on_event
        self._reading = {tool.name for tool in toolbox.definitions() if tool.read_only}
        self._made: Counter[str] = Counter()
        self._ids: set[str] = set()

    def asked(self, calls: Sequence[ToolCall]) -> list[Asked]:
        """A reply's calls, with ids that differ in the whole turn, and with names and arguments that a server takes
        when they are told back to it, however the model made them. Those that are not to be run say why; a person may
        be asked for it."""
        return [self._asked(number, call) for number, call in enumerate(calls)]

    def run(self, asked: Sequence[Asked], seconds: float) -> list[Done]:
        """What each call gave, in their order, within `seconds`."""
        begun = [each.call for each in asked if not each.fault]
        for call in begun:
            self._on_event(ToolStart(call.name, call.arguments))
        futures = self._begin(begun)
        ends, waiting = time.monotonic() + seconds, iter(futures)
        done = []
        try:
            for each in asked:
                outcome, ms = (ToolResult(each.fault, True), 0.0) if each.fault else _outcome(next(waiting), ends)
                done.append(Done(each.call, outcome.text, outcome.failed, ms, outcome.value))
                self._on_event(done[-1].run)
                if not outcome.failed:
                    self._permission.heard(each.call.name)
        finally:
            for future in futures:  # on Ctrl-C, what has not begun is not begun any more
                future.cancel()
        return done

    def _asked(self, number: int, call: ToolCall) -> Asked:
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(call.name))[:64] or "unknown"
        arguments = _object(call.arguments)
        size = len(written(arguments).encode("utf-8", "surrogatepass"))
        fits = arguments is not None and size <= _MOST_ARGUMENTS
        told = ToolCall(self._id(call.id), name, arguments if arguments is not None and fits else {})
        if number >= _AT_ONCE:
            return Asked(told, _TOO_MANY.format(most=_AT_ONCE))
        if arguments is None:
            return Asked(told, _NO_OBJECT)
        if not fits:
            return Asked(told, _TOO_LONG.format(size=size, most=_MOST_ARGUMENTS))
        same = json.dumps([name, arguments], sort_keys=True)
        self._made[same] += 1
        repeated = _REPEATED.format(times=_TIMES) if self._made[same] > _TIMES else ""
        return Asked(told, repeated or self._permission.refusal(told))

    def _id(self, given: object) -> str:
        """The id that the model gave, unless another call has it or a server would not take it back."""
        usable = isinstance(given, str) and 0 < len(given) <= _MOST_ID and given not in self._ids
        own = str(given) if usable else f"call_{uuid4().hex}"
        self._ids.add(own)
        return own

    def _begin(self, calls: Sequence[ToolCall]) -> list[Future[tuple[ToolResult, float]]]:
        caller = replace(self._caller, stored_metadata=self._permission.mark)
        works = [partial(self._timed, call, caller) for call in calls]
        writing = [number for number, call in enumerate(calls) if call.name not in self._reading]
        futures = dict(zip(writing, self._workers.begin(*(works[number] for number in writing)), strict=True))
        for number, work in enumerate(works):
            if number not in futures:
                futures[number] = self._workers.begin(work)[0]
        return [futures[number] for number in range(len(calls))]

    def _timed(self, call: ToolCall, caller: Caller) -> tuple[ToolResult, float]:
        began = time.monotonic()
        outcome = self._toolbox.run(call, caller)
        return outcome, round((time.monotonic() - began) * _MS, 1)


def written(arguments: Any) -> str:
    """The arguments of a call as JSON; "" where they are none."""
    try:
        return json.dumps(arguments, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return ""


def _object(arguments: Any) -> dict[str, Any] | None:
    """The arguments as a JSON object; None where they are none."""
    try:
        found = json.loads(json.dumps(dict(arguments), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _outcome(future: Future[tuple[ToolResult, float]], ends: float) -> tuple[ToolResult, float]:
    try:
        return result(future, max(0.0, ends - time.monotonic()))
    except OutOfTime:
        return ToolResult(_UNDONE if future.cancelled() else _UNKNOWN, failed=True), 0.0
