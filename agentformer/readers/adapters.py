"""Adapters of parsers, their options and their limits. A file above a limit is refused, and other files are still read.

An adapter and its parser are imported when they are needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

from agentformer.errors import DocumentError
from agentformer.readers.media_type import DOCX, HTML, MARKDOWN, PDF, PLAIN
from agentformer.types import DocumentText

MIB = 1 << 20
FILE_BYTES = 128 * MIB  # the image of a page for tesseract: `MAX_PIXELS` of three bytes
OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits of one `read`. `wall_seconds` is the time for text and OCR together. `memory_bytes` applies to the
    reader, and separately to tesseract."""

    max_bytes: int = 256 * MIB  # scanned books reach 200 MB
    max_pages: int = 10_000  # the longest legal and medical works have about 5,000
    max_chars: int = 50_000_000  # twenty times the Bible; longer files are data dumps
    wall_seconds: float = 120.0  # 3,000 pages take about 10 s
    memory_bytes: int = 2048 * MIB  # address space of the child; the largest real PDFs take a quarter
    output_bytes: int = 384 * MIB  # all drafts together: twice `max_chars` of three bytes, and some room


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of an adapter. `deadline` is a value of `time.monotonic()` in the process of the adapter."""

    name: str
    media_type: str
    password: str | None = None
    ocr: bool = True
    limits: ReadLimits = ReadLimits()
    deadline: float = float("inf")
    engines: tuple[str, ...] = ("pdfium", "pypdf")  # a second attempt does not use the parser that crashed
    folder: str = ""  # the folder in which the reader may write and run tesseract; "" for none


ADAPTERS = {
    PDF: "agentformer.readers.pdf.pdf",
    DOCX: "agentformer.readers.docx",
    HTML: "agentformer.readers.html",
    MARKDOWN: "agentformer.readers.markdown",
    PLAIN: "agentformer.readers.plain",
}
SUPPORTED = "PDF, Word (.docx), HTML, Markdown and plain text can be read"


class Adapter(Protocol):
    """An adapter module. `parse` yields drafts of the document. Each draft is complete and better than the draft before
    it, and the last draft is the result. `parse` raises only `DocumentError`, and only for problems of this file."""

    def parse(self, data: bytes, options: ReadOptions) -> Iterator[DocumentText]: ...


def adapter_for(media_type: str) -> Adapter:
    """Import and return the adapter of a media type. Raises `DocumentError` if its parser is not installed."""
    try:
        return cast(Adapter, importlib.import_module(ADAPTERS[media_type]))
    except ImportError as error:
        missing = error.name or "a library"
        message = f"this file cannot be read because {missing} is not installed; install agentformer again"
        raise DocumentError(message) from error
