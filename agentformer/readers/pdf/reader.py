"""Read PDF files with two extractors and OCR. For each page, the better text is used.

First, PDFium reads every page. If the text of a page is doubtful, pypdf reads this page again. pypdf is fifteen times
slower, so it gets only a part of the time. If OCR is installed, it reads the pages that still have no usable text. A
draft of the document is yielded after each of these stages, so that the draft can be used if a later stage hangs or
crashes.
"""

from __future__ import annotations

import math
import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from agentformer.errors import CorruptDocument, DocumentTooLarge, EmptyDocument, EncryptedDocument
from agentformer.readers.formats import ReadOptions
from agentformer.readers.ocr import DRAFT_SECONDS, MAX_PIXELS, MIN_LETTERS, image_text, ocr_unavailable, without_text
from agentformer.readers.pdf.engines import PasswordNeeded, PdfiumDocument, PypdfDocument, Unreadable
from agentformer.readers.pdf.layout import Title, bodies, page_headings, with_titles
from agentformer.readers.pdf.tables import DraftTable, located
from agentformer.readers.sections import outcome_of
from agentformer.text.normalize import from_small_capitals, from_symbol_area, normalize_pages
from agentformer.text.quality import Quality, assess
from agentformer.types import DocumentText, Page, PageStatus, Span

PYPDF_SHARE = 0.25  # share of the remaining time for the second extractor
MIN_HIDDEN_LETTERS = 60  # shorter text that only pypdf finds is the name of a layer or a stray glyph
DPI = 300  # the resolution of tesseract's training data
MAX_IMAGE_PIXELS = 200_000_000  # pixels of an image inside the page, which rendering unpacks completely
_NOTHING = Quality(0.0, 0, "empty")
_PASSWORD_BYTES = 127  # of a password that AES-256 uses (ISO 32000-2, 7.6.4.3.2)

_LARGE_COUNT = re.compile(rb"/Count\s+(\d{7,20})")
_DICTIONARY = 400  # bytes around "/Count" that contain its dictionary

_TO_NOTHING = re.compile("[\u00ad\u034f\u1806\u180b-\u180d\u200b-\u200d\u2060\ufeff\ufe00-\ufe0f]")

_NEEDED = "the PDF is encrypted and needs a password; give the password, or save a copy without encryption"
_CERTIFICATE = (
    "the PDF is encrypted for the owner of a certificate, and no password opens it; save a copy without encryption"
)
# The encryption dictionary of such a file is never compressed (ISO 32000-2, 7.5.7 and 7.6.5).
_FOR_CERTIFICATES = re.compile(rb"/Filter\s*/Adobe\.P(?:ubSec|PKLite)\b|/SubFilter\s*/adbe\.pkcs7\.s[345]\b")
_WRONG = "the PDF is encrypted and the given password is wrong; give the right password"
_DAMAGED = "the PDF is too damaged to read; download it again or print it to a new PDF"


