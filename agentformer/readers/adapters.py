"""Adapters of the parsers, with their options and limits. Each adapter reads one media type. The limits apply to each
file separately; a file that exceeds a limit is refused.

An adapter and its parser are imported only when they are needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from agentformer.errors import DocumentError
from agentformer.readers.media_type import (
    CSV,
    DOCX,
    EPUB,
    HTML,
    IMAGES,
    MAIL,
    MARKDOWN,
    MBOX,
    NOTEBOOK,
    ODP,
    ODS,
    ODT,
    PDF,
    PLAIN,
    PPTX,
    RTF,
    TSV,
    XLSX,
)
from agentformer.types import DocumentText

if TYPE_CHECKING:
    from agentformer.settings import Settings

MIB = 1 << 20
FILE_BYTES = 128 * MIB  # largest file that the child may write: the image of a page for tesseract
OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits for reading one file. `wall_seconds` is the time for the text and OCR together. `memory_bytes` is the
    memory that the child process may use; tesseract, which runs OCR, may use the same amount in addition."""

    max_bytes: int = 256 * MIB  # scanned books reach 200 MB
    max_pages: int = 10_000  # the longest legal and medical works have about 5,000
    max_chars: int = 50_000_000  # twenty times the Bible; longer files are data dumps
    wall_seconds: float = 120.0  # 3,000 pages take about 10 s
    memory_bytes: int = 2048 * MIB  # address space of the child; the largest real PDFs take a quarter
    output_bytes: int = 384 * MIB  # all drafts together: twice `max_chars` of three bytes, and some room

    @classmethod
    def from_settings(cls, settings: Settings) -> ReadLimits:
        """Return the limits of the settings."""
        seconds = settings.read_seconds
        return cls(max_bytes=settings.max_file_bytes, max_pages=settings.max_pages, wall_seconds=seconds)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options for reading one file. `deadline` is the end of the allowed time, as a value of `time.monotonic()` in
    the process in which the adapter runs."""

    name: str
    media_type: str
    password: str | None = None
    ocr: bool = True
    limits: ReadLimits = ReadLimits()
    deadline: float = float("inf")
    engines: tuple[str, ...] = ("pdfium", "pypdf")  # a second attempt does not use the parser that crashed
    folder: str = ""  # the folder in which the reader may write and run tesseract; "" for none
    page: int = 0  # the page to show as an image (the first page is 1); 0: the text is read
    quote: str = ""  # the quotation to highlight on this page
    position: int = 0  # number of letters and digits on the page before the quotation


_READERS = "agentformer.readers"
ADAPTERS = {
    PDF: f"{_READERS}.pdf.reader",
    DOCX: f"{_READERS}.docx",
    PPTX: f"{_READERS}.office.pptx",
    XLSX: f"{_READERS}.office.xlsx",
    **dict.fromkeys((ODT, ODS, ODP), f"{_READERS}.office.opendocument"),
    **dict.fromkeys((CSV, TSV), f"{_READERS}.office.delimited"),
    EPUB: f"{_READERS}.epub",
    RTF: f"{_READERS}.rtf",
    **dict.fromkeys((MAIL, MBOX), f"{_READERS}.mail"),
    **dict.fromkeys(IMAGES, f"{_READERS}.image"),
    HTML: f"{_READERS}.html",
    MARKDOWN: f"{_READERS}.markdown",
    NOTEBOOK: f"{_READERS}.notebook",
    PLAIN: f"{_READERS}.plain",
}
RECOGNISED = frozenset({PDF, MAIL, MBOX, *IMAGES})  # may need OCR
SUPPORTED = (
    "PDF, Word (.docx), PowerPoint (.pptx), Excel (.xlsx), OpenDocument (.odt, .ods, .odp), EPUB, RTF, e-mail (.eml, "
    ".mbox), CSV, HTML, Markdown, notebooks, source code, plain text and images (PNG, JPEG, TIFF, WebP) can be read"
)
# The file extensions of formats that are not text, with the names of these formats in messages.
BINARY_NAMES = {
    ".pdf": "PDF",
    **dict.fromkeys((".docx", ".docm"), "Word document"),
    **dict.fromkeys((".pptx", ".pptm"), "PowerPoint presentation"),
    **dict.fromkeys((".xlsx", ".xlsm"), "Excel workbook"),
    **dict.fromkeys((".odt", ".ods", ".odp"), "OpenDocument file"),
    ".epub": "EPUB book",
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp"), "image"),
}


class Adapter(Protocol):
    """A module that reads one media type. `parse` yields drafts of the document. A draft is a complete document with
    the text that was found so far; the last draft is the result. `parse` raises only `DocumentError`, and only for
    problems of the file."""

    def parse(self, data: bytes, options: ReadOptions) -> Iterator[DocumentText]: ...


def adapter_for(media_type: str) -> Adapter:
    """Import and return the adapter of a media type. Raises `DocumentError` if the parser of this adapter is not
    installed."""
    try:
        return cast(Adapter, importlib.import_module(ADAPTERS[media_type]))
    except ImportError as error:
        missing = error.name or "a library"
        message = f"the file cannot be read because {missing} is not installed; install agentformer again"
        raise DocumentError(message) from error
