"""The endpoints of memories."""

from __future__ import annotations

from agentformer.api.memory.blocks import add_blocks
from agentformer.api.memory.entries import add_entries
from agentformer.api.memory.searching import add_searching
from agentformer.api.memory.upkeep import add_upkeep
from agentformer.api.operations import Operations
from agentformer.factory import AgentFormer


def add_memory(operations: Operations, af: AgentFormer) -> None:
    add_entries(operations, af)
    add_searching(operations, af)
    add_blocks(operations, af)
    add_upkeep(operations, af)
