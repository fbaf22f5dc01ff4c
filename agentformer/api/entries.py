"""Endpoints of single entries: store, list, read, change and delete; and their responses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flask import Response, abort, request, url_for

from agentformer.access.grant import Grant
from agentformer.api.models import memory as models
from agentformer.api.models import requests
from agentformer.api.operations import Router, Service
from agentformer.api.request import arguments_of
from agentformer.api.response import problem, reply, reply_to_reader
from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.memory import validation
from agentformer.records import fields
from agentformer.records.entry_json import entry_to_json
from agentformer.types import MemoryEntry

MEMORY = "/api/memory"
_ENTRY = f"{MEMORY}/{{entry_id}}"
_IF_MATCH = {
    "If-Match": {
        "description": 'The version to change, as in `ETag`, such as "3"; or `*` for any version.',
        "pattern": r'^(\*|"[0-9]+"|[0-9]+)$',
    }
}
_ETAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"|[0-9]+'  # a bare number is not valid, but many clients send it
_ETAGS = re.compile(rf"(?:{_ETAG})(?:\s*,\s*(?:{_ETAG}))*")
_MAX_SHOWN = 80  # characters of an invalid header in a message

router = Router("memories")


def find_entry(af: AgentFormer, grant: Grant, entry_id: str) -> MemoryEntry:
    """Return an entry without counting a use. Raises `NotFound`, with the same message for an entry that the grant does
    not reach."""
    entries = af.backend.get([fields.name("entry_id", entry_id)])
    if not entries:
        raise NotFound(f"there is no entry {entry_id}")
    return grant.require_visible(entries[0])


def entries_json(entries: Iterable[MemoryEntry]) -> list[dict[str, Any]]:
    """Return entries as JSON values."""
    return [entry_to_json(entry) for entry in entries]


def entry_response(entry: MemoryEntry) -> Response:
    """Return 200 with the entry."""
    return reply(entry_to_json(entry), headers=_etag(entry))


def stored_response(entry: MemoryEntry, grant: Grant) -> Response:
    """Return 201 with a new entry. For an existing entry, return 200, or 204 without the right to read."""
    headers = {"Location": url_for(f".get {_ENTRY}", entry_id=entry.id), **_etag(entry)}
    if not entry.repeat_count:
        return reply(entry_to_json(entry), 201, headers)
    return reply_to_reader(grant, entry_to_json(entry), headers)


def changed_response(entry: MemoryEntry, grant: Grant) -> Response:
    """Return 200 with the changed entry, or 204 without the right to read."""
    return reply_to_reader(grant, entry_to_json(entry), _etag(entry))


@router.route(
    "POST",
    MEMORY,
    "write",
    {201: models.Entry, 200: models.Entry, 204: None},
    errors=(409,),
    uses_model=True,
    tool="memory_add",
)
def store(service: Service, grant: Grant, body: requests.NewMemory) -> Response:
    """Store a memory.

    The response is 201 with the new entry. The same content is not stored twice: if it exists already, the response is
    200 with the existing entry, or 204 for a key without the right to read. `Location` is the URL of the entry, and
    `ETag` is its version.
    """
    return stored_response(service.af.memory.store(**arguments_of(body, grant, exclude_unset=True)), grant)


@router.route(
    "POST",
    f"{MEMORY}/batch",
    "write",
    {201: models.Entries, 204: None},
    errors=(409,),
    uses_model=True,
    tool="memory_add",
)
def store_many(service: Service, grant: Grant, body: requests.NewMemories) -> Response:
    """Store several memories in one transaction.

    If one of them cannot be stored, none is stored. The entries in the response have the order of `items`. If some of
    them existed already and the key has no right to read, the response is 204.
    """
    items = [arguments_of(item, grant, exclude_unset=True) for item in body.items]
    try:
        entries = service.af.memory.store_many(items)
    except InvalidInput as error:
        raise _numbered(items, error) from None
    if any(entry.repeat_count for entry in entries) and not grant.may("read"):
        return Response(status=204)
    return reply({"entries": entries_json(entries)}, 201)


@router.route("GET", MEMORY, "read", {200: models.EntryPage})
def list_entries(service: Service, grant: Grant, query: requests.EntriesQuery) -> Response:
    """List memories in the order in which they were stored.

    The response contains the entries that match all given parameters. To get the next page, send the value of `next` as
    `after`.
    """
    entries = service.af.memory.list(
        limit=query.limit + 1,  # one more, to see if there is a next page
        tiers=query.tier,
        kinds=query.kind,
        categories=query.category,
        **arguments_of(query, grant, exclude={"tier", "kind", "category", "limit"}),
    )
    page = entries[: query.limit]
    next_after = page[-1].id if len(entries) > len(page) else None
    return reply({"entries": entries_json(page), "next": next_after})


@router.route("GET", _ENTRY, "read", {200: models.Entry}, tool="memory_get")
def get_entry(service: Service, grant: Grant, entry_id: str) -> Response:
    """Return a memory, even if it is archived.

    The header `ETag` is the version of the memory.
    """
    find_entry(service.af, grant, entry_id)
    return entry_response(service.af.memory.get(entry_id))


@router.route("GET", f"{_ENTRY}/history", "read", {200: models.Versions})
def history(service: Service, grant: Grant, entry_id: str) -> Response:
    """List the former versions of a memory, oldest first."""
    find_entry(service.af, grant, entry_id)
    return reply({"versions": entries_json(service.af.memory.history(entry_id))})


@router.route(
    "PATCH",
    _ENTRY,
    "write",
    {200: models.Entry, 204: None},
    headers=_IF_MATCH,
    errors=(409, 412),
    uses_model=True,
    tool="memory_update",
)
def update(service: Service, grant: Grant, body: requests.MemoryChange, entry_id: str) -> Response:
    """Change a memory, and keep its former version in its history.

    With `If-Match`, the memory is changed only if it has this version. If it has another version, the response is 412.
    Parts of documents cannot be changed: upload the document again. For a key without the right to read, the response
    is 204.
    """
    with _if_match(service.af, grant, entry_id) as version:
        changes = body.model_dump(exclude_unset=True)
        entry = service.af.memory.update(entry_id, expected_version=version, **changes)
    return changed_response(entry, grant)


@router.route("DELETE", _ENTRY, "write", {204: None}, headers=_IF_MATCH, errors=(412,), tool="memory_delete")
def delete(service: Service, grant: Grant, entry_id: str) -> Response:
    """Delete a memory permanently, with its history and the summaries that were made from it.

    With `If-Match`, the memory is deleted only if it has this version. If it has another version, the response is 412.
    A part of a document cannot be deleted: delete the whole document by its own endpoint.
    """
    with _if_match(service.af, grant, entry_id) as version:
        service.af.memory.remove(entry_id, expected_version=version)
    return Response(status=204)


@contextmanager
def _if_match(af: AgentFormer, grant: Grant, entry_id: str) -> Iterator[int | None]:
    """Give the version to change, or None for any version. If `If-Match` requires another version, or the entry is
    changed in the meantime, answer with 412."""
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


def _numbered(items: list[dict[str, Any]], error: InvalidInput) -> InvalidInput:
    """Return the error with the index of its item, if a single item is invalid by itself."""
    for index, item in enumerate(items):
        try:
            validation.new_entry(item)
        except InvalidInput as own:
            return InvalidInput(f"items[{index}].{own.field}", str(own).removeprefix(f"{own.field}: "))
    return error


def _etag(entry: MemoryEntry) -> dict[str, str]:
    return {"ETag": f'"{entry.version}"'}


def _requested_versions() -> frozenset[str] | None:
    """Return the versions in `If-Match` (RFC 9110, 13.1.1), or None for any version. Weak tags never match. Raises
    `InvalidInput`."""
    header = request.headers.get("If-Match", "*").strip()
    if header == "*":
        return None
    if not _ETAGS.fullmatch(header):
        raise InvalidInput("If-Match", f'must be a version such as "3", or *; got {header[:_MAX_SHOWN]!r}')
    return frozenset(tag.strip('"') for tag in re.findall(_ETAG, header))


def _precondition_failed(entry: MemoryEntry) -> Response:
    detail = (
        f"entry {entry.id} is at version {entry.version}; read it again, and repeat the change if it is still needed"
    )
    members = {"title": "Version conflict", "field": "If-Match", "version": entry.version}
    response = problem(412, "precondition-failed", detail, **members)
    response.headers.update(_etag(entry))
    return response
