"""Embedders, embedding spaces, rerankers and language models."""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from agentformer.types.memory import Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]  # (dimension,)
    Matrix = NDArray[np.float32]  # (rows, dimension)
else:
    Vector = Matrix = Any

# Cosines of fingerprints. Two loads of one model on different hardware agree far better than the first; two models do
# not come near it. Under another name a model must agree to the last bits that hardware leaves alone.
_SAME_MODEL = 0.99
_MOVED_MODEL = 0.9999


@dataclass(frozen=True, slots=True)
class EmbeddingSpace:
    """The properties that make two vectors comparable. Vectors of different spaces are never in one index."""

    provider: str
    model: str
    dimension: int
    max_tokens: int  # tokens of text that the model reads, without special tokens and prefix
    revision: str = ""
    query_prefix: str = ""
    document_prefix: str = ""
    normalised: bool = True
    languages: str = ""  # "*": many; else codes such as "en de"; "": unknown, so its tokenizer is measured
    fingerprint: str = ""  # embedding of a fixed probe text: detects another model under the same name

    @property
    def spec(self) -> str:
        """The name in settings, such as `minilm:all-MiniLM-L6-v2`."""
        return f"{self.provider}:{self.model}"

    def difference(self, other: EmbeddingSpace) -> Literal["", "swapped", "other"]:
        """Return why vectors of the two cannot be compared: `swapped` if a model of the same name embeds the probe text
        differently, `other` for another model, "" if they can. A model that only moved to another folder or provider
        is the same model."""
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
        """Return the properties of a vector without the model's name. `max_tokens` only decides on the windows."""
        return self.dimension, self.query_prefix, self.document_prefix, self.normalised, self._precision()

    def _precision(self) -> str:
        """Return `int8` for `NAME@int8`, which is close to the model itself, but never comparable."""
        return "int8" if self.model.endswith("@int8") else ""

    def _agreement(self, other: EmbeddingSpace) -> float:
        """Return the cosine of the two fingerprints; -1.0 if they cannot be compared."""
        import numpy as np

        a, b = (np.frombuffer(base64.b64decode(s.fingerprint), "<f2").astype(np.float32) for s in (self, other))
        norms = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) / max(norms, 1e-12) if len(a) == len(b) else -1.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry without vectors, with the number of attempts and the last error."""

    entry_id: str
    attempts: int
    last_error: str


@dataclass(frozen=True, slots=True)
class SpaceState:
    """A space of a store. Searches use the `active` one; `reembed` fills the `building` one; `kept` spaces were active
    before."""

    space: EmbeddingSpace
    state: Literal["active", "building", "kept"]
    vectors: int
    bytes: int  # of the vectors alone
    waiting: int = 0  # entries that the building space still lacks


@dataclass(frozen=True, slots=True)
class Reembedding:
    """The result of a move to another space.

    `overlap` is the mean share of the nearest ten entries that both spaces agree on, 0..1, over `sample` entries of
    the store or over the queries given; None if there was nothing to compare.
    """

    former: EmbeddingSpace | None
    space: EmbeddingSpace
    switched: bool  # False: the store was in this space already
    entries: int = 0  # completed by this run
    embedded: int = 0  # texts that the model embedded
    reused: int = 0  # texts with a vector from an earlier run
    failed: int = 0  # entries that the model refuses; they wait, with the error
    seconds: float = 0.0
    overlap: float | None = None
    sample: int = 0


@runtime_checkable
class Embedder(Protocol):
    """Turns text into unit vectors. Raises `EmbedderUnavailable` if it cannot work now."""

    @property
    def space(self) -> EmbeddingSpace:
        """The space of its vectors."""
        ...

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimension) unit rows. Raises `TextTooLong` instead of cutting a text."""
        ...

    def embed_query(self, text: str) -> Vector:
        """Return a (dimension,) unit vector. A query longer than the model reads is embedded in parts and averaged."""
        ...

    def token_spans(self, text: str) -> list[Span]:
        """Return the offsets of the text's tokens in order, without special tokens and without overlap."""
        ...


@runtime_checkable
class Reranker(Protocol):
    """Scores passages by reading each together with the query, which is slower and more accurate than comparing
    vectors. Raises `RerankerUnavailable` if it cannot work now."""

    @property
    def name(self) -> str:
        """The name in settings, such as `sbert:cross-encoder/ms-marco-MiniLM-L6-v2`."""
        ...

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        """Return (len(texts),) scores: unbounded, higher is better, comparable within one call. A score depends on the
        query and the text alone. Of a long text the beginning and the end are read."""
        ...


@runtime_checkable
class BoundedReranker(Reranker, Protocol):
    """A reranker that skips parts of very long texts and reports it."""

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        """Return the result of `scores`, and warnings about the parts that were skipped."""
        ...


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool. The message with the result refers to `id`."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. A message of the assistant may carry `tool_calls`. The result of a call is a message of the role
    `tool` with its `tool_call_id`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply. `finish` is the reason for its end: `length` if `max_tokens` cut it, "" if unknown."""

    text: str
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    finish: Literal["stop", "length", "tool_calls", "filtered", ""] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    data: Any = field(default=None)  # the text as JSON, valid under the requested schema


@runtime_checkable
class LanguageModel(Protocol):
    """Completes a conversation. Raises `LanguageModelUnavailable` if no server answers, `PromptTooLong` if the
    conversation does not fit the model, `InvalidReply` if the reply cannot be used."""

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        """Return the model's next message: text, or calls of `tools`. With `schema`, a JSON Schema, the text is one
        JSON value that was validated against it, and `data` is that value."""
        ...

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """Yield the text in non-empty pieces and return the whole `Reply`. Pieces before an error stay valid."""
        ...
