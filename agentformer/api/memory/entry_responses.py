"""Which entry is meant, whether who asks may see it, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flask import Response, url_for

from agentformer.access.grant import Grant
from agentformer.api.response import reply
from agentformer.errors import NotFound
from agentformer.factory import AgentFormer
from agentformer.records import fields
from agentformer.records.entry_json import entry_to_json
from agentformer.types import MemoryEntry

ONE = "/api/memory/{entry_id}"


def seen(af: AgentFormer, grant: Grant, entry_id: str) -> MemoryEntry:
    """The entry, without counting that as a use: nothing happens to one that is out of reach. Raises `NotFound` for
    that one in the same words as for one that is not there."""
    found = af.backend.get([fields.name("entry_id", entry_id)])
    if not found:
        raise NotFound(f"there is no entry {entry_id}")
    return grant.require_visible(found[0])


def version_tag(entry: MemoryEntry) -> str:
    """The `ETag` of an entry."""
    return f'"{entry.version}"'


def shown(entry: MemoryEntry) -> Response:
    return reply(entry_to_json(entry), headers={"ETag": version_tag(entry)})


def kept(entry: MemoryEntry, grant: Grant) -> Response:
    """The answer to who stored something: 201 with the entry, or 200 with the one that says the same already."""
    place = url_for(f".get {ONE}", entry_id=entry.id)
    headers = {"Location": place, "ETag": version_tag(entry)}
    if not entry.repeat_count:
        return reply(entry_to_json(entry), 201, headers)
    return reply(entry_to_json(entry), 200, headers) if grant.may("read") else Response(status=204, headers=headers)


def changed(entry: MemoryEntry, grant: Grant) -> Response:
    """The answer to who changed something: the entry, but to those only who may read what else it says."""
    return shown(entry) if grant.may("read") else Response(status=204, headers={"ETag": version_tag(entry)})


def entries_json(entries: Iterable[MemoryEntry]) -> list[dict[str, Any]]:
    return [entry_to_json(entry) for entry in entries]
