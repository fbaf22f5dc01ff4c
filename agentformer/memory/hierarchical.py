"""`HierarchicalMemory`: the four tiers of a memory and their rules, for any backend. *Core*: named blocks of limited
size, which are in every context. *Working*: the last messages of a session, and notes that are stored in this tier.
*Episodic*: all events with time, speaker, session and project; events that a summary has replaced stay in this tier.
*Semantic*: facts, summaries and chunks of documents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.memory.backends import all_entries, by_time
from agentformer.memory.core import BLOCK_KIND, CoreMemory, block_id
from agentformer.types import DEFAULT_NAMESPACE, Hits, MemoryBackend, MemoryEntry, Query, Scope

_EXTRA = 20  # additional entries that are read, because superseded entries are removed from the result


class HierarchicalMemory:
    """Reads the entries of the tiers from a backend, and checks the rules of the tiers. The working tier of a session
    contains the last `working_messages` messages and notes of the session."""

    def __init__(self, backend: MemoryBackend, core: CoreMemory, *, working_messages: int) -> None:
        self._backend = backend
        self.core = core
        self.working_messages = working_messages

    def check_tier(self, entry: MemoryEntry) -> MemoryEntry:
        """Return the entry in the form in which it is stored in its tier. A core block gets an id that is computed from
        its name and owner. Raises `InvalidInput` if the entry breaks a rule of its tier."""
        if entry.tier == "working" and entry.session_id is None:
            raise InvalidInput("session_id", "is missing; an entry of the tier 'working' needs a session")
        if entry.tier != "core":
            return entry
        self.core.check(entry.title or "(untitled)", entry.content)
        if not entry.title:
            return entry
        own_id = block_id(entry.title, entry.namespace, entry.agent_id, entry.user_id)
        return dataclasses.replace(entry, id=own_id, kind=BLOCK_KIND if entry.kind == "fact" else entry.kind)

    def check_update(self, former: MemoryEntry, changes: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` if `changes` to the entry `former` break a rule of the tier of this entry."""
        if former.tier != "core":
            return
        if changes.get("title", former.title) != former.title:
            raise InvalidInput("title", "is the name of the core block and cannot be changed; create another block")
        self.core.check(former.title or former.id, changes.get("content", former.content))

    def working(self, scope: Scope) -> list[MemoryEntry]:
        """Return the last messages and notes of the session in `scope`, in the order in which they were stored.
        Messages that a summary has replaced are included."""
        wide = dataclasses.replace(scope, tiers=(), include_archived=True)
        messages = self._latest(dataclasses.replace(wide, kinds=wide.kinds or ("message",)), self.working_messages)
        notes = self._latest(dataclasses.replace(wide, tiers=("working",)), self.working_messages)
        entries = {e.id: e for e in (*messages, *notes) if e.kind == "message" or e.tier == "working"}
        latest = sorted(entries.values(), key=by_time)[-self.working_messages :]
        return sorted(latest, key=lambda entry: entry.id)

    def transcript(self, session_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> list[MemoryEntry]:
        """Return all messages of a session with their original text, in order of time. Messages that a summary has
        replaced are included."""
        scope = Scope(namespace, kinds=("message",), session_id=session_id, include_archived=True)
        messages = all_entries(self._backend, scope)
        originals = [m if m.raw is None else dataclasses.replace(m, content=m.raw) for m in messages]
        return sorted(originals, key=by_time)

    def recent(self, scope: Scope, limit: int) -> list[MemoryEntry]:
        """Return up to `limit` of the newest episodic entries in `scope`, newest first. Entries that a summary has
        replaced are included."""
        return self._latest(_episodic(scope), limit)

    def relevant(self, query: str, scope: Scope, limit: int) -> Hits:
        """Search the episodic entries in `scope`, and return up to `limit` hits, best first. Entries that a summary has
        replaced are included."""
        hits = self._backend.search(Query(query, _episodic(scope), limit + _EXTRA))
        return hits.with_hits([hit for hit in hits if hit.entry.superseded_by is None][:limit])

    def _latest(self, scope: Scope, limit: int) -> list[MemoryEntry]:
        entries = self._backend.latest(scope, limit=limit + _EXTRA)
        return [entry for entry in entries if entry.superseded_by is None][:limit]


def _episodic(scope: Scope) -> Scope:
    return dataclasses.replace(scope, tiers=("episodic",), include_archived=True)
