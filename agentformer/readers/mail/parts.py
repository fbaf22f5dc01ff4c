"""The parts of a message: its headers, its text, its calendar entries and its attachments.

Python's `email` divides the message. This module repairs what real mail breaks: headers with bytes that are not ASCII,
text after a part in base64, wrong names of encodings, single wrong bytes, and texts that only say that the message is
in HTML.
"""

from __future__ import annotations

import binascii
import quopri
import re
from collections import Counter
from dataclasses import dataclass, field
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header
from email.message import Message
from email.policy import Compat32
from typing import Any

from agentformer.errors import CorruptDocument, DocumentError
from agentformer.readers.calendar import events_text
from agentformer.readers.encodings import decode_lossy
from agentformer.readers.formats import CALENDAR, HTML, sniff
from agentformer.readers.html import declared_encoding, outline_of

MAX_PARTS = 1_000  # parts of a message
_MAX_HEADER = 16_000  # code points of a header that are read
_MAX_FORMATS = 8  # formats of one text; more are no formats, but different texts
_LONGEST_HEADER = 2_000  # maximum code points of a header on a page
_WORD = r"=\?[^?\s]{1,60}\?[bBqQ]\?[^?]*\?="
_ENCODED = re.compile(rf"{_WORD}(?:\s*{_WORD})*")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]+={0,2}")
_FOREIGN = re.compile(rb"[^A-Za-z0-9+/=]")
_FULL = 60  # characters of a usual line in base64; the last line is shorter
_TAG = re.compile(r"</?[\w-]{1,40}>")
_REPORTS = frozenset({"message/delivery-status", "message/disposition-notification"})  # their parts are headers
_FILES = frozenset({"text/rtf", "text/csv", "text/tab-separated-values", "text/markdown"})  # text with readers
_TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")  # a word, or a letter of a script without spaces
_LINK = re.compile(r"https?://\S+")
_SAME, _ALL = 0.6, 0.9  # shares of the words of a text


class _Policy(Compat32):
    """Keeps the headers as text. The other policies replace bytes that are not ASCII by U+FFFD. Only the beginning of
    a very long header is used, because the time of Python's parser grows with the square of its length."""

    def header_fetch_parse(self, name: str, value: str) -> str:
        value = value[:_MAX_HEADER]
        return value if value.isascii() else decode_lossy(value.encode("utf-8", "surrogateescape"))


_POLICY = _Policy()


@dataclass(slots=True)
class Parts:
    """The content of a message. `unread` says which parts are not read and why."""

    texts: list[str] = field(default_factory=list)
    calendars: list[str] = field(default_factory=list)
    attachments: list[Message] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    count: int = 0


