"""Endpoints that tell how the server is: alive, ready, and in figures."""

from __future__ import annotations

from flask import Response

from agentformer.api.metrics import add_metrics
from agentformer.api.models import health as models
from agentformer.api.operations import Operations
from agentformer.api.readiness import Readiness, is_usable
from agentformer.api.response import reply
from agentformer.api.status import add_status
from agentformer.factory import AgentFormer

_TAG = "server"


def add_health(operations: Operations, af: AgentFormer) -> None:
    readiness = Readiness(af)

    @operations.declare("GET", "/healthz", right=None, returns={200: models.Alive}, tag=_TAG)
    def healthz() -> Response:
        """Tell that the process is alive."""
        return reply({"status": "ok"})

    @operations.declare("GET", "/readyz", right=None, returns={200: models.Readiness, 503: models.Readiness}, tag=_TAG)
    def readyz() -> Response:
        """Tell whether requests can be served now.

        503 while the store or the index cannot be read. A part that is busy is told, as is an embedder that is away;
        neither is a reason to send requests elsewhere.
        """
        parts = readiness.parts()
        ready = is_usable(parts["store"]) and is_usable(parts["index"])
        return reply({"status": "ready" if ready else "not ready", "parts": parts}, 200 if ready else 503)

    add_metrics(operations, af)
    add_status(operations, af)
