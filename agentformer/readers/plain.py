"""Read plain text: prose, logs, CSV, JSON, source code. Only line ends and control characters change."""

from __future__ import annotations

from collections.abc import Iterator

from agentformer.readers.encoding import decode
from agentformer.readers.pages import document_of, page_of, parts_of
from agentformer.readers.sandbox.limits import ReadOptions
from agentformer.text.normalize import clean_plain
from agentformer.types import DocumentText, Page


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. Form feeds separate pages; long pages are divided into numbered parts."""
    yield document_of(options.media_type, _pages(decode(data)), options.limits)


def _pages(text: str) -> Iterator[Page]:
    number = 0
    for sheet in text.split("\f"):
        for part in parts_of(clean_plain(sheet)):
            number += 1
            yield page_of(number, part, str(number))
