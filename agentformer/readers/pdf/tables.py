"""Read the positions of words with PDFium, find the tables of numbers on a page, and locate them in the text of the
page. A table needs no drawn lines: numbers of one column have overlapping horizontal extents, and the words above a
column are its header."""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pypdfium2 import raw

from agentformer.readers.pdf.layout import line_pattern
from agentformer.text.normalize import clean
from agentformer.text.table_rows import SCALE, continuations
from agentformer.types import Page, PageTable, Span

MAX_WORDS = 20_000  # words of a page; in a page with more words, no tables are searched for
_MIN_ROWS = 3  # rows with numbers; fewer are prose with numbers
_MAX_COLUMNS = 24
_HEADER_LINES = 8  # lines above the first row with numbers that may be headers
_SCALE_LINES = 8
_BETWEEN = 3  # lines without numbers between two rows: labels of groups, and labels of several lines
_SAME_LINE = 0.45  # times the height: the largest vertical distance of two words in one line
_CELL_GAP = 0.75  # times the height: the least space between two cells
_LINE_GAP = 3.2  # times the height: the largest distance of two lines of a table
_MAX_HEADER = 60  # code points
_MAX_PARTS = 6  # of a number that is written with spaces
_MAX_HEADER_WORDS = 200  # words of a line; a longer line is not a header
_NUMBER_LINE = re.compile(r"\d[^\w\n]{0,4}$", re.MULTILINE)
_LEAST = 3  # lines that end with a number; a page with fewer has no table
_TRIED = 4  # rows at each end of a table that are looked up in the stored text
_COMPARED = 12  # words of a row that are looked up
_WORD = re.compile(r"\S+")
_NUMBER = re.compile(r"[-−–+]?[($€£¥]*[-−–+]?[$€£¥]?\d[\d.,'’\u00a0]*\)?%?\)?\*?|[—–-]%?")
_BEFORE = frozenset({"$", "€", "£", "¥", "(", "($"})  # belong to the number after them
_AFTER = frozenset({")", "%", ")%", "%)", "€", "kr", "pp"})  # belong to the number before them
_NOTE = re.compile(r"\(.*\)")  # "(in millions)", "(Unaudited)"
_YEAR = re.compile(r"(?:19|20)\d\d")


class Word(NamedTuple):
    """A word with its extent and its base line in points (`y` grows upwards), and the number of its line of text."""

    text: str
    left: float
    right: float
    y: float
    height: float
    line: int


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row of a table. `line` is the number of the line of text in which the row begins, and `last_line` is the number
    of the line in which it ends. There is a value for each column, which is "" for an empty cell."""

    line: int
    last_line: int
    label: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table with a header for each column, and with the unit of the amounts in the caption ("in millions")."""

    headers: tuple[str, ...]
    scale: str
    rows: tuple[FoundRow, ...]


class _Cell(NamedTuple):
    text: str
    left: float
    right: float


class _Row(NamedTuple):
    """A line of the page, which may be a row of a table. `label` is the text before the numbers at the end of the line,
    and `values` are these numbers, including years."""

    words: Sequence[Word]
    label: Sequence[Word]
    values: Sequence[_Cell]

    @property
    def y(self) -> float:
        return self.words[0].y

    @property
    def height(self) -> float:
        return max(word.height for word in self.words)

    @property
    def has_data(self) -> bool:
        """True if the row has a number that is not a year."""
        return any(not _YEAR.fullmatch(value.text) for value in self.values)


class DraftTable(NamedTuple):
    """A table whose position in the final text of the page is not known yet. `rows` has two lines of text for each row
    of the table: the line in which the row begins, and the line in which it ends."""

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
    """Return the tables that the body of a page contains, with their positions in its text."""
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
    """Yield the position in `text` of each row that is inside `span`. Rows that are not there are left out. A row is
    given by the line in which it begins and the line in which it ends."""
    for line, last_line in rows:
        begins = _find(text, line, span)
        ends = begins if line == last_line else begins and _find(text, last_line, Span(begins.end, span.end))
        if begins and ends:
            line_end = text.find("\n", ends.end, span.end)
            yield Span(begins.start, line_end if line_end >= 0 else span.end)


def _find(text: str, line: str, span: Span) -> Span | None:
    """Return the span of the first words of a line inside `span` in the text, or None if they are not there."""
    beginning = clean(" ".join(line.split(None, _COMPARED)[:_COMPARED]))
    match = re.compile(rf"(?<!\S){line_pattern(beginning)}(?!\S)").search(text, *span) if beginning else None
    return Span(*match.span()) if match else None


def _words(text_page: Any, lines: Sequence[str]) -> Iterator[Word]:
    """Yield the words of a page with their positions. Stop after `MAX_WORDS` + 1 words, because a page with more than
    `MAX_WORDS` words is not searched."""
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


