"""Agents: a language model that uses a memory through tools (docs/AGENT.md)."""

from agentformer.agent.agent import Agent as Agent
from agentformer.agent.agent import AgentOptions as AgentOptions
from agentformer.agent.cited_pages import Cited as Cited
from agentformer.agent.turn import Recalled as Recalled
from agentformer.agent.turn import ToolRun as ToolRun
from agentformer.agent.turn import ToolStart as ToolStart
from agentformer.agent.turn import Turn as Turn
from agentformer.agent.turn import TurnEvent as TurnEvent
from agentformer.agent.turn import UsedMemory as UsedMemory
