"""Endpoints about the server: health, readiness, state, checks of the stored data, and nodes."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
from collections.abc import Callable
from typing import Any, Literal

from flask import Response
from pydantic import BaseModel, ConfigDict, Field

from agentformer.access.keys import KeyStore
from agentformer.access.permissions import Grant
from agentformer.api.models import ResponseModel, fields_of
from agentformer.api.operations import Router, Service
from agentformer.api.response import reply
from agentformer.errors import EmbedderUnavailable
from agentformer.factory import AgentFormer
from agentformer.http.patient import Patient
from agentformer.types import Check, Query, Scope

log = logging.getLogger("agentformer")

_OK = "ok"
_BUSY = "busy"  # for example, while an index is updated after an upload; requests wait and are answered
_CHECK_SECONDS = (
    0.3  # for one part; the check of three parts must take less than a second, after which monitors give up
)
_HANG_SECONDS = 3.0  # after this time without an answer, the store is not busy, but cannot be used
_NO_ENTRY = "-"  # an id that no entry has
_FAILURE = EmbedderUnavailable.__name__  # a text that is too long is not a failure of the embedder
_UNREADABLE = "unreadable; see the log of the server"
_HANGS = "does not answer"
_UNAVAILABLE = "unavailable; memories are stored, and searches find them by their words"
_NOT_LOADED = "not used yet; the embedder is loaded at its first use"

router = Router("server")


class Alive(ResponseModel):
    """The response of `/healthz`, which shows that the process answers requests."""

    status: Literal["ok"]


class Parts(ResponseModel):
    """The state of each part of the memory: `ok`, `busy`, or a short description of the problem."""

    store: str
    index: str
    keys: str = Field(description="While the API keys cannot be read, every request that needs a key is refused.")
    embedder: str = Field(
        description="While the embedder is unavailable, memories are stored, and searches find them by their words."
    )


class Readiness(ResponseModel):
    """The readiness of the server for requests, and the state of each part."""

    status: Literal["ready", "not ready"]
    parts: Parts


class State(BaseModel):
    """Counts and states of all parts of the memory. Further fields depend on the storage backend."""

    model_config = ConfigDict(extra="allow")

    cleaner: dict[str, Any]
    spaces: list[Any] = Field(description="The embedding spaces. A space is the set of vectors of one embedding model.")
    providers: dict[str, Any] = Field(description="The calls, tokens and errors of each provider.")


class Namespaces(ResponseModel):
    """The names of namespaces, and the rights of the caller in them."""

    namespaces: list[str]
    rights: list[str] = Field(description="The rights of the caller. `admin` includes `read` and `write`.")


class CheckResult(fields_of(Check)):  # type: ignore[misc]
    """The result of one check."""


class Checked(ResponseModel):
    """The last check of the stored data by the server process that answers the request."""

    state: Literal["never", "running", "done", "failed"]
    started_at: str | None
    finished_at: str | None
    well: bool | None = Field(description="True if nothing wrong was found; null before the first check has ended.")
    problem: str = Field(description="The reason why the check failed, or an empty text.")
    checks: list[CheckResult] = Field(description="The results of the last check that has ended.")


class Node(ResponseModel):
    """A process, such as a server or a worker, that uses a memory which several machines share."""

    id: str
    name: str
    role: str
    alive: bool
    seen: float = Field(description="The seconds since the node last reported.")
    claimed: int = Field(description="The number of entries that the node embeds now.")
    embedded: int = Field(description="The number of entries that the node has embedded from the queue.")
    leases: list[str]


class Queue(ResponseModel):
    """The entries that wait for vectors."""

    waiting: int
    claimed: int
    refused: int
    age: float = Field(
        description="The age in seconds of the oldest waiting entry. Entries that the embedder refused, for example as "
        "too long, do not count."
    )


class Nodes(ResponseModel):
    """The nodes of a shared memory. If the memory is not shared, the list is empty and `queue` is null."""

    nodes: list[Node]
    queue: Queue | None


@router.route("GET", "/healthz", None, {200: Alive})
def healthz(service: Service) -> Response:
    """Check that the process answers requests."""
    return reply({"status": "ok"})


@router.route("GET", "/readyz", None, {200: Readiness, 503: Readiness})
def readyz(service: Service) -> Response:
    """Check that the server can use the store, the index and the API keys.

    The response is 503 while one of them cannot be read, or if the store has not answered for 3 seconds, as when its
    database hangs. If the store or the index is only busy, or if the embedder is unavailable, the response is
    200, because the server can still answer requests.
    """
    parts = service.readiness()
    ready = all(parts[name] in (_OK, _BUSY) for name in ("store", "index", "keys"))
    return reply({"status": "ready" if ready else "not ready", "parts": parts}, 200 if ready else 503)


@router.route("GET", "/api/status", "status", {200: State})
def status(service: Service, grant: Grant) -> Response:
    """Return counts and states of all parts, over all namespaces.

    The fields are the same as in the output of `agentformer status --json`. Only the calls of models by the server
    process that answers the request are counted. A key that is limited to namespaces is refused."""
    grant.require_all_namespaces()
    return reply(service.af.status())


@router.route("GET", "/api/namespaces", "namespaces", {200: Namespaces})
def namespaces(service: Service, grant: Grant) -> Response:
    """List the namespaces that contain an entry and that the key may use, sorted by name, and the rights of the key."""
    names = [name for name in service.af.backend.namespaces() if grant.reaches(name)]
    return reply({"namespaces": names, "rights": sorted(grant.rights)})


@router.route("GET", "/api/checks", "checks", {200: Checked})
def checks(service: Service, grant: Grant) -> Response:
    """Return the state of the last check of the stored data, and its results.

    The check covers all namespaces. A key that is limited to namespaces is refused.
    """
    grant.require_all_namespaces()
    return reply(service.checks.state())


@router.route("POST", "/api/checks", "checks", {202: Checked})
def check(service: Service, grant: Grant) -> Response:
    """Start the same check of the stored data as the command `agentformer doctor`.

    The response does not wait for the end of the check. The check changes nothing. To repair what was found, run
    `agentformer doctor --repair` on the machine of the server. If a check is running, no second one is started.
    """
    grant.require_all_namespaces()
    service.checks.start()
    return reply(service.checks.state(), 202)


@router.route("GET", "/api/nodes", "checks", {200: Nodes})
def nodes(service: Service, grant: Grant) -> Response:
    """List the nodes of a memory that several machines share, and the state of the embedding queue."""
    grant.require_all_namespaces()
    memory = service.af.distributed
    if memory is None:
        return reply({"nodes": [], "queue": None})
    found = [{**dataclasses.asdict(node), "leases": [*node.leases]} for node in memory.nodes()]
    return reply({"nodes": found, "queue": dataclasses.asdict(memory.queue())})


class ReadinessChecks:
    """Checks whether the parts of a memory can be used. No check loads a model or waits long. If a part hangs, only one
    thread is blocked, even if the part is checked many times. Thread-safe."""

    def __init__(self, af: AgentFormer, keys: KeyStore | None) -> None:
        self._af = af
        self._keys = _Check("key store", lambda: keys and keys.all(), hangs_after=_HANG_SECONDS)
        self._store = _Check("store", lambda: af.backend.get([_NO_ENTRY]), hangs_after=_HANG_SECONDS)
        self._index = _Check("index", self._search, hangs_after=math.inf)  # an update after an upload takes long
        self._lock = threading.Lock()
        self._counts = (0, 0)  # calls and errors of the embedder at the last check
        self._embedder = _NOT_LOADED

    def parts(self) -> dict[str, str]:
        """Return the state of each part, by the name of the part."""
        checks = {"store": self._store, "index": self._index, "keys": self._keys}
        return {**{name: check.state() for name, check in checks.items()}, "embedder": self._embedder_state()}

    def _search(self) -> None:
        """Search by words, to check the index. The search updates the index, and needs no model."""
        for namespace in self._af.backend.namespaces()[:1]:
            self._af.backend.search(Query("ready", Scope(namespace), limit=1, mode="lexical"))

    def _embedder_state(self) -> str:
        """Return the state of the embedder, from the calls since the last check. The state is "unavailable" if one of
        these calls found the embedder unavailable, and otherwise `ok`. If there were no calls, return the former state.
        """
        usage = [counts for name, counts in self._af.usage().items() if name.startswith("embedder ")]
        calls = sum(counts["calls"] for counts in usage)
        errors = sum(counts["errors"].get(_FAILURE, 0) for counts in usage)
        with self._lock:
            if errors > self._counts[1]:
                self._embedder = _UNAVAILABLE
            elif calls > self._counts[0]:
                self._embedder = _OK
            self._counts = calls, errors
            return self._embedder


class _Check:
    """A check of one part in its own thread. At most one run of the check is active at a time."""

    def __init__(self, name: str, check: Callable[[], object], *, hangs_after: float) -> None:
        self._name = name
        self._check = check
        self._hangs_after = hangs_after
        self._run = Patient(self._result)
        self._told = False  # whether the present hang was logged

    def state(self) -> str:
        """Start the check unless it is running, and return its result. Return `busy` if the check takes too long, and
        `does not answer` if it has been running for `hangs_after` seconds."""
        try:
            state = self._run.result(_CHECK_SECONDS)
        except TimeoutError:
            if self._run.waiting <= self._hangs_after:
                return _BUSY
            if not self._told:
                self._told = True
                log.warning("the %s has not answered for more than %g seconds", self._name, self._hangs_after)
            return _HANGS
        self._told = False
        return state

    def _result(self) -> str:
        try:
            self._check()
        except Exception as error:  # noqa: BLE001 - after any error the part cannot be used
            log.error("the %s is not ready: %s", self._name, error)
            return _UNREADABLE
        return _OK
