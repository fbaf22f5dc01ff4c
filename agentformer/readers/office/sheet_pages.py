"""The readers of presentations, spreadsheets and OpenDocument files, and `GridPages`, which writes the cells of a sheet
as pages of text.

A row becomes a line of cells with "|" between them, and the first row of a table has the headers. If blank rows divide
a sheet, it has several tables. Rows with one cell above a table are its title. A long table fills several pages, and
each page begins with the headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentformer.errors import DocumentTooLarge
from agentformer.readers.formats import ReadLimits
from agentformer.readers.grid import MAX_COLUMNS, GridRow, with_one_head
from agentformer.readers.sections import page_of
from agentformer.text.normalize import clean
from agentformer.text.table_rows import tables_of
from agentformer.types import Heading, Page

PAGE_CHARS = 20_000  # characters of a page of rows
Row = Sequence[str] | Mapping[int, str]
_MAX_CELLS = 30_000_000  # cells of a table, blank cells included
_MAX_CELL = 32_767  # code points of a cell; the limit of spreadsheet programs
_MAX_HEADERS = 2_000  # code points of a line of headers that is repeated on each page
_BAR = "\u00a6"  # replaces "|" in a cell
_IMAGES = "the slide has no text; the text of images on slides is not read"


def slide_page(number: int, title: str, lines: Iterable[str], method: str) -> Page:
    """Return the page of a slide: its title, which is also its heading, and the texts below it."""
    text = clean("\n\n".join(filter(None, (title, *lines)))).strip()
    if not text:
        return Page(number, "", status="no_text", reason=_IMAGES, method=method, reason_code="slide_images")
    return page_of(number, text, title, (Heading(title, 1, 0),) if title else (), method, tables_of(text))


@dataclass(slots=True)
class GridPages:
    """Collects the pages of the sheets of a document. `method` is the name of the parser."""

    method: str
    limits: ReadLimits
    pages: list[Page] = field(default_factory=list)
    _chars: int = 0

    def add(self, name: str, rows: Iterable[Row]) -> None:
        """Add a sheet. Each row is a list of cells, or a dictionary of cells by the numbers of their columns. A row
        without text is a blank row. A sheet without text has one page without text. Raises `DocumentTooLarge` if a
        limit is exceeded."""
        text = ""
        first = True
        for part in self._parts(rows):
            if text and len(text) + len(part) > PAGE_CHARS:
                self._page(name, text, heading=first)
                text, first = "", False
            text = f"{text}\n\n{part}" if text else part
        if text or first:
            self._page(name, text, heading=first)

    def _page(self, name: str, text: str, *, heading: bool) -> None:
        if len(self.pages) >= self.limits.max_pages:
            raise DocumentTooLarge(f"the sheets have more than {self.limits.max_pages:,} pages; split the file")
        label = " ".join(clean(name).split())
        if label and heading and text:
            text = f"{label}\n\n{text}"
        headings = (Heading(label, 1, 0),) if label else ()
        tables = tables_of(text)
        self.pages.append(page_of(len(self.pages) + 1, text, label, headings, self.method, tables))

    def _parts(self, rows: Iterable[Row]) -> Iterator[str]:
        """Yield the texts of the tables of a sheet, in parts that fit a page."""
        block: list[GridRow] = []
        for row in rows:
            cells = row.items() if isinstance(row, Mapping) else enumerate(row)
            texts = GridRow((column, text) for column, cell in cells if cell and (text := _cell(cell)))
            texts.spans = row.spans if isinstance(row, GridRow) else {}
            if texts:
                block.append(texts)
                self._chars += sum(map(len, texts.values()))
                if self._chars > self.limits.max_chars:
                    most = f"{self.limits.max_chars:,}"
                    raise DocumentTooLarge(f"the text has more than {most} characters; split the file")
            elif block:
                yield from _block(block)
                block = []
        if block:
            yield from _block(block)


def _cell(value: str) -> str:
    """Return the text of a cell as one line without "|"."""
    if len(value) > _MAX_CELL:
        value = value[:_MAX_CELL]
    if not value.isalnum() or not value.isascii():
        value = " ".join(clean(value).split()).replace("|", _BAR)
    return value


def _block(rows: Sequence[GridRow]) -> Iterator[str]:
    """Yield the text of one table, in parts that fit a page. `rows` are its title, its headers and its rows, between
    two blank rows of the sheet. Each part after the first begins with the headers."""
    used = sorted({column for row in rows for column in row})
    if len(used) > MAX_COLUMNS or len(used) * len(rows) > _MAX_CELLS:
        raise DocumentTooLarge(
            f"a table has {len(rows):,} rows and {len(used):,} columns; the limits are {MAX_COLUMNS:,} columns and "
            f"{_MAX_CELLS:,} cells; split the file"
        )
    titles = 0
    while len(used) > 1 and titles < len(rows) - 1 and len(rows[titles]) == 1:
        titles += 1
    above = ["".join(row.values()) for row in rows[:titles]]
    lines = [_line([row.get(column, "") for column in used]) for row in with_one_head(rows[titles:])]
    headers = lines[0] if len(used) > 1 and len(lines) > 2 and len(lines[0]) <= _MAX_HEADERS else ""
    part, size = above, sum(map(len, above))
    for line in lines:
        if part and size + len(line) > PAGE_CHARS:
            yield "\n".join(part)
            part, size = ([headers] if headers else []), len(headers)
        part.append(line)
        size += len(line) + 1
    yield "\n".join(part)


def _line(cells: Sequence[str]) -> str:
    """Return a row as a line. An empty first or last cell becomes "|", which keeps the number of cells visible."""
    line = " | ".join(cells).strip(" ")
    if len(cells) > 1:
        line = line if cells[0] else f"| {line}"
        line = line if cells[-1] else f"{line} |"
    return line
