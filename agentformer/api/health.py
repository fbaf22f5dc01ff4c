"""Endpoints of the server's health: alive, ready, and the state of all parts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from flask import Response
from pydantic import BaseModel, ConfigDict, Field

from agentformer.access.grant import Grant
from agentformer.api.models import ResponseModel
from agentformer.api.operations import Operation, Operations
from agentformer.api.response import reply
from agentformer.errors import EmbedderUnavailable
from agentformer.factory import AgentFormer
from agentformer.types import Query, Scope

log = logging.getLogger("agentformer")

_TAG = "server"
_OK = "ok"
_BUSY = "busy"  # such as an index that is being updated after an upload; requests wait and are answered
_CHECK_SECONDS = 0.4  # for one part: two parts are checked, and monitors give up after a second
_NO_ENTRY = "-"  # the id of no entry
_FAILURE = EmbedderUnavailable.__name__  # a text that is too long is not a failure of the embedder
_UNREADABLE = "unreadable; see the server's log"
_UNAVAILABLE = "unavailable; memories are stored, and found by their words"
_NOT_LOADED = "not used yet; loaded at its first use"


class Alive(ResponseModel):
    """The process answers."""

    status: Literal["ok"]


class Parts(ResponseModel):
    """For each part `ok`, or its problem in a few words."""

    store: str
    index: str
    embedder: str = Field(description="While it is unavailable, memories are stored, and found by their words.")


class Readiness(ResponseModel):
    """Readiness of the server for requests."""

    status: Literal["ready", "not ready"]
    parts: Parts


class State(BaseModel):
    """Counts and states of all parts; the fields depend on the backend."""

    model_config = ConfigDict(extra="allow")

    cleaner: dict[str, Any]
    spaces: list[Any] = Field(description="Embedding spaces.")
    providers: dict[str, Any] = Field(description="Calls, tokens and errors of each provider.")


def add_health(operations: Operations, af: AgentFormer) -> None:
    """Declare the endpoints."""
    readiness = ReadinessChecks(af)

    @operations.declare(Operation(method="GET", path="/healthz", right=None, returns={200: Alive}, tag=_TAG))
    def healthz() -> Response:
        """Check that the process answers."""
        return reply({"status": "ok"})

    @operations.declare(
        Operation(
            method="GET",
            path="/readyz",
            right=None,
            returns={200: Readiness, 503: Readiness},
            tag=_TAG,
        )
    )
    def readyz() -> Response:
        """Check that requests can be answered.

        503 while the store or the index cannot be read. A busy part and an unavailable embedder are reported, but are
        no reason to send requests to another server.
        """
        parts = readiness.parts()
        ready = all(parts[name] in (_OK, _BUSY) for name in ("store", "index"))
        return reply({"status": "ready" if ready else "not ready", "parts": parts}, 200 if ready else 503)

    @operations.declare(Operation(method="GET", path="/api/status", right="admin", returns={200: State}, tag=_TAG))
    def status(grant: Grant) -> Response:
        """Return counts and states of all parts, over all namespaces.

        The same as `agentformer status --json`, for the process that answers. Refused for a key that is limited to
        namespaces.
        """
        grant.require_all_namespaces()
        return reply(af.status())


class ReadinessChecks:
    """Checks the parts of a memory. No check loads a model or waits long. If a part hangs, it blocks only one thread,
    even if it is checked many times. Thread-safe."""

    def __init__(self, af: AgentFormer) -> None:
        self._store = _Check("store", lambda: af.backend.get([_NO_ENTRY]))
        self._index = _Check("index", lambda: _search(af))
        self._embedder = _EmbedderState(af.usage)

    def parts(self) -> dict[str, str]:
        """Return the state of each part."""
        return {"store": self._store.state(), "index": self._index.state(), "embedder": self._embedder.state()}


class _Check:
    """A check that runs in its own thread. Only one run is active at a time."""

    def __init__(self, name: str, check: Callable[[], object]) -> None:
        self._name = name
        self._check = check
        self._lock = threading.Lock()
        self._running: tuple[threading.Event, list[str]] | None = None

    def state(self) -> str:
        """Return the result of a new check. If a check is already running, return the result of that check."""
        with self._lock:
            if self._running is None or self._running[0].is_set():
                self._running = threading.Event(), []
                threading.Thread(target=self._run, args=self._running, daemon=True).start()
            done, result = self._running
        return result[0] if done.wait(_CHECK_SECONDS) else _BUSY

    def _run(self, done: threading.Event, result: list[str]) -> None:
        try:
            self._check()
            result.append(_OK)
        except Exception as error:  # noqa: BLE001 - after any error the part cannot be used
            log.error("the %s is not ready: %s", self._name, error)
            result.append(_UNREADABLE)
        finally:
            done.set()


def _search(af: AgentFormer) -> None:
    """Run a search by words. This updates the index from the records and needs no model."""
    for namespace in af.backend.namespaces()[:1]:
        af.backend.search(Query("ready", Scope(namespace), limit=1, mode="lexical"))


class _EmbedderState:
    """The state of the embedder, judged by the calls since the last check. If there were no calls, the state does not
    change."""

    def __init__(self, usage: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._usage = usage
        self._lock = threading.Lock()
        self._last_counts = (0, 0)
        self._state = _NOT_LOADED

    def state(self) -> str:
        """Return the state, and remember the counts."""
        usage = [counts for name, counts in self._usage().items() if name.startswith("embedder ")]
        totals = (
            sum(counts["calls"] for counts in usage),
            sum(counts["errors"].get(_FAILURE, 0) for counts in usage),
        )
        with self._lock:
            calls, errors = (now - before for now, before in zip(totals, self._last_counts, strict=True))
            self._last_counts = totals
            if errors:
                self._state = _UNAVAILABLE
            elif calls:
                self._state = _OK
            return self._state
