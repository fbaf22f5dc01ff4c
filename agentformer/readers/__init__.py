"""Read files into pages of clean text.

Importing this package is fast, because a parser is imported only when it is needed. A parser runs in a child process.
Only short plain text is read in the calling process.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from pathlib import PurePath

from agentformer.errors import CorruptDocument, DocumentTooLarge, EmptyDocument, EncryptedDocument, UnsupportedFormat
from agentformer.readers.code.symbols import with_symbols
from agentformer.readers.formats import (
    ADAPTERS,
    BINARY,
    BINARY_NAMES,
    OLE,
    PDF,
    PLAIN,
    SUPPORTED,
    ReadLimits,
    ReadOptions,
    adapter_for,
    attached_types,
    sniff,
)
from agentformer.readers.sandbox.process import image_isolated, read_isolated
from agentformer.readers.sandbox.protocol import PageImage
from agentformer.text.normalize import bare_letters
from agentformer.types import DocumentText, Stopped

__all__ = ["PageImage", "ReadLimits", "page_image", "read", "sniff"]

_IMAGE_SECONDS = 20.0  # seconds to render the image of a page; ordinary pages take 0.3 s
_PLAIN_ASCII = 1 << 20  # bytes of ASCII that are read in this process, in a few milliseconds
_ENCRYPTED_OFFICE = "EncryptedPackage".encode("utf-16-le")
_SAVE_AS = "save the file as .docx, .xlsx, .pptx or .eml"
_PLAIN = 1 << 14  # bytes of other text: normalising combining marks may take quadratic time


def read(
    data: bytes,
    name: str,
    *,
    password: str | None = None,
    limits: ReadLimits = ReadLimits(),  # noqa: B008 (frozen)
    isolate: bool = True,
    ocr: bool = True,
    stopped: Stopped | None = None,
) -> DocumentText:
    """Return the text of a document, divided into pages. Each page has its own status.

    The `status` of the document is `ready`, `no_text` or `garbled`. `reason` says which pages have no usable text, and
    what the user can do. From `name`, only the file extension is used. If `ocr` is false, scanned pages are not
    recognised. If `isolate` is false, the file is read in this process without limits of time and memory. Use
    `isolate=False` only in tests, or on a host that isolates the process in another way. When `stopped` returns
    True, the child process is ended, and the result has no meaning.

    Raises `EmptyDocument` for an empty file, `UnsupportedFormat` if no reader supports the file, `CorruptDocument` if
    it is damaged, `EncryptedDocument` if it needs another password, `DocumentTooLarge` if a limit is exceeded, or
    another `DocumentError`. The messages contain no path.
    """
    if not data:
        raise EmptyDocument("the file is empty; choose a file with text")
    if len(data) > limits.max_bytes:
        raise DocumentTooLarge(
            f"the file has {len(data):,} bytes; the limit is {limits.max_bytes:,} bytes; split the file"
        )
    media_type = sniff(data, name)
    _refuse_unreadable(data, media_type, name)
    deadline = time.monotonic() + limits.wall_seconds
    attached = attached_types(data, media_type)
    options = ReadOptions(
        PurePath(name).name, media_type, password, ocr, limits, deadline, attached=attached, stopped=stopped
    )
    if isolate and not (media_type == PLAIN and _is_simple(data)):
        return with_symbols(read_isolated(data, options))
    last = deque(adapter_for(media_type).parse(data, options), maxlen=1)
    if not last:
        raise CorruptDocument("the file is damaged and contains no text; download the file again")
    return with_symbols(last[0])


def page_image(
    data: bytes,
    page: int,
    *,
    text: str = "",
    start: int = 0,
    end: int = 0,
    limits: ReadLimits = ReadLimits(),  # noqa: B008 (frozen)
) -> PageImage:
    """Return the image of a page of a PDF file, and the boxes of the quotation `text[start:end]`. `text` is the stored
    text of the page, and the first page has the number 1.

    The page is rendered in a child process. The result has no boxes if the quotation is not found in the characters of
    the page: on a scanned page, or if the fonts of the page do not name the letters that they draw. Raises
    `UnsupportedFormat` if the file is not a PDF, or another `DocumentError`.
    """
    if sniff(data, "") != PDF:
        raise UnsupportedFormat("only the pages of PDF files can be shown as images; read the text of the page instead")
    quote = text[start:end]
    position = len(bare_letters(text[:start]))
    limits = replace(limits, wall_seconds=min(limits.wall_seconds, _IMAGE_SECONDS))
    return image_isolated(data, ReadOptions("", PDF, limits=limits, page=page, quote=quote, position=position))


def _is_simple(data: bytes) -> bool:
    """Return whether this process reads the file faster than a child process would start."""
    if len(data) <= _PLAIN:
        return True
    # ASCII with zeros or escapes may be in another encoding.
    return len(data) <= _PLAIN_ASCII and data.isascii() and b"\0" not in data and b"\x1b" not in data


def _refuse_unreadable(data: bytes, media_type: str, name: str) -> None:
    """Raise `EncryptedDocument` for an encrypted Office file. Raise `UnsupportedFormat` if no reader exists for the
    media type, or if the extension of `name` does not agree with the media type of the content."""
    if media_type == OLE and _ENCRYPTED_OFFICE in data:
        raise EncryptedDocument("the Office file is encrypted; save a copy without a password")
    if media_type == OLE:
        raise UnsupportedFormat(f"old Office files (.doc, .xls, .ppt, .msg) cannot be read; {_SAVE_AS}; {SUPPORTED}")
    suffix = PurePath(name).suffix.lower()
    if media_type not in ADAPTERS:
        problem = (
            "the type of the file is unknown" if media_type == BINARY else f"files of type {media_type} cannot be read"
        )
        raise UnsupportedFormat(f"{problem}; {SUPPORTED}")
    if (suffix == ".pdf" and media_type != PDF) or (suffix in BINARY_NAMES and media_type == PLAIN):
        expected = BINARY_NAMES[suffix]
        raise UnsupportedFormat(
            f"the file is not {'an' if expected[0] in 'EOi' else 'a'} {expected}: its content is {media_type}; "
            "to store the content as text, rename the file to .txt"
        )
