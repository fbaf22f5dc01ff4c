"""Interfaces and types for embedders, embedding spaces, rerankers and language models."""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from agentformer.types.memory import Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]  # (dimension,)
    Matrix = NDArray[np.float32]  # (rows, dimension)
else:
    Vector = Matrix = Any

# Limits for the cosine of two fingerprints. For one model on different hardware, the cosine is far above the first
# limit; for two different models, it is far below. Models with different names count as the same model only above the
# second limit.
_SAME_MODEL = 0.99
_MOVED_MODEL = 0.9999


@dataclass(frozen=True, slots=True)
class EmbeddingSpace:
    """The properties of an embedding model that decide whether two vectors can be compared (see `difference`). An index
    contains only vectors that can be compared."""

    provider: str
    model: str
    dimension: int
    max_tokens: int  # number of tokens that the model can read, without special tokens and prefix
    revision: str = ""
    query_prefix: str = ""
    document_prefix: str = ""
    normalised: bool = True
    languages: str = ""  # "*": many; or codes such as "en de"; "": unknown, so the tokenizer decides
    fingerprint: str = ""  # embedding of a fixed probe text: detects another model under the same name

    @property
    def spec(self) -> str:
        """The name of the space in settings, such as `minilm:all-MiniLM-L6-v2`."""
        return f"{self.provider}:{self.model}"

    def difference(self, other: EmbeddingSpace) -> Literal["", "swapped", "other"]:
        """Return why vectors of this space and of the space `other` cannot be compared, or "" if they can be compared.

        `swapped` means that the two models have the same name, but that they embed a fixed test text differently.
        `other` means that the models are different. A model that was only moved to another folder or provider counts as
        the same model.
        """
        if self == other:
            return ""
        both_known = bool(self.fingerprint and other.fingerprint)
        if self._identity() == other._identity():
            return "swapped" if both_known and self._agreement(other) < _SAME_MODEL else ""
        may_have_moved = self._shape() == other._shape() and both_known
        return "" if may_have_moved and self._agreement(other) >= _MOVED_MODEL else "other"

    def _identity(self) -> tuple[object, ...]:
        return self.provider, self.model, self.revision, *self._shape()

    def _shape(self) -> tuple[object, ...]:
        """Return the properties that two spaces must have in common, besides the model, so that their vectors can be
        compared. `max_tokens` is not included, because it does not change the vector of a text."""
        int8 = self.model.endswith("@int8")  # its vectors are close to those of the model without this ending
        return self.dimension, self.query_prefix, self.document_prefix, self.normalised, int8

    def _agreement(self, other: EmbeddingSpace) -> float:
        """Return how similarly the models of the two spaces embed a fixed test text: the cosine of the two vectors
        (fingerprints), or -1.0 if they have different lengths."""
        import numpy as np

        a, b = (np.frombuffer(base64.b64decode(s.fingerprint), "<f2").astype(np.float32) for s in (self, other))
        norms = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) / max(norms, 1e-12) if len(a) == len(b) else -1.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry without vectors: the number of failed attempts to embed it, and the last error."""

    entry_id: str
    attempts: int
    last_error: str


@dataclass(frozen=True, slots=True)
class SpaceState:
    """The state of an embedding space in a store. The `active` space is used by searches. The `building` space is being
    filled by `reembed`. A `kept` space was active before."""

    space: EmbeddingSpace
    state: Literal["active", "building", "kept"]
    vectors: int
    bytes: int  # size of the vectors only
    waiting: int = 0  # number of entries that the building space still lacks


@dataclass(frozen=True, slots=True)
class Reembedding:
    """The result of a move to another embedding space (`reembed`). `overlap` (0..1) compares searches in both spaces.
    For one query, it is the share of the ten nearest entries that both spaces have in common. `overlap` is the mean
    over `sample` queries: the queries of the caller or, if there are none, texts of stored entries. It is None if it
    could not be measured."""

    former: EmbeddingSpace | None
    space: EmbeddingSpace
    switched: bool  # False: the store already used this space
    entries: int = 0  # number of entries that this run completed
    embedded: int = 0  # number of texts that the model embedded
    reused: int = 0  # number of texts that had a vector from an earlier run
    failed: int = 0  # number of entries that the model refused; they stay in the queue
    seconds: float = 0.0
    overlap: float | None = None
    sample: int = 0


@runtime_checkable
class Embedder(Protocol):
    """Converts texts to vectors of the length 1. Raises `EmbedderUnavailable` if the model cannot be used now."""

    @property
    def space(self) -> EmbeddingSpace:
        """The space of the vectors that this embedder returns."""

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return an array of shape (len(texts), dimension) with one vector for each text. A text is never cut: if a
        text is too long for the model, `TextTooLong` is raised."""

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query. If the query is too long for the model, it is split into parts. The result is
        the mean of their vectors, scaled to the length 1."""

    def token_spans(self, text: str) -> list[Span]:
        """Return the positions of the tokens in the text, in order, without overlaps and special tokens."""


class TokenVectors(NamedTuple):
    """The vectors that an embedding model computes for one text: `vector` for the whole text, and `rows`, shape
    (tokens, dimension), with one vector for each token in its context. Each vector has the length 1. `spans` has the
    position of each token in the text, in the order of `rows`. Special tokens are left out."""

    vector: Vector
    spans: tuple[Span, ...]
    rows: Matrix


@runtime_checkable
class TokenEmbedder(Protocol):
    """An embedder that also returns the vectors of single tokens, so that the words of two texts can be compared."""

    def embed_tokens(self, texts: Sequence[str], *, query: bool = False) -> list[TokenVectors] | None:
        """Return the vectors of each text and of its tokens, or None if the model has no vectors of tokens. If `query`
        is true, the texts are queries. A text is never cut: if it is too long, `TextTooLong` is raised."""


@runtime_checkable
class TokenCounter(Protocol):
    """An embedder that can count the tokens of several texts in one call, without computing their positions."""

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text. Special tokens are left out."""


