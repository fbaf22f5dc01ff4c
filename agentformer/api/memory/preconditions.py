"""`If-Match`: a change that happens only to the version that somebody has read (RFC 9110, 13.1.1)."""

from __future__ import annotations

import re

from flask import Response, request

from agentformer.api.memory.entry_responses import version_tag
from agentformer.api.problems import problem
from agentformer.errors import InvalidInput
from agentformer.types import MemoryEntry

HEADER = {
    "If-Match": {
        "description": 'The version that may be changed, as the `ETag` says it, such as "3"; or `*` for any.',
        "pattern": r'^(\*|"[0-9]+"|[0-9]+)$',
    }
}
_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"|[0-9]+'  # a bare number is no tag, but what many a client sends
_TAGS = re.compile(rf"(?:{_TAG})(?:\s*,\s*(?:{_TAG}))*")
_SHOWN = 80  # characters of a wrong header that a message repeats

Versions = frozenset[str]


def versions_wanted() -> Versions | None:
    """The versions that the request may change; None for any. A weak tag is no version. Raises `InvalidInput`."""
    said = request.headers.get("If-Match", "*").strip()
    if said == "*":
        return None
    if not _TAGS.fullmatch(said):
        raise InvalidInput("If-Match", f'must be a version such as "3", or *; got {said[:_SHOWN]!r}')
    return frozenset(tag.strip('"') for tag in re.findall(_TAG, said))


def fits(entry: MemoryEntry, wanted: Versions | None) -> bool:
    return wanted is None or str(entry.version) in wanted


def stale(entry: MemoryEntry) -> Response:
    """412 with the version that is there now."""
    told = problem(
        412,
        "precondition-failed",
        f"entry {entry.id} is at version {entry.version}; read it again, and repeat the change if it is still wanted",
        title="It was changed meanwhile",
        field="If-Match",
        version=entry.version,
    )
    told.headers["ETag"] = version_tag(entry)
    return told
