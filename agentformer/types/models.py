"""What embedders and language models owe their callers."""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from agentformer.types.documents import Span

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
    """What makes two vectors comparable. Vectors of different spaces never meet in one index."""

    provider: str
    model: str
    dimension: int
    max_tokens: int  # tokens of text that the model reads, special tokens and prefix already taken off
    revision: str = ""
    query_prefix: str = ""
    document_prefix: str = ""
    normalised: bool = True
    languages: str = ""  # "*": many; else codes such as "en de"; "": not declared, so its tokenizer is asked
    fingerprint: str = ""  # of a fixed probe text's embedding: catches a model swapped under its name

    @property
    def spec(self) -> str:
        """How settings name it, such as `minilm:all-MiniLM-L6-v2`."""
        return f"{self.provider}:{self.model}"

    def difference(self, other: EmbeddingSpace) -> Literal["", "swapped", "other"]:
        """Why vectors of the two cannot be compared: `swapped` when a model of the same name embeds the probe text
        differently, `other` for another model; "" when they can. A model that has only moved to another folder or
        provider is the same one."""
        if self == other:
            return ""
        told = bool(self.fingerprint and other.fingerprint)
        if self._identity() == other._identity():
            return "swapped" if told and self._agreement(other) < _SAME_MODEL else ""
        moved = self._shape() == other._shape()
        return "" if moved and told and self._agreement(other) >= _MOVED_MODEL else "other"

    def _identity(self) -> tuple[object, ...]:
        return self.provider, self.model, self.revision, *self._shape()

    def _shape(self) -> tuple[object, ...]:
        """What makes a vector, but for the model's name. How much of a text one reads only decides on the windows."""
        return self.dimension, self.query_prefix, self.document_prefix, self.normalised, self._precision()

    def _precision(self) -> str:
        """`int8` of `NAME@int8`: near to the model itself, and yet never to be mixed with it."""
        return "int8" if self.model.endswith("@int8") else ""

    def _agreement(self, other: EmbeddingSpace) -> float:
        """Cosine of the two fingerprints; -1.0 where they cannot be compared."""
        import numpy as np

        a, b = (np.frombuffer(base64.b64decode(s.fingerprint), "<f2").astype(np.float32) for s in (self, other))
        norms = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) / max(norms, 1e-12) if len(a) == len(b) else -1.0


@runtime_checkable
class Embedder(Protocol):
    """Turns text into unit vectors. Raises `EmbedderUnavailable` when it cannot work now."""

    @property
    def space(self) -> EmbeddingSpace: ...

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """(len(texts), dimension) unit rows. Raises `TextTooLong` instead of cutting a text."""
        ...

    def embed_query(self, text: str) -> Vector:
        """(dimension,) unit vector; a query longer than the model is embedded in parts and averaged."""
        ...

    def token_spans(self, text: str) -> list[Span]:
        """The text's tokens in order as offsets, without special tokens; never overlapping."""
        ...


@runtime_checkable
class Reranker(Protocol):
    """Judges passages by reading each together with the question, which is slower and surer than comparing vectors.
    Raises `RerankerUnavailable` when it cannot work now."""

    @property
    def name(self) -> str:
        """How settings name it, such as `sbert:cross-encoder/ms-marco-MiniLM-L6-v2`."""
        ...

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        """(len(texts),) how well each text answers the query: unbounded, higher is better, comparable within one call.
        Of a text of any length beginning and end are read; its score depends on the query and itself alone."""
        ...


@runtime_checkable
class BoundedReranker(Reranker, Protocol):
    """A reranker that passes over something of the longest texts, and tells so."""

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        """What `scores` returns, and in plain words what was passed over, if anything was."""
        ...


@dataclass(frozen=True, slots=True)
class Tool:
    """What a model may ask its caller to do. `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to have a tool called; `id` names it in the message that brings the result."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. The assistant's may carry `tool_calls`; the result of one is a message of the role `tool` with
    its `tool_call_id`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said. `finish` tells why it stopped: `length` when `max_tokens` cut it, "" when not known."""

    text: str
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    finish: Literal["stop", "length", "tool_calls", "filtered", ""] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    data: Any = field(default=None)  # the text as JSON, valid under the schema that was asked for


@runtime_checkable
class LanguageModel(Protocol):
    """Completes a conversation. Raises `LanguageModelUnavailable` when no server answers, `PromptTooLong` when the
    conversation does not fit the model, `InvalidReply` when what came cannot be used."""

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        """The model's next message: text, or calls of `tools`. With `schema`, a JSON Schema, the text is one JSON
        value that was validated against it, and `data` is that value."""
        ...

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """The text piece by piece, none of them empty; the generator returns the whole `Reply`. What had come before
        an error stays valid."""
        ...
