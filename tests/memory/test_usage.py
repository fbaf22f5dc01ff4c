"""Uses of entries are counted in memory and written in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from agentformer.errors import StoreError
from agentformer.memory import usage
from agentformer.types import MemoryBackend, Use


class Touched:
    """A backend that only remembers what `touch` was given."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def touch(self, uses: Sequence[Use]) -> None:
        self.calls.append([use.id for use in uses])


def test_each_full_batch_is_written_without_waiting_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread writes a batch. When it has ended, the next full batch has a thread of its own."""
    monkeypatch.setattr(usage, "_BATCH", 2)
    backend = Touched()
    uses = usage.UsageCounter(cast(MemoryBackend, backend))
    for batch in (["a", "b"], ["c", "d"]):
        uses.count(batch, others=1)
        assert uses._writer is not None
        uses._writer.join(10)
    assert backend.calls == [["a", "b"], ["c", "d"]]


def test_a_store_that_refuses_the_counts_does_not_fail_the_request() -> None:
    class Refusing(Touched):
        def touch(self, uses: Sequence[Use]) -> None:
            raise StoreError("the disk is full")

    uses = usage.UsageCounter(cast(MemoryBackend, Refusing()))
    uses.count(["a"], reads=1)
    uses.flush_if_due(["a"])
