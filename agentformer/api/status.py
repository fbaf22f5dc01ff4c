"""`GET /api/status`: counts, embedding spaces, and what the providers were asked, with their last errors."""

from __future__ import annotations

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.models.health import State
from agentformer.api.operations import Operations
from agentformer.api.response import reply
from agentformer.factory import AgentFormer


def add_status(operations: Operations, af: AgentFormer) -> None:
    @operations.declare("GET", "/api/status", right="admin", returns={200: State}, tag="server")
    def status(grant: Grant) -> Response:
        """Tell how all parts are, over every namespace.

        What `agentformer status --json` prints, of the process that answers. A key that is bound to namespaces may not
        ask.
        """
        grant.require_all_namespaces()
        return reply(af.status())
