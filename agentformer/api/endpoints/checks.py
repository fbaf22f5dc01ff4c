"""Endpoints that verify the stored data, as the command `agentformer doctor` does, and that list the nodes."""

from __future__ import annotations

import dataclasses
from typing import Literal

from flask import Response
from pydantic import Field

from agentformer.access.permissions import Grant
from agentformer.api.models import ResponseModel
from agentformer.api.operations import Router, Service
from agentformer.api.response import reply

CHECKS = "/api/checks"

router = Router("server")


class CheckResult(ResponseModel):
    """The result of one check."""

    name: str = Field(description="What was checked, such as `records`, `vectors` or `words`.")
    asked: str = Field(description="The condition that was checked. It holds if `found` is 0.")
    looked_at: int = Field(description="The number of checked items.")
    found: int = Field(description="The number of wrong items.")
    mended: int = Field(description="The number of repaired items. It is 0, because this check repairs nothing.")
    findings: list[str] = Field(description="The first findings, each with what to do.")
    lost: int


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
    seen: float = Field(description="Seconds since the last sign of life.")
    claimed: int = Field(description="The number of entries that the node embeds now.")
    embedded: int = Field(description="The number of entries that the node has embedded from the queue.")
    leases: list[str]


class Queue(ResponseModel):
    """The entries that wait for vectors."""

    waiting: int
    claimed: int
    refused: int
    age: float = Field(description="The age in seconds of the oldest entry that waits, without refused entries.")


class Nodes(ResponseModel):
    """The nodes of a shared memory. If the memory is not shared, the list is empty and `queue` is null."""

    nodes: list[Node]
    queue: Queue | None


@router.route("GET", CHECKS, "checks", {200: Checked})
def checks(service: Service, grant: Grant) -> Response:
    """Return the state of the last check of the stored data, and its results.

    The check covers all namespaces. A key that is limited to namespaces is refused.
    """
    grant.require_all_namespaces()
    return reply(service.checks.state())


@router.route("POST", CHECKS, "checks", {202: Checked})
def check(service: Service, grant: Grant) -> Response:
    """Start a check of the stored data, as the command `agentformer doctor` does, and do not wait for its end.

    Nothing is changed. To repair what was found, run `agentformer doctor --repair` on the machine of the server. If a
    check is running, no second one is started.
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
