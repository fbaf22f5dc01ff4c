"""Documents as pages of text, and answers with citations that quote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentformer.types.memory import Hit, Span

DocumentStatus = Literal["pending", "ready", "no_text", "garbled", "encrypted", "failed"]
PageStatus = Literal["text", "no_text", "garbled", "failed"]


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading. It applies from `start` to the next heading of its level or above."""

    text: str
    level: int  # 1 is the outermost
    start: int  # offset in the page's text


@dataclass(frozen=True, slots=True)
class Page:
    """One page (or section) of a document as stored. The spans of citations refer to `text`."""

    number: int  # from 1
    text: str
    label: str = ""  # as printed on the page ("iv", "12"), or the section's name
    status: PageStatus = "text"
    reason: str = ""  # for people: why there is no usable text
    method: str = ""  # the extractor that produced the text
    body: Span | None = None  # `text` without running header and footer; None: all of it
    headings: tuple[Heading, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A document as text. `status` is `ready` if at least one page has usable text."""

    media_type: str
    pages: tuple[Page, ...]
    title: str = ""
    status: DocumentStatus = "ready"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Citation:
    """Evidence for an answer: `quote == stored page text[start:end]`."""

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
    """An answer with its evidence. `mode` is `llm`, `extractive` or `none` (no passage was good enough).

    `confidence` judges the hits and not the text.
    """

    text: str
    mode: Literal["llm", "extractive", "none"]
    citations: tuple[Citation, ...] = ()
    hits: tuple[Hit, ...] = ()
    warnings: tuple[str, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)  # milliseconds
    complete: bool = True  # False: the model stopped early or was cut, and `text` is the part before
    confidence: float | None = None  # probability that the hits hold the answer, 0..1; None without hits to judge


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A part of a streamed answer, to show at once. The final `Answer` has the text with checked citations."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerFault:
    """An error of the model in the middle of a streamed answer. The `Answer` that follows holds the text before it."""

    message: str


AnswerEvent = AnswerPiece | AnswerFault | Answer  # of a streamed answer; the last one is its only `Answer`
