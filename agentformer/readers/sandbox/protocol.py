"""The protocol between the child process and its parent. The child sends documents and errors in frames.

The child has read untrusted bytes, so its output is also untrusted. The parent limits the size of the output before it
parses the output, and never uses pickle. A frame consists of a kind (one byte), a length (8 bytes) and a content. The
content for a document is a line of JSON about the document and, for each page, a line of JSON and the text of the page
in UTF-8. The text is not inside the JSON, so that no line of JSON exceeds `_LINE_BYTES`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from agentformer.errors import CorruptDocument, DocumentError
from agentformer.readers.formats import ReadLimits, ReadOptions
from agentformer.types import DocumentStatus, DocumentText, Heading, Page, PageStatus, PageTable, ReasonCode, Span

_ERRORS = {kind.__name__: kind for kind in DocumentError.__subclasses__()} | {"DocumentError": DocumentError}
_FRAME = struct.Struct(">cQ")
_READY, _DRAFT, _ERROR, _DONE = b"R", b"D", b"E", b"."
_INVALID = "the parser returned invalid output because the file is damaged or malicious; download the file again"
NOT_ALLOWED = (
    "the sandbox of the reader has refused an action of the parser; the file may be sound: report this message, with "
    "the versions of agentformer, of Python and of the system"
)
NOT_STARTED = "the reader process cannot be started; install agentformer again"
READY, DONE = _FRAME.pack(_READY, 0), _FRAME.pack(_DONE, 0)
FORKED = b"+"  # from the fork server: the child process exists
STATUS = struct.Struct(
    "=i"
)  # from the fork server: the exit status of the child process, or minus the number of a signal
ORDER_BYTES = 1 << 16  # maximum size of an order to the fork server
_LINE_BYTES = 4 << 20  # so many brackets take 90 MB of memory when parsed; 10,000 headings of a page have 1 MB
_LONGEST_NAME = 2_000  # code points of a title, label or heading
_LONGEST_REASON = 1_000
_MOST_BOXES = 2_000  # boxes of a quotation on a page
_MOST_PIXELS = 10_000  # width or height of an image
_PNG = b"\x89PNG\r\n\x1a\n"
# Control and direction characters, and surrogates, which must not reach a terminal or the store.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_IN_LINE = re.compile("[\t\n]")


Box = tuple[float, float, float, float]  # left, top, right, bottom


class PageImage(NamedTuple):
    """The image of a page. A box is (left, top, right, bottom), as shares (0..1) of the width and the height."""

    width: int  # pixels
    height: int  # pixels
    boxes: tuple[Box, ...]
    png: bytes


class Overrun(Exception):
    """Raised if the child process has sent more bytes than allowed."""


class NoFrame(Exception):
    """Raised if the child process has sent bytes that are not a frame."""


class Frames:
    """The frames that a child process has sent. `max_bytes` is the maximum size of all frames together. If the child
    process sends several drafts of the document, only the last draft is kept."""

    def __init__(self, max_bytes: int) -> None:
        self.draft = b""
        self.error = b""
        self.ready = False  # True if the parser is loaded, so that the time for the file begins
        self.done = False
        self._left = max_bytes
        self._unread = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes that the child process has sent. Raises `Overrun` if there are too many bytes, and `NoFrame` if the
        bytes are not a frame. Frames that were complete before the error are kept."""
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
            payload = bytes(memoryview(self._unread)[_FRAME.size : end])
            if kind == _DRAFT:
                self.draft = payload
            elif kind == _ERROR:
                self.error = payload
            self.ready, self.done = True, kind in (_ERROR, _DONE)
            del self._unread[:end]


def draft_frame(document: DocumentText) -> bytes:
    """Return the frame that contains a draft of a document."""
    pieces = [to_line({**_fields(document), "pages": len(document.pages)})]
    for page in document.pages:
        text = page.text.encode("utf-8", "surrogatepass")  # a damaged font may yield a lone surrogate
        pieces += (_page_line(page, len(text)), text)
    return _frame(_DRAFT, b"".join(pieces))


def _page_line(page: Page, size: int) -> bytes:
    about = {"bytes": size, **_fields(page)}
    del about["text"], about["symbols"]  # the parent finds the symbols in the text
    headings, tables = (list(map(dataclasses.astuple, values)) for values in (page.headings, page.tables))
    line = to_line({**about, "headings": headings, "tables": tables})
    return line if len(line) <= _LINE_BYTES else to_line({**about, "headings": [], "tables": []})


def _fields(value: DocumentText | Page) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def draft_from_bytes(data: bytes, limits: ReadLimits) -> DocumentText:
    """Return the document from the content of a draft frame. Unsafe characters, such as control characters, are
    replaced. Raises `CorruptDocument` if the content is invalid."""
    try:
        return _document(data, limits)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise CorruptDocument(_INVALID) from error


def _document(data: bytes, limits: ReadLimits) -> DocumentText:
    """Parse a line with the fields of the document, and for each page a line with its fields and then its text."""
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
    return DocumentText(_name(about["media_type"]), tuple(pages), title, status, reason, _code(about))


