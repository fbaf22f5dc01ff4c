"""The retriever and the memory block of LlamaIndex."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed; run `make test-integrations`")

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory

from agentformer import AgentFormer
from agentformer.integrations.llamaindex import AgentFormerMemoryBlock, AgentFormerRetriever
from tests.integrations.conftest import ticks_during


def test_a_retrieved_node_names_its_page(af: AgentFormer, tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("The caretaker keeps the keys of the boat house.")
    document = af.rag.upload(tmp_path / "rules.txt")
    af.memory.store("The keys are blue.", metadata={"year": 2026})
    (node,) = AgentFormerRetriever(af, k=1, kinds=["chunk"]).retrieve("Who keeps the keys?")
    assert (node.metadata["source"], node.metadata["document_id"], node.metadata["page"]) == (
        "rules.txt",
        document.id,
        1,
    )
    assert node.text.startswith("The caretaker") and node.score is not None and 0 < node.score <= 1
    (memory,) = asyncio.run(AgentFormerRetriever(af, where={"year": 2026}).aretrieve("keys"))
    assert memory.text == "The keys are blue."


def test_a_memory_recalls_what_left_the_short_term(af: AgentFormer) -> None:
    block = AgentFormerMemoryBlock(af=af, place={"user_id": "aino"})

    async def run() -> list[ChatMessage]:
        memory = Memory.from_defaults(
            session_id="s1", token_limit=60, token_flush_size=20, chat_history_token_ratio=0.5, memory_blocks=[block]
        )
        await memory.aput(ChatMessage(role="user", content="Aino prefers green tea from the shop by the harbour."))
        for n in range(12):
            await memory.aput(ChatMessage(role="assistant" if n % 2 == 0 else "user", content=f"Message {n} of many."))
        await memory.aput(ChatMessage(role="user", content="Which tea does Aino prefer?"))
        return list(await memory.aget())

    asyncio.run(run())
    assert "Aino prefers green tea" in af.memory.transcript("s1")[0].content
    recalled = asyncio.run(block.aget([ChatMessage(role="user", content="Which tea does Aino prefer?")]))
    assert "Aino prefers green tea" in recalled


def test_the_event_loop_is_never_blocked(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    slow = af.memory.search
    monkeypatch.setattr(af.memory, "search", lambda *a, **k: (time.sleep(0.1), slow(*a, **k))[1])
    retriever = AgentFormerRetriever(af)
    assert ticks_during(lambda n: retriever.aretrieve(f"tea {n}")) >= 10


def test_a_retriever_and_a_block_without_a_user_find_what_belongs_to_nobody(af: AgentFormer) -> None:
    for user in ("aino", None):
        af.memory.store(f"the tea of {user}", user_id=user)
    assert [node.text for node in AgentFormerRetriever(af).retrieve("tea")] == ["the tea of None"]
    assert len(AgentFormerRetriever(af, every_user=True).retrieve("tea")) == 2
    text = asyncio.run(AgentFormerMemoryBlock(af=af)._aget([ChatMessage(role="user", content="Which tea?")]))
    assert "the tea of None" in text and "aino" not in text
