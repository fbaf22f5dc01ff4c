"""Read the positions of words with PDFium, find the tables of a page, and locate them in the text of the page."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pypdfium2 import raw

from agentformer.readers.pdf.layout import line_pattern
from agentformer.text.normalize import clean
from agentformer.text.tables import MAX_WORDS, Word, find_tables
from agentformer.types import Page, PageTable, Span

_NUMBER_LINE = re.compile(r"\d[^\w\n]{0,4}$", re.MULTILINE)
_LEAST = 3  # lines that end with a number; a page with fewer has no table
_TRIED = 4  # rows at each end of a table that are looked up in the stored text
_COMPARED = 12  # words of a row that are looked up
_WORD = re.compile(r"\S+")


class DraftTable(NamedTuple):
    """A table of a page whose text is not normalized yet. `rows` are the lines of text
    in which each row begins and ends."""

    headers: tuple[str, ...]
    scale: str
    rows: tuple[tuple[str, str], ...]


def draft_tables(text_page: Any, text: str) -> list[DraftTable]:
    """Return the tables of a page. `text` is the text of the page as PDFium returns it, with CRLF line ends."""
    if len(_NUMBER_LINE.findall(text.replace("\r\n", "\n"))) < _LEAST or any(c > "\uffff" for c in text):
        return []
    lines = text.split("\r\n")
    found = find_tables(list(_words(text_page, lines)))
    return [
        DraftTable(table.headers, table.scale, tuple((lines[row.line], lines[row.last_line]) for row in table.rows))
        for table in found
    ]


def located(tables: Sequence[DraftTable], page: Page) -> tuple[PageTable, ...]:
    """Return the tables with their positions in the text of a page. A table that the body of the page does not contain
    is left out."""
    result = []
    at, end = page.body or (0, len(page.text))
    for table in tables:
        first = next(_places(page.text, table.rows[:_TRIED], Span(at, end)), None)
        last = next(_places(page.text, table.rows[: -_TRIED - 1 : -1], Span(first.start, end)), None) if first else None
        if first and last:
            headers = tuple(" ".join(clean(header).split()) for header in table.headers)
            result.append(PageTable(first.start, last.end, headers, table.scale))
            at = last.end
    return tuple(result)


def _places(text: str, rows: Sequence[tuple[str, str]], span: Span) -> Iterator[Span]:
    """Yield the span of each row that the given span of the text contains."""
    for line, last_line in rows:
        begins = _find(text, line, span)
        ends = begins if line == last_line else begins and _find(text, last_line, Span(begins.end, span.end))
        if begins and ends:
            line_end = text.find("\n", ends.end, span.end)
            yield Span(begins.start, line_end if line_end >= 0 else span.end)


def _find(text: str, line: str, span: Span) -> Span | None:
    """Return the span of the first words of a line inside the given span of the text. Return None if they are not
    there."""
    beginning = clean(" ".join(line.split(None, _COMPARED)[:_COMPARED]))
    match = re.compile(rf"(?<!\S){line_pattern(beginning)}(?!\S)").search(text, *span) if beginning else None
    return Span(*match.span()) if match else None


def _words(text_page: Any, lines: Sequence[str]) -> Iterator[Word]:
    """Yield the words of a page with their positions. At most one word more than `MAX_WORDS` is read."""
    box = raw.FS_RECTF()
    x, y = ctypes.c_double(), ctypes.c_double()
    start = count = 0
    for number, line in enumerate(lines):
        for match in _WORD.finditer(line):
            if (count := count + 1) > MAX_WORDS + 1:
                return
            first = raw.FPDFText_GetCharIndexFromTextIndex(text_page, start + match.start())
            last = raw.FPDFText_GetCharIndexFromTextIndex(text_page, start + match.end() - 1)
            if min(first, last) < 0 or not raw.FPDFText_GetLooseCharBox(text_page, first, box):
                continue
            left, height = float(box.left), float(abs(box.top - box.bottom))
            placed = raw.FPDFText_GetCharOrigin(text_page, first, x, y)
            if placed and raw.FPDFText_GetLooseCharBox(text_page, last, box):
                yield Word(match.group(), left, float(box.right), y.value, height, number)
        start += len(line) + 2
