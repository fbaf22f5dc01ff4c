"""Endpoints that recall: search, sessions, and the context of a task."""

from __future__ import annotations

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.memory.entries import ALL, TAG
from agentformer.api.memory.entry_responses import entries_json, kept
from agentformer.api.models import memory as models
from agentformer.api.models import requests
from agentformer.api.operations import Operations, always
from agentformer.api.response import reply
from agentformer.errors import TooLarge
from agentformer.factory import AgentFormer
from agentformer.tools.shapes import context_json, memory_hit_json


def add_searching(operations: Operations, af: AgentFormer) -> None:
    _add_search(operations, af)
    _add_messages(operations, af)
    _add_context(operations, af)


def _add_search(operations: Operations, af: AgentFormer) -> None:
    most = af.settings.max_question_chars

    @operations.declare(
        "POST",
        f"{ALL}/search",
        right="read",
        body=requests.MemorySearch,
        returns={200: models.MemoryHits},
        faults=(409,),
        asks=lambda body: body.mode != "lexical",
        tag=TAG,
        tool="memory_search",
    )
    def search(grant: Grant, body: requests.MemorySearch) -> Response:
        """Find memories and passages of documents, best first.

        All that is given beside `text` must fit. What comes back counts as used, which keeps it from fading.
        """
        if len(body.text) > most:
            raise TooLarge("max_question_chars", f"the text has {len(body.text)} characters, over {most}")
        given = {**body.model_dump(), "namespace": grant.namespace(body.namespace)}
        hits = af.memory.search(**given)
        return reply({"hits": [memory_hit_json(hit) for hit in hits], "warnings": list(hits.warnings)})


def _add_messages(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        "POST",
        f"{ALL}/messages",
        right="write",
        body=requests.NewMessage,
        returns={201: models.Entry},
        asks=always,
        tag=TAG,
    )
    def message(grant: Grant, body: requests.NewMessage) -> Response:
        """Keep what was said in a session.

        Messages are kept each time, also when they repeat. Every few of them, the session's old ones become a summary.
        """
        given = {**body.model_dump(exclude_unset=True), "namespace": grant.namespace(body.namespace)}
        return kept(af.memory.add_message(**given), grant)

    @operations.declare(
        "GET",
        f"{ALL}/messages",
        right="read",
        query=requests.TranscriptQuery,
        returns={200: models.Transcript},
        tag=TAG,
        tool="conversation_search",
    )
    def transcript(grant: Grant, query: requests.TranscriptQuery) -> Response:
        """Give a session's messages exactly as they were said, in order, summarised or not."""
        said = af.memory.transcript(query.session_id, namespace=grant.namespace(query.namespace))
        return reply({"messages": entries_json(said)})


def _add_context(operations: Operations, af: AgentFormer) -> None:
    most = af.settings.max_question_chars

    @operations.declare(
        "POST",
        f"{ALL}/context",
        right="read",
        body=requests.ContextRequest,
        returns={200: models.Context},
        faults=(409, 413),
        asks=always,
        tag=TAG,
    )
    def context(grant: Grant, body: requests.ContextRequest) -> Response:
        """Build what a model should be given for a task, within a budget of tokens.

        Core memory, what was said, and what memory holds about the task, as messages; and a report of what is in them
        and what was left out.
        """
        if len(body.task) > most:
            raise TooLarge("max_question_chars", f"the task has {len(body.task)} characters, over {most}")
        given = {**body.model_dump(), "namespace": grant.namespace(body.namespace)}
        return reply(context_json(af.memory.build_context(**given)))
