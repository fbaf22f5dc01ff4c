"""What answers carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentformer.types.memory import Hit


@dataclass(frozen=True, slots=True)
class Citation:
    """Evidence: `quote == stored page text[start:end]`."""

    number: int  # the [n] in the answer
    document: str
    document_id: str
    page: int | None
    label: str
    start: int
    end: int
    quote: str
    score: float
    entry_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and what it stands on. `mode` is `llm`, `extractive` or `none` (nothing good enough found).

    `confidence` judges the hits and not the text: what words and vectors tell before anything is said.
    """

    text: str
    mode: Literal["llm", "extractive", "none"]
    citations: tuple[Citation, ...] = ()
    hits: tuple[Hit, ...] = ()
    warnings: tuple[str, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)  # milliseconds
    complete: bool = True  # False where the model broke off or was cut; `text` is what it had said
    confidence: float | None = None  # that the hits hold the answer, 0..1; None where nothing was found to judge by


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A part of an answer as it comes, to be shown at once. The `Answer` at the end has the text that counts: its
    citations are checked."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerFault:
    """The model broke off in the middle. The `Answer` that follows holds what it had said."""

    message: str


AnswerEvent = AnswerPiece | AnswerFault | Answer  # of a streamed answer; the last one is its only `Answer`
