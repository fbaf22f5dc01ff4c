"""Endpoints of a whole memory: search, messages, context, and maintenance."""

from __future__ import annotations

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.memory.entries import MEMORY, TAG, entries_json, find_entry, stored_response
from agentformer.api.models import memory as models
from agentformer.api.models import requests
from agentformer.api.operations import Operation, Operations
from agentformer.api.response import reply
from agentformer.errors import TooLarge
from agentformer.factory import AgentFormer
from agentformer.tools.result_json import context_json, memory_hit_json, report_json
from agentformer.types import Scope

_MAX_WAITING = 100  # entries without vectors in a response


def add_search(operations: Operations, af: AgentFormer) -> None:
    """Declare the endpoints of search, messages and context."""
    _add_search(operations, af)
    _add_messages(operations, af)
    _add_context(operations, af)


def add_maintenance(operations: Operations, af: AgentFormer) -> None:
    """Declare the endpoints of summaries, the index and the audit."""
    _add_clean(operations, af)
    _add_restore(operations, af)
    _add_reindex(operations, af)
    _add_audit(operations, af)


def _add_search(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=f"{MEMORY}/search",
            right="read",
            body=requests.MemorySearch,
            returns={200: models.MemoryHits},
            errors=(409,),
            uses_model=lambda body: body.mode != "lexical",
            tag=TAG,
            tool="memory_search",
        )
    )
    def search(grant: Grant, body: requests.MemorySearch) -> Response:
        """Search memories and passages of documents, best first.

        Results match all filters. Each result counts as used, which keeps up its salience.
        """
        _check_length("text", body.text, af.settings.max_question_chars)
        arguments = {**body.model_dump(), "namespace": grant.namespace(body.namespace)}
        hits = af.memory.search(**arguments)
        return reply({"hits": [memory_hit_json(hit) for hit in hits], "warnings": list(hits.warnings)})


def _add_messages(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=f"{MEMORY}/messages",
            right="write",
            body=requests.NewMessage,
            returns={201: models.Entry},
            uses_model=True,
            tag=TAG,
        )
    )
    def add_message(grant: Grant, body: requests.NewMessage) -> Response:
        """Store a message of a session.

        Repeated messages are stored each time. Every few messages, old messages of the session become a summary.
        """
        arguments = {**body.model_dump(exclude_unset=True), "namespace": grant.namespace(body.namespace)}
        return stored_response(af.memory.add_message(**arguments), grant)

    @operations.declare(
        Operation(
            method="GET",
            path=f"{MEMORY}/messages",
            right="read",
            query=requests.TranscriptQuery,
            returns={200: models.Transcript},
            tag=TAG,
            tool="conversation_search",
        )
    )
    def transcript(grant: Grant, query: requests.TranscriptQuery) -> Response:
        """List the original messages of a session in order, summarized or not."""
        messages = af.memory.transcript(query.session_id, namespace=grant.namespace(query.namespace))
        return reply({"messages": entries_json(messages)})


def _add_context(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=f"{MEMORY}/context",
            right="read",
            body=requests.ContextRequest,
            returns={200: models.Context},
            errors=(409, 413),
            uses_model=True,
            tag=TAG,
        )
    )
    def context(grant: Grant, body: requests.ContextRequest) -> Response:
        """Build the context of a language model for a task, within a token budget.

        The messages contain core memory, the conversation, and memories about the task. The report lists what is
        included and what was left out.
        """
        _check_length("task", body.task, af.settings.max_question_chars)
        arguments = {**body.model_dump(), "namespace": grant.namespace(body.namespace)}
        return reply(context_json(af.memory.build_context(**arguments)))


def _add_clean(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=f"{MEMORY}/clean",
            right="write",
            body=requests.CleaningRequest,
            returns={200: models.CleaningReport},
            uses_model=True,
            tag=TAG,
            tool="memory_consolidate",
        )
    )
    def clean(grant: Grant, body: requests.CleaningRequest) -> Response:
        """Summarize older messages of one session, or of all sessions in the namespace.

        The originals are archived and can be restored.
        """
        namespace = grant.namespace(body.namespace)
        return reply(report_json(af.memory.clean(namespace=namespace, session_id=body.session_id)))


def _add_restore(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=f"{MEMORY}/restore",
            right="write",
            body=requests.RestoreRequest,
            returns={200: models.Entries, 204: None},
            errors=(404, 409),
            uses_model=True,
            tag=TAG,
        )
    )
    def restore(grant: Grant, body: requests.RestoreRequest) -> Response:
        """Restore the originals of a summary, or an entry that was superseded.

        The entries are unchanged, and the summary is no longer found. 204 for a key without the right to read.
        """
        find_entry(af, grant, body.summary_id)
        restored = af.memory.restore(body.summary_id)
        return reply({"entries": entries_json(restored)}) if grant.may("read") else Response(status=204)


def _add_reindex(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=f"{MEMORY}/reindex",
            right="admin",
            body=requests.NamespaceBody,
            returns={200: models.Reindexed},
            uses_model=True,
            tag=TAG,
        )
    )
    def reindex(grant: Grant, body: requests.NamespaceBody) -> Response:
        """Embed the entries without vectors in all namespaces, and list those that still wait in this one."""
        scope = Scope(grant.namespace(body.namespace))
        af.memory.reindex()
        waiting = af.backend.waiting(scope, limit=_MAX_WAITING)
        return reply({"pending": af.backend.pending(scope), "waiting": [report_json(item) for item in waiting]})


def _add_audit(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="GET",
            path=f"{MEMORY}/audit",
            right="read",
            query=requests.NamespaceQuery,
            returns={200: models.AuditReport},
            tag=TAG,
            tool="memory_audit",
        )
    )
    def audit(grant: Grant, query: requests.NamespaceQuery) -> Response:
        """Report duplicates, unread memories, contradictions and oversized core blocks."""
        return reply(report_json(af.memory.audit(namespace=grant.namespace(query.namespace))))


def _check_length(field: str, text: str, limit: int) -> None:
    """Raises `TooLarge`."""
    if len(text) > limit:
        raise TooLarge("max_question_chars", f"the {field} has {len(text)} characters; the limit is {limit}")
