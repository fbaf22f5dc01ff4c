"""LlamaIndex: a retriever with citations, and a memory block."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agentformer.factory import AgentFormer
from agentformer.integrations import hit_metadata, missing, readable, recalled

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.memory import BaseMemoryBlock
    from llama_index.core.schema import NodeWithScore, TextNode
    from pydantic import Field
except ImportError as error:
    raise missing("llamaindex", error) from error


class AgentFormerRetriever(BaseRetriever):
    """A retriever over documents and memories. The metadata of a node contain `entry_id`, `kind` and `score`. For a
    passage, they also contain its citation: `source`, `page`, `start`, `end` and `document_id`. `scope` contains
    filters of `memory.search`, such as `user_id` and `where`. Without a user, only entries that belong to no user are
    found; with `every_user=True`, entries of all users are found."""

    def __init__(self, af: AgentFormer, *, k: int = 4, mode: str = "hybrid", **scope: Any) -> None:
        self._af = af
        self._k = k
        self._mode = mode
        self._within = scope
        super().__init__()

    def _retrieve(self, query_bundle: Any) -> list[Any]:
        text = query_bundle.query_str
        within = readable(self._within)
        hits = self._af.memory.search(text, limit=self._k, mode=self._mode, **within) if text.strip() else []
        return [
            NodeWithScore(
                node=TextNode(id_=hit.entry.id, text=hit.entry.content, metadata=hit_metadata(hit)), score=hit.score
            )
            for hit in hits
        ]

    async def _aretrieve(self, query_bundle: Any) -> list[Any]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


class AgentFormerMemoryBlock(BaseMemoryBlock[str]):  # type: ignore[misc]
    """A memory block for LlamaIndex's `Memory`. The block stores the messages that leave the short-term memory. It
    recalls the memories about the last message of the user, at most `max_tokens` tokens. `place` contains `namespace`,
    `user_id` and `project`. Without a user, only memories that belong to no user are recalled; with `every_user=True`,
    memories of all users are recalled."""

    name: str = "agentformer"
    af: Any = Field(description="the result of `connect`")
    session_id: str = "llamaindex"
    max_tokens: int = 1_000
    place: Mapping[str, Any] = {}

    async def _aget(self, messages: list[Any] | None = None, **block_kwargs: Any) -> str:
        question = next((m.content for m in reversed(messages or []) if m.role.value == "user" and m.content), "")
        return await asyncio.to_thread(recalled, self.af, question, self.max_tokens, self.place)

    async def _aput(self, messages: list[Any]) -> None:
        await asyncio.to_thread(self._store, messages)

    def _store(self, messages: list[Any]) -> None:
        own = {name: self.place[name] for name in ("namespace", "user_id", "project") if name in self.place}
        items = [
            {
                **own,
                "session_id": message.additional_kwargs.get("session_id") or self.session_id,
                "role": message.role.value,
                "content": message.content,
            }
            for message in messages
            if message.role.value in ("user", "assistant") and (message.content or "").strip()
        ]
        self.af.memory.add_messages(items)
