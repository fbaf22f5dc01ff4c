"""Endpoints that look after memories: clean, restore, reindex and audit."""

from __future__ import annotations

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.memory.entries import ALL, TAG
from agentformer.api.memory.entry_responses import entries_json, seen
from agentformer.api.models import memory as models
from agentformer.api.models import requests
from agentformer.api.operations import Operations, always
from agentformer.api.response import reply
from agentformer.factory import AgentFormer
from agentformer.tools.shapes import report_json
from agentformer.types import Scope

_SHOWN = 100  # entries that wait, with why


def add_upkeep(operations: Operations, af: AgentFormer) -> None:
    _add_summaries(operations, af)
    _add_indexes(operations, af)


def _add_summaries(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        "POST",
        f"{ALL}/clean",
        right="write",
        body=requests.CleaningRequest,
        returns={200: models.CleaningReport},
        asks=always,
        tag=TAG,
        tool="memory_consolidate",
    )
    def clean(grant: Grant, body: requests.CleaningRequest) -> Response:
        """Turn older messages into summaries.

        Their originals are archived, and can be brought back. Of one session, or of all in the namespace.
        """
        namespace = grant.namespace(body.namespace)
        return reply(report_json(af.memory.clean(namespace=namespace, session_id=body.session_id)))

    @operations.declare(
        "POST",
        f"{ALL}/restore",
        right="write",
        body=requests.RestoreRequest,
        returns={200: models.Entries, 204: None},
        faults=(404, 409),
        asks=always,
        tag=TAG,
    )
    def restore(grant: Grant, body: requests.RestoreRequest) -> Response:
        """Bring the originals of a summary back, or an entry that was superseded.

        They come back exactly as they were, and the summary leaves the results. 204 for a key that may not read.
        """
        seen(af, grant, body.summary_id)
        restored = af.memory.restore(body.summary_id)
        return reply({"entries": entries_json(restored)}) if grant.may("read") else Response(status=204)


def _add_indexes(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        "POST",
        f"{ALL}/reindex",
        right="admin",
        body=requests.NamespaceBody,
        returns={200: models.Reindexed},
        asks=always,
        tag=TAG,
    )
    def reindex(grant: Grant, body: requests.NamespaceBody) -> Response:
        """Embed what waits for its vectors, in every namespace, and tell what still waits in this one."""
        scope = Scope(grant.namespace(body.namespace))
        af.memory.reindex()
        waiting = af.backend.waiting(scope, limit=_SHOWN)
        return reply({"pending": af.backend.pending(scope), "waiting": [report_json(item) for item in waiting]})

    @operations.declare(
        "GET",
        f"{ALL}/audit",
        right="read",
        query=requests.NamespaceQuery,
        returns={200: models.AuditReport},
        tag=TAG,
        tool="memory_audit",
    )
    def audit(grant: Grant, query: requests.NamespaceQuery) -> Response:
        """Tell what a person should look at: duplicates, memories that nobody reads, contradictions, full blocks."""
        return reply(report_json(af.memory.audit(namespace=grant.namespace(query.namespace))))