def parsed(data: bytes) -> Message:
    """Return the message with these bytes. Raises `CorruptDocument` if it cannot be divided into parts."""
    try:
        return message_from_bytes(data, policy=_POLICY)
    except (MessageError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDocument("the message is damaged; save it again in the mail program") from error


def parts_of_message(message: Message) -> Parts:
    """Return the content of a message. Its calendar entries are the last of its texts."""
    parts = Parts()
    text = _shown(message, parts)
    parts.texts = [each for each in (text, *parts.calendars) if each.strip()]
    if parts.count > MAX_PARTS:
        parts.unread.append(f"{parts.count - MAX_PARTS:,} parts after the first {MAX_PARTS:,} parts of a message")
    return parts


def _shown(part: Message, parts: Parts) -> str:
    """Return the text that a mail program shows for a part of a message, and add other content to `parts`."""
    content: Any = part.get_payload()
    kind = part.get_content_type()
    if isinstance(content, list) and kind.startswith("multipart/"):
        texts = [text for child in content if (text := _shown(child, parts)).strip()]
        return _best(texts) if kind == "multipart/alternative" and len(texts) <= _MAX_FORMATS else "\n\n".join(texts)
    parts.count += 1
    if parts.count > MAX_PARTS:
        return ""
    if kind in _REPORTS and isinstance(content, list):
        return "\n\n".join(str(block).strip() for block in content)
    attached = part.get_content_disposition() == "attachment"
    if kind == CALENDAR and not attached:
        text = events_text(_decoded(*content_of(part), part))
        parts.calendars += [text] if text not in parts.calendars else []
    elif not attached and not part.get_filename() and _is_text(kind):
        return _text_of(part, kind, parts)
    elif attached or not kind.startswith("image/") or "Content-ID" not in part:
        parts.attachments.append(part)
    return ""


def _is_text(kind: str) -> bool:
    # A message without a boundary between its parts is one text.
    return (kind.startswith("text/") and kind not in _FILES) or kind.startswith("multipart/")


def _text_of(part: Message, kind: str, parts: Parts) -> str:
    """Return the text of a part of the media type `kind`, with the text after it. HTML that is declared as plain text
    is read as HTML. HTML that cannot be read gives no text, and a reason in `parts.unread`."""
    data, footer = content_of(part)
    if not kind.endswith("html") and not (kind == "text/plain" and sniff(data) == HTML):
        text = _decoded(data, footer, part)
        return _TAG.sub("", text) if kind == "text/enriched" else text
    try:
        text = decode_lossy(data, part.get_content_charset() or declared_encoding(data))
        builder, _ = outline_of(text, whole=True)
    except DocumentError as error:
        parts.unread.append(f"the text in HTML: {error}")
        return ""
    return "\n\n".join([page.text for page in builder.pages("email")] + ([decode_lossy(footer)] if footer else []))


def _decoded(data: bytes, footer: bytes, part: Message) -> str:
    text = decode_lossy(data, part.get_content_charset() or "")
    return f"{text.rstrip()}\n\n{decode_lossy(footer)}" if footer else text


def _best(texts: list[str]) -> str:
    """Return the text of a message that has its text in several formats, the plainest first. A later text replaces the
    former one if it has most of its words and more of its own. Both are returned if each has words of its own, because
    the plain text may only say that the message is in HTML, and the HTML may only be a frame."""
    best = ""
    for text in texts:
        former, later = (set(_TOKEN.findall(_LINK.sub("", each).casefold())) for each in (best, text))
        common = len(former & later)
        of_former, of_later = common / max(1, len(former)), common / max(1, len(later))
        if best and of_later >= _ALL:
            continue
        if of_former >= max(_SAME, of_later) or not best:
            best = text
        elif of_later < _SAME:
            best = f"{best}\n\n{text}"
    return best


def content_of(part: Message) -> tuple[bytes, bytes]:
    """Return the bytes of a part, and the text that a mailing list has added after a part in base64."""
    payload: Any = part.get_payload()
    coding = str(part.get("Content-Transfer-Encoding", "")).strip().lower()
    if isinstance(payload, list):  # a message; if it is encoded, `email` has found no headers in it
        inner: Any = payload[0] if payload else None
        encoded = isinstance(inner, Message) and not inner.keys() and coding.startswith("base64")
        payload = inner.get_payload() if encoded else None
    if coding.startswith("base64") and isinstance(payload, str):
        return _from_base64(payload.encode("utf-8", "surrogateescape"))
    content = part.get_payload(decode=True)
    data = content if isinstance(content, bytes) else b""
    return (quopri.decodestring(data) if re.match("quoted-printable.", coding) else data), b""


def _from_base64(raw: bytes) -> tuple[bytes, bytes]:
    """Return the decoded bytes and the text after them. A wrong byte inside of the base64 damages three bytes. If no
    line is in base64, all is text."""
    lines = [line.strip() for line in raw.replace(b"\r\r\n", b"\n").splitlines()]
    sizes = Counter(len(line) for line in lines if _BASE64.fullmatch(line))
    full = max(sizes, key=sizes.__getitem__, default=0)  # the length of the first line if no other length is usual
    end = 0
    for at, line in enumerate(lines):
        is_last = line.endswith(b"=") or (at == end and full >= _FULL)  # shorter than the lines before it
        if len(line) == full or (is_last and _BASE64.fullmatch(line)):
            end = at + 1
    if not full or not end:
        return raw, b""
    coded = b"".join(_FOREIGN.sub(b"A" if len(line) == full else b"", line) for line in lines[:end])
    blocks = (block[: len(block) - (len(block) % 4 == 1)] for block in coded.split(b"="))
    return b"".join(binascii.a2b_base64(block + b"==") for block in blocks), b"\n".join(lines[end:]).strip()


def header_of(message: Message, name: str) -> str:
    """Return a header as one line, or "" if the message does not have it."""
    value = str(message.get(name, ""))[: 4 * _LONGEST_HEADER]
    return " ".join(decoded_words(value).split())[:_LONGEST_HEADER]


def decoded_words(value: str) -> str:
    """Return a header with its encoded words, such as "=?utf-8?q?=C3=A4?=", decoded."""
    return _ENCODED.sub(_words, value)


def _words(run: re.Match[str]) -> str:
    try:
        pieces = decode_header(run[0])
    except (MessageError, ValueError, LookupError, TypeError):
        return run[0]
    return "".join(
        decode_lossy(piece, charset or "") if isinstance(piece, bytes) else piece for piece, charset in pieces
    )
