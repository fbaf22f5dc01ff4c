"""What the tests of the adapters share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentformer import AgentFormer, Settings
from agentformer.embedders.hashing import HashingEmbedder


class SlowEmbedder(HashingEmbedder):
    """Waits a tenth of a second for each call."""

    def embed_query(self, text: str) -> Any:
        time.sleep(0.1)
        return _embed_query(self, text)

    def embed_documents(self, texts: Sequence[str]) -> Any:
        time.sleep(0.1)
        return _embed_documents(self, texts)


_embed_query, _embed_documents = HashingEmbedder.embed_query, HashingEmbedder.embed_documents


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with AgentFormer(Settings(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing")) as af:
        yield af


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentFormer]:
    """A memory whose embedder takes a tenth of a second for each call."""
    for name in ("embed_query", "embed_documents"):
        monkeypatch.setattr(HashingEmbedder, name, getattr(SlowEmbedder, name))
    with AgentFormer(Settings(index_dir=tmp_path / "si", upload_dir=tmp_path / "su", embedder="hashing")) as af:
        yield af


def ticks_during(call: Callable[[int], Awaitable[Any]], calls: int = 20) -> int:
    """Run `calls` calls at once, and return how often the event loop could run another task meanwhile."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.002)
            ticks += 1

    async def run() -> None:
        ticker = asyncio.create_task(tick())
        await asyncio.gather(*(call(n) for n in range(calls)))
        ticker.cancel()

    asyncio.run(run())
    return ticks
