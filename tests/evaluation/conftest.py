"""A memory that is there to be measured, with vectors that need no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from agentformer.evaluation.memory_evaluation import Trial
from agentformer.factory import trial
from agentformer.settings import Settings

Opens = Callable[..., Trial]


@pytest.fixture
def opens() -> Iterator[Opens]:
    """A trial with these settings."""
    with ExitStack() as open_ones:

        def opened(**settings: Any) -> Trial:
            return open_ones.enter_context(trial(Settings(embedder="hashing", **settings)))

        yield opened
