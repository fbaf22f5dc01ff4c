"""What readers give: a document as pages of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

DocumentStatus = Literal["pending", "ready", "no_text", "garbled", "encrypted", "failed"]
PageStatus = Literal["text", "no_text", "garbled", "failed"]


class Span(NamedTuple):
    """A half-open range `[start, end)` of code points."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading that governs the text from `start` of its page on, until the next of its level or above."""

    text: str
    level: int  # 1 is the outermost
    start: int  # offset in the page's text


@dataclass(frozen=True, slots=True)
class Page:
    """One page (or section) of a document, as stored: every citation's span refers to `text`."""

    number: int  # from 1
    text: str
    label: str = ""  # as printed on the page ("iv", "12"), or the section's name
    status: PageStatus = "text"
    reason: str = ""  # why there is no usable text, for a person
    method: str = ""  # which extractor's text this is
    body: Span | None = None  # `text` without running header and footer; None: all of it
    headings: tuple[Heading, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A document as text. `status` is `ready` when at least one page has usable text."""

    media_type: str
    pages: tuple[Page, ...]
    title: str = ""
    status: DocumentStatus = "ready"
    reason: str = ""
