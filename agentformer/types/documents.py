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
    """A heading. It applies until the next heading of the same level or of a higher level."""

    text: str
    level: int  # 1 is the outermost
    start: int  # offset in the page's text


@dataclass(frozen=True, slots=True)
class Page:
    """One page (or section) of a document as stored. The spans of citations are offsets in `text`."""

    number: int  # starts at 1
    text: str
    label: str = ""  # the number as printed on the page ("iv", "12"), or the name of the section
    status: PageStatus = "text"
    reason: str = ""  # a text for users: why the page has no usable text
    method: str = ""  # the extractor that produced the text
    body: Span | None = None  # the part of `text` without running header and footer; None: the whole text
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
    """Evidence for an answer. `quote` is equal to `text[start:end]` of the stored page."""

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

    `confidence` is a judgment about the hits, not about the answer text.
    """

    text: str
    mode: Literal["llm", "extractive", "none"]
    citations: tuple[Citation, ...] = ()
    hits: tuple[Hit, ...] = ()
    warnings: tuple[str, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)  # milliseconds
    complete: bool = True  # False: the model stopped too early, and `text` is not complete
    confidence: float | None = None  # probability that the hits contain the answer, 0..1; None without hits


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A part of a streamed answer that can be shown at once. The final `Answer` has the text with checked citations."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerFault:
    """An error of the model in the middle of a streamed answer. The `Answer` that follows has the text that came before
    the error."""

    message: str


AnswerEvent = AnswerPiece | AnswerFault | Answer  # of a streamed answer; only the last event is an `Answer`
