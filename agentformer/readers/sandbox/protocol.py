"""Documents and errors between the parsing child and its parent. Never pickle: the child has read hostile bytes, and
what it says is data, which is bounded before it is unpacked.

A frame is its kind (a byte), its length (8 bytes) and so many bytes. A draft is a line of JSON about the document, and
for each page a line of JSON and the page's text as UTF-8: so no JSON is larger than `_LINE_BYTES`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from typing import Any, get_args

from agentformer.errors import (
    CorruptDocument,
    DocumentError,
    DocumentTooLarge,
    EmptyDocument,
    EncryptedDocument,
    UnsupportedFormat,
)
from agentformer.readers.sandbox.limits import ReadLimits, ReadOptions
from agentformer.types import DocumentStatus, DocumentText, Heading, Page, PageStatus, Span

_ERRORS = {
    e.__name__: e
    for e in (EmptyDocument, UnsupportedFormat, CorruptDocument, EncryptedDocument, DocumentTooLarge, DocumentError)
}
_FRAME = struct.Struct(">cQ")
_READY, _DRAFT, _ERROR, _DONE = b"R", b"D", b"E", b"."
NOT_STARTED = "the reader of files cannot be started here; install agentformer again"
READY, DONE = _FRAME.pack(_READY, 0), _FRAME.pack(_DONE, 0)
_LINE_BYTES = 4 << 20  # as nothing but brackets it unpacks to 90 MB; a page with 10,000 headings has 1
_LONGEST_NAME = 2_000  # code points of a title, label or heading, which are shown beside every passage
_LONGEST_REASON = 1_000
# Controls, directions, and halves of characters: what honest readers leave out, and no terminal or store may get.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_IN_LINE = re.compile("[\t\n]")


class Overrun(Exception):
    """The child says more than it may."""


class NoFrame(Exception):
    """The child says what none of ours says."""


class Frames:
    """What a child has said so far. Of drafts the last one is kept, so memory is bounded by `most` bytes, of all."""

    def __init__(self, most: int) -> None:
        self.draft = b""
        self.error = b""
        self.ready = False  # its parser is loaded: from here on the file's time runs
        self.done = False
        self._left = most
        self._unread = bytearray()

    def feed(self, data: bytes) -> None:
        """Raises `Overrun` or `NoFrame`; what was complete before stays."""
        self._left -= len(data)
        self._unread += data
        while not self.done and len(self._unread) >= _FRAME.size:
            kind, size = _FRAME.unpack_from(self._unread)
            end = _FRAME.size + size
            if kind not in (_READY, _DRAFT, _ERROR, _DONE):
                raise NoFrame
            if end - len(self._unread) > self._left:
                raise Overrun
            if len(self._unread) < end:
                return
            self._take(kind, bytes(memoryview(self._unread)[_FRAME.size : end]))
            del self._unread[:end]

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == _DRAFT:
            self.draft = payload
        elif kind == _ERROR:
            self.error = payload
        self.ready = True
        self.done = kind in (_ERROR, _DONE)


def draft_frame(document: DocumentText) -> bytes:
    about = {
        "media_type": document.media_type,
        "title": document.title,
        "status": document.status,
        "reason": document.reason,
        "pages": len(document.pages),
    }
    pieces = [to_line(about)]
    for page in document.pages:
        text = page.text.encode("utf-8", "surrogatepass")  # a damaged font may yield half a character
        pieces += (_page_line(page, len(text)), text)
    return _frame(_DRAFT, b"".join(pieces))


def _page_line(page: Page, size: int) -> bytes:
    about = {"bytes": size, **{f.name: getattr(page, f.name) for f in dataclasses.fields(page) if f.name != "text"}}
    line = to_line({**about, "headings": [dataclasses.astuple(heading) for heading in page.headings]})
    return line if len(line) <= _LINE_BYTES else to_line({**about, "headings": []})


def draft_from_bytes(data: bytes, limits: ReadLimits) -> DocumentText:
    """The document of a draft, with nothing in it that could hurt a terminal. Raises `CorruptDocument` for one that no
    reader of ours would have said."""
    try:
        return _document(data, limits)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise CorruptDocument("the file makes its parser say what makes no sense; it is damaged or hostile") from error


def _document(data: bytes, limits: ReadLimits) -> DocumentText:
    about, at = _line(data, 0)
    if not 0 <= about["pages"] <= limits.max_pages:
        raise ValueError("pages")
    pages = []
    for _ in range(about["pages"]):
        line, start = _line(data, at)
        at = start + line["bytes"]
        if not start <= at <= len(data):
            raise ValueError("bytes")
        pages.append(_page(line, data[start:at].decode("utf-8", "surrogatepass")))
    status = _one_of(about["status"], get_args(DocumentStatus))
    title, reason = _name(about["title"]), _name(about["reason"])[:_LONGEST_REASON]
    return DocumentText(_name(about["media_type"]), tuple(pages), title, status, reason)


def _page(line: dict[str, Any], text: str) -> Page:
    body = Span(*map(int, line["body"])) if line["body"] else None
    if body and not 0 <= body.start <= body.end <= len(text):
        raise ValueError("body")
    headings = tuple(Heading(_name(title), int(level), int(start)) for title, level, start in line["headings"])
    return Page(
        number=int(line["number"]),
        text=_UNSAFE.sub("\ufffd", text),  # in place, so that all offsets stay
        label=_name(line["label"]),
        status=_one_of(line["status"], get_args(PageStatus)),
        reason=_name(line["reason"])[:_LONGEST_REASON],
        method=_name(line["method"]),
        body=body,
        headings=headings,
    )


def _line(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """(the JSON object that stands at `at`, where the next thing begins)."""
    end = data.index(b"\n", at, at + _LINE_BYTES + 1)
    value = json.loads(data[at:end])
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value, end + 1


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return _IN_LINE.sub(" ", _UNSAFE.sub("", value[:_LONGEST_NAME]))


def _one_of(value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ValueError("unknown")
    return value


def error_frame(error: DocumentError) -> bytes:
    return _frame(_ERROR, to_line({"error": type(error).__name__, "message": str(error)}))


def error_from_bytes(data: bytes) -> DocumentError:
    try:
        value, _ = _line(data, 0)
        return _ERRORS[value["error"]](_name(value["message"])[:_LONGEST_REASON])
    except (ValueError, TypeError, LookupError, RecursionError):
        return CorruptDocument("the file makes its parser say what makes no sense; it is damaged or hostile")


def options_to_json(options: ReadOptions) -> dict[str, Any]:
    value = dataclasses.asdict(options)
    del value["deadline"]  # clocks of two processes need not agree
    return value


def options_from_json(value: dict[str, Any]) -> ReadOptions:
    limits = ReadLimits(**value.pop("limits"))
    engines = tuple(value.pop("engines"))
    return ReadOptions(limits=limits, engines=engines, **value)


def to_line(value: dict[str, Any]) -> bytes:
    # ASCII escapes carry lone surrogates, where UTF-8 would fail.
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _frame(kind: bytes, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload)) + payload
