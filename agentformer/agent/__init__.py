"""The agent: a language model that works with a memory through its tools."""

from agentformer.agent.agent import Agent, AgentOptions
from agentformer.agent.cited_pages import Cited
from agentformer.agent.turn import Recalled, ToolRun, ToolStart, Turn, TurnEvent, UsedMemory

__all__ = ["Agent", "AgentOptions", "Cited", "Recalled", "ToolRun", "ToolStart", "Turn", "TurnEvent", "UsedMemory"]
