"""The file formats: detection of the media type, and the adapter that reads each type, with its options and limits.

The media type is detected from the content. The name of the file only distinguishes the formats of text: plain text,
CSV, Markdown, HTML, and mail with few headers. An adapter and its parser are imported only when they are needed.
"""

from __future__ import annotations

import codecs
import importlib
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol, cast

from agentformer.errors import DocumentError
from agentformer.types import DocumentText, Stopped

if TYPE_CHECKING:
    from agentformer.settings import Settings

PDF = "application/pdf"
_OFFICE, _ODF = "application/vnd.openxmlformats-officedocument.", "application/vnd.oasis.opendocument."
DOCX = f"{_OFFICE}wordprocessingml.document"
PPTX = f"{_OFFICE}presentationml.presentation"
XLSX = f"{_OFFICE}spreadsheetml.sheet"
ODT, ODS, ODP = f"{_ODF}text", f"{_ODF}spreadsheet", f"{_ODF}presentation"
EPUB = "application/epub+zip"
RTF = "application/rtf"
MAIL = "message/rfc822"
MBOX = "application/mbox"
PNG, JPEG, TIFF, WEBP = "image/png", "image/jpeg", "image/tiff", "image/webp"
IMAGES = (PNG, JPEG, TIFF, WEBP)
HTML = "text/html"
MARKDOWN = "text/markdown"
NOTEBOOK = "application/x-ipynb+json"
CALENDAR = "text/calendar"
CSV, TSV = "text/csv", "text/tab-separated-values"
PLAIN = "text/plain"
OLE = "application/x-ole-storage"  # the container of old and of encrypted Office files
BINARY = "application/octet-stream"

