"""The adapters of the two engines that read PDF files, PDFium and pypdf.

`PdfiumDocument` returns text with paragraphs, and also page labels, the outline, form values and images of pages.
PDFium is fast and can read damaged files, so it is used first. PDFium is not thread-safe; a child process opens only
one document.

`PypdfDocument` returns the text of single pages. pypdf is slower, but reads some pages correctly that PDFium reads
incorrectly."""

from __future__ import annotations

import ctypes
import io
import logging
import math
import re
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import accumulate
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import pypdfium2 as pdfium
from pypdfium2 import raw

from agentformer.readers.pdf.layout import Line, OutlineEntry, Title, page_titles, with_paragraphs
from agentformer.readers.pdf.tables import DraftTable, draft_tables
from agentformer.text.normalize import LINE_HYPHEN

T = TypeVar("T")

MAX_FORM_FIELDS = 2_000
_FILLED_FIELDS = (raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX)
MAX_OUTLINE = 20_000
SHORT = 400  # characters; shorter pages are checked for visible text
SAMPLE = 100  # characters of a page whose Unicode mapping is checked
_MOSTLY = 0.8  # share of the letters of a page that must have one direction for the page to be turned
STRAY = 60  # fewer letters outside the visible page are not text, but printers' marks or names of layers
PAGE_SECONDS = 8.0  # time limit of pypdf for a page; usual pages take 0.03 s, and a drawing of 40,000 paths 4 s
# Errors of a Python parser on hostile input, in addition to pypdf's own. Only the page is lost.
_PAGE_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError,
                NotImplementedError, OSError, AssertionError, ImportError, TimeoutError)  # fmt: skip
logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings are for authors of PDF files
_UNTITLED = re.compile(r"untitled|unbenannt|nimetön|namnlös|document\d*|microsoft (?:word|powerpoint)|slide \d+", re.I)
_PROGRAM = re.compile(r"Microsoft (?:Word|PowerPoint) - (.+?)(?:\.(?:docx?|pptx?|rtf))?$", re.I)
_FONT_NAME = 256  # bytes
_BOLD_FONT = re.compile(rb"bold|black|heavy|demi(?!c)", re.I)
_FORCE_BOLD, _ITALIC = 1 << 18, 1 << 6  # flags of a font (ISO 32000-2, table 121)
_FILE_NAME = re.compile(r"\S+\.(?:\w{2,5})$|.*\.(?:docx?|pptx?|xlsx?|dvi|tex|indd|qxd|pages|odt|rtf|pdf)$", re.I)


class PageContent(NamedTuple):
    """The text of a page, the share (0..1) of characters that its font does not map to Unicode, titles and tables."""

    text: str
    unmapped: float
    titles: Sequence[Title] = ()
    tables: Sequence[DraftTable] = ()


class PasswordNeeded(Exception):
    """Raised if the file is encrypted and the given password does not open the file."""


class Unreadable(Exception):
    """Raised if PDFium cannot open the file or a page of the file."""


