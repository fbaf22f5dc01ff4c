"""`HierarchicalMemory`: the four tiers and their rules, over any backend. *Core*: named blocks of limited size, which
are in every context. *Working*: the last messages of a session, and notes that are stored in this tier. *Episodic*: all
events with time, speaker, session and project, including the originals of summaries. *Semantic*: facts, summaries and
chunks of documents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.memory.backends import all_entries, by_time
from agentformer.memory.core import BLOCK_KIND, CoreMemory, block_id
from agentformer.types import DEFAULT_NAMESPACE, Hits, MemoryBackend, MemoryEntry, Query, Scope

_EXTRA = 20  # additional entries that are read, because superseded entries are left out


class HierarchicalMemory:
    """The tiers of a backend. The working tier of a session contains its last `working_messages` messages."""

    def __init__(self, backend: MemoryBackend, core: CoreMemory, *, working_messages: int) -> None:
        self._backend = backend
        self.core = core
        self.working_messages = working_messages

    def check_tier(self, entry: MemoryEntry) -> MemoryEntry:
        """Return the entry as its tier stores it. Raises `InvalidInput` if a rule of the tier is broken."""
        if entry.tier == "working" and entry.session_id is None:
            raise InvalidInput("session_id", "is missing; an entry of working memory belongs to a session")
        if entry.tier != "core":
            return entry
        self.core.check(entry.title or "(untitled)", entry.content)
        if not entry.title:
            return entry
        own_id = block_id(entry.title, entry.namespace, entry.agent_id, entry.user_id)
        return dataclasses.replace(entry, id=own_id, kind=BLOCK_KIND if entry.kind == "fact" else entry.kind)

    def check_update(self, former: MemoryEntry, changes: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` if changes break a rule of the entry's tier."""
        if former.tier != "core":
            return
        if changes.get("title", former.title) != former.title:
            raise InvalidInput("title", "of a core block is its name and cannot change; create another block")
        self.core.check(former.title or former.id, changes.get("content", former.content))

    def working(self, scope: Scope) -> list[MemoryEntry]:
        """Return the last messages and notes of the scope's session, oldest first. Summarized messages are included."""
        wide = dataclasses.replace(scope, tiers=(), include_archived=True)
        messages = self._latest(dataclasses.replace(wide, kinds=wide.kinds or ("message",)), self.working_messages)
        notes = self._latest(dataclasses.replace(wide, tiers=("working",)), self.working_messages)
        entries = {e.id: e for e in (*messages, *notes) if e.kind == "message" or e.tier == "working"}
        return sorted(entries.values(), key=by_time)[-self.working_messages :]

    def transcript(self, session_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> list[MemoryEntry]:
        """Return every message of a session in order of time, with its original text, including summarized ones."""
        scope = Scope(namespace, kinds=("message",), session_id=session_id, include_archived=True)
        messages = all_entries(self._backend, scope)
        originals = [m if m.raw is None else dataclasses.replace(m, content=m.raw) for m in messages]
        return sorted(originals, key=by_time)

    def recent(self, scope: Scope, limit: int) -> list[MemoryEntry]:
        """Return the newest episodic entries of the scope, newest first. Summarized entries are included."""
        return self._latest(_episodic(scope), limit)

    def relevant(self, query: str, scope: Scope, limit: int) -> Hits:
        """Search the episodic entries of the scope. Summarized entries are included."""
        hits = self._backend.search(Query(query, _episodic(scope), limit + _EXTRA))
        return Hits([hit for hit in hits if hit.entry.superseded_by is None][:limit], hits.warnings)

    def _latest(self, scope: Scope, limit: int) -> list[MemoryEntry]:
        entries = self._backend.latest(scope, limit=limit + _EXTRA)
        return [entry for entry in entries if entry.superseded_by is None][:limit]


def _episodic(scope: Scope) -> Scope:
    return dataclasses.replace(scope, tiers=("episodic",), include_archived=True)
