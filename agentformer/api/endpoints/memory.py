"""Endpoints for operations on a whole memory: search, messages, context, core blocks and maintenance."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from os import SEEK_END
from pathlib import Path
from typing import Any

from flask import Response

from agentformer.access.permissions import Grant
from agentformer.api.endpoints.entries import (
    MEMORY,
    entries_json,
    entry_response,
    find_entry,
    new_entry_arguments,
    stored_response,
)
from agentformer.api.models import memory as models
from agentformer.api.models import requests
from agentformer.api.operations import Router, Service, View
from agentformer.api.request import arguments_of, check_length
from agentformer.api.response import reply
from agentformer.archive.export import zipped
from agentformer.errors import InvalidInput
from agentformer.records.filters import both
from agentformer.records.offers import vectors_of
from agentformer.tools.result_json import context_json, factors_json, memory_hit_json, report_json, steps_json
from agentformer.types import DOCUMENT_KINDS, Condition, Scope

_BLOCKS = f"{MEMORY}/core"
_BLOCK = f"{_BLOCKS}/{{name}}"
_PIECE = 1 << 16  # bytes of an export that are read at a time
_MAX_WAITING = 100  # entries without vectors in a response

router = Router("memories")
core_router = Router("core memory")


def _edit_route(verb: str) -> Callable[[View], View]:
    """Return a decorator that declares a view as the endpoint that edits a core block with `verb`, such as `append`."""
    return core_router.route(
        "POST",
        f"{_BLOCK}/{verb}",
        f"core_memory_{verb}",
        {200: models.Entry},
        errors=(409,),
        uses_model=True,
    )


@router.route(
    "POST",
    f"{MEMORY}/search",
    "memory_search",
    {200: models.MemoryHits},
    errors=(409,),
    uses_model=lambda service, body: body.mode != "lexical",
)
def search(service: Service, grant: Grant, body: requests.MemorySearch) -> Response:
    """Search memories and passages of documents, and return the best results first.

    The results match all given filters. The search counts as a use of each result. While an entry is not
    used, its salience (importance) decreases."""
    check_length("text", body.text, service.af.settings)
    arguments = _without_removals(service, arguments_of(body, grant))
    hits = service.af.memory.search(**arguments)
    found = [memory_hit_json(hit) for hit in hits]
    explained = {"factors": factors_json(hits), "steps": steps_json(hits)}
    return reply({"hits": found, "warnings": list(hits.warnings), **explained})


@router.route("POST", f"{MEMORY}/count", "memory_search", {200: models.EntryNumber})
def count(service: Service, grant: Grant, body: requests.EntryCount) -> Response:
    """Count the memories and the passages of documents that match all given filters."""
    arguments = _without_removals(service, arguments_of(body, grant))
    return reply({"count": service.af.memory.count(**arguments)})


@router.route("POST", f"{MEMORY}/remove", "memory_delete", {200: models.EntryNumber})
def remove(service: Service, grant: Grant, body: requests.EntrySelection) -> Response:
    """Delete memories permanently. Give their ids, or the `source_ids` under which your application stored them, or a
    filter that they match, or the user to whom they belong.

    The memories are deleted in one transaction, with their history and the summaries that were made from them. Missing
    memories are not counted. With `user_id`, the documents of the user are deleted too, with their passages, original
    files and upload jobs; otherwise, documents stay."""
    selections = {name: getattr(body, name) for name in ("ids", "source_ids", "where", "user_id")}
    # An empty list counts as given: a client that found no ids must not delete all that the user has.
    given = {name: value for name, value in selections.items() if name in body.model_fields_set and value is not None}
    if len(given) != 1 or not all(given.values()):
        raise InvalidInput(
            "ids", "give exactly one of `ids`, `source_ids`, `where` and `user_id`; it must not be empty"
        )
    namespace, memory = grant.namespace(body.namespace), service.af.memory
    if body.user_id is not None:
        removed = service.af.forget_user(body.user_id, namespace=namespace).entries
    elif body.where:
        memories = Condition("nin", "$kind", tuple(sorted(DOCUMENT_KINDS)))
        removed = memory.remove(Scope(namespace, where=both(body.where, memories)))
    elif body.source_ids:
        records = {"source_type": body.source_type, "source_ids": body.source_ids}
        removed = memory.remove_many(**records, namespace=namespace)  # type: ignore[arg-type]
    else:
        visible = [
            entry.id
            for entry in service.af.backend.get(body.ids)
            if not grant.namespaces or entry.namespace in grant.namespaces
        ]
        removed = memory.remove_many(visible)
    return reply({"count": removed})


@router.route("GET", f"{MEMORY}/export", "export", {200: ("application/zip",)}, errors=(404, 507), uses_model=True)
def export(service: Service, grant: Grant, query: requests.ExportQuery) -> Response:
    """Export all memories and documents of a user in a namespace, as a ZIP archive with the original files.

    The archive is an export of docs/ARCHIVE.md. `agentformer import` stores its contents again."""
    with tempfile.TemporaryDirectory(prefix="agentformer-export-", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "export"
        service.af.export_to(folder, namespaces=[grant.namespace(query.namespace)], user_id=query.user_id)
        file = zipped(folder)
    headers = {
        "Content-Disposition": 'attachment; filename="export.zip"',
        "Content-Length": str(file.seek(0, SEEK_END)),
    }
    file.seek(0)
    response = Response(iter(lambda: file.read(_PIECE), b""), headers=headers, content_type="application/zip")
    response.call_on_close(file.close)
    return response


@router.route("POST", f"{MEMORY}/messages", "memory_add", {201: models.Entry, 204: None}, uses_model=True)
def add_message(service: Service, grant: Grant, body: requests.NewMessage) -> Response:
    """Store a message of a session.

    A message is always stored, even if an equal message exists. After every few messages, the server summarizes the
    older messages of the session. For a key without the right to read, the response is 204, and the session is stored
    as `KEY_ID/SESSION_ID`, apart from the sessions of other callers.
    """
    return stored_response(service.af.memory.add_message(**new_entry_arguments(grant, body)), grant)


@router.route("GET", f"{MEMORY}/messages", "conversation_search", {200: models.Transcript})
def transcript(service: Service, grant: Grant, query: requests.TranscriptQuery) -> Response:
    """List the original messages of a session in order, including the messages that were summarized."""
    return reply({"messages": entries_json(service.af.memory.transcript(**arguments_of(query, grant)))})


@router.route("POST", f"{MEMORY}/context", "context", {200: models.Context}, errors=(409, 413), uses_model=True)
def context(service: Service, grant: Grant, body: requests.ContextRequest) -> Response:
    """Build the messages to send to a language model for a task, within a limit of tokens.

    The messages contain the core blocks, the conversation, and memories about the task. The report lists the entries
    that are included and the entries that are left out.
    """
    check_length("task", body.task, service.af.settings)
    arguments = _without_removals(service, arguments_of(body, grant))
    return reply(context_json(service.af.memory.build_context(**arguments)))


@router.route("POST", f"{MEMORY}/clean", "memory_consolidate", {200: models.CleaningReport}, uses_model=True)
def clean(service: Service, grant: Grant, body: requests.CleaningRequest) -> Response:
    """Archive expired entries, and summarize the older messages of one session, or of all sessions in the namespace.

    Archived entries can be restored.
    """
    return reply(report_json(service.af.memory.clean(**arguments_of(body, grant))))


@router.route(
    "POST", f"{MEMORY}/learn", "memory_learn", {200: models.LearningReport}, errors=(404, 409), uses_model=True
)
def learn(service: Service, grant: Grant, body: requests.LearningRequest) -> Response:
    """Store the facts that users have stated in messages, each with the words that prove it.

    Each message is read once, unless `messages` names it. The response lists the learnt facts, and counts those that
    were dropped.
    """
    return reply(report_json(service.af.memory.learn(**arguments_of(body, grant))))


@router.route("GET", f"{MEMORY}/learn", "learning runs", {200: models.LearningRuns})
def learning_runs(service: Service, grant: Grant, query: requests.NamespaceQuery) -> Response:
    """List the runs of learning, newest first."""
    runs = service.af.memory.learning_runs(**arguments_of(query, grant))
    return reply({"runs": [report_json(run) for run in runs]})


@router.route(
    "POST", f"{MEMORY}/learn/undo", "undo learning", {200: models.UndoneLearning}, errors=(404, 409), uses_model=True
)
def undo_learning(service: Service, grant: Grant, body: requests.UndoLearningRequest) -> Response:
    """Undo a run of learning: archive its facts, so that the facts hold again that they have replaced.

    Facts that a caller has changed stay.
    """
    find_entry(service.af, grant, body.run)
    return reply(report_json(service.af.memory.undo_learning(body.run)))


@router.route("GET", f"{MEMORY}/profile", "memory_profile", {200: models.Profile})
def profile(service: Service, grant: Grant, query: requests.ProfileQuery) -> Response:
    """Show what holds now about a user: core blocks, instructions and facts in groups, each with its source and time.

    Facts that a newer one replaces are left out.
    """
    return reply(report_json(service.af.memory.profile(**arguments_of(query, grant))))


@router.route("POST", f"{MEMORY}/restore", "restore", {200: models.Entries}, errors=(404, 409), uses_model=True)
def restore(service: Service, grant: Grant, body: requests.RestoreRequest) -> Response:
    """Restore the original messages of a summary, or an entry that was superseded or archived, or has expired.

    The restored entries have their former content, and searches no longer find the summary. An expired entry no longer
    expires.
    """
    find_entry(service.af, grant, body.summary_id)
    return reply({"entries": entries_json(service.af.memory.restore(body.summary_id))})


@router.route("POST", f"{MEMORY}/reindex", "reindex", {200: models.Reindexed}, uses_model=True)
def reindex(service: Service, grant: Grant, body: requests.NamespaceBody) -> Response:
    """Compute the missing vectors of entries in all namespaces.

    The response lists the entries of the given namespace that still have no vectors. A key that is limited to
    namespaces is refused.
    """
    grant.require_all_namespaces()
    scope, vectors = Scope(grant.namespace(body.namespace)), vectors_of(service.af.backend)
    service.af.memory.reindex()
    waiting = [report_json(item) for item in vectors.waiting(scope, limit=_MAX_WAITING)]
    return reply({"pending": vectors.pending(scope), "waiting": waiting})


@router.route("GET", f"{MEMORY}/audit", "memory_audit", {200: models.AuditReport})
def audit(service: Service, grant: Grant, query: requests.NamespaceQuery) -> Response:
    """Report duplicates, memories that nobody reads, contradictions between facts and between core blocks, and core
    blocks that are too large."""
    return reply(report_json(service.af.memory.audit(**arguments_of(query, grant))))


@core_router.route("GET", _BLOCKS, "core blocks", {200: models.Blocks})
def list_blocks(service: Service, grant: Grant, query: requests.BlocksQuery) -> Response:
    """List the core blocks of the given agent and user, and the core blocks without an owner."""
    core = service.af.memory.core
    blocks = core.blocks(**arguments_of(query, grant))
    sizes = [{"tokens": core.tokens(block), "limit": core.block_tokens} for block in blocks]
    return reply({"blocks": [entry | size for entry, size in zip(entries_json(blocks), sizes, strict=True)]})


@core_router.route("GET", _BLOCK, "core block", {200: models.Entry})
def get_block(service: Service, grant: Grant, query: requests.BlocksQuery, name: str) -> Response:
    """Return a core block of the given agent and user. If no owner is given, return the block without an owner."""
    return entry_response(service.af.memory.core.get(name, **arguments_of(query, grant)))


@_edit_route("append")
def append(service: Service, grant: Grant, body: requests.BlockAddition, name: str) -> Response:
    """Append a line to a core block. If the block does not exist, it is created.

    A line that the block already contains is not appended again.
    """
    return entry_response(service.af.memory.core.append(name, **arguments_of(body, grant)))


@_edit_route("replace")
def replace(service: Service, grant: Grant, body: requests.BlockReplacement, name: str) -> Response:
    """Replace a text that occurs exactly once in a core block."""
    return entry_response(service.af.memory.core.replace(name, **arguments_of(body, grant)))


@core_router.route("DELETE", _BLOCK, "memory_delete", {204: None})
def delete_block(service: Service, grant: Grant, query: requests.BlocksQuery, name: str) -> Response:
    """Delete a core block and its history."""
    service.af.memory.core.remove(name, **arguments_of(query, grant))
    return Response(status=204)


def _without_removals(service: Service, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a search with a filter that leaves out documents that are going to be deleted."""
    return {**arguments, "where": service.removals.hide(arguments.get("where"), arguments["namespace"])}