def find_tables(words: Sequence[Word]) -> list[FoundTable]:
    """Return the tables of a page, from top to bottom. The time is linear in the number of words, after sorting."""
    if len(words) > MAX_WORDS:
        return []
    rows = [_row(line) for line in _lines(words)]
    tables: list[FoundTable] = []
    above: tuple[Sequence[_Cell], FoundTable] | None = None
    for start, end in _blocks(rows):
        columns = _columns([row.values for row in rows[start : end + 1] if row.has_data])
        table = _table(rows, start, end, columns)
        if above and not any(table.headers) and _are_same(columns, above[0]):
            table = replace(table, headers=above[1].headers, scale=table.scale or above[1].scale)
        labelled = sum(any(map(str.isalpha, row.label)) for row in table.rows)
        if any(table.headers) and 2 * labelled >= len(table.rows):
            tables.append(table)
            above = columns, table
    return tables


def _lines(words: Sequence[Word]) -> Iterator[list[Word]]:
    """Yield the lines of the page, from top to bottom, with their words from left to right."""
    line: list[Word] = []
    for word in sorted(words, key=lambda word: (-word.y, word.left)):
        if line and line[0].y - word.y > _SAME_LINE * max(word.height, line[0].height):
            yield sorted(line, key=lambda word: word.left)
            line = []
        line.append(word)
    if line:
        yield sorted(line, key=lambda word: word.left)


def _row(words: Sequence[Word]) -> _Row:
    """Divide a line into its label and the numbers at its end."""
    first = len(words)
    while first and (_NUMBER.fullmatch(words[first - 1].text) or words[first - 1].text in _BEFORE | _AFTER):
        first -= 1
    signs = Counter(word.text for word in words[first:] if word.text in _BEFORE)
    while first < len(words) and words[first].text in _AFTER and signs[words[first].text] < 2:
        first += 1
    while 0 < first < len(words) and words[first].left - words[first - 1].right < _CELL_GAP * words[first].height:
        first += 1  # a number of the label, or at the end of a sentence
    return _Row(words, words[:first], _values(words[first:]))


def _values(words: Sequence[Word]) -> list[_Cell]:
    """Return a cell for each number, joined with the sign before or after it, such as "$" or "%". "€" is after the
    numbers of a line that ends with it. "1 234" is one number if its parts are near."""
    cells: list[_Cell] = []
    prefix, left = "", 0.0  # signs since the last number, such as "(" and "$", and where the first of them begins
    for word in words:
        if cells and word.text in _AFTER and (word.text not in _BEFORE or word.text == words[-1].text):
            cells[-1] = _Cell(cells[-1].text + word.text, cells[-1].left, word.right)
        elif word.text in _BEFORE:
            left = left if prefix else word.left
            prefix += word.text
        elif cells and _continues(cells[-1], word):
            cells[-1] = _Cell(f"{cells[-1].text} {word.text}", cells[-1].left, word.right)
        elif word.text not in _AFTER:
            cells.append(_Cell(prefix + word.text, left if prefix else word.left, word.right))
            prefix = ""
    return cells


def _continues(cell: _Cell, word: Word) -> bool:
    """Return whether a word has three further digits of the number left of it, as in "1 234"."""
    parts = cell.text.split(None, _MAX_PARTS)
    return _is_near(cell, word) and len(parts) < _MAX_PARTS and len(parts) in continuations([*parts, word.text])


def _is_near(cell: _Cell, word: Word) -> bool:
    """Return whether a word is so near to the cell left of it that it belongs to the same cell."""
    return word.left - cell.right < _CELL_GAP * word.height


def _blocks(rows: Sequence[_Row]) -> Iterator[tuple[int, int]]:
    """Divide the lines of a page into tables. Yield two indices for each table: its first and its last row with
    numbers. Between two rows with numbers, a table has at most `_BETWEEN` rows without numbers."""
    start = last = -1
    count = 0
    for n, row in enumerate(rows):
        if last >= 0 and (n - last > _BETWEEN + 1 or rows[n - 1].y - row.y > _LINE_GAP * row.height):
            if count >= _MIN_ROWS:
                yield start, last
            start = last = -1
            count = 0
        if row.has_data:
            start = n if start < 0 else start
            last = n
            count += 1
    if count >= _MIN_ROWS:
        yield start, last


def _table(rows: Sequence[_Row], start: int, end: int, columns: Sequence[_Cell]) -> FoundTable:
    """Return the table with the rows from `start` to `end`. A label that begins with a small letter continues the label
    of the line above. Other lines without numbers are left out."""
    table_rows = []
    label: list[str] = []
    for row in rows[start : end + 1]:
        if not row.has_data:
            label = [] if row.values else [word.text for word in row.words]
            continue
        unplaced, values = _placed(row, columns)
        own = [*(word.text for word in row.label), *unplaced]
        wrapped = bool(label) and bool(own) and own[0][:1].islower()  # a label of two lines
        text = " ".join([*label, *own] if wrapped else own)
        table_rows.append(FoundRow(row.words[0].line, row.words[-1].line, text, values))
        label = own
    lines = (" ".join(word.text for word in row.words) for row in reversed(rows[max(0, start - _SCALE_LINES) : start]))
    scale = next((match.group().strip("( ") for line in lines if (match := SCALE.search(line))), "")
    return FoundTable(_headers(rows, start, columns), scale, tuple(table_rows))


