"""A memory of a test's own, and an agent over it with a model that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentformer import AgentFormer, connect
from agentformer.agent import Agent
from tests.agent.scripted import Line, Scripted

Open = Callable[..., AgentFormer]
Make = Callable[..., tuple[Agent, Scripted]]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens memories, which end with the test; nothing is summarised unless a test says so."""
    found: list[AgentFormer] = []

    def opened(**settings: Any) -> AgentFormer:
        where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing", "clean_every": 0}
        found.append(connect(**{**where, **settings}))
        return found[-1]

    yield opened
    for af in found:
        af.close()


@pytest.fixture
def af(opened: Open) -> AgentFormer:
    return opened()


@pytest.fixture
def agent(af: AgentFormer) -> Iterator[Make]:
    """An agent and its model."""
    made: list[Agent] = []

    def agent(*lines: Line, memory: AgentFormer = af, **options: Any) -> tuple[Agent, Scripted]:
        model = Scripted(*lines)
        memory.model = model
        made.append(Agent(memory, **options))
        return made[-1], model

    yield agent
    for each in made:
        assert each.close(30)
