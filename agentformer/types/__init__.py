"""Immutable data types and interfaces that all other packages use. This package imports no other package of
AgentFormer.

Offsets are counted in Unicode code points, and a range `[start, end)` does not include `end`. Page numbers start at 1.
Times are `datetime` objects in UTC, with a time zone. Scores are in 0..1, and a higher score is better. A matrix of
vectors has one vector in each row. Vectors have the type float32 and the length 1.
"""

from agentformer.types.backend import AbsentDocument as AbsentDocument
from agentformer.types.backend import Check as Check
from agentformer.types.backend import EntryVector as EntryVector
from agentformer.types.backend import HeldLock as HeldLock
from agentformer.types.backend import MemoryBackend as MemoryBackend
from agentformer.types.backend import MemorySnapshot as MemorySnapshot
from agentformer.types.backend import RecordStore as RecordStore
from agentformer.types.backend import SharedFiles as SharedFiles
from agentformer.types.backend import SharedLocks as SharedLocks
from agentformer.types.backend import StoreCheck as StoreCheck
from agentformer.types.backend import StoredVector as StoredVector
from agentformer.types.documents import FINDABLE as FINDABLE
from agentformer.types.documents import Answer as Answer
from agentformer.types.documents import AnswerEvent as AnswerEvent
from agentformer.types.documents import AnswerFault as AnswerFault
from agentformer.types.documents import AnswerPiece as AnswerPiece
from agentformer.types.documents import Citation as Citation
from agentformer.types.documents import DocumentStatus as DocumentStatus
from agentformer.types.documents import DocumentText as DocumentText
from agentformer.types.documents import Heading as Heading
from agentformer.types.documents import Page as Page
from agentformer.types.documents import PageStatus as PageStatus
from agentformer.types.documents import PageTable as PageTable
from agentformer.types.documents import ReasonCode as ReasonCode
from agentformer.types.documents import Symbol as Symbol
from agentformer.types.documents import UnsupportedSentence as UnsupportedSentence
from agentformer.types.memory import CONTAINER_KINDS as CONTAINER_KINDS
from agentformer.types.memory import DEFAULT_NAMESPACE as DEFAULT_NAMESPACE
from agentformer.types.memory import DOCUMENT_KINDS as DOCUMENT_KINDS
from agentformer.types.memory import NOT_INDEXED as NOT_INDEXED
from agentformer.types.memory import RESERVED_KINDS as RESERVED_KINDS
from agentformer.types.memory import TIERS as TIERS
from agentformer.types.memory import UNSEARCHED_KIND as UNSEARCHED_KIND
from agentformer.types.memory import UNSEARCHED_KINDS as UNSEARCHED_KINDS
from agentformer.types.memory import Analyzed as Analyzed
from agentformer.types.memory import Comparison as Comparison
from agentformer.types.memory import Condition as Condition
from agentformer.types.memory import Decay as Decay
from agentformer.types.memory import Factor as Factor
from agentformer.types.memory import Filter as Filter
from agentformer.types.memory import Group as Group
from agentformer.types.memory import Hit as Hit
from agentformer.types.memory import Hits as Hits
from agentformer.types.memory import HitVectors as HitVectors
from agentformer.types.memory import Link as Link
from agentformer.types.memory import MemoryEntry as MemoryEntry
from agentformer.types.memory import Original as Original
from agentformer.types.memory import Query as Query
from agentformer.types.memory import Reference as Reference
from agentformer.types.memory import Scope as Scope
from agentformer.types.memory import Source as Source
from agentformer.types.memory import Span as Span
from agentformer.types.memory import StepResult as StepResult
from agentformer.types.memory import Tier as Tier
from agentformer.types.memory import Use as Use
from agentformer.types.memory import Vote as Vote
from agentformer.types.memory import Where as Where
from agentformer.types.memory import new_id as new_id
from agentformer.types.memory import spans_of as spans_of
from agentformer.types.models import BoundedReranker as BoundedReranker
from agentformer.types.models import ChatMessage as ChatMessage
from agentformer.types.models import Embedder as Embedder
from agentformer.types.models import EmbeddingSpace as EmbeddingSpace
from agentformer.types.models import LanguageModel as LanguageModel
from agentformer.types.models import Matrix as Matrix
from agentformer.types.models import Reembedding as Reembedding
from agentformer.types.models import Reply as Reply
from agentformer.types.models import Reranker as Reranker
from agentformer.types.models import SpaceState as SpaceState
from agentformer.types.models import TokenCounter as TokenCounter
from agentformer.types.models import TokenEmbedder as TokenEmbedder
from agentformer.types.models import TokenVectors as TokenVectors
from agentformer.types.models import Tool as Tool
from agentformer.types.models import ToolCall as ToolCall
from agentformer.types.models import Vector as Vector
from agentformer.types.models import Waiting as Waiting
