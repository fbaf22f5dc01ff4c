"""Endpoints of single memories: add, look, change, forget, and what they said before; and lists of them."""

from __future__ import annotations

from typing import Any

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.memory import preconditions
from agentformer.api.memory.entry_responses import ONE, changed, entries_json, kept, seen, shown
from agentformer.api.models import memory as models
from agentformer.api.models import requests
from agentformer.api.operations import Operations, always
from agentformer.api.response import reply
from agentformer.errors import Conflict, InvalidInput
from agentformer.factory import AgentFormer
from agentformer.memory import validation

TAG = "memories"
ALL = "/api/memory"


def add_entries(operations: Operations, af: AgentFormer) -> None:
    _add_storing(operations, af)
    _add_list(operations, af)
    _add_looking(operations, af)
    _add_changing(operations, af)


def _add_storing(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        "POST",
        ALL,
        right="write",
        body=requests.NewMemory,
        returns={201: models.Entry, 200: models.Entry, 204: None},
        faults=(409,),
        asks=always,
        tag=TAG,
        tool="memory_add",
    )
    def add(grant: Grant, body: requests.NewMemory) -> Response:
        """Remember something.

        201 with the new entry. The same fact again is not kept twice: 200 with the entry that is there, or 204 for a
        key that may not read. `Location` is the entry's address, and `ETag` its version.
        """
        return kept(af.memory.store(**_arguments(body, grant)), grant)

    @operations.declare(
        "POST",
        f"{ALL}/batch",
        right="write",
        body=requests.NewMemories,
        returns={201: models.Entries, 204: None},
        faults=(409,),
        asks=always,
        tag=TAG,
        tool="memory_add",
    )
    def add_many(grant: Grant, body: requests.NewMemories) -> Response:
        """Remember much at once: all of it, or nothing.

        The entries come back in the order of `items`; 204 for a key that may not read, where some were there already.
        """
        items = [_arguments(item, grant) for item in body.items]
        try:
            entries = af.memory.store_many(items)
        except InvalidInput as error:
            raise _of_item(items, error) from None
        if any(entry.repeat_count for entry in entries) and not grant.may("read"):
            return Response(status=204)
        return reply({"entries": entries_json(entries)}, 201)


def _add_list(operations: Operations, af: AgentFormer) -> None:
    @operations.declare("GET", ALL, right="read", query=requests.EntriesQuery, returns={200: models.EntryPage}, tag=TAG)
    def entries(grant: Grant, query: requests.EntriesQuery) -> Response:
        """List memories in the order of storing.

        All that is given must fit. `next` is what `after` takes to go on.
        """
        several: dict[str, Any] = {"tiers": query.tier, "kinds": query.kind, "categories": query.category}
        scope = query.model_dump(exclude={"tier", "kind", "category", "limit", "after", "namespace"})
        found = af.memory.list(
            limit=query.limit + 1,  # one more tells whether there is a next page
            after=query.after,
            namespace=grant.namespace(query.namespace),
            **several,
            **scope,
        )
        page = found[: query.limit]
        following = page[-1].id if len(found) > len(page) else None
        return reply({"entries": entries_json(page), "next": following})


def _add_looking(operations: Operations, af: AgentFormer) -> None:
    @operations.declare("GET", ONE, right="read", returns={200: models.Entry}, tag=TAG, tool="memory_get")
    def entry(grant: Grant, entry_id: str) -> Response:
        """Read a memory, archived or not. `ETag` is its version."""
        seen(af, grant, entry_id)
        return shown(af.memory.get(entry_id))

    @operations.declare("GET", f"{ONE}/history", right="read", returns={200: models.Versions}, tag=TAG)
    def history(grant: Grant, entry_id: str) -> Response:
        """Tell what a memory said before each of its changes, oldest first."""
        seen(af, grant, entry_id)
        return reply({"versions": entries_json(af.memory.history(entry_id))})


def _add_changing(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        "PATCH",
        ONE,
        right="write",
        body=requests.MemoryChange,
        headers=preconditions.HEADER,
        returns={200: models.Entry, 204: None},
        faults=(409, 412),
        asks=always,
        tag=TAG,
        tool="memory_update",
    )
    def change(grant: Grant, body: requests.MemoryChange, entry_id: str) -> Response:
        """Change what a memory says; its former state stays in its history.

        With `If-Match`, only the version that is named there is changed; else it is 412. Parts of uploaded documents
        are not changed: upload the document again. 204 for a key that may not read.
        """
        wanted = preconditions.versions_wanted()
        former = seen(af, grant, entry_id)
        if not preconditions.fits(former, wanted):
            return preconditions.stale(former)
        try:
            entry = af.memory.update(
                entry_id,
                expected_version=None if wanted is None else former.version,
                **body.model_dump(exclude_unset=True),
            )
        except Conflict:
            if wanted is None:
                raise
            return preconditions.stale(seen(af, grant, entry_id))
        return changed(entry, grant)

    @operations.declare(
        "DELETE",
        ONE,
        right="write",
        headers=preconditions.HEADER,
        returns={204: None},
        faults=(412,),
        tag=TAG,
        tool="memory_delete",
    )
    def forget(grant: Grant, entry_id: str) -> Response:
        """Forget a memory for good, with its history and the summaries made from it.

        With `If-Match`, only the version that is named there goes; else it is 412. Uploaded documents are deleted as a
        whole, where documents are.
        """
        wanted = preconditions.versions_wanted()
        former = seen(af, grant, entry_id)
        if not preconditions.fits(former, wanted):
            return preconditions.stale(former)
        try:
            af.memory.remove(entry_id, expected_version=None if wanted is None else former.version)
        except Conflict:
            return preconditions.stale(seen(af, grant, entry_id))
        return Response(status=204)


def _arguments(body: requests.NewMemory, grant: Grant) -> dict[str, Any]:
    return {**body.model_dump(exclude_unset=True), "namespace": grant.namespace(body.namespace)}


def _of_item(items: list[dict[str, Any]], error: InvalidInput) -> InvalidInput:
    """The error with the number of the item that it is about, where one alone shows which."""
    for number, item in enumerate(items):
        try:
            validation.new_entry(item)
        except InvalidInput as found:
            return InvalidInput(f"items[{number}].{found.field}", str(found).removeprefix(f"{found.field}: "))
    return error
