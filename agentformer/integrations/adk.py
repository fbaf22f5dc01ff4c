"""Google ADK: a memory service that stores the events of sessions in a memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agentformer.factory import AgentFormer
from agentformer.integrations import missing, owned
from agentformer.types import DEFAULT_NAMESPACE

try:
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.genai.types import Content, Part
except ImportError as error:
    raise missing("adk", error) from error

_TYPE = "adk"


class AgentFormerMemoryService(BaseMemoryService):
    """A memory service of Google ADK that stores events in a memory of AgentFormer. An event with text becomes an entry
    of its user. An event that is added again is not stored again. A search returns up to `limit` events of the user in
    the same application, best first."""

    def __init__(self, af: AgentFormer, *, namespace: str = DEFAULT_NAMESPACE, limit: int = 10) -> None:
        self._af = af
        self._namespace = namespace
        self._limit = limit

    async def add_session_to_memory(self, session: Any) -> None:
        """Store the events of a session, except events that are stored already."""
        await asyncio.to_thread(self._add, session.app_name, session.user_id, session.id, session.events)

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Any],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store events that are not stored yet. Without a `session_id`, their session is "events". `custom_metadata` is
        ignored."""
        await asyncio.to_thread(self._add, app_name, user_id, session_id or "events", events)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the events that match the query."""
        return await asyncio.to_thread(self._search, app_name, user_id, query)

    def _add(self, app_name: str, user_id: str, session_id: str, events: Sequence[Any]) -> None:
        items = [
            {
                "content": text,
                "source_id": json.dumps([app_name, session_id, event.id], ensure_ascii=False),
                "speaker": event.author or "",
                "occurred_at": datetime.fromtimestamp(event.timestamp, UTC),
                "metadata": {"app_name": app_name, "role": event.content.role or ""},
            }
            for event in events
            if (text := _text(event))
        ]
        place = {"namespace": self._namespace, "user_id": user_id, "session_id": session_id}
        common: dict[str, Any] = {**place, "source_type": _TYPE, "kind": "event", "tier": "episodic"}
        self._af.memory.upsert_many(items, verbatim=True, **common)

    def _search(self, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        if not query.strip():
            return SearchMemoryResponse()
        scope: dict[str, Any] = {"namespace": self._namespace, "source_type": _TYPE}
        scope |= owned(has=["role"], user_id=user_id)
        hits = self._af.memory.search(query, limit=self._limit, metadata={"app_name": app_name}, **scope)
        return SearchMemoryResponse(
            memories=[
                MemoryEntry(
                    content=Content(role=hit.entry.metadata["role"] or None, parts=[Part(text=hit.entry.content)]),
                    author=hit.entry.speaker or None,
                    timestamp=hit.entry.occurred_at.isoformat() if hit.entry.occurred_at else None,
                )
                for hit in hits
                if isinstance(hit.entry.metadata["role"], str)
            ]
        )


def _text(event: Any) -> str:
    """Return the text of an event, without the thoughts of the model."""
    parts = (event.content.parts or ()) if event.content else ()
    text = "\n".join(part.text for part in parts if part.text and not part.thought)
    return text if text.strip() else ""
