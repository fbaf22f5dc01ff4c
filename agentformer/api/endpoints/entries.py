"""Endpoints to store, list, read, change and delete single entries of the memory, and their responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flask import Response, abort, request, url_for

from agentformer.access.permissions import PERMISSIONS, Grant
from agentformer.api.models import memory as models
from agentformer.api.models import requests
from agentformer.api.operations import Router, Service
from agentformer.api.request import arguments_of
from agentformer.api.response import problem, reply
from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.memory import validation
from agentformer.records import fields
from agentformer.records.entry_json import entry_to_json
from agentformer.tools.result_json import shown_json
from agentformer.types import MemoryEntry

MEMORY = "/api/memory"
_ENTRY = f"{MEMORY}/{{entry_id}}"
_IF_MATCH = {
    "If-Match": {
        "description": 'The version that may be changed, such as "3" (see `ETag`), or `*` for any version.',
        "pattern": r'^(\*|"[0-9]+"|[0-9]+)$',
    }
}
_ETAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"|[0-9]+'  # a bare number is not valid, but many clients send it
_ETAGS = re.compile(rf"(?:{_ETAG})(?:\s*,\s*(?:{_ETAG}))*")
_MAX_SHOWN = 80  # characters of an invalid header in a message

router = Router("memories")


def find_entry(af: AgentFormer, grant: Grant, entry_id: str) -> MemoryEntry:
    """Return the entry with this id, for an endpoint. The access is not counted as a use of the entry. Raises
    `NotFound` if there is no such entry, or if the grant does not allow its namespace. Both errors have the same
    message, so that a client cannot find out which ids exist."""
    entries = af.backend.get([fields.name("entry_id", entry_id)])
    if not entries:
        raise NotFound(f"there is no entry {entry_id}")
    return grant.require_visible(entries[0])


def entries_json(entries: Iterable[MemoryEntry]) -> list[dict[str, Any]]:
    """Return the entries as JSON objects. The origin of a document is left out, because it is a path on the server."""
    return [shown_json(entry) for entry in entries]


def entry_response(entry: MemoryEntry) -> Response:
    """Return a response with status 200 and the entry as JSON. The header `ETag` contains the version of the entry."""
    return reply(entries_json([entry])[0], headers=_etag(entry))


def stored_response(entry: MemoryEntry, grant: Grant) -> Response:
    """Return the response to a request that stored an entry. The status is 201 for a new entry, and 200 for an existing
    entry. If the grant has no right to read, the status is 204 and the response is empty, so that the client does not
    learn which entries exist."""
    if not grant.may("read"):
        return Response(status=204)
    headers = {"Location": url_for(f".{_ENTRY}", entry_id=entry.id), **_etag(entry)}
    return reply(entry_to_json(entry), 200 if entry.repeat_count else 201, headers)


def new_entry_arguments(grant: Grant, body: requests.NewMemory | requests.NewMessage) -> dict[str, Any]:
    """Return the arguments with which the entry in the body is stored. If the grant has no right to read, the id of its
    key becomes a part of the session id and of the metadata, so that the text does not count as written by the user.
    Raises `Forbidden` if the entry is a core block or has a `source_id`, and the grant does not allow this."""
    if body.source_id is not None:
        PERMISSIONS["memory_add a record"].require(grant)
    if isinstance(body, requests.NewMemory) and body.tier == "core":
        PERMISSIONS["memory_add a core block"].require(grant)
    arguments = arguments_of(body, grant, exclude_unset=True)
    if grant.may("read"):
        return arguments
    metadata = fields.program_metadata(arguments.get("metadata"), grant.stored_metadata)
    session = {} if body.session_id is None else {"session_id": grant.session(body.session_id)}
    return {**arguments, **session, "metadata": metadata}


@router.route(
    "POST",
    MEMORY,
    "memory_add",
    {201: models.Entry, 200: models.Entry, 204: None},
    errors=(409,),
    uses_model=True,
)
def store(service: Service, grant: Grant, body: requests.NewMemory) -> Response:
    """Store a memory.

    For a new memory, the response is 201 with the new entry. If an entry with the same content exists already, no
    second entry is stored, and the response is 200 with the existing entry. The header `Location` is the URL of the
    entry, and the header `ETag` is the version of the entry.

    For a key without the right to read, the response is always 204, and the memory is compared only with the entries
    that this key has stored. Such a key cannot store core blocks and cannot set `source_id`. Its sessions are stored as
    `KEY_ID/SESSION_ID`."""
    return stored_response(service.af.memory.store(**new_entry_arguments(grant, body)), grant)


@router.route(
    "POST",
    f"{MEMORY}/batch",
    "memory_add",
    {201: models.Entries, 204: None},
    errors=(409,),
    uses_model=True,
    entries=lambda body: len(body.items),
)
def store_many(service: Service, grant: Grant, body: requests.NewMemories) -> Response:
    """Store several memories in one transaction.

    If one memory cannot be stored, no memory is stored. The entries in the response have the order of `items`. For a
    key without the right to read, the response is 204.
    """
    items = [new_entry_arguments(grant, item) for item in body.items]
    try:
        entries = service.af.memory.store_many(items)
    except InvalidInput as error:
        raise _numbered(items, error) from None
    if not grant.may("read"):
        return Response(status=204)
    return reply({"entries": entries_json(entries)}, 201)


@router.route("GET", MEMORY, "memory_search", {200: models.EntryPage})
def list_entries(service: Service, grant: Grant, query: requests.EntriesQuery) -> Response:
    """List memories in the order in which they were stored.

    The response contains the entries that match all given parameters. To get the next page, send the value of the field
    `next` as the parameter `after`.
    """
    arguments = arguments_of(query, grant, exclude={"tier", "kind", "category", "limit", "where"})
    entries = service.af.memory.list(
        limit=query.limit + 1,  # one more, to see if there is a next page
        tiers=query.tier,
        kinds=query.kind,
        categories=query.category,
        where=service.removals.hide(_filter_of(query.where), arguments["namespace"]),
        **arguments,
    )
    page = entries[: query.limit]
    next_after = page[-1].id if len(entries) > len(page) else None
    return reply({"entries": entries_json(page), "next": next_after})


@router.route("GET", _ENTRY, "memory_get", {200: models.Entry})
def get_entry(service: Service, grant: Grant, entry_id: str) -> Response:
    """Return a memory, even if the memory is archived.

    The header `ETag` is the version of the memory.
    """
    find_entry(service.af, grant, entry_id)
    return entry_response(service.af.memory.get(entry_id))


@router.route("GET", f"{_ENTRY}/salience", "memory_get", {200: models.Salience})
def salience(service: Service, grant: Grant, entry_id: str) -> Response:
    """Return the salience (importance) of a memory now, and the values from which it can be computed for any other
    time.

    The salience is `stored * rate ** days`, where `days` is the time since `since`, the last use of the memory. This
    request does not count as a use.
    """
    entry = find_entry(service.af, grant, entry_id)
    since = entry.last_accessed or entry.created_at
    return reply({
        "now": service.af.memory.effective_salience(entry),
        "stored": entry.salience,
        "rate": service.af.settings.decay_rates.get(entry.category, 1.0),
        "since": since.isoformat() if since else None,
        "used": entry.last_accessed is not None,
    })  # fmt: skip


@router.route("GET", f"{_ENTRY}/history", "memory_get", {200: models.Versions})
def history(service: Service, grant: Grant, entry_id: str) -> Response:
    """List the former versions of a memory, oldest first."""
    find_entry(service.af, grant, entry_id)
    return reply({"versions": entries_json(service.af.memory.history(entry_id))})


@router.route(
    "PATCH",
    _ENTRY,
    "memory_update",
    {200: models.Entry},
    headers=_IF_MATCH,
    errors=(409, 412),
    uses_model=True,
)
def update(service: Service, grant: Grant, body: requests.MemoryChange, entry_id: str) -> Response:
    """Change a memory. The former version stays in the history of the memory.

    The header `If-Match` can contain the expected version. If the memory has another version, nothing is changed, and
    the response is 412. Passages and pages of documents cannot be changed: upload the document again.
    """
    with _if_match(service.af, grant, entry_id) as version:
        if find_entry(service.af, grant, entry_id).tier == "core":
            PERMISSIONS["memory_update a core block"].require(grant)
        changes = body.model_dump(exclude_unset=True)
        entry = service.af.memory.update(entry_id, expected_version=version, **changes)
    return entry_response(entry)


@router.route("DELETE", _ENTRY, "memory_delete", {204: None}, headers=_IF_MATCH, errors=(412,))
def delete(service: Service, grant: Grant, entry_id: str) -> Response:
    """Delete a memory permanently, with its history and with the summaries that were made from this memory.

    The header `If-Match` can contain the expected version. If the memory has another version, nothing is deleted, and
    the response is 412. Passages and pages of a document cannot be deleted: delete the whole document by its own
    endpoint.
    """
    with _if_match(service.af, grant, entry_id) as version:
        service.af.memory.remove(entry_id, expected_version=version)
    return Response(status=204)


@contextmanager
def _if_match(af: AgentFormer, grant: Grant, entry_id: str) -> Iterator[int | None]:
    """Yield the version that the header `If-Match` requires, or None if any version may be changed. The caller changes
    the entry inside this context. If the entry has another version, or if another client changes the entry at the same
    time, the request ends with status 412."""
    versions = _requested_versions()
    entry = find_entry(af, grant, entry_id)
    if versions is not None and str(entry.version) not in versions:
        abort(_precondition_failed(entry))
    try:
        yield None if versions is None else entry.version
    except Conflict:
        if versions is None:
            raise
        abort(_precondition_failed(find_entry(af, grant, entry_id)))


def _filter_of(text: str | None) -> Any:
    """Return the filter in the parameter `where`. Raises `InvalidInput` if the text is not JSON."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput("where", 'must be JSON, such as {"type": "gte", "key": "year", "value": 2026}') from None