def _page(line: dict[str, Any], text: str) -> Page:
    body = Span(*map(int, line["body"])) if line["body"] else None
    if body and not 0 <= body.start <= body.end <= len(text):
        raise ValueError("body")
    headings = tuple(Heading(_name(title), int(level), int(start)) for title, level, start in line["headings"])
    tables = tuple(_table(values, len(text)) for values in line["tables"])
    return Page(
        number=int(line["number"]),
        text=_UNSAFE.sub("\ufffd", text),  # replaced one by one, so that offsets stay
        label=_name(line["label"]),
        status=_one_of(line["status"], get_args(PageStatus)),
        reason=_name(line["reason"])[:_LONGEST_REASON],
        method=_name(line["method"]),
        body=body,
        headings=headings,
        tables=tables,
        line=max(0, int(line.get("line", 0))),
        code=_name(line.get("code", "")),
        reason_code=_code(line),
    )


def _table(values: Any, length: int) -> PageTable:
    start, end, headers, scale = values
    if not 0 <= int(start) <= int(end) <= length:
        raise ValueError("table")
    return PageTable(int(start), int(end), tuple(map(_name, headers)), _name(scale))


def _line(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """Return the JSON object in the line that starts at the offset `at`, and the offset of the next line."""
    end = data.index(b"\n", at, at + _LINE_BYTES + 1)
    value = json.loads(data[at:end])
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value, end + 1


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return _IN_LINE.sub(" ", _UNSAFE.sub("", value[:_LONGEST_NAME]))


def image_frame(image: PageImage) -> bytes:
    """Return the frame that contains the image of a page."""
    line = to_line({"width": image.width, "height": image.height, "boxes": image.boxes[:_MOST_BOXES]})
    return _frame(_DRAFT, line + image.png)


def image_from_bytes(data: bytes) -> PageImage:
    """Return the image of a page from the content of a frame. Raises `CorruptDocument` if the content is invalid."""
    try:
        line, start = _line(data, 0)
        boxes = tuple((float(left), float(top), float(right), float(low)) for left, top, right, low in line["boxes"])
        if not all(0 <= value <= 1 for box in boxes for value in box):
            raise ValueError("boxes")
        if not 0 < int(line["width"]) < _MOST_PIXELS or not 0 < int(line["height"]) < _MOST_PIXELS:
            raise ValueError("size")
        if data[start : start + len(_PNG)] != _PNG:
            raise ValueError("png")
        return PageImage(int(line["width"]), int(line["height"]), boxes, data[start:])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise CorruptDocument(_INVALID) from error


def parts_frame(parts: Sequence[tuple[str, int, int, str]]) -> bytes:
    """Return the frame with the symbols of a source text: name, first line, last line and description of each."""
    return _frame(_DRAFT, json.dumps(parts, separators=(",", ":")).encode("ascii"))


def parts_from_bytes(data: bytes) -> list[tuple[str, int, int, str]]:
    """Return the symbols of a source text from the content of a frame. Return no symbols if the content is invalid."""
    try:
        parts = json.loads(data)
        return [(_name(name), int(first), int(last), _name(about)) for name, first, last, about in parts]
    except (ValueError, TypeError, LookupError, RecursionError):
        return []


def _one_of(value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise ValueError("unknown")
    return value


def _code(value: dict[str, Any]) -> str:
    return str(_one_of(value.get("reason_code", ""), get_args(ReasonCode)))


def error_frame(error: DocumentError) -> bytes:
    about = {"error": type(error).__name__, "message": str(error), "reason_code": error.code}
    return _frame(_ERROR, to_line(about))


def error_from_bytes(data: bytes) -> DocumentError:
    """Return the error from the content of an error frame. If the content is invalid, return a `CorruptDocument`."""
    try:
        value, _ = _line(data, 0)
        return _ERRORS[value["error"]](_name(value["message"])[:_LONGEST_REASON], _code(value))
    except (ValueError, TypeError, LookupError, RecursionError):
        return CorruptDocument(_INVALID)


def options_to_json(options: ReadOptions) -> dict[str, Any]:
    """Return the options as a dictionary for JSON, without those that have a meaning only in this process."""
    value = dataclasses.asdict(dataclasses.replace(options, stopped=None))
    del value["deadline"], value["stopped"]  # the clocks of two processes may differ
    return value


def options_from_json(value: dict[str, Any]) -> ReadOptions:
    """Return the options from a dictionary that `options_to_json` has made."""
    lists = {name: tuple(value[name]) for name in ("engines", "attached")}
    return ReadOptions(**{**value, "limits": ReadLimits(**value["limits"]), **lists})


def to_line(value: dict[str, Any]) -> bytes:
    """Return the dictionary as one line of JSON in ASCII. With the escape codes of JSON, the line can also contain
    invalid characters (halves of surrogate pairs)."""
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _frame(kind: bytes, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload)) + payload
