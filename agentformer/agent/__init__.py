"""The agent: a language model that works with a memory through its tools."""

from agentformer.agent.agent import Agent
from agentformer.agent.turns import Cited, Recalled, ToolRun, ToolStart, Turn, TurnEvent, UsedMemory

__all__ = ["Agent", "Cited", "Recalled", "ToolRun", "ToolStart", "Turn", "TurnEvent", "UsedMemory"]
