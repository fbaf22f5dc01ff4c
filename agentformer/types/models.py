"""What embedders and language models owe their callers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agentformer.types.documents import Span

Vector = NDArray[np.float32]  # (dimension,)
Matrix = NDArray[np.float32]  # (rows, dimension)


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
    languages: str = ""  # "*" for a multilingual model; "": not declared, so its tokenizer is asked
    fingerprint: str = ""  # of a fixed probe text's embedding: catches a model swapped under its name


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


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0


@runtime_checkable
class LanguageModel(Protocol):
    """Completes a conversation. Raises `LanguageModelUnavailable` when no server answers."""

    def complete(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Reply: ...

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Iterator[str]: ...