class PdfiumDocument:
    """A PDF file that PDFium has opened. Page numbers start at 0."""

    def __init__(self, data: bytes, password: str | None) -> None:
        try:
            self._document = pdfium.PdfDocument(data, password=password)
        except pdfium.PdfiumError as error:
            if getattr(error, "err_code", None) == raw.FPDF_ERR_PASSWORD or "password" in str(error).lower():
                raise PasswordNeeded from error
            raise Unreadable(str(error)) from error
        self.encrypted = raw.FPDF_GetSecurityHandlerRevision(self._document.raw) >= 0
        self._form = False  # whether the file has a form whose values can be read
        with suppress(pdfium.PdfiumError, RuntimeError):
            if self._document.get_formtype() in (raw.FORMTYPE_ACRO_FORM, raw.FORMTYPE_XFA_FOREGROUND):
                self._document.init_forms()
                self._form = self._document.formenv is not None

    def __len__(self) -> int:
        return len(self._document)

    def decrypted(self) -> bytes:
        """Return the bytes of the file without encryption."""
        out = io.BytesIO()
        self._document.save(out, flags=raw.FPDF_REMOVE_SECURITY)
        return out.getvalue()

    def text(self, number: int) -> PageContent:
        """Return the text of a page, with its titles and tables.

        The text is in reading order, with blank lines between paragraphs. Text beyond the edge of the visible page is
        included, so that lines that cross the edge are complete. But a short text (`SHORT`) is left out if its few
        letters (`STRAY`) are all beyond the edge. Raises `Unreadable` if PDFium cannot read the page."""
        try:
            with self.page(number) as page, closing(upright_text(page)) as text_page:
                text = text_page.get_text_range()
                if len(text) < SHORT and not _letters(text_page.get_text_bounded()) and _letters(text) < STRAY:
                    return PageContent("", 0.0)
                lines = _lines(text_page, text)
                titles = page_titles(lines, page.get_width()) if lines else []
                tables = draft_tables(text_page, text)
                return PageContent(with_paragraphs(text, lines), _unmapped(text_page), titles, tables)
        except (pdfium.PdfiumError, AssertionError, ValueError) as error:
            raise Unreadable(str(error)) from error

    def form_values(self, number: int) -> list[tuple[str, str]]:
        """Return the pair (label, value) of each filled text field and choice field, in the order of the page."""
        if not self._form:
            return []
        with self.page(number) as page:
            return list(_form_values(self._document.formenv.raw, page.raw))

    def label(self, number: int) -> str:
        """Return the label of a page: its printed page number, such as "iv", or "" if the page has no label."""
        with suppress(pdfium.PdfiumError):
            return str(self._document.get_page_label(number) or "").strip("\x00 ")
        return ""

    def outline(self) -> Iterator[OutlineEntry]:
        """Yield the entries of the outline that point to a page. Only the first `MAX_OUTLINE` entries are read."""
        with suppress(pdfium.PdfiumError, RecursionError):
            for count, mark in enumerate(self._document.get_toc()):
                if count >= MAX_OUTLINE:
                    return
                destination = mark.get_dest()
                page = destination.get_index() if destination else None
                if page is not None and 0 <= page < len(self):
                    yield OutlineEntry(page, mark.level + 1, " ".join(mark.get_title().replace("\x00", "").split()))

    def title(self) -> str:
        """Return the title from the metadata of the file. Return "" if the title is missing, is the name of a file, or
        is a placeholder such as "Untitled"."""
        with suppress(pdfium.PdfiumError):
            title = " ".join(self._document.get_metadata_value("Title").replace("\x00", "").split())
            if made := _PROGRAM.match(title):  # "Microsoft Word - Annual report.docx"
                title = made[1] if " " in made[1] else ""
            real = len(title) > 2 and not _UNTITLED.match(title) and not _FILE_NAME.fullmatch(title)
            return title if real and any(c.isalpha() for c in title) else ""
        return ""

    def size(self, number: int) -> tuple[float, float]:
        """Return the width and the height of a page in points."""
        width, height = self._document.get_page_size(number)
        return float(width), float(height)

    def has_objects(self, number: int) -> bool:
        """Return whether the page contains any object, such as text or an image. A page without objects is blank."""
        with self.page(number) as page:
            return bool(raw.FPDFPage_CountObjects(page.raw) > 0)

    def largest_image(self, number: int) -> int:
        """Return the number of pixels of the largest image on a page, or 0. Call this method before the page is
        rendered, because rendering unpacks the whole image into memory."""
        try:
            with self.page(number) as page:
                images = page.get_objects(filter=(raw.FPDF_PAGEOBJ_IMAGE,), max_depth=3)
                return max((math.prod(image.get_px_size()) for image in images), default=0)
        except pdfium.PdfiumError as error:
            raise Unreadable(str(error)) from error

    def image(self, number: int, scale: float) -> Any:
        """Return the page as a gray PIL image. `scale` is the number of pixels per point. This method does not limit
        the size of the image, so the caller must choose a suitable scale."""
        with self.page(number) as page:
            return page.render(scale=scale, grayscale=True).to_pil()

    def page(self, number: int) -> closing[Any]:
        """Return a context manager that yields a page and closes it. Raises `Unreadable` if PDFium cannot open it."""
        try:
            return closing(self._document[number])
        except (pdfium.PdfiumError, IndexError) as error:
            raise Unreadable(str(error)) from error


