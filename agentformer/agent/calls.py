"""The tool calls in a reply of the model. Each call is checked, permitted and run. Reading calls run in parallel, and
writing calls run one after another. When the time of a turn ends, the turn does not wait for calls that still run.

At first, the model has read only the system prompt, the core blocks and the user's words, so its calls do what the user
wants. After the model has read text from the store, a call may follow an instruction in a document. From then on, tools
that change or delete data, or that edit core blocks, need a permission. Tools that search or that add a memory never
need a permission.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any, TypeVar
from uuid import uuid4

from agentformer.agent.turn import OnEvent, ToolRun, ToolStart
from agentformer.http import tracing
from agentformer.records.fields import AFTER_RETRIEVED_TEXT, RETRIEVED, STORED_BY_KEY, WORDS_CHANGED
from agentformer.tools.caller import Caller
from agentformer.tools.definition import ToolDefinition
from agentformer.tools.toolbox import Toolbox, ToolResult
from agentformer.types import MemoryEntry, ToolCall

T = TypeVar("T")
Confirm = Callable[[ToolCall], bool]  # called in the thread of the turn; True lets the call run

_MAX_CALLS = 8  # of one reply
_MAX_REPEATS = 2  # most equal calls in a turn; the second call may have another result
_MAX_ARGUMENTS = 32_000  # bytes of arguments as JSON; the model reads them again before each later reply of the turn
_MAX_ID = 200  # characters
_SHOWN = 500  # at most this many characters of a result are in an event

_TOO_MANY = "not run: a reply may have at most {most} calls; read their results, then call what you still need"
_REPEATED = (
    "not run: you made this call {times} times in this turn, and have its result; use this result, or make another call"
)
_NO_OBJECT = "not run: the arguments must be one JSON object that matches the parameters of the tool"
_TOO_LONG = (
    "not run: the arguments have {size} bytes as JSON, and at most {most} are allowed; pass less in one call, or the "
    "path of a file, and omit text that the user has already written"
)
_CANCELLED = "not run: the time of this turn is over"
_UNKNOWN = (
    "the call did not finish in the time of this turn, and may still finish later; tell the user that its result is "
    "not known"
)
_REFUSED = (
    "not run: {name} changes stored data, and needs a permission after you have read stored text. Nobody can be asked "
    "here, and nothing that the user writes permits it: do not call it again. Tell the user what was not done, and "
    "that AGENTFORMER_AGENT_PERMIT, or --allow {name} of agentformer chat, permits it"
)
_UNPERMITTED = (
    "the tool {name} was not run, because it changes stored data and the model had read stored text, which may contain "
    "instructions; to permit the tool, use AGENTFORMER_AGENT_PERMIT, --allow {name} of agentformer chat, or "
    'Agent(permit=["{name}"])'
)
_DENIED = "not run: the user was asked about this call, and does not allow it. Do not repeat the call for this request"


class Permission:
    """The permissions for the tool calls of one turn. `retrieved` is True after the model has read text from the store,
    such as a document. From then on, a tool that changes stored data runs only if it is in `permitted`, or if
    `confirm` allows the call. If `confirm` is None, such a call is refused."""

    def __init__(self, tools: Iterable[ToolDefinition], permitted: Collection[str], confirm: Confirm | None) -> None:
        tools = list(tools)
        self._guarded = {tool.name for tool in tools if tool.needs_permission} - set(permitted)
        self._additive = {tool.name for tool in tools if tool.hints.additive}
        self._confirm = confirm
        self._unpermitted: dict[str, None] = {}  # tools that nobody could permit, in order
        self.retrieved = False

    def note_prompt(self, quoted: Iterable[Any], *, complete: bool) -> None:
        """Set `retrieved` to True if one of these entries and messages, which a prompt quotes, may contain text from
        documents or tools, or if they are not all that the prompt quotes."""
        self.retrieved = self.retrieved or not complete or any(map(may_quote, quoted))

    def refusal(self, call: ToolCall) -> str:
        """Return the reason why the call may not run, or "" if the call may run."""
        if not self.retrieved or call.name not in self._guarded:
            return ""
        if self._confirm is None:
            self._unpermitted[call.name] = None
            return _REFUSED.format(name=call.name)
        return "" if self._confirm(call) else _DENIED

    def note_result(self, name: str, value: Mapping[str, Any] | None) -> None:
        """Set `retrieved` to True if the result `value` of this tool, which the model reads, contains text from the
        store. The result of a tool that has added an entry contains only the text of the model. But if an equal entry
        was stored already, the result contains that entry, which another caller may have written."""
        added = name in self._additive and not (value or {}).get("known_already")
        self.retrieved = self.retrieved or not added

    @property
    def warnings(self) -> list[str]:
        """A warning for each tool that did not run because it needed a permission and `confirm` is None."""
        return [_UNPERMITTED.format(name=name) for name in self._unpermitted]

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata for entries that a tool stores now. If `retrieved` is True, the metadata marks the entries as
        stored after the model has read text from the store."""
        return {AFTER_RETRIEVED_TEXT: True} if self.retrieved else {}


