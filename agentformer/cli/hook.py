"""`agentformer hook EVENT`: reads one event from standard input, captures it, and answers it.

The time of a hook is the time that a person waits. So this module imports little, and a thread ends the process when
the deadline has passed. The exit code is always 0, because another code would stop the agent or show an error in it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from agentformer.hooks.agent_formats import AGENTS, Agent, Event, answer_to, event_of
from agentformer.hooks.spool import Spool

_DEADLINE = 0.3  # seconds
_ALIVE = 30.0  # seconds
_MAX_INPUT = 8_000_000  # bytes; a longer event is not captured
_MAX_PROMPT = 4_000  # characters of a prompt that are sent
_USAGE = "usage: agentformer hook EVENT --agent NAME --index-dir PATH --upload-dir PATH [--budget N] [--deadline S]"


class Options(NamedTuple):
    """The options of a hook. `budget` is in tokens. `deadline` and `idle` are in seconds; the companion ends after
    `idle` seconds without an event."""

    event: str
    agent: Agent = "claude-code"
    index_dir: Path = Path("indexes")
    upload_dir: Path = Path("uploads")
    budget: int = 600
    deadline: float = _DEADLINE
    idle: float = 180.0


def main(arguments: list[str]) -> None:
    """Answer one event, and end the process with the exit code 0."""
    begun = time.monotonic()
    try:
        options = _options(arguments)
        watch = threading.Timer(options.deadline, _leave)
        watch.daemon = True
        watch.start()
        event = event_of(options.agent, options.event, _input())
        if event is None:
            _leave()
        spool = Spool(options.index_dir)
        if spool.on and event.kind in ("prompt", "tool", "answer"):
            spool.add(event)
        _begin_companion(spool, options)
        context = None if event.kind in ("start", "prompt") else ""
        if context is None:
            context = _warm(spool, event, options, options.deadline - (time.monotonic() - begun))
        if context is None:
            context = _cold(event, options)
        _leave(answer_to(event, context))
    except Exception as error:  # noqa: BLE001 - a hook must never stop the agent
        sys.stderr.write(f"agentformer: {type(error).__name__}: {str(error)[:300]}\n")
        _leave()


def _leave(text: str = "") -> NoReturn:
    """Write the answer in one piece, and end the process at once."""
    if text:
        os.write(1, text.encode("utf-8", "replace") + b"\n")
    os._exit(0)


def _options(arguments: list[str]) -> Options:
    """Return the options in `EVENT --name value ...`, with absolute folders. Raises `ValueError` if they are wrong."""
    if not arguments or len(arguments) % 2 == 0:
        raise ValueError(_USAGE)
    values: dict[str, Any] = {"event": arguments[0]}
    for name, value in zip(arguments[1::2], arguments[2::2], strict=True):
        values[name.removeprefix("--").replace("-", "_")] = value
    if values.get("agent", "claude-code") not in AGENTS or not values.keys() <= set(Options._fields):
        raise ValueError(f"{_USAGE}; NAME is one of {', '.join(AGENTS)}")
    for name, convert in (("budget", int), ("deadline", float), ("idle", float)):
        if name in values:
            values[name] = convert(values[name])
    for name in ("index_dir", "upload_dir"):
        values[name] = Path(values.get(name) or Options._field_defaults[name]).absolute()
    return Options(**values)


def _input() -> bytes:
    data = sys.stdin.buffer.read(_MAX_INPUT + 1)
    if len(data) > _MAX_INPUT:
        while sys.stdin.buffer.read(1_000_000):  # the agent may wait until all is read
            pass
        raise ValueError(f"the event has over {_MAX_INPUT} bytes and is not captured")
    return data


def _begin_companion(spool: Spool, options: Options) -> None:
    """Start the companion of this memory, unless it has shown lately that it lives. A second one ends at once."""
    try:
        if time.time() - spool.alive.stat().st_mtime < _ALIVE:
            return
    except OSError:  # it does not run
        if not options.index_dir.is_dir() and not spool.folder.is_dir():
            return  # there is nothing to store, and no memory to answer from
    # -P: the agent's working folder is not searched for modules
    program = [sys.executable, "-P", "-m", "agentformer.hooks.companion"]
    program += [str(options.index_dir), str(options.upload_dir), str(options.idle)]
    import subprocess  # rarely needed: a companion answers many hooks

    none = subprocess.DEVNULL
    subprocess.Popen(  # noqa: S603 (our own interpreter and code)
        program, stdin=none, stdout=none, stderr=none, start_new_session=True
    )


def _warm(spool: Spool, event: Event, options: Options, left: float) -> str | None:
    """Return the answer of the companion, which is "" if it takes too long, or None if it cannot be reached."""
    asked = {"event": event._asdict() | {"text": event.text[:_MAX_PROMPT]}, "budget": options.budget}
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(max(0.01, left))
        connection.connect(str(spool.socket))
    except (OSError, AttributeError):  # it has not started, or this system has no such sockets
        return None
    try:
        connection.sendall(json.dumps(asked).encode() + b"\n")
        with connection.makefile("rb") as answer:
            return str(json.loads(answer.read())["context"])
    except (OSError, ValueError, KeyError):
        return ""


def _cold(event: Event, options: Options) -> str:
    """Return the answer by words alone, without loading a model. A memory that does not exist yet is not created."""
    if not options.index_dir.is_dir():
        return ""
    os.chdir(options.index_dir)  # a file .env of the agent's working folder must not change the settings
    from agentformer.hooks.recall import at_start, opened, recalled

    with opened(options.index_dir, options.upload_dir) as af:
        if event.kind == "start":
            return at_start(af, event._asdict(), budget=options.budget)
        return recalled(af, event._asdict(), budget=options.budget, mode="lexical")
