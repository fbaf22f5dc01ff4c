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

# Limits for the cosine of two fingerprints. One model on different hardware is far above the first limit, and two
# different models are far below. Models with different names are the same model only above the second limit.
_SAME_MODEL = 0.99
_MOVED_MODEL = 0.9999


@dataclass(frozen=True, slots=True)
class EmbeddingSpace:
    """The properties that make two vectors comparable. An index never contains vectors of different spaces."""

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
        """Return why vectors of the two spaces cannot be compared, or "" if they can be compared.

        `swapped` means that a model of the same name embeds the probe text differently. `other` means another model. A
        model that only moved to another folder or provider is the same model.
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
        """Return the properties that make vectors comparable, without the model's name. `max_tokens` only decides how
        texts are cut."""
        int8 = self.model.endswith("@int8")  # its vectors are close to those of the model without this ending
        return self.dimension, self.query_prefix, self.document_prefix, self.normalised, int8

    def _agreement(self, other: EmbeddingSpace) -> float:
        """Return the cosine of the two fingerprints, or -1.0 if they have different lengths."""
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
    """A space of a store. Searches use the `active` space. `reembed` fills the `building` space. `kept` spaces were
    active before."""

    space: EmbeddingSpace
    state: Literal["active", "building", "kept"]
    vectors: int
    bytes: int  # size of the vectors only
    waiting: int = 0  # number of entries that the building space still lacks


@dataclass(frozen=True, slots=True)
class Reembedding:
    """The result of a move to another space.

    `overlap` is the mean share of entries that are among the ten nearest entries of a query in the old space and in the
    new space, 0..1. The queries are the given ones, or `sample` entries of the store. `overlap` is None if there was
    nothing to compare.
    """

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
    """Turns text into unit vectors. Raises `EmbedderUnavailable` if the model cannot be used now."""

    @property
    def space(self) -> EmbeddingSpace:
        """The space of the vectors that this embedder returns."""

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimension) unit rows. If a text is too long, raise `TextTooLong` instead of cutting the
        text."""

    def embed_query(self, text: str) -> Vector:
        """Return a (dimension,) unit vector. If the query is too long for the model, the vectors of its parts are
        averaged."""

    def token_spans(self, text: str) -> list[Span]:
        """Return the offsets of the text's tokens in order, without special tokens and without overlaps."""


@runtime_checkable
class Reranker(Protocol):
    """Scores passages by reading each passage together with the query. Raises `RerankerUnavailable` if the model cannot
    be used now."""

    @property
    def name(self) -> str:
        """The name of the reranker in settings, such as `sbert:cross-encoder/ms-marco-MiniLM-L6-v2`."""

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        """Return (len(texts),) scores without bounds. A higher score is better. A score depends only on the query and
        the text, and scores of different calls cannot be compared. Of a long text, only the beginning and the end are
        read."""


@runtime_checkable
class BoundedReranker(Reranker, Protocol):
    """A reranker that skips parts of very long texts and reports the skipped parts."""

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        """Return the result of `scores`, and warnings about the skipped parts."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool. The message with the result of the call refers to `id`."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. A message of the assistant may contain `tool_calls`. The result of each call is a message of the
    role `tool` with the same `tool_call_id`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply. `finish` is the reason why the model stopped: `length` if `max_tokens` cut the reply, "" if the
    reason is unknown."""

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
    conversation is too long for the model, and `InvalidReply` if the reply cannot be used."""

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        """Return the model's next message: a text, or calls of `tools`. If a JSON Schema is given as `schema`, the text
        is one JSON value that is valid under the schema, and `data` is the decoded value."""

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """Yield the text in non-empty pieces and return the complete `Reply`. If an error follows, the pieces that were
        already yielded stay valid."""