def may_quote(item: Any) -> bool:
    """Return whether `item`, an entry or a message, may contain text from documents or tools. After the model has read
    such text, some tools need a permission. Core blocks and messages of the user contain no such text. An answer of the
    agent contains no such text if its metadata say so; only the program sets these metadata. A message may contain such
    text if another speaker wrote it, if it was changed later, or if a key without the right to read stored it."""
    if not isinstance(item, MemoryEntry):
        return bool(item.role != "user")
    if item.kind != "message":
        return item.tier != "core"
    if item.speaker or not item.metadata.keys().isdisjoint((STORED_BY_KEY, WORDS_CHANGED)):
        return True
    return item.role != "user" and (item.role != "assistant" or item.metadata.get(RETRIEVED) is not False)


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A tool call with an id, a name and arguments that every model server accepts. `refusal` is the reason why the
    call is not run, or "" if the call is run."""

    call: ToolCall
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CallResult:
    """A call and the complete text of its result. `ms` is the duration in milliseconds."""

    call: ToolCall
    text: str
    failed: bool
    ms: float
    value: dict[str, Any] | None = None  # of the tool; None if it failed

    @property
    def run(self) -> ToolRun:
        """The event that reports this result. The event contains only the beginning of the text."""
        return ToolRun(self.call.name, self.call.arguments, self.failed, self.text[:_SHOWN], self.ms)


class Calls:
    """Runs the tool calls of one turn. If a call is refused or fails, its result contains the reason."""

    def __init__(
        self, toolbox: Toolbox, caller: Caller, permission: Permission, workers: Workers, on_event: OnEvent
    ) -> None:
        self._toolbox = toolbox
        self._caller = caller
        self._permission = permission
        self._workers = workers
        self._on_event = on_event
        self._read_only = {tool.name for tool in toolbox.definitions() if tool.read_only}
        self._counts: Counter[str] = Counter()  # calls of this turn, by name and arguments
        self._ids: set[str] = set()  # of the calls of this turn

    def check(self, calls: Sequence[ToolCall]) -> list[CheckedCall]:
        """Return the calls of a reply with unique ids, valid names and JSON arguments. A call that may not run has a
        refusal. This method may ask a person for permission."""
        return [self._check(number, call) for number, call in enumerate(calls)]

    def run(self, checked: Sequence[CheckedCall], seconds: float) -> list[CallResult]:
        """Run the calls that have no refusal, and return one result for each call in the given order. A call that does
        not finish within `seconds` has a failed result."""
        accepted = [each.call for each in checked if not each.refusal]
        for call in accepted:
            self._on_event(ToolStart(call.name, call.arguments))
        futures = self._start(accepted)
        deadline, pending = time.monotonic() + seconds, iter(futures)
        results = []
        try:
            for each in checked:
                refused = ToolResult(each.refusal, failed=True)
                outcome, ms = (refused, 0.0) if each.refusal else _wait(next(pending), deadline)
                results.append(CallResult(each.call, outcome.text, outcome.failed, ms, outcome.value))
                self._on_event(results[-1].run)
                if not outcome.failed:
                    self._permission.note_result(each.call.name, outcome.value)
        finally:
            for future in futures:  # after Ctrl-C, calls that have not started are not run
                future.cancel()
        return results

    def _check(self, number: int, call: ToolCall) -> CheckedCall:
        """Return the call in a valid form, with the first reason not to run it: the reply has too many calls (`number`
        is the index of this one), its arguments are wrong, it is repeated too often, or it has no permission."""
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(call.name))[:64] or "unknown"
        arguments = _json_object(call.arguments)
        size = len(arguments_json(arguments).encode("utf-8", "surrogatepass"))
        fits = arguments is not None and size <= _MAX_ARGUMENTS
        valid = ToolCall(self._id(call.id), name, arguments if arguments is not None and fits else {})
        if number >= _MAX_CALLS:
            return CheckedCall(valid, _TOO_MANY.format(most=_MAX_CALLS))
        if arguments is None:
            return CheckedCall(valid, _NO_OBJECT)
        if not fits:
            return CheckedCall(valid, _TOO_LONG.format(size=size, most=_MAX_ARGUMENTS))
        key = json.dumps([name, arguments], sort_keys=True)
        self._counts[key] += 1
        repeated = _REPEATED.format(times=_MAX_REPEATS) if self._counts[key] > _MAX_REPEATS else ""
        return CheckedCall(valid, repeated or self._permission.refusal(valid))

    def _id(self, given: object) -> str:
        """Return the id that the model gave to the call, or a new id if it is invalid or used already."""
        usable = isinstance(given, str) and 0 < len(given) <= _MAX_ID and given not in self._ids
        call_id = str(given) if usable else f"call_{uuid4().hex}"
        self._ids.add(call_id)
        return call_id

    def _start(self, calls: Sequence[ToolCall]) -> list[Future[tuple[ToolResult, float]]]:
        """Start the calls, and return one future for each call. All writing calls run one after another in one thread.
        Each reading call has its own thread."""
        caller = replace(self._caller, stored_metadata=self._permission.metadata)
        tasks = [partial(self._run_timed, call, caller) for call in calls]
        writing = [call.name not in self._read_only for call in calls]
        written = iter(self._workers.start(*compress(tasks, writing)))
        return [
            next(written) if writes else self._workers.start(task)[0]
            for task, writes in zip(tasks, writing, strict=True)
        ]

    def _run_timed(self, call: ToolCall, caller: Caller) -> tuple[ToolResult, float]:
        """Run the call, and return its result and its duration in milliseconds."""
        started = time.monotonic()
        outcome = self._toolbox.run(call, caller)
        return outcome, round((time.monotonic() - started) * 1000, 1)


def arguments_json(arguments: Any) -> str:
    """Return the arguments of a call as JSON, or "" if the arguments cannot be converted."""
    try:
        return json.dumps(arguments, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return ""


def _json_object(arguments: Any) -> dict[str, Any] | None:
    """Return the arguments as a JSON object, or None if they are not one."""
    try:
        value = json.loads(json.dumps(dict(arguments), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _wait(future: Future[tuple[ToolResult, float]], deadline: float) -> tuple[ToolResult, float]:
    try:
        return result(future, max(0.0, deadline - time.monotonic()))
    except OutOfTime:
        return ToolResult(_CANCELLED if future.cancelled() else _UNKNOWN, failed=True), 0.0


class OutOfTime(Exception):
    """Raised if a task has no result when its time is over."""


class Workers:
    """Runs tasks in daemon threads, so that Ctrl-C and the end of the process do not wait for them. Thread-safe."""

    def __init__(self) -> None:
        self._open: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def start(self, *tasks: Callable[[], T]) -> list[Future[T]]:
        """Run the tasks one after another in a new thread, and return their futures. Cancelled tasks are skipped."""
        futures: list[Future[T]] = [Future() for _ in tasks]
        with self._lock:
            self._open |= set(futures)
        if tasks:
            run = tracing.carrier()(partial(self._run, tasks, futures))
            threading.Thread(target=run, name="agentformer-agent", daemon=True).start()
        return futures

    def close(self, seconds: float) -> bool:
        """Cancel tasks that have not started, and wait at most `seconds` for the others. Return True if all tasks have
        ended."""
        with self._lock:
            running = [future for future in self._open if not future.cancel()]
        return not wait(running, seconds).not_done

    def _run(self, tasks: Sequence[Callable[[], T]], futures: Sequence[Future[T]]) -> None:
        for task, future in zip(tasks, futures, strict=True):
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(task())
            except BaseException as error:  # noqa: BLE001  `result` raises it
                future.set_exception(error)
            finally:
                with self._lock:
                    self._open.discard(future)


def result(future: Future[T], seconds: float) -> T:
    """Return the result of a task, or raise the error of the task. If there is no result after `seconds`, raise
    `OutOfTime`, and cancel the task if it has not started."""
    if wait([future], seconds).not_done:
        future.cancel()
        raise OutOfTime
    return future.result()
