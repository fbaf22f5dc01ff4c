"""Plain text of any kind: prose, logs, CSV, JSON, source code. Kept as it is but for line ends and controls."""

from __future__ import annotations

from collections.abc import Iterator

from agentformer.readers.encoding import decode
from agentformer.readers.sandbox.limits import ReadOptions
from agentformer.readers.sections import document_of, page_of, parts_of
from agentformer.text.normalize import clean_plain
from agentformer.types import DocumentText, Page


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Pages are what form feeds separate; a long text without them comes in numbered parts."""
    yield document_of(options.media_type, _pages(decode(data)), options.limits)


def _pages(text: str) -> Iterator[Page]:
    number = 0
    for sheet in text.split("\f"):
        for part in parts_of(clean_plain(sheet)):
            number += 1
            yield page_of(number, part, str(number))