_PDF_HEADER_WITHIN = 1024  # PDF readers accept other bytes before "%PDF-"
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_MAGIC = {
    b"\x89PNG": PNG, b"\xff\xd8\xff": JPEG, b"GIF8": "image/gif", b"II*\x00": TIFF,
    b"MM\x00*": TIFF, b"RIFF": "application/x-riff", b"\x1f\x8b": "application/gzip",
    b"BZh": "application/x-bzip2", b"7z\xbc\xaf": "application/x-7z-compressed", b"Rar!": "application/vnd.rar",
    b"\xd0\xcf\x11\xe0": OLE, b"\x7fELF": "application/x-executable",
    b"MZ\x90": "application/x-executable", b"{\\rtf": RTF, b"%!PS": "application/postscript",
    b"SQLite format 3": "application/vnd.sqlite3", b"ID3": "audio/mpeg", b"OggS": "audio/ogg",
}  # fmt: skip
_MARKDOWN_NAMES = frozenset({".md", ".markdown", ".mdown", ".mkd"})
_HTML_NAMES = frozenset({".html", ".htm", ".xhtml"})
_HTML_TAG = re.compile(rb"<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_ZIP_END = b"PK\x05\x06"  # the last record of an archive, with the size of its directory
_ZIP_END_WITHIN = 22 + 65535  # that record and the longest comment after it
_ZIP_SIZE_AT = 12
_ZIP_ENTRY, _ZIP_NAME_SIZE_AT = 46, 28  # bytes of a directory entry before its name, and place of the name's size
_ZIP_PARTS = {
    b"word/document.xml": DOCX,
    b"xl/workbook.xml": XLSX,
    b"ppt/presentation.xml": PPTX,
    b"meta-inf/container.xml": EPUB,
}
_ODF_PARTS = (b"content.xml", b"meta-inf/manifest.xml")
_ZIP_FOLDERS = {b"word/": DOCX, b"xl/": XLSX, b"ppt/": PPTX}
# OpenDocument and EPUB: the first file of the archive is not compressed, and its content is the media type.
_ZIP_MIMETYPE = re.compile(rb"PK\x03\x04.{22}\x08\x00.{2}mimetype.{0,60}?(application/[\w.+-]{4,80})", re.DOTALL)
_TEXT_NAMES = {".csv": CSV, ".tsv": TSV, ".tab": TSV}
_MAIL_HEADERS = 1 << 16  # bytes
_MAIL_NAMES = frozenset(
    {b"from", b"to", b"date", b"subject", b"message-id", b"mime-version", b"received", b"return-path", b"content-type"}
)
_MAIL_LEAST = 3  # least number of these headers in a message, unless its name ends with .eml or .mbox
_MAIL_HINTS = frozenset({".eml", ".mbox"})
_HEADER = re.compile(rb"([!-9;-~]{1,80}):")
_MBOX_LINE = re.compile(rb"From [^\n]{1,300}\d\d:\d\d[^\n]{0,60}\n")
_TEXT_CONTROLS = bytes(range(0x20, 0x100)) + b"\t\n\r\f\v\b\x1b\x1a"


def sniff(data: bytes, name: str = "") -> str:
    """Return the media type of the content. The extension of `name` only distinguishes plain text, Markdown, HTML that
    does not begin with a usual tag, and mail with few headers. If the content matches two types, the first bytes
    decide. The detection takes at most linear time, because untrusted bytes are read in the calling process."""
    # A real PDF has objects; a text may only mention "%PDF-".
    pdf = b"%PDF-" in data[:_PDF_HEADER_WITHIN] and (b" obj" in data or b"startxref" in data)
    if data.startswith(b"%PDF-") or (pdf and data.startswith(b"%!PS")):
        return PDF
    if data[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _zip_type(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return WEBP
    for magic, media_type in _MAGIC.items():
        if data.startswith(magic) and not (magic == b"BZh" and data.isascii()):
            return media_type
    if pdf:
        return PDF
    if data[4:8] == b"ftyp":
        return "video/mp4"
    suffix = PurePath(name).suffix.lower()
    if mail := _mail_type(data, suffix):
        return mail
    return _text_type(data, suffix) if looks_like_text(data) else BINARY


def _text_type(data: bytes, suffix: str) -> str:
    start = data[:4096].replace(b"\x00", b"").removeprefix(_BOMS[0]).lstrip(b"\xff\xfe")
    if _begins_html(start) or (suffix in _HTML_NAMES and b"<" in start):
        return HTML
    if start.lstrip()[:15].upper() == b"BEGIN:VCALENDAR":
        return CALENDAR
    if suffix == ".ipynb" and start.startswith(b"{"):
        return NOTEBOOK
    return MARKDOWN if suffix in _MARKDOWN_NAMES else _TEXT_NAMES.get(suffix, PLAIN)


def _mail_type(data: bytes, suffix: str) -> str:
    """Return the media type of a message or a mailbox, or "" for other content. A message begins with header lines. At
    least three of them are usual mail headers, and one of these is From or Received. If `suffix` is .eml or .mbox, one
    usual header is enough, because drafts, for example, have no sender."""
    mailbox = _MBOX_LINE.match(data)
    if mailbox and suffix == ".mbox":
        return MBOX
    found: set[bytes] = set()
    for line in data[mailbox.end() if mailbox else 0 : _MAIL_HEADERS].split(b"\n"):
        if not line.strip():
            break
        header = _HEADER.match(line)
        if header:
            found.add(header[1].lower())
        elif not found or line[:1] not in b" \t":
            return ""
    usual = found & _MAIL_NAMES
    if not usual or (suffix not in _MAIL_HINTS and (len(usual) < _MAIL_LEAST or not usual & {b"from", b"received"})):
        return ""
    return MBOX if mailbox else MAIL


def _begins_html(start: bytes) -> bool:
    """Return whether the first tag belongs to HTML. An XML declaration and comments may precede the tag.

    The comments are skipped in a loop, because a regular expression could take a very long time on hostile content.
    """
    rest = start.lstrip()
    if rest.startswith(b"<?xml"):
        rest = rest.partition(b">")[2].lstrip()
    while rest.startswith(b"<!--"):
        rest = rest[4:].partition(b"-->")[2].lstrip()
    return bool(_HTML_TAG.match(rest))


def looks_like_text(data: bytes) -> bool:
    """Return whether the bytes may be text: they begin with a byte order mark, look like UTF-16, or contain almost no
    control bytes."""
    if data.startswith(_BOMS) or utf16_without_bom(data):
        return True
    sample = data.lstrip(b"\0")[:65536]  # a log that is emptied while it is written begins with NUL bytes
    controls = len(sample.translate(None, _TEXT_CONTROLS))
    if sample and controls * 200 <= len(sample):  # a log file may contain a few NUL bytes
        return True
    with suppress(UnicodeDecodeError):  # and a short one has one in few bytes
        codecs.getincrementaldecoder("utf-8")().decode(sample)
        return controls * 20 <= len(sample)
    return False


def utf16_without_bom(data: bytes) -> str:
    """Return `utf-16-le` or `utf-16-be` if the bytes look like UTF-16 without a byte order mark, else "". In such text,
    every second byte is zero where the characters are ASCII, and the other byte is a printable character."""
    sample = data[:4096]
    if len(sample) < 4 or len(data) % 2:
        return ""
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    half = len(sample) // 2
    if odd > 0.3 * half and even <= 0.02 * half and _is_readable_utf16(sample[::2], sample[1::2]):
        return "utf-16-le"
    if even > 0.3 * half and odd <= 0.02 * half and _is_readable_utf16(sample[1::2], sample[::2]):
        return "utf-16-be"
    return ""


def _is_readable_utf16(low: bytes, high: bytes) -> bool:
    """Return whether bytes that may be UTF-16 contain readable characters. `low[i]` and `high[i]` are the low and the
    high byte of the character `i`. Among the low bytes whose high byte is zero, almost none may be control characters,
    and more than half must be ASCII."""
    ascii_or_latin = bytes(one for one, other in zip(low, high, strict=True) if other == 0)
    controls = len(ascii_or_latin.translate(None, _TEXT_CONTROLS))
    ascii_ = sum(one < 0x7F for one in ascii_or_latin) - controls
    return controls * 50 <= len(ascii_or_latin) and ascii_ * 2 > len(ascii_or_latin)


def _zip_type(data: bytes) -> str:
    """Return the media type of a ZIP archive, by the file names in its directory. No file is unpacked."""
    if mimetype := _ZIP_MIMETYPE.match(data[:512]):
        named = mimetype[1].decode("ascii").removesuffix("PK").removesuffix("-template")
        if named in (EPUB, ODT, ODS, ODP):
            return named
    end = data.rfind(_ZIP_END, max(0, len(data) - _ZIP_END_WITHIN))
    if end < 0 or end + _ZIP_SIZE_AT + 4 > len(data):
        # The parts of a document come first: a truncated file is a damaged document, not an unknown archive.
        start_of = data[:65536]
        found = {start_of.find(folder): kind for folder, kind in _ZIP_FOLDERS.items() if folder in start_of}
        return found[min(found)] if found else DOCX if b"[Content_Types].xml" in data[:256] else "application/zip"
    (size,) = struct.unpack_from("<I", data, end + _ZIP_SIZE_AT)
    names = _entry_names(data, max(0, end - size), end)
    found_type = next((media_type for part, media_type in _ZIP_PARTS.items() if part in names), "")
    if not found_type and names.issuperset(_ODF_PARTS):
        return ODT  # packed again without its media type; the reader looks at the content
    if not found_type and b"[content_types].xml" in names:  # the main part has another name, which the archive says
        folders = {name.partition(b"/")[0] + b"/" for name in names}
        found_type = next((kind for folder, kind in _ZIP_FOLDERS.items() if folder in folders), "")
    return found_type or "application/zip"


def _entry_names(data: bytes, at: int, end: int) -> set[bytes]:
    """Return the file names in the directory of a ZIP archive, at `[at, end)` in `data`, in small letters and with "/"
    between folders. Office programs ignore the case, and some programs write a backslash."""
    names: set[bytes] = set()
    while 0 <= (at := data.find(b"PK\x01\x02", at, end)) <= end - _ZIP_ENTRY:
        size, extra, comment = struct.unpack_from("<HHH", data, at + _ZIP_NAME_SIZE_AT)
        names.add(data[at + _ZIP_ENTRY : at + _ZIP_ENTRY + size].replace(b"\\", b"/").lstrip(b"/").lower())
        at += _ZIP_ENTRY + size + extra + comment
    return names


MIB = 1 << 20
FILE_BYTES = 128 * MIB  # largest file that the child may write: the image of a page for tesseract
OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits for reading one file. A file that exceeds a limit is refused. `wall_seconds` is the time for the text
    and OCR together. `memory_bytes` is the memory that the child process may use; tesseract, which runs OCR, may use
    the same amount in addition."""

    max_bytes: int = 256 * MIB  # scanned books reach 200 MB
    max_pages: int = 10_000  # the longest legal and medical works have about 5,000
    max_chars: int = 50_000_000  # twenty times the Bible; longer files are data dumps
    wall_seconds: float = 120.0  # 3,000 pages take about 10 s
    memory_bytes: int = 2048 * MIB  # address space of the child; the largest real PDFs take a quarter
    output_bytes: int = 384 * MIB  # all drafts together: enough for twice `max_chars` characters of three bytes

    @classmethod
    def from_settings(cls, settings: Settings) -> ReadLimits:
        """Return the limits of the settings."""
        seconds = settings.read_seconds
        return cls(max_bytes=settings.max_file_bytes, max_pages=settings.max_pages, wall_seconds=seconds)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options for reading one file. `deadline` is the end of the allowed time, as a value of `time.monotonic()` in
    the process in which the adapter runs."""

    name: str
    media_type: str
    password: str | None = None
    ocr: bool = True
    limits: ReadLimits = ReadLimits()
    deadline: float = float("inf")
    engines: tuple[str, ...] = ("pdfium", "pypdf")  # a second attempt does not use the parser that crashed
    folder: str = ""  # the folder in which the reader may write and run tesseract; "" for none
    page: int = 0  # the page to show as an image (the first page is 1), or 0 to read the text of the file
    quote: str = ""  # the quotation to highlight on this page
    position: int = 0  # number of letters and digits on the page before the quotation
    attached: tuple[str, ...] = ()  # the media types that files inside of the file may have (see `attached_types`)
    stopped: Stopped | None = (
        None  # if it returns True, the reader is ended, because nobody waits for the text any more
    )


_READERS = "agentformer.readers"
ADAPTERS = {
    PDF: f"{_READERS}.pdf.reader",
    DOCX: f"{_READERS}.office.docx",
    PPTX: f"{_READERS}.office.pptx",
    XLSX: f"{_READERS}.office.xlsx",
    **dict.fromkeys((ODT, ODS, ODP), f"{_READERS}.office.opendocument"),
    EPUB: f"{_READERS}.epub",
    RTF: f"{_READERS}.rtf",
    **dict.fromkeys((MAIL, MBOX), f"{_READERS}.mail.reader"),
    **dict.fromkeys(IMAGES, f"{_READERS}.ocr"),
    HTML: f"{_READERS}.html",
    MARKDOWN: f"{_READERS}.markdown",
    NOTEBOOK: f"{_READERS}.notebook",
    CALENDAR: f"{_READERS}.calendar",
    **dict.fromkeys((PLAIN, CSV, TSV), f"{_READERS}.text_and_csv"),
}
RECOGNISED = frozenset({PDF, MAIL, MBOX, *IMAGES})  # may need OCR
SUPPORTED = (
    "PDF, Word (.docx), PowerPoint (.pptx), Excel (.xlsx), OpenDocument (.odt, .ods, .odp), EPUB, RTF, e-mail (.eml, "
    ".mbox), CSV, HTML, Markdown, notebooks, source code, plain text and images (PNG, JPEG, TIFF, WebP) can be read"
)
# The file extensions of formats that are not text, with the names of these formats in messages.
BINARY_NAMES = {
    ".pdf": "PDF",
    **dict.fromkeys((".docx", ".docm"), "Word document"),
    **dict.fromkeys((".pptx", ".pptm"), "PowerPoint presentation"),
    **dict.fromkeys((".xlsx", ".xlsm"), "Excel workbook"),
    **dict.fromkeys((".odt", ".ods", ".odp"), "OpenDocument file"),
    ".epub": "EPUB book",
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp"), "image"),
}


_ATTACHED = re.compile(rb"name\*?[\d*]{0,4}=|content-disposition|content-type:\s*+(?!text/|multipart/)", re.IGNORECASE)
_ATTACHED_WITHIN = 1 << 20  # bytes of a mail that are searched; a longer mail surely has attachments


def attached_types(data: bytes, media_type: str) -> tuple[str, ...]:
    """Return the media types that files inside of a file may have: all types for a mail with attachments, none for
    other files. The reader process imports their parsers before it gives up its rights, because a parser that loads
    a library of C is refused later. A mail without attachments starts in half of the time."""
    if media_type not in (MAIL, MBOX) or (len(data) <= _ATTACHED_WITHIN and not _ATTACHED.search(data)):
        return ()
    return tuple(ADAPTERS)


class Adapter(Protocol):
    """A module that reads one media type. `parse` yields drafts of the document. A draft is a complete document with
    the text that was found so far; the last draft is the result. `parse` raises only `DocumentError`, for problems of
    the file."""

    def parse(self, data: bytes, options: ReadOptions) -> Iterator[DocumentText]: ...


def adapter_for(media_type: str) -> Adapter:
    """Import and return the adapter of a media type. Raises `DocumentError` if its parser is not installed."""
    try:
        return cast(Adapter, importlib.import_module(ADAPTERS[media_type]))
    except ImportError as error:
        missing = error.name or "a library"
        message = f"the file cannot be read because {missing} is not installed; install agentformer again"
        raise DocumentError(message) from error
