"""The floor: frozen records and protocols. Imports nothing of this package.

Offsets are in Unicode code points, half-open `[start, end)`. Pages count from 1. Times are aware
`datetime`s in UTC. Scores lie in 0..1, higher is better. Vectors are rows of unit length, float32.
"""

from agentformer.types.answers import Answer, AnswerEvent, AnswerFault, AnswerPiece, Citation
from agentformer.types.backend import MemoryBackend
from agentformer.types.documents import DocumentStatus, DocumentText, Heading, Page, PageStatus, Span
from agentformer.types.embedding import Reembedding, SpaceState, Waiting
from agentformer.types.health import Check, MemorySnapshot, StoredVector
from agentformer.types.memory import (
    DEFAULT_NAMESPACE,
    DOCUMENT_KINDS,
    TIERS,
    UNSEARCHED_KINDS,
    Decay,
    Hit,
    Hits,
    Link,
    MemoryEntry,
    Query,
    Reference,
    Scope,
    Source,
    Tier,
    Use,
    Vote,
)
from agentformer.types.models import (
    BoundedReranker,
    ChatMessage,
    Embedder,
    EmbeddingSpace,
    LanguageModel,
    Matrix,
    Reply,
    Reranker,
    Tool,
    ToolCall,
    Vector,
)

__all__ = [
    "DEFAULT_NAMESPACE",
    "DOCUMENT_KINDS",
    "TIERS",
    "UNSEARCHED_KINDS",
    "Answer",
    "AnswerEvent",
    "AnswerFault",
    "AnswerPiece",
    "BoundedReranker",
    "ChatMessage",
    "Check",
    "Citation",
    "Decay",
    "DocumentStatus",
    "DocumentText",
    "Embedder",
    "EmbeddingSpace",
    "Heading",
    "Hit",
    "Hits",
    "LanguageModel",
    "Link",
    "Matrix",
    "MemoryBackend",
    "MemoryEntry",
    "MemorySnapshot",
    "Page",
    "PageStatus",
    "Query",
    "Reembedding",
    "Reference",
    "Reply",
    "Reranker",
    "Scope",
    "Source",
    "SpaceState",
    "Span",
    "StoredVector",
    "Tier",
    "Tool",
    "ToolCall",
    "Use",
    "Vector",
    "Vote",
    "Waiting",
]
