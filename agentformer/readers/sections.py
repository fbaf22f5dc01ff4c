"""Divide the text of file formats without pages into pages, at headings or by length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agentformer.errors import DocumentTooLarge, EmptyDocument
from agentformer.readers.formats import ReadLimits
from agentformer.text.normalize import clean
from agentformer.text.table_rows import tables_of
from agentformer.types import DocumentStatus, DocumentText, Heading, Page, PageTable

SECTION_CHARS = 40_000  # about 15 printed pages
_BORDERS = ("\n\n", "\n", ". ", "。", " ")


def parts_of(text: str, size: int = SECTION_CHARS) -> Iterator[str]:
    """Yield the text in parts of at most `size` characters. A part ends, if possible, at the end of a paragraph, or
    else of a line, a sentence or a word. No part but the last is shorter than half of `size`."""
    start = 0
    while len(text) - start > size:
        end = start + size
        ends = ((text.rfind(border, start + size // 2, end), len(border)) for border in _BORDERS)
        end = next((at + length for at, length in ends if at >= 0), end)
        yield text[start:end]
        start = end
    yield text[start:]


def page_of(
    number: int,
    text: str,
    label: str = "",
    headings: tuple[Heading, ...] = (),
    method: str = "text",
    tables: tuple[PageTable, ...] = (),
) -> Page:
    """Return a page with this number and text. If the text is only white space, the status of the page is `no_text`."""
    if text.strip():
        return Page(number, text, label, headings=headings, method=method, tables=tables)
    return Page(number, "", label, status="no_text", reason="blank", method=method, reason_code="blank")


def document_of(
    media_type: str, pages: Iterable[Page], limits: ReadLimits, title: str = "", reason: str = ""
) -> DocumentText:
    """Return a document with these pages. `reason` is a text for users about parts that were not read. Raises
    `DocumentTooLarge` if the document exceeds a limit, and `EmptyDocument` if no page has visible text."""
    accepted: list[Page] = []
    chars = 0
    for page in pages:
        chars += len(page.text)
        if chars > limits.max_chars:
            raise DocumentTooLarge(f"the text has more than {limits.max_chars:,} characters; split the file")
        if len(accepted) >= limits.max_pages:
            raise DocumentTooLarge(f"the file has more than {limits.max_pages:,} sections; split the file")
        accepted.append(page)
    if not any(page.status == "text" for page in accepted):
        why = next((page.reason for page in accepted if page.reason != "blank"), "")
        nothing = "the file contains only white space or unreadable characters"
        raise EmptyDocument(f"the file has no text: {why}" if why else nothing)
    return DocumentText(media_type, tuple(accepted), title, reason=reason, reason_code="parts_unread" if reason else "")


def outcome_of(pages: Sequence[Page]) -> tuple[DocumentStatus, str, str]:
    """Return the status of a document with these pages, and the reason why some pages have no usable text, or "", with
    its code. A page that is blank is the reason only if the other pages without text are blank, too."""
    without = [page for page in pages if page.status != "text"]
    if not without:
        return "ready", "", ""
    first = next((page for page in without if page.reason_code != "blank"), without[0])
    reason = f"{len(without)} of {len(pages)} pages have no usable text: {first.reason}"
    if len(without) < len(pages):
        return "ready", reason, first.reason_code
    return ("garbled" if any(page.status == "garbled" for page in pages) else "no_text"), reason, first.reason_code


PATH_SEPARATOR = " > "
MIN_SECTION = 1_500  # code points; smaller sections share a page


class OutlineBuilder:
    """Collects text in reading order and divides the text into pages. If possible, a page begins at a heading."""

    def __init__(self) -> None:
        self._blocks: list[tuple[tuple[tuple[int, str], ...], list[str]]] = [((), [])]
        self._path: tuple[tuple[int, str], ...] = ()

    def heading(self, title: str, level: int) -> None:
        """Begin a section with a heading. `level` is 1 for a main heading, 2 for a heading below it, and so on. An
        empty title is ignored."""
        if not title:
            return
        self._path = (*(entry for entry in self._path if entry[0] < level), (level, title))
        self._blocks.append((self._path, [title, "\n\n"]))

    def text(self, text: str, *, verbatim: bool = False) -> None:
        """Append text to the current line. At the start of the line or after a space, the leading spaces of `text` are
        removed, unless `verbatim` is true."""
        parts = self._blocks[-1][1]
        at_line_start = not parts or parts[-1].endswith("\n")
        if not verbatim and (at_line_start or parts[-1].endswith(" ")):
            text = text.lstrip(" ")
        if text:
            parts.append(text)

    def line(self, *, paragraph: bool = False) -> None:
        """End the current line. If `paragraph` is true, add a blank line, too. Line ends that the text already has at
        its end are not added again."""
        parts = self._blocks[-1][1]
        end = "\n\n" if paragraph else "\n"
        tail = "".join(parts[-2:])[-2:]
        if parts and not tail.endswith(end):
            parts.append("\n" if tail.endswith("\n") else end)

    def cell(self) -> None:
        """Add the separator " | " between two cells of a table row."""
        parts = self._blocks[-1][1]
        if parts and not parts[-1].endswith("\n"):
            parts.append(" | ")

    def as_line(self) -> str:
        """Return the collected text as one line."""
        return " ".join(" ".join("".join(parts) for _, parts in self._blocks).split())

    def pages(self, method: str) -> Iterator[Page]:
        """Yield the collected text as pages, numbered from 1. Each page records `method`, the name of the parser."""
        number = 0
        for text, headings, label in self._merged():
            for index, part in enumerate(parts_of(text)):
                number += 1
                within = tuple(h for h in headings if h.start < len(part)) if index == 0 else ()
                yield page_of(number, part, label, within, method, tables_of(part))

    def _merged(self) -> Iterator[tuple[str, tuple[Heading, ...], str]]:
        """Yield the text, headings and label of sections. Small blocks share a section; a main heading begins one."""
        text, label = "", ""
        headings: list[Heading] = []
        for path, parts in self._blocks:
            block = clean("".join(parts)).strip()
            if not block:
                continue
            under_main_heading = len(path) == 1 and path[0][0] == 1
            if text and (len(text) + len(block) > MIN_SECTION or under_main_heading):
                yield text, tuple(headings), label
                text, headings, label = "", [], ""
            label = label or PATH_SEPARATOR.join(title for _, title in path)
            start = len(text) + 2 if text else 0
            if path and len(parts) >= 2:
                headings.append(Heading(path[-1][1], path[-1][0], start))
            text = f"{text}\n\n{block}" if text else block
        if text:
            yield text, tuple(headings), label
