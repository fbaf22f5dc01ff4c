"""The four tiers and their rules, over any backend.

*Core*: named blocks of bounded size, always in context (`core.py`). *Working*: the last messages of a session,
and notes stored in this tier. *Episodic*: all that happened, with time, speaker, session and project; what a
summary stands for is kept and found here. *Semantic*: facts, summaries, chunks, searched like everything.
"""

from __future__ import annotations

import dataclasses

from agentformer.memory.core import CoreMemory
from agentformer.records.codec import happened_at
from agentformer.types import DEFAULT_NAMESPACE, Hits, MemoryBackend, MemoryEntry, Query, Scope

_SPARE = 20  # hits asked for beyond the limit, for superseded ones to be left out


class HierarchicalMemory:
    """The tiers of a backend. `working_messages` is how many messages of a session are at hand."""

    def __init__(self, backend: MemoryBackend, core: CoreMemory, *, working_messages: int) -> None:
        self._backend = backend
        self.core = core
        self.working_messages = working_messages

    def working(self, scope: Scope) -> list[MemoryEntry]:
        """The last messages and notes of the scope's session, oldest first, whether or not a summary stands for
        them."""
        wide = dataclasses.replace(scope, tiers=(), include_archived=True)
        messages = self._latest(dataclasses.replace(wide, kinds=wide.kinds or ("message",)))
        notes = self._latest(dataclasses.replace(wide, tiers=("working",)))
        found = {e.id: e for e in (*messages, *notes) if e.kind == "message" or e.tier == "working"}
        return sorted(found.values(), key=_by_time)[-self.working_messages :]

    def _latest(self, scope: Scope) -> list[MemoryEntry]:
        found = self._backend.latest(scope, limit=self.working_messages + _SPARE)
        return [entry for entry in found if entry.superseded_by is None][: self.working_messages]

    def transcript(self, session_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> list[MemoryEntry]:
        """Every message of a session in the order in which it was said, with `content` word for word as it came,
        summarised or not."""
        scope = Scope(namespace, kinds=("message",), session_id=session_id, include_archived=True)
        messages: list[MemoryEntry] = []
        while page := self._backend.list(scope, after=messages[-1].id if messages else "", limit=1000):
            messages += page
        said = [m if m.raw is None else dataclasses.replace(m, content=m.raw) for m in messages]
        return sorted(said, key=_by_time)

    def recent(self, scope: Scope, limit: int) -> list[MemoryEntry]:
        """The newest episodic entries of the scope, newest first."""
        wide = _episodic(scope)
        return [e for e in self._backend.latest(wide, limit=limit + _SPARE) if e.superseded_by is None][:limit]

    def relevant(self, query: str, scope: Scope, limit: int) -> Hits:
        """The episodic entries of the scope that bear most on `query`, of all that ever happened."""
        hits = self._backend.search(Query(query, _episodic(scope), limit + _SPARE))
        return Hits([hit for hit in hits if hit.entry.superseded_by is None][:limit], hits.warnings)


def _episodic(scope: Scope) -> Scope:
    """What a summary stands for still happened."""
    return dataclasses.replace(scope, tiers=("episodic",), include_archived=True)


def _by_time(entry: MemoryEntry) -> tuple[object, str]:
    return happened_at(entry), entry.id