def upright_text(page: Any) -> Any:
    """Return the text of a page as PDFium reads it with the page turned so that most letters are upright. PDFium may
    read the lines of a page that lies on its side in the reverse order. The page itself is not turned."""
    text_page, rotation = page.get_textpage(), page.get_rotation()
    count = text_page.count_chars()
    angles = (raw.FPDFText_GetCharAngle(text_page, i) for i in range(0, count, max(1, count // SAMPLE)))
    turns = Counter(-round(math.degrees(angle) / 90) % 4 * 90 for angle in angles if angle >= 0)
    upright = max(turns, key=turns.__getitem__, default=rotation)
    if upright == rotation or turns[upright] < _MOSTLY * turns.total():
        return text_page
    text_page.close()
    page.set_rotation(upright)
    try:
        return page.get_textpage()
    finally:
        page.set_rotation(rotation)


def _unmapped(text_page: Any) -> float:
    count = text_page.count_chars()
    sampled = range(0, count, max(1, count // SAMPLE))
    errors = sum(1 for i in sampled if raw.FPDFText_HasUnicodeMapError(text_page, i) == 1)
    return errors / max(1, len(sampled))


def _lines(text_page: Any, text: str) -> list[Line] | None:
    """Return the text and the position of each line. Return None if PDFium and Python count the characters of the text
    in different ways, because positions cannot be found in such a text."""
    if not text.isascii() and any(c > "\uffff" for c in text):
        return None
    contents = text.split("\r\n")
    starts = accumulate((len(content) + 2 for content in contents), initial=0)
    return [_line(text_page, content, at) for content, at in zip(contents, starts, strict=False)]


def _line(text_page: Any, content: str, at: int) -> Line:
    """Return the line with the text `content`, which begins at the offset `at` of the text of the page. If PDFium does
    not know its position, return only the text."""
    if not content.strip():
        return Line(content)
    first = raw.FPDFText_GetCharIndexFromTextIndex(text_page, at + len(content) - len(content.lstrip()))
    last = raw.FPDFText_GetCharIndexFromTextIndex(text_page, at + len(content.rstrip()) - 1)
    # After its hyphen mark, PDFium continues with the next row without a line end.
    torn = content.rfind(LINE_HYPHEN)
    row = raw.FPDFText_GetCharIndexFromTextIndex(text_page, at + torn + 1) if 0 <= torn < len(content) - 1 else first
    box = raw.FS_RECTF()
    x, y, last_x, last_y = (ctypes.c_double() for _ in range(4))
    placed = (
        min(first, last, row) >= 0
        and raw.FPDFText_GetCharOrigin(text_page, first, x, y)
        and raw.FPDFText_GetCharOrigin(text_page, row, last_x, last_y)
        # The nominal font size may be 1 with the scale in the matrix, so the visible box of a letter is used.
        and raw.FPDFText_GetLooseCharBox(text_page, first, box)
    )
    if not placed:
        return Line(content)
    height = abs(box.top - box.bottom)
    right = box.right if raw.FPDFText_GetLooseCharBox(text_page, last, box) else x.value
    (bold, italic), (last_bold, _) = (_font(text_page, index) for index in (first, last))
    return Line(
        content, x.value, y.value, float(height), float(right), last_y.value, bold=bold and last_bold, italic=italic
    )


def _font(text_page: Any, index: int) -> tuple[bool, bool]:
    """Return whether the font of a character is bold, and whether it is italic. The name and the flags of the font are
    used, because PDFium only estimates the weight."""
    name, flags = ctypes.create_string_buffer(_FONT_NAME), ctypes.c_int()
    if not 0 < raw.FPDFText_GetFontInfo(text_page, index, name, _FONT_NAME, flags) <= _FONT_NAME:
        return False, False
    italic = flags.value & _ITALIC or b"italic" in name.value.lower() or b"oblique" in name.value.lower()
    return bool(flags.value & _FORCE_BOLD or _BOLD_FONT.search(name.value)), bool(italic)


def _letters(text: str) -> int:
    return sum(map(str.isalnum, text))


def _form_values(form: Any, page: Any) -> Iterator[tuple[str, str]]:
    for index in range(min(raw.FPDFPage_GetAnnotCount(page), MAX_FORM_FIELDS)):
        annotation = raw.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        try:
            field = raw.FPDFAnnot_GetSubtype(annotation) == raw.FPDF_ANNOT_WIDGET
            if not field or raw.FPDFAnnot_GetFormFieldType(form, annotation) not in _FILLED_FIELDS:
                continue
            if value := _field_string(raw.FPDFAnnot_GetFormFieldValue, form, annotation):
                yield _field_string(raw.FPDFAnnot_GetFormFieldAlternateName, form, annotation), value
        finally:
            raw.FPDFPage_CloseAnnot(annotation)


def _field_string(function: Any, form: Any, annotation: Any) -> str:
    size = function(form, annotation, None, 0)
    if size <= 2 or size > 1 << 20:
        return ""
    buffer = (ctypes.c_ushort * (size // 2 + 1))()
    function(form, annotation, buffer, size)
    return bytes(buffer)[: size - 2].decode("utf-16-le", errors="ignore").strip()


class PypdfDocument:
    """A PDF file that pypdf has opened. If pypdf cannot read the file, the number of pages is 0."""

    def __init__(self, data: bytes, passwords: tuple[str, ...]) -> None:
        self.encrypted = False
        self._count = _attempt(lambda: self._open(data, passwords), PAGE_SECONDS * 2) or 0

    def __len__(self) -> int:
        return self._count

    def text(self, number: int) -> str | None:
        """Return the text of a page. Return None if pypdf fails, or takes longer than `PAGE_SECONDS`."""
        return _attempt(lambda: str(self._reader.pages[number].extract_text()), PAGE_SECONDS)

    def _open(self, data: bytes, passwords: tuple[str, ...]) -> int:
        """Open the file with the first password that fits, and return its number of pages, or 0 if none fits."""
        from pypdf import PasswordType, PdfReader

        self._reader = reader = PdfReader(io.BytesIO(data), strict=False)
        kinds = ((password, reader.decrypt(password)) for password in passwords) if reader.is_encrypted else ()
        # As in every viewer, an empty owner password does not count.
        opened = any(kind == PasswordType.USER_PASSWORD or (password and kind) for password, kind in kinds)
        self.encrypted = reader.is_encrypted and not opened
        return 0 if self.encrypted else len(reader.pages)


def _attempt(read: Callable[[], T], seconds: float = 0) -> T | None:
    """Return the result of `read`, or None if pypdf fails or takes longer than `seconds` (0: no limit)."""
    from pypdf.errors import PyPdfError

    with suppress(PyPdfError, *_PAGE_ERRORS), warnings.catch_warnings(), _time_limit(seconds):
        warnings.simplefilter("ignore")
        return read()
    return None


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` after `seconds` (0: never). Outside of the main thread and on Windows, there is no limit."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