def _columns(rows: Sequence[Sequence[_Cell]]) -> list[_Cell]:
    """Return the columns of a table. Values with overlapping horizontal extents are in the same column. The extent of a
    column is the union of the extents of its values. A column with a single value is left out, because the value is a
    part of a label. Return [] if there are more than `_MAX_COLUMNS` columns."""
    columns: list[_Cell] = []
    counts: list[int] = []
    for cell in sorted((cell for row in rows for cell in row), key=lambda cell: cell.left):
        if columns and cell.left < columns[-1].right:
            columns[-1] = _Cell("", columns[-1].left, max(columns[-1].right, cell.right))
            counts[-1] += 1
        else:
            columns.append(_Cell("", cell.left, cell.right))
            counts.append(1)
    kept = [column for column, count in zip(columns, counts, strict=True) if count > 1]
    return kept if len(kept) <= _MAX_COLUMNS else []


def _are_same(columns: Sequence[_Cell], others: Sequence[_Cell]) -> bool:
    """Return whether two tables have the same columns, so that the second can continue the first without headers: the
    same number of columns, and each overlaps its counterpart."""
    pairs = zip(columns, others, strict=len(columns) == len(others))
    return len(columns) == len(others) and all(a.left < b.right and b.left < a.right for a, b in pairs)


def _placed(row: _Row, columns: Sequence[_Cell]) -> tuple[list[str], tuple[str, ...]]:
    """Return the numbers of the row that are in no column, and the value of the row in each column."""
    lefts = [column.left for column in columns]
    unplaced: list[str] = []
    values = [""] * len(columns)
    for cell in row.values:
        n = bisect_right(lefts, cell.left) - 1
        if n < 0 or cell.left >= columns[n].right:
            unplaced.append(cell.text)
        else:
            values[n] = cell.text
    return unplaced, tuple(values)


def _headers(rows: Sequence[_Row], start: int, columns: Sequence[_Cell]) -> tuple[str, ...]:
    """Return the words above each column. The lines above the table are read upwards. Lines without words above a
    column are skipped, and a title, prose or another table ends the headers."""
    parts: list[list[str]] = [[] for _ in columns]
    for row in reversed(rows[max(0, start - _HEADER_LINES) : start] if columns else []):
        if row.has_data or len(row.words) > _MAX_HEADER_WORDS:
            break
        cells = _cells_above(row, columns)
        above = _spread(cells, columns) if cells else []
        if cells and not above:
            break
        for part, text in zip(parts, above, strict=bool(above)):
            if text:
                part.insert(0, text)
    return tuple(" ".join(part)[:_MAX_HEADER] for part in parts)


def _cells_above(row: _Row, columns: Sequence[_Cell]) -> list[_Cell]:
    """Return the cells of a row that may be headers, without notes in parentheses and cells left of the columns."""
    cells: list[_Cell] = []
    for word in row.words:
        if cells and _is_near(cells[-1], word):
            cells[-1] = _Cell(f"{cells[-1].text} {word.text}", cells[-1].left, word.right)
        else:
            cells.append(_Cell(word.text, word.left, word.right))
    return [cell for cell in cells if cell.right >= columns[0].left and not _NOTE.fullmatch(cell.text)]


def _spread(cells: Sequence[_Cell], columns: Sequence[_Cell]) -> list[str]:
    """Return the header of each column from the cells of a row above the columns. If every cell is centered above the
    same number of columns, each cell is the header of its columns. Otherwise, each cell is the header of the column
    that it overlaps. Return [] if a cell begins left of the columns or overlaps several columns, because the row is
    then no row of headers."""
    size, rest = divmod(len(columns), len(cells))
    pitch = (columns[-1].right - columns[0].left) / len(columns)
    if size and not rest:
        groups = [columns[n * size : (n + 1) * size] for n in range(len(cells))]
        middles = [(group[0].left + group[-1].right) / 2 for group in groups]
        off = [abs((cell.left + cell.right) / 2 - middle) for cell, middle in zip(cells, middles, strict=True)]
        if max(off) < 0.75 * pitch:
            return [cell.text for cell in cells for _ in range(size)]
    over = [[cell for cell in cells if cell.left < c.right and c.left < cell.right] for c in columns]
    if any(sum(cell in each for each in over) > 1 or cell.left < columns[0].left - pitch for cell in cells):
        return []
    return [each[0].text if each else "" for each in over]
