"""Messages that reach a memory twice: hooks of a coding agent capture them, and its files are imported. Both have the
same session, but only the files have ids of messages, so a message is recognised by its role, text and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta

from agentformer.memory.backends import all_entries
from agentformer.records.codec import happened_at
from agentformer.types import MemoryBackend, MemoryEntry, Scope

HOOK = "hook"  # `source_type` of messages that hooks have captured
_APART = timedelta(minutes=2)  # at most so far apart are the times of the same message
_MAX_TEXT = 20_000  # characters that hooks keep


def echoes(backend: MemoryBackend, entries: Iterable[MemoryEntry], source: str, used: set[str]) -> set[str]:
    """Return the ids of the new `entries` that are messages which the memory already has from `source`. Each stored
    message is the same as one new message at most: those with their ids in `used` are taken, and further ids are added
    to it."""
    sessions: defaultdict[tuple[str, str], list[MemoryEntry]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "message" and entry.session_id:
            sessions[entry.namespace, entry.session_id].append(entry)
    found = set[str]()
    for (namespace, session), said in sessions.items():
        scope = Scope(namespace, kinds=("message",), session_id=session, source_type=source, include_archived=True)
        stored: defaultdict[tuple[str, str], list[MemoryEntry]] = defaultdict(list)
        for entry in all_entries(backend, scope):
            stored[_key(entry)].append(entry)
        for entry in said:
            near = [each for each in stored[_key(entry)] if each.id not in used and _apart(each, entry) <= _APART]
            if near:
                used.add(min(near, key=lambda each: (_apart(each, entry), each.id)).id)
                found.add(entry.id)
    return found


def _key(entry: MemoryEntry) -> tuple[str, str]:
    return entry.role, entry.content[:_MAX_TEXT].strip()


def _apart(one: MemoryEntry, other: MemoryEntry) -> timedelta:
    return abs(happened_at(one) - happened_at(other))
