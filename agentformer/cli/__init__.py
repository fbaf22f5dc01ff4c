"""The command line: `agentformer COMMAND`, the top edge. `agentformer --help` lists the commands.

Exit codes: 0 done; 1 done in part (a file without usable text, a task that did not fit into its context); 2 a wrong
argument, or one that does not fit what is stored; 3 the memory cannot be used.
"""

from agentformer.cli import changing, core, documents, embedding, memory, upkeep
from agentformer.cli.group import main

__all__ = ["changing", "core", "documents", "embedding", "main", "memory", "upkeep"]
