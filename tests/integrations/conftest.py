"""What the tests of the adapters share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer import AgentFormer, Settings
from agentformer.embedders.hashing import HashingEmbedder


class SlowEmbedder(HashingEmbedder):
    """Waits a tenth of a second for each query."""

    def embed_query(self, text: str) -> Any:
        import time

        time.sleep(0.1)
        return np.asarray(super().embed_query(text))


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with AgentFormer(Settings(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing")) as af:
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