@runtime_checkable
class Reranker(Protocol):
    """Computes how well passages answer a query. The model reads each passage together with the query. Raises
    `RerankerUnavailable` if the model cannot be used now."""

    @property
    def name(self) -> str:
        """The name of the reranker in settings, such as `sbert:cross-encoder/ms-marco-MiniLM-L6-v2`."""

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        """Return one score for each text. A higher score is better. A score may be any finite number. The score of a
        text does not depend on the other texts. Scores for different queries cannot be compared. If a text is too long
        for the model, only its beginning and its end are read."""


@runtime_checkable
class BoundedReranker(Reranker, Protocol):
    """A reranker that reads only parts of very long texts and reports this in warnings."""

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        """Return the scores of the texts, as `scores` does, and warnings about texts that were not read completely."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a language model may call. `parameters` is the JSON Schema of its arguments, which are a JSON
    object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request of a language model to call a tool. `id` is also the `tool_call_id` of the message with the result of
    the call."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation with a language model. A message of the role `assistant` may contain `tool_calls`.
    The result of each tool call is a message of the role `tool`, whose `tool_call_id` is the id of the call."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of a language model. `finish` says why the model stopped: `length` if the reply reached `max_tokens`, ""
    if the reason is unknown."""

    text: str
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    finish: Literal["stop", "length", "tool_calls", "filtered", ""] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    data: Any = field(default=None)  # the text as JSON, valid under the requested schema


@runtime_checkable
class LanguageModel(Protocol):
    """Writes the next message of a conversation. Raises `LanguageModelUnavailable` if no server answers,
    `PromptTooLong` if the conversation is too long for the model, and `InvalidReply` if the reply cannot be used."""

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        """Return the next message of the model: a text, or calls of some of the `tools`. `schema` is a JSON Schema.
        With a schema, the text is one JSON value that is valid under it, and `data` is the decoded value."""

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """Yield the reply in pieces of text that are not empty. The return value of the generator is the complete
        `Reply`. If an error occurs, the pieces that were already yielded stay valid."""
