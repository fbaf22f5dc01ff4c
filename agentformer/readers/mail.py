"""Read e-mail: a message (`.eml`) or a mailbox (`.mbox`). Each message is a page with its sender, recipients, date and
subject. The pages of its attachments follow it, if their formats can be read."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from typing import Any

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge, EmptyDocument, UnsupportedFormat
from agentformer.readers import plain
from agentformer.readers.formats import ADAPTERS, HTML, MAIL, MBOX, ReadOptions, adapter_for, sniff
from agentformer.readers.html import outline_of
from agentformer.readers.sections import document_of, page_of, parts_of
from agentformer.text.normalize import clean_plain
from agentformer.types import DocumentText, Page

MAX_ATTACHMENTS = 200  # attachments of a file
MAX_DEPTH = 3  # depth of messages that are attached to messages
MAX_PARTS = 1_000  # parts of a message
_SHOWN = ("From", "To", "Cc", "Date", "Subject")
_LONGEST_HEADER = 2_000  # maximum code points of a header on a page
_LONGEST_NOTE = 900  # maximum code points of the reason, which names the attachments that were not read
# The line before each message of a mailbox. A line of a message that begins like this is written with ">" before it.
_SEPARATOR = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\r\n\r\n))From [^\n]{1,300}\d\d:\d\d[^\n]{0,60}\r?\n")
_ESCAPED = re.compile(rb"^>(?=>*From )", re.MULTILINE)


@dataclass(slots=True)
class _Reader:
    options: ReadOptions
    pages: list[Page] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # attachments that were not read, with the reasons
    attachments: int = 0
    chars: int = 0

    def message(self, message: Message, depth: int) -> str:
        """Add the pages of a message and of its attachments. Return the subject of the message. `depth` is 0 for the
        outermost message, 1 for a message that is attached to it, and so on."""
        subject = _header(message, "Subject")
        leaves = [*_leaves(message)]
        body = _body(leaves)
        headers = "\n".join(f"{name}: {value}" for name in _SHOWN if (value := _header(message, name)))
        text = clean_plain(f"{headers}\n\n{_text_of(body) if body is not None else ''}").strip()
        for part in parts_of(text):
            self._add(page_of(0, part, subject, method="email"))
        for leaf in leaves:
            if leaf is not body and not _is_other_body(leaf):
                self._attachment(leaf, depth)
        return subject

    def mailbox(self, data: bytes, depth: int) -> None:
        """Add the pages of all messages of a mailbox."""
        starts = [match.span() for match in _SEPARATOR.finditer(data)]
        ends = [start for start, _ in starts[1:]] + [len(data)]
        for (_, start), end in zip(starts, ends, strict=True):
            self.message(_parsed(_ESCAPED.sub(b"", data[start:end])), depth)

    def _attachment(self, leaf: Message, depth: int) -> None:
        name = " ".join(_decoded(leaf.get_filename() or "").replace("\\", "/").rpartition("/")[2].split())[:200]
        name = name or f"attachment of type {leaf.get_content_type()}"
        self.attachments += 1
        if self.attachments > MAX_ATTACHMENTS:
            raise DocumentTooLarge(f"the mail has more than {MAX_ATTACHMENTS} attachments; save them as files")
        pages: Sequence[Page] = ()
        try:
            pages = self._read(leaf, name, depth)
        except EmptyDocument:
            pass
        except DocumentError as error:
            self.unread.append(f"{name}: {error}")
        for page in pages:
            self._add(replace(page, label=f"{name} > {page.label}" if page.label else name))

    def _read(self, leaf: Message, name: str, depth: int) -> Sequence[Page]:
        """Return the pages of an attachment. If the attachment is a message or a mailbox, add its pages, and return no
        pages."""
        content = leaf.get_payload()
        nested = content[0] if isinstance(content, list) and content and isinstance(content[0], Message) else None
        data = b"" if nested is not None else _bytes_of(leaf)
        media_type = MAIL if nested is not None else sniff(data, name)
        if media_type in (MAIL, MBOX):
            if depth >= MAX_DEPTH:
                raise UnsupportedFormat(f"attached messages are read only to a depth of {MAX_DEPTH}")
            if media_type == MBOX:
                self.mailbox(data, depth + 1)
            else:
                self.message(nested if nested is not None else _parsed(data), depth + 1)
            return ()
        if media_type not in ADAPTERS:
            raise UnsupportedFormat(f"files of type {media_type} are not read")
        if time.monotonic() > self.options.deadline:
            raise DocumentTooLarge("there was no time to read it")
        options = replace(self.options, name=name, media_type=media_type)
        *_, document = adapter_for(media_type).parse(data, options)
        if document.status != "ready":
            raise CorruptDocument(document.reason)
        return document.pages

    def _add(self, page: Page) -> None:
        limits = self.options.limits
        self.chars += len(page.text)
        if len(self.pages) >= limits.max_pages or self.chars > limits.max_chars:
            raise DocumentTooLarge(
                f"the mail has more than {limits.max_pages:,} pages or {limits.max_chars:,} characters; split the file"
            )
        self.pages.append(replace(page, number=len(self.pages) + 1))


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. The `reason` of the document names the attachments that cannot be read."""
    reader, title = _Reader(options), ""
    if options.media_type == MBOX:
        reader.mailbox(data, 0)
    else:
        title = reader.message(_parsed(data), 0)
    reason = f"not read: {'; '.join(reader.unread)}" if reader.unread else ""
    reason = reason if len(reason) <= _LONGEST_NOTE else f"{reason[:_LONGEST_NOTE]}…"
    yield document_of(options.media_type, reader.pages, options.limits, title, reason)


