"""Fixtures of the tests of the indexes."""

from __future__ import annotations

import pytest

from agentformer.index.vectors import tuning


@pytest.fixture
def few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune trained indexes with 40 queries instead of 200, for tests that do not measure the recall."""
    monkeypatch.setattr(tuning, "TUNING_QUERIES", 40)
