"""Files to text: `read` gives a document's pages of clean text, or says what is wrong and what to do.

Importing this is cheap. Parsers are imported by their adapters, and those only in the child process, except
for plain text, which needs none.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import PurePath

from agentformer.errors import CorruptDocument, DocumentTooLarge, EmptyDocument, UnsupportedFormat
from agentformer.readers.dispatch import ADAPTERS, SUPPORTED, adapter_for
from agentformer.readers.media_type import BINARY, PDF, PLAIN, sniff
from agentformer.readers.sandbox.limits import ReadLimits, ReadOptions
from agentformer.readers.sandbox.process import read_isolated
from agentformer.types import DocumentText

__all__ = ["ReadLimits", "read", "sniff"]

_WITHOUT_PARSER = frozenset({PLAIN})
_PLAIN_ASCII = 1 << 20  # bytes that are read here, in a few milliseconds, whatever they are
_PLAIN = 1 << 14  # of other alphabets: putting accents in order takes time in proportion to the square of their number


def read(
    data: bytes,
    name: str,
    *,
    password: str | None = None,
    limits: ReadLimits = ReadLimits(),  # noqa: B008 (frozen)
    isolate: bool = True,
    ocr: bool = True,
) -> DocumentText:
    """The document's text, page by page, with an honest status for every page.

    `status` is `ready`, `no_text` or `garbled`; `reason` says what is missing and what to do. Raises
    `EmptyDocument`, `UnsupportedFormat`, `CorruptDocument`, `EncryptedDocument` or `DocumentTooLarge`, whose
    messages are about this file and name no path. `name` is used for its extension only.

    With `isolate`, everything but short plain text is read in a child process under `limits`; without, in this one
    and unbounded in time and memory, which is for tests and for hosts that isolate by other means.
    """
    if not data:
        raise EmptyDocument("the file is empty")
    if len(data) > limits.max_bytes:
        raise DocumentTooLarge(f"the file has {len(data):,} bytes; at most {limits.max_bytes:,} are read: split it")
    media_type = sniff(data, name)
    _refuse_disguise(media_type, name)
    deadline = time.monotonic() + limits.wall_seconds
    options = ReadOptions(PurePath(name).name, media_type, password, ocr, limits, deadline)
    if isolate and not (media_type in _WITHOUT_PARSER and _is_simple(data)):
        return read_isolated(data, options)
    last = deque(adapter_for(media_type).parse(data, options), maxlen=1)
    if not last:
        raise CorruptDocument("the file gives no text at all; it is damaged")
    return last[0]


def _is_simple(data: bytes) -> bool:
    """Whether this text is read faster than a process starts, however it was made."""
    if len(data) <= _PLAIN:
        return True
    # ASCII with zeros or escapes may be another encoding.
    return len(data) <= _PLAIN_ASCII and data.isascii() and b"\0" not in data and b"\x1b" not in data


def _refuse_disguise(media_type: str, name: str) -> None:
    """Types that nothing reads, and text under a name that promises something else."""
    suffix = PurePath(name).suffix.lower()
    if media_type == BINARY:
        raise UnsupportedFormat(f"the content is no type of file that is known here; {SUPPORTED}")
    if media_type not in ADAPTERS:
        raise UnsupportedFormat(f"files of type {media_type} are not read; {SUPPORTED}")
    if suffix == ".pdf" and media_type != PDF:
        raise UnsupportedFormat(f"not a PDF: the content is {media_type}, rename it to .txt to ingest it as text")
    if suffix == ".docx" and media_type in _WITHOUT_PARSER:
        raise UnsupportedFormat("not a Word document: the content is text, rename it to .txt to ingest it as text")
