"""Choose the adapter for a media type. An adapter is imported when it is needed, with its parser."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol, cast

from agentformer.errors import DocumentError, UnsupportedFormat
from agentformer.readers.media_type import DOCX, HTML, MARKDOWN, PDF, PLAIN
from agentformer.readers.sandbox.limits import ReadOptions
from agentformer.types import DocumentText

ADAPTERS = {
    PDF: "agentformer.readers.pdf.pdf",
    DOCX: "agentformer.readers.docx",
    HTML: "agentformer.readers.html",
    MARKDOWN: "agentformer.readers.markdown",
    PLAIN: "agentformer.readers.plain",
}
SUPPORTED = "PDF, Word (.docx), HTML, Markdown and plain text are read"


class Adapter(Protocol):
    """An adapter module. `parse` yields drafts of the document, each complete and better than the one before; the last
    one counts. It raises only `DocumentError`s, each about this file."""

    def parse(self, data: bytes, options: ReadOptions) -> Iterator[DocumentText]: ...


def adapter_for(media_type: str) -> Adapter:
    """Import and return the adapter. Raises `UnsupportedFormat`, or `DocumentError` if its parser is not installed."""
    if media_type not in ADAPTERS:
        raise UnsupportedFormat(f"files of type {media_type} are not read; {SUPPORTED}")
    try:
        return cast(Adapter, importlib.import_module(ADAPTERS[media_type]))
    except ImportError as error:
        missing = error.name or "a library"
        message = f"{missing} is not installed, so this file cannot be read; install agentformer again"
        raise DocumentError(message) from error