def _parsed(data: bytes) -> Message:
    try:
        return message_from_bytes(data)
    except (MessageError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptDocument("the message is damaged; save it again in the mail program") from error


def _leaves(message: Message) -> Iterator[Message]:
    """Yield the parts of a message that contain no other parts. A message in the message is one part."""
    waiting: list[Message] = [message]
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        part = waiting.pop(0)
        content: Any = part.get_payload()
        if part.get_content_maintype() == "multipart" and isinstance(content, list):
            waiting[:0] = content
        else:
            yield part
    raise DocumentTooLarge(f"the message has more than {MAX_PARTS} parts; save its attachments as files")


def _body(leaves: list[Message]) -> Message | None:
    """Return the part with the text of a message: the first plain text with letters, or else the first HTML."""
    shown = [leaf for leaf in leaves if leaf.get_content_disposition() != "attachment" and not leaf.get_filename()]
    texts = [leaf for leaf in shown if leaf.get_content_maintype() == "text"]
    plains = [leaf for leaf in texts if leaf.get_content_type() != HTML and _text_of(leaf).strip()]
    return next(iter(plains or [leaf for leaf in texts if leaf.get_content_type() == HTML] or texts), None)


def _is_other_body(leaf: Message) -> bool:
    """Return whether a part is not read as an attachment, because it belongs to the body of the message: the same text
    in another format, or an image inside the text."""
    if leaf.get_content_disposition() == "attachment":
        return False
    kind = leaf.get_content_maintype()
    return (kind == "text" and not leaf.get_filename()) or (kind == "image" and "Content-ID" in leaf)


def _text_of(leaf: Message) -> str:
    data, charset = _bytes_of(leaf), leaf.get_content_charset() or ""
    if leaf.get_content_type() == HTML:
        builder, _ = outline_of(data, charset, whole=True)
        return "\n\n".join(page.text for page in builder.pages("email"))
    try:
        return plain.decode(data, charset)
    except CorruptDocument:
        return data.decode("utf-8", "replace")


def _bytes_of(leaf: Message) -> bytes:
    content = leaf.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def _header(message: Message, name: str) -> str:
    return " ".join(_decoded(str(message.get(name, ""))[: 4 * _LONGEST_HEADER]).split())[:_LONGEST_HEADER]


def _decoded(value: str) -> str:
    try:
        return str(make_header(decode_header(value)))
    except (MessageError, ValueError, LookupError, TypeError):
        return value