@dataclass(slots=True)
class _Draft:
    """A page while it is read: its text so far, the quality of this text, and the method that read the text."""

    raw: str = ""
    method: str = ""
    quality: Quality = _NOTHING
    failed: bool = False
    blank: bool = False
    recognised: bool = False  # tried by OCR
    titles: Sequence[Title] = ()  # found by PDFium
    tables: Sequence[DraftTable] = ()


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield drafts: complete documents with the text that was found so far. The last draft is the result."""
    _check_page_count(data)
    fast, slow = _open(data, options)
    count = len(fast if fast is not None else slow or ())
    if not count:
        raise EmptyDocument("the PDF has no pages")
    if count > options.limits.max_pages:
        raise DocumentTooLarge(
            f"the PDF has {count:,} pages; the limit is {options.limits.max_pages:,} pages; split the file"
        )
    pages = [_Draft(failed=True) for _ in range(count)]
    if fast is not None:
        _read_all(fast, pages, options)
    doubtful = _doubtful(pages) if "pypdf" in options.engines else []
    recognises = options.ocr and _without_text(pages) and not ocr_unavailable()
    more = doubtful or recognises
    if fast is not None and more and not all(page.failed for page in pages):
        yield _document(pages, fast, options)
    if doubtful:
        _second_reading(data, pages, doubtful, fast, slow, options)
    if fast is not None and recognises:
        yield from _recognised(fast, pages, options)
    if all(page.failed for page in pages):
        raise CorruptDocument(_DAMAGED)
    yield _document(pages, fast, options)


def _check_page_count(data: bytes) -> None:
    """Raise `CorruptDocument` if the file claims to have more pages than bytes. This check is needed before a parser
    reads the file, because a parser could try to read all these pages."""
    for match in _LARGE_COUNT.finditer(data):
        count = int(match.group(1))
        around = data[max(0, match.start() - _DICTIONARY) : match.end() + _DICTIONARY]
        if count > len(data) and b"/Pages" in around:
            raise CorruptDocument(
                f"the PDF is damaged: it claims {count:,} pages but has {len(data):,} bytes; download it again"
            )


def _open(data: bytes, options: ReadOptions) -> tuple[PdfiumDocument | None, PypdfDocument | None]:
    """Open a file with PDFium, or with pypdf if PDFium is not wanted or cannot read the file. Exactly one of the two is
    returned. Raises `EncryptedDocument` if no password fits, and `CorruptDocument` if neither can read the file."""
    passwords = _passwords(options.password)
    locked = False
    if "pdfium" in options.engines:
        for password in passwords:
            try:
                return PdfiumDocument(data, password or None), None
            except PasswordNeeded:
                locked = True
            except Unreadable:
                break
    slow = None if locked else PypdfDocument(data, passwords)
    if slow is None or slow.encrypted:
        raise EncryptedDocument(*((_WRONG, "password_wrong") if options.password else (_NEEDED, "password_needed")))
    if not len(slow):
        raise EncryptedDocument(_CERTIFICATE) if _FOR_CERTIFICATES.search(data) else CorruptDocument(_DAMAGED)
    return None, slow


def _passwords(password: str | None) -> tuple[str, ...]:
    """Return the passwords to try, in this order: the password as typed, the password in SASLprep form (RFC 4013), the
    part of this form that encryption uses, and the empty password. The empty password opens many files that only
    restrict printing or copying."""
    if not password:
        return ("",)
    prepared = "".join(" " if unicodedata.category(c) == "Zs" else c for c in _TO_NOTHING.sub("", password))
    prepared = unicodedata.normalize("NFKC", prepared)
    used = prepared.encode("utf-8")[:_PASSWORD_BYTES].decode("utf-8", "ignore")
    return tuple(dict.fromkeys((password, prepared, used, "")))


def _read_all(fast: PdfiumDocument, pages: list[_Draft], options: ReadOptions) -> None:
    """Read all pages with PDFium, and put the drafts into `pages`. A page that PDFium cannot read counts as failed."""
    chars = 0
    for number, page in enumerate(pages):
        try:
            text, unmapped, titles, tables = fast.text(number)
            text = from_small_capitals(text)
            chars += len(text)
            draft = _Draft(text, "pdfium", assess(text, unmapped=unmapped))
            if draft.quality.verdict == "garbled" and (shifted := from_symbol_area(text)) != text:
                draft = _better(draft, _Draft(shifted, "pdfium", assess(shifted)))
            draft.blank = not text and not fast.has_objects(number)
            if draft.quality.is_usable:
                draft.titles, draft.tables = titles, tables
            pages[number] = draft
        except Unreadable:
            page.failed = True
        if chars > options.limits.max_chars:
            raise DocumentTooLarge(f"the PDF has more than {options.limits.max_chars:,} characters; split the file")


def _doubtful(pages: list[_Draft]) -> list[int]:
    """Return the numbers of the pages that pypdf reads again. Pages without text, such as scans, come last."""
    doubtful = [n for n, page in enumerate(pages) if page.failed or (page.quality.verdict != "good" and not page.blank)]
    return sorted(doubtful, key=lambda n: pages[n].quality.verdict == "empty")


def _second_reading(
    data: bytes, pages: list[_Draft], doubtful: list[int],
    fast: PdfiumDocument | None, slow: PypdfDocument | None, options: ReadOptions,
) -> None:  # fmt: skip
    """Read the `doubtful` pages again with pypdf until the time is over, and keep the better draft of each."""
    start = time.monotonic()
    until = start + PYPDF_SHARE * (options.deadline - start) if fast is not None else options.deadline
    if fast is not None and fast.encrypted:
        data = fast.decrypted()  # so pypdf needs no library for AES
    slow = slow or PypdfDocument(data, _passwords(options.password))
    for number in doubtful:
        if time.monotonic() > until:
            break
        text = slow.text(number) if number < len(slow) else None
        if text is not None:
            pages[number] = _better(pages[number], _Draft(text, "pypdf", assess(text)))


def _better(first: _Draft, second: _Draft) -> _Draft:
    if first.failed:
        return second
    if first.quality.verdict == "empty":
        enough = second.quality.is_usable and second.quality.letters >= MIN_HIDDEN_LETTERS
        return second if enough else first
    if second.quality.letters * 2 < first.quality.letters:  # a higher score may only mean that most text is missing
        return first
    return second if second.quality.score > first.quality.score + 0.02 else first


def _without_text(pages: list[_Draft]) -> list[int]:
    return [n for n, p in enumerate(pages) if p.quality.verdict in ("empty", "garbled") and not p.blank]


def _recognised(fast: PdfiumDocument, pages: list[_Draft], options: ReadOptions) -> Iterator[DocumentText]:
    """Recognise the pages without usable text by OCR until the time is over. A draft of the document is yielded about
    every `DRAFT_SECONDS`, because the process may be killed."""
    drafted = time.monotonic()
    for number in _without_text(pages):
        if time.monotonic() > options.deadline:
            return
        if time.monotonic() - drafted > DRAFT_SECONDS:
            yield _document(pages, fast, options)
            drafted = time.monotonic()
        try:
            text = recognise(fast, number)
        except Unreadable:
            continue
        pages[number].recognised = True
        quality = assess(text)
        if quality.letters >= MIN_LETTERS and quality.is_usable:
            pages[number] = _Draft(text, "tesseract", quality)


def _document(drafts: list[_Draft], fast: PdfiumDocument | None, options: ReadOptions) -> DocumentText:
    texts = normalize_pages([d.raw if d.quality.is_usable else "" for d in drafts], bodies)
    spans = bodies(texts)
    pages = [_page(number, draft, texts[number], spans[number], fast, options) for number, draft in enumerate(drafts)]
    outline = list(fast.outline()) if fast is not None else []
    pages = page_headings(pages, with_titles(outline, [draft.titles for draft in drafts]))
    title = fast.title() if fast is not None else ""
    return DocumentText(options.media_type, tuple(pages), title, *outcome_of(pages))


def _page(
    number: int, draft: _Draft, text: str, body: Span | None, fast: PdfiumDocument | None, options: ReadOptions
) -> Page:
    """Return the page of a draft. The filled form fields are added to `text`. `number` starts at 0."""
    label = fast.label(number) if fast is not None else ""
    if values := _form_text(number, text, fast):
        body = Span(body.start, len(text) + len(values)) if body else None
        text = f"{text}{values}" if text else values.lstrip("\n")
    status, reason, code = _page_status(draft, text, options)
    method = draft.method if text else ""
    page = Page(number + 1, text, label or str(number + 1), status, reason, method, body, reason_code=code)
    return replace(page, tables=located(draft.tables, page)) if draft.tables else page


def _form_text(number: int, text: str, fast: PdfiumDocument | None) -> str:
    """Return the filled form fields of a page as lines. A field is left out if its value is in the text of the page."""
    values: list[tuple[str, str]] = []
    with suppress(Unreadable):
        values = fast.form_values(number) if fast is not None else []
    rows = [f"{label}: {value}" if label else value for label, value in values if value not in text]
    return "\n\n" + normalize_pages(["\n".join(rows)])[0] if rows else ""


def _page_status(draft: _Draft, text: str, options: ReadOptions) -> tuple[PageStatus, str, str]:
    """Return the status of a page, its reason, and the code of the reason."""
    if text.strip():
        return "text", "", ""
    code, advice = without_text(options.ocr, recognised=draft.recognised)
    if draft.failed:
        return "failed", "the page is damaged and cannot be read", "page_damaged"
    if draft.quality.verdict == "garbled":
        return "garbled", f"the text of the page is unusable ({draft.quality.reason}); {advice}", "garbled"
    if draft.blank:
        return "no_text", "the page is blank", "blank"
    return "no_text", f"the page is an image; {advice}", code


def recognise(document: PdfiumDocument, number: int) -> str:
    """Return the text that OCR finds in the image of a page. Return "" if the page is too large, if tesseract fails, or
    if its confidence in the text is too low."""
    scale = scale_for(*document.size(number))
    if not scale or document.largest_image(number) > MAX_IMAGE_PIXELS:
        return ""
    return image_text(document.image(number, scale))


def scale_for(width: float, height: float) -> float:
    """Return the number of pixels per point with which a page must be rendered for OCR. `width` and `height` are the
    size of the page in points. Return 0 if a page of this size must not be rendered."""
    area = width * height
    if not 1 < area < math.inf:
        return 0.0
    scale = min(DPI / 72, math.sqrt(MAX_PIXELS / area))
    return scale if scale >= 1.0 else 0.0  # below 72 dpi nothing is recognised