def _numbered(items: list[dict[str, Any]], error: InvalidInput) -> InvalidInput:
    """Return an error that names the field of the invalid item, such as `items[2].content`. `error` is the error of the
    whole list; it is returned if no single item is invalid."""
    for index, item in enumerate(items):
        try:
            validation.new_entry(item)
        except InvalidInput as own:
            return InvalidInput(f"items[{index}].{own.field}", str(own).removeprefix(f"{own.field}: "))
    return error


def _etag(entry: MemoryEntry) -> dict[str, str]:
    return {"ETag": f'"{entry.version}"'}


def _requested_versions() -> frozenset[str] | None:
    """Return the versions in the header `If-Match` (RFC 9110, 13.1.1), or None if any version is allowed. A weak tag
    such as `W/"3"` matches no version. Raises `InvalidInput` for a malformed header."""
    header = request.headers.get("If-Match", "*").strip()
    if header == "*":
        return None
    if not _ETAGS.fullmatch(header):
        raise InvalidInput("If-Match", f'must be a version such as "3", or *; got {header[:_MAX_SHOWN]!r}')
    return frozenset(tag.strip('"') for tag in re.findall(_ETAG, header))


def _precondition_failed(entry: MemoryEntry) -> Response:
    detail = (
        f"entry {entry.id} is at version {entry.version}; read it again, and repeat the change if you still need it"
    )
    members = {"title": "Version conflict", "field": "If-Match", "version": entry.version}
    response = problem(412, "precondition-failed", detail, **members)
    response.headers.update(_etag(entry))
    return response
