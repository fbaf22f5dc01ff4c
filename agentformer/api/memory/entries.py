"""Endpoints of single entries: store, list, read, change and delete; and their responses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from flask import Response, request, url_for

from agentformer.access.grant import Grant
from agentformer.api.models import memory as models
from agentformer.api.models import requests
from agentformer.api.operations import Operation, Operations
from agentformer.api.response import problem, reply
from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.memory import validation
from agentformer.records import fields
from agentformer.records.entry_json import entry_to_json
from agentformer.types import MemoryEntry

MEMORY = "/api/memory"
TAG = "memories"
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


def add_entries(operations: Operations, af: AgentFormer) -> None:
    """Declare the endpoints."""
    _add_store(operations, af)
    _add_store_many(operations, af)
    _add_list(operations, af)
    _add_read(operations, af)
    _add_update(operations, af)
    _add_delete(operations, af)


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
    """Return 201 with a new entry; for an existing one 200, or 204 without the right to read."""
    headers = {"Location": url_for(f".get {_ENTRY}", entry_id=entry.id), **_etag(entry)}
    if not entry.repeat_count:
        return reply(entry_to_json(entry), 201, headers)
    return reply(entry_to_json(entry), 200, headers) if grant.may("read") else Response(status=204, headers=headers)


def changed_response(entry: MemoryEntry, grant: Grant) -> Response:
    """Return 200 with the changed entry, or 204 without the right to read."""
    return entry_response(entry) if grant.may("read") else Response(status=204, headers=_etag(entry))


def _add_store(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=MEMORY,
            right="write",
            body=requests.NewMemory,
            returns={201: models.Entry, 200: models.Entry, 204: None},
            errors=(409,),
            uses_model=True,
            tag=TAG,
            tool="memory_add",
        )
    )
    def store(grant: Grant, body: requests.NewMemory) -> Response:
        """Store a memory.

        201 with the new entry. The same content again is not stored twice: 200 with the existing entry, or 204 for a
        key without the right to read. `Location` is the URL of the entry, `ETag` its version.
        """
        return stored_response(af.memory.store(**_arguments(body, grant)), grant)


def _add_store_many(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=f"{MEMORY}/batch",
            right="write",
            body=requests.NewMemories,
            returns={201: models.Entries, 204: None},
            errors=(409,),
            uses_model=True,
            tag=TAG,
            tool="memory_add",
        )
    )
    def store_many(grant: Grant, body: requests.NewMemories) -> Response:
        """Store several memories: all of them, or none.

        The entries are in the order of `items`. 204 for a key without the right to read, if some entries existed.
        """
        items = [_arguments(item, grant) for item in body.items]
        try:
            entries = af.memory.store_many(items)
        except InvalidInput as error:
            raise _numbered(items, error) from None
        if any(entry.repeat_count for entry in entries) and not grant.may("read"):
            return Response(status=204)
        return reply({"entries": entries_json(entries)}, 201)


def _add_list(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="GET",
            path=MEMORY,
            right="read",
            query=requests.EntriesQuery,
            returns={200: models.EntryPage},
            tag=TAG,
        )
    )
    def list_entries(grant: Grant, query: requests.EntriesQuery) -> Response:
        """List memories in the order of storing.

        Entries match all given parameters. `next` is the value of `after` for the next page.
        """
        scope = query.model_dump(exclude={"tier", "kind", "category", "limit", "after", "namespace"})
        entries = af.memory.list(
            limit=query.limit + 1,  # one more, to see if there is a next page
            after=query.after,
            namespace=grant.namespace(query.namespace),
            tiers=query.tier,
            kinds=query.kind,
            categories=query.category,
            **scope,
        )
        page = entries[: query.limit]
        following = page[-1].id if len(entries) > len(page) else None
        return reply({"entries": entries_json(page), "next": following})


def _add_read(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(method="GET", path=_ENTRY, right="read", returns={200: models.Entry}, tag=TAG, tool="memory_get")
    )
    def get_entry(grant: Grant, entry_id: str) -> Response:
        """Return a memory, archived or not. `ETag` is its version."""
        find_entry(af, grant, entry_id)
        return entry_response(af.memory.get(entry_id))

    @operations.declare(
        Operation(method="GET", path=f"{_ENTRY}/history", right="read", returns={200: models.Versions}, tag=TAG)
    )
    def history(grant: Grant, entry_id: str) -> Response:
        """List the former versions of a memory, oldest first."""
        find_entry(af, grant, entry_id)
        return reply({"versions": entries_json(af.memory.history(entry_id))})


def _add_update(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="PATCH",
            path=_ENTRY,
            right="write",
            body=requests.MemoryChange,
            headers=_IF_MATCH,
            returns={200: models.Entry, 204: None},
            errors=(409, 412),
            uses_model=True,
            tag=TAG,
            tool="memory_update",
        )
    )
    def update(grant: Grant, body: requests.MemoryChange, entry_id: str) -> Response:
        """Change a memory; its former version stays in its history.

        With `If-Match`, only that version is changed; for another one the response is 412. Parts of documents cannot be
        changed: upload the document again. 204 for a key without the right to read.
        """
        versions = _requested_versions()
        entry = find_entry(af, grant, entry_id)
        if not _matches(entry, versions):
            return _precondition_failed(entry)
        expected = None if versions is None else entry.version
        try:
            entry = af.memory.update(entry_id, expected_version=expected, **body.model_dump(exclude_unset=True))
        except Conflict:
            if versions is None:
                raise
            return _precondition_failed(find_entry(af, grant, entry_id))
        return changed_response(entry, grant)


def _add_delete(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="DELETE",
            path=_ENTRY,
            right="write",
            headers=_IF_MATCH,
            returns={204: None},
            errors=(412,),
            tag=TAG,
            tool="memory_delete",
        )
    )
    def delete(grant: Grant, entry_id: str) -> Response:
        """Delete a memory permanently, with its history and the summaries made from it.

        With `If-Match`, only that version is deleted; for another one the response is 412. Documents are deleted as a
        whole, by the endpoints of documents.
        """
        versions = _requested_versions()
        entry = find_entry(af, grant, entry_id)
        if not _matches(entry, versions):
            return _precondition_failed(entry)
        try:
            af.memory.remove(entry_id, expected_version=None if versions is None else entry.version)
        except Conflict:
            return _precondition_failed(find_entry(af, grant, entry_id))
        return Response(status=204)


def _arguments(body: requests.NewMemory, grant: Grant) -> dict[str, Any]:
    return {**body.model_dump(exclude_unset=True), "namespace": grant.namespace(body.namespace)}


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
    """Return the versions in `If-Match` (RFC 9110, 13.1.1); None for any version. Weak tags never match. Raises
    `InvalidInput`."""
    header = request.headers.get("If-Match", "*").strip()
    if header == "*":
        return None
    if not _ETAGS.fullmatch(header):
        raise InvalidInput("If-Match", f'must be a version such as "3", or *; got {header[:_MAX_SHOWN]!r}')
    return frozenset(tag.strip('"') for tag in re.findall(_ETAG, header))


def _matches(entry: MemoryEntry, versions: frozenset[str] | None) -> bool:
    return versions is None or str(entry.version) in versions


def _precondition_failed(entry: MemoryEntry) -> Response:
    """Return 412 with the current version."""
    response = problem(
        412,
        "precondition-failed",
        f"entry {entry.id} is at version {entry.version}; read it again, and repeat the change if it is still needed",
        title="Version conflict",
        field="If-Match",
        version=entry.version,
    )
    response.headers.update(_etag(entry))
    return response
