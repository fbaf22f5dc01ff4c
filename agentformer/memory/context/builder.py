"""The context of a task: core memory, what was said, and what memory holds about it, within a token budget.

Core comes first and whole. Of what remains after it and the task, 60% is for the conversation, 20% for episodes and
20% for knowledge; what a share leaves over flows to the conversation, then to relevant episodes and knowledge
alike. Episodes that are merely recent fill what nothing else wants. Whole messages and whole entries only. The same
memory and the same call give the same context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.memory.context.conversation import Said, conversation_of
from agentformer.memory.context.plan import Context, ContextReport, LeftOut, Plan, Shares
from agentformer.memory.core import CoreMemory
from agentformer.records import fields
from agentformer.search.relevance import relevant_hits
from agentformer.text.analysis import MAX_QUERY
from agentformer.types import DEFAULT_NAMESPACE, Hits, MemoryBackend, MemoryEntry, Query, Scope

__all__ = ["Context", "ContextBuilder", "ContextReport", "LeftOut", "Shares"]

_CANDIDATES = 30  # hits that are judged for a share
_RECENT = 20  # episodes that are offered last of all, unjudged
_MESSAGES = 200  # of a session, read where the caller gives no conversation
_NOT_RELEVANT = "does not bear on the task"


class ContextBuilder:
    """Builds contexts from a backend. `count_tokens` is of the model that will read them."""

    def __init__(
        self, backend: MemoryBackend, count_tokens: Callable[[str], int], *, shares: Shares | None = None
    ) -> None:
        self._shares = Shares() if shares is None else shares
        if min(self._shares) < 0 or sum(self._shares) > 1.0001:
            raise InvalidInput("shares", f"must be at least 0 and at most 1 together, got {tuple(self._shares)}")
        self._backend = backend
        self._count = count_tokens
        self._core = CoreMemory(backend, count_tokens, block_tokens=0)  # read only: blocks are never edited here

    def build(
        self,
        task: str,
        conversation: Iterable[Any] = (),
        max_tokens: int = 4000,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        session_id: str | None = None,
        agent_id: str | None = None,
        user_id: str | None = None,
        project: str | None = None,
    ) -> Context:
        """Core, recalled memory, `conversation` and `task` as messages of at most `max_tokens` together. Memory is the
        first message, in the user's role: it is data, and never the system's word. Messages stay apart, so two of the
        user may stand in a row, as memory and the task do; for a chat template that refuses that, join them
        (`agent.briefing.alternating`).

        `conversation` holds `ChatMessage`s, mappings with role and content, or entries; where it is empty, the
        session's last messages are taken, whoever said them. Memory is recalled from all sessions of the namespace,
        agent, user and project, knowledge also where it belongs to no user or project, as documents do; episodes also
        where a summary stands for them. Raises `InvalidInput` naming the
        argument, for `max_tokens` also when core alone is over it.
        """
        if not isinstance(task, str):
            raise InvalidInput("task", f"must be a string, got {type(task).__name__}")
        fields.encodable("task", task)
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise InvalidInput("max_tokens", f"must be a whole number above 0, got {max_tokens!r:.80}")
        scope = Scope(namespace, agent_id=agent_id, user_id=user_id, project=project)
        said = conversation_of(conversation) or self._session(namespace, session_id)
        blocks = self._core.blocks(namespace, agent_id=agent_id, user_id=user_id)
        plan = Plan(task, said, blocks, max_tokens, self._count)
        query = plan.query()[:MAX_QUERY]
        plan.offer("episodic", self._recalled(self._happened(scope), query, plan))
        known = dataclasses.replace(scope, tiers=("semantic",), or_nobody=True)
        plan.offer("semantic", self._recalled(known, query, plan))
        plan.offer_last(self._backend.latest(dataclasses.replace(scope, tiers=("episodic",)), limit=_RECENT))
        plan.fill(self._shares)
        return plan.context()

    def _session(self, namespace: str, session_id: str | None) -> list[Said]:
        """A session is one conversation, whichever users, agents and projects take part."""
        if session_id is None:
            return []
        scope = Scope(namespace, kinds=("message",), session_id=session_id)
        return conversation_of(reversed(self._backend.latest(scope, limit=_MESSAGES)))

    def _happened(self, scope: Scope) -> Scope:
        """All episodes, also those that a summary stands for: it may have dropped the detail that is asked for."""
        return dataclasses.replace(scope, tiers=("episodic",), include_archived=True)

    def _recalled(self, scope: Scope, query: str, plan: Plan) -> list[MemoryEntry]:
        if not query.strip():
            return []
        found = self._backend.search(Query(query, scope, limit=_CANDIDATES))
        hits = Hits((hit for hit in found if hit.entry.superseded_by is None), found.warnings)
        kept = {hit.entry.id: hit.entry for hit in relevant_hits(query, hits)}
        plan.leave_out((hit.entry.id for hit in hits if hit.entry.id not in kept), _NOT_RELEVANT)
        plan.warn(hits.warnings)
        return list(kept.values())
