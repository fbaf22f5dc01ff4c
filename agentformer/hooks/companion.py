"""The companion: one process in the background for each memory, which stores captured events and answers hooks.

A hook starts it if it does not run. It holds a lock, so that a second one ends at once. It ends after some minutes
without an event. While it lives, its models are loaded, so it answers a hook by words and vectors within milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import Timeout

from agentformer.archive.chats.echoes import HOOK, echoes
from agentformer.errors import AgentFormerError, InvalidInput
from agentformer.factory import AgentFormer
from agentformer.hooks.recall import at_start, opened, recalled
from agentformer.hooks.spool import Captured, Spool
from agentformer.memory.validation import new_message
from agentformer.settings.access import file_lock
from agentformer.types import MemoryEntry

log = logging.getLogger("agentformer.hooks")

_POLL = 0.3  # seconds between two looks at the spool
_BATCH = 50  # events of one transaction
_RETRY = 5.0  # seconds until events are tried again that could not be stored
_MAX_REQUEST = 200_000  # bytes
_ROLES = {"prompt": "user", "answer": "assistant"}
SOURCE = HOOK  # `source_type` of entries that were captured
TOOL = "tool"  # category of the uses of tools, which are kept and not searched


def run(index_dir: Path, upload_dir: Path, idle: float) -> None:
    """Store the events of the spool and answer hooks, until there was no event for `idle` seconds."""
    spool = Spool(index_dir.absolute())
    spool.make()
    upload_dir = upload_dir.absolute()
    os.chdir(spool.folder)  # a file .env of the agent's working folder must not change the settings
    while True:
        try:
            with file_lock(spool.folder / "companion.lock", timeout=0):
                _serve(spool, upload_dir, idle)
        except Timeout:
            return  # another companion runs
        if not any(spool.waiting()):  # no hook has written an event while this process was ending
            return


def _serve(spool: Spool, upload_dir: Path, idle: float) -> None:
    """Store events and answer hooks until there was neither for `idle` seconds."""
    with contextlib.ExitStack() as closing:
        spool.alive.touch(mode=0o600)
        closing.callback(spool.alive.unlink, missing_ok=True)
        af = closing.enter_context(opened(spool.folder.parent, upload_dir))
        recalled(af, {"text": "first", "project": "", "session": ""})  # loads the model; until then, hooks use words
        answering = _Answers(spool.socket, af)
        closing.callback(answering.close)
        until = time.monotonic() + idle
        while time.monotonic() < max(until, answering.used + idle):
            spool.alive.touch(mode=0o600)
            try:
                if batch := [*islice(spool.waiting(), _BATCH)]:
                    _store(af, batch)
                    until = time.monotonic() + idle
            except AgentFormerError as error:
                log.warning("captured events cannot be stored now: %s", error)
                time.sleep(min(_RETRY, idle))
            time.sleep(_POLL)


def _store(af: AgentFormer, events: list[Captured]) -> None:
    """Store events, and delete their files. An event that was stored before is replaced by itself. An event that no
    memory can hold is set aside as `NAME.bad`."""
    said = [event for event in events if event.values["kind"] in _ROLES]
    uses = [{**_owner(event), "content": _used(event.values)} for event in events if event.values["kind"] == "tool"]
    try:
        _store_messages(af, said)
        if uses:
            af.memory.upsert_many(uses, tier="episodic", category=TOOL, searchable=False)
    except InvalidInput as error:
        if len(events) > 1:
            for event in events:
                _store(af, [event])
            return
        log.warning("a captured event is set aside: %s", error)
        events[0].file.rename(events[0].file.with_suffix(".bad"))
    for event in events:
        event.file.unlink(missing_ok=True)


def _store_messages(af: AgentFormer, events: list[Captured]) -> None:
    """Store the messages that an import of the agent's files has not stored before."""
    by_agent: defaultdict[str, list[MemoryEntry]] = defaultdict(list)
    for event in events:
        by_agent[event.values["agent"]].append(new_message(_message(event)))
    for agent, entries in by_agent.items():
        imported = echoes(af.backend, entries, agent, set())
        af.memory.add_checked([entry for entry in entries if entry.id not in imported])


def _owner(event: Captured) -> dict[str, Any]:
    values = event.values
    return {
        "project": values["project"] or None,
        "session_id": values["session"] or None,
        "agent_id": values["agent"],
        "source_type": SOURCE,
        "source_id": event.id,
        "occurred_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(values.get("at", time.time()))),
    }


def _message(event: Captured) -> dict[str, Any]:
    owner = _owner(event)
    owner["session_id"] = owner["session_id"] or "hook"
    return {**owner, "role": _ROLES[event.values["kind"]], "content": event.values["text"]}


def _used(values: Mapping[str, Any]) -> str:
    return f"{values['tool'] or 'tool'}: {values['given']}\n{values['output']}".strip()


class _Answers:
    """Answers hooks on a socket that only the owner of the memory can reach."""

    def __init__(self, path: Path, af: AgentFormer) -> None:
        self.used = 0.0  # when the last hook was answered, on the monotonic clock
        self._af = af
        self._path = path
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError, AttributeError):  # no such sockets on this system, or too long a path
            path.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(str(path))
            path.chmod(0o600)
            listening.listen(8)
            self._socket = listening
            threading.Thread(target=self._accept, args=[listening], daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        if self._socket is not None:
            self._path.unlink(missing_ok=True)
            self._socket.close()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = listening.accept()
                try:
                    with connection:
                        connection.settimeout(2)
                        self._answer(connection)
                except Exception as error:  # noqa: BLE001 - one bad request must not end the others
                    log.warning("a hook was not answered: %s", error)

    def _answer(self, connection: socket.socket) -> None:
        self.used = time.monotonic()
        with connection.makefile("rb") as given:
            asked = json.loads(given.readline(_MAX_REQUEST))
        find = at_start if asked["event"]["kind"] == "start" else recalled
        text = find(self._af, asked["event"], budget=asked["budget"])
        connection.sendall(json.dumps({"context": text}).encode())


if __name__ == "__main__":
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    run(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
