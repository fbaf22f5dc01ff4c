"""The command line: `agentformer COMMAND`, the top edge. `agentformer --help` lists the commands and the exit codes.

Each module here adds its commands to `group.main` when it is imported; docs/CLI.md is made from them.
"""

from agentformer.cli import (
    changing,
    chat,
    completion,
    core,
    doctor,
    documents,
    embedding,
    evaluating,
    exporting,
    keys,
    mcp,
    memory,
    serving,
    state,
    upkeep,
)
from agentformer.cli.group import main

__all__ = [
    "changing",
    "chat",
    "completion",
    "core",
    "doctor",
    "documents",
    "embedding",
    "evaluating",
    "exporting",
    "keys",
    "main",
    "mcp",
    "memory",
    "serving",
    "state",
    "upkeep",
]
