"""AgentFormer: a memory that an agent can trust, and answers with page-exact citations.

with agentformer.connect() as af:
    af.rag.upload("handbook.pdf")
    print(af.rag.query("Who holds the keys?").text)
"""

from agentformer._version import __version__
from agentformer.errors import AgentFormerError
from agentformer.factory import AgentFormer, connect
from agentformer.settings import Settings
from agentformer.types import Answer, Citation, Hit, MemoryEntry, Scope

__all__ = [
    "AgentFormer",
    "AgentFormerError",
    "Answer",
    "Citation",
    "Hit",
    "MemoryEntry",
    "Scope",
    "Settings",
    "__version__",
    "connect",
]
