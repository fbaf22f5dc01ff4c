"""Read e-mail: a message (`.eml`) or a mailbox (`.mbox`). Each message is a page with its sender, recipients, date,
subject and text. The pages of its attachments follow it, if their formats can be read. The `reason` of the document
names what is not read."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from email.message import Message

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge, EmptyDocument, UnsupportedFormat
from agentformer.readers.calendar import events_text
from agentformer.readers.encodings import decode_lossy
from agentformer.readers.formats import ADAPTERS, CALENDAR, MAIL, MBOX, ReadOptions, adapter_for, sniff
from agentformer.readers.mail.parts import content_of, decoded_words, header_of, parsed, parts_of_message
from agentformer.readers.sections import document_of, page_of, parts_of
from agentformer.text.normalize import clean_plain
from agentformer.types import DocumentText, Page

MAX_ATTACHMENTS = 200  # attachments of a file
MAX_DEPTH = 3  # depth of messages that are attached to messages
_SHOWN = ("From", "To", "Cc", "Date", "Subject")
_LONGEST_NOTE = 900  # maximum code points of the reason, which names the attachments that were not read
_DRAFT_CHARS = 20_000_000  # characters of all drafts together that are yielded while attachments are read
_NOT_REACHED = "its parser crashed or had no time, or that of an attachment before it; save it as a file"
# The line before each message of a mailbox. A line of a message that begins like this is written with ">" before it.
_SEPARATOR = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\r\n\r\n))From [^\n]{1,300}\d\d:\d\d[^\n]{0,60}\r?\n")
_ESCAPED = re.compile(rb"^>(?=>*From )", re.MULTILINE)


@dataclass(slots=True)
class _Attachment:
    """A file in a message. It is not read until the texts of all messages are read."""

    name: str
    media_type: str
    data: bytes
    pages: Sequence[Page] = ()
    unread: str = _NOT_REACHED  # the reason why it is not read, or "" if it is


@dataclass(slots=True)
class _Reader:
    options: ReadOptions
    content: list[Page | _Attachment] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # parts of messages that are not read, with the reasons
    attachments: int = 0
    chars: int = 0
    pages: int = 0

    def message(self, message: Message, depth: int) -> str:
        """Add the pages of a message, and its attachments. Return the subject of the message. `depth` is 0 for the
        outermost message, 1 for a message that is attached to it, and so on."""
        subject, parts = header_of(message, "Subject"), parts_of_message(message)
        headers = "\n".join(f"{name}: {value}" for name in _SHOWN if (value := header_of(message, name)))
        text = clean_plain("\n\n".join([headers, *parts.texts])).strip()
        for part in parts_of(text):
            page = page_of(0, part, subject, method="email")
            self._count([page])
            self.content.append(page)
        self.unread += parts.unread
        for leaf in parts.attachments:
            self._attachment(leaf, depth, parts.calendars)
        return subject

    def mailbox(self, data: bytes, depth: int) -> None:
        """Add the pages of all messages of a mailbox."""
        starts = [match.span() for match in _SEPARATOR.finditer(data)]
        ends = [start for start, _ in starts[1:]] + [len(data)]
        for number, ((_, start), end) in enumerate(zip(starts, ends, strict=True), 1):
            self._nested(f"message {number}", _ESCAPED.sub(b"", data[start:end]), depth)

    def _attachment(self, leaf: Message, depth: int, calendars: Sequence[str]) -> None:
        """Add an attachment. A message or a mailbox is read now."""
        name = " ".join(decoded_words(leaf.get_filename() or "").replace("\\", "/").rpartition("/")[2].split())[:200]
        name = name or f"attachment of type {leaf.get_content_type()}"
        content = leaf.get_payload()
        nested = content[0] if isinstance(content, list) and content and isinstance(content[0], Message) else None
        data, _ = content_of(leaf)
        media_type = sniff(data, name) if data else MAIL if nested is not None else ""
        if not media_type or (media_type == CALENDAR and events_text(decode_lossy(data)) in calendars):
            return
        self.attachments += 1
        if self.attachments > MAX_ATTACHMENTS:
            return
        if media_type not in (MAIL, MBOX):
            self.content.append(_Attachment(name, media_type, data))
        elif depth >= MAX_DEPTH:
            self.unread.append(f"{name}: attached messages are read only to a depth of {MAX_DEPTH}")
        elif media_type == MBOX:
            self.mailbox(data, depth + 1)
        else:
            self._nested(name, data if nested is None or data else nested, depth + 1)

    def _nested(self, name: str, message: Message | bytes, depth: int) -> None:
        try:
            self.message(parsed(message) if isinstance(message, bytes) else message, depth)
        except (CorruptDocument, RecursionError) as error:
            self.unread.append(f"{name}: {error}")

    def read_attachments(self) -> Iterator[None]:
        """Read the attachments, one after the other. Each step yields before it begins."""
        for attachment in self.content:
            if isinstance(attachment, _Attachment):
                yield
                try:
                    pages = self._pages(attachment)
                    self._count(pages)
                    attachment.pages, attachment.unread = pages, ""
                except EmptyDocument:
                    attachment.unread = ""
                except DocumentError as error:
                    attachment.unread = str(error)
                except Exception as error:  # noqa: BLE001 (no failure of a parser may lose the message)
                    attachment.unread = f"its parser failed ({type(error).__name__}); save it as a file"
                attachment.data = b""

    def _pages(self, attachment: _Attachment) -> list[Page]:
        """Return the pages of an attachment, labelled with its name. Raises `DocumentError` if it is not read."""
        name, media_type = attachment.name, attachment.media_type
        if media_type not in ADAPTERS:
            raise UnsupportedFormat(f"files of type {media_type} are not read")
        if time.monotonic() > self.options.deadline:
            raise DocumentTooLarge("there was no time to read it")
        options = replace(self.options, name=name, media_type=media_type)
        *_, document = adapter_for(media_type).parse(attachment.data, options)
        if document.status != "ready":
            raise CorruptDocument(document.reason)
        if document.reason:
            self.unread.append(f"{name}: {document.reason}")
        return [replace(page, label=f"{name} > {page.label}" if page.label else name) for page in document.pages]

    def _count(self, pages: Sequence[Page]) -> None:
        limits = self.options.limits
        chars = self.chars + sum(len(page.text) for page in pages)
        if self.pages + len(pages) > limits.max_pages or chars > limits.max_chars:
            raise DocumentTooLarge(
                f"the mail has more than {limits.max_pages:,} pages or {limits.max_chars:,} characters; split the file"
            )
        self.chars, self.pages = chars, self.pages + len(pages)

    def document(self, title: str) -> DocumentText:
        """Return the document with the attachments that are read so far. Its reason names the others."""
        pages: list[Page] = []
        unread = list(self.unread)
        for part in self.content:
            pages += [part] if isinstance(part, Page) else part.pages
            unread += [f"{part.name}: {part.unread}"] if isinstance(part, _Attachment) and part.unread else []
        if self.attachments > MAX_ATTACHMENTS:
            unread.append(f"{self.attachments - MAX_ATTACHMENTS:,} attachments after the first {MAX_ATTACHMENTS}")
        reason = f"not read: {'; '.join(unread)}" if unread else ""
        reason = reason if len(reason) <= _LONGEST_NOTE else f"{reason[:_LONGEST_NOTE]}…"
        numbered = (replace(page, number=number) for number, page in enumerate(pages, 1))
        return document_of(self.options.media_type, numbered, self.options.limits, title, reason)


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield drafts of the document: the texts of all messages, with the attachments that are read so far. The parser of
    an attachment may crash or take all the time, and a draft is what then remains."""
    reader, title, drafted = _Reader(options), "", 0
    if options.media_type == MBOX:
        reader.mailbox(data, 0)
    else:
        title = reader.message(parsed(data), 0)
    for _ in reader.read_attachments():
        if drafted + reader.chars <= _DRAFT_CHARS and reader.pages:
            drafted += reader.chars
            yield reader.document(title)
    yield reader.document(title)
