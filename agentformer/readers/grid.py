"""Put the cells of tables in rows and columns. The text of a merged cell stands in each row that the cell covers, and
several rows of headers become one row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_COLUMNS = 1_000  # columns of a table; a table with more columns is data, not text
MAX_CARRIED = 300  # code points of a merged cell that are repeated in its other rows; longer ones are not repeated
_MAX_CELLS = 2_000_000  # cells of a table in which merged cells are repeated
_WIDE = 50  # columns of a table whose empty columns are left out
_MAX_HEADS = 4  # rows of headers that become one row
_AMOUNT = re.compile(r"(?!(?:19|20)\d\d$)[\s.,:%€$£+-]*+\d[\d\s.,:%€$£+-]*+")


class Cell(NamedTuple):
    """A cell of a table. `text` is None if the cell belongs to the merged cell above it."""

    text: str | None
    columns: int = 1
    rows: int = 1


class GridRow(dict[int, str]):
    """The texts of a row by the number of their column. `spans` has the number of columns of each merged cell by the
    number of its first column."""

    def __init__(self, texts: Iterable[tuple[int, str]] = (), spans: dict[int, int] | None = None) -> None:
        super().__init__(texts)
        self.spans = spans or {}


def table_lines(rows: Iterable[Sequence[Cell]], heads: int = 0) -> list[str]:
    """Return the lines of a table, with "|" between the cells. `heads` is the number of its rows of headers if the file
    says it. Rows above the headers that are one cell are titles."""
    grid = [row for row in filled(rows) if any(row.values())]
    width = max((column + 1 for row in grid for column in row), default=0)
    titles = 0
    while titles < len(grid) - 1 and width > 1 and grid[titles].spans.get(0) == width:
        titles += 1
    above = [row[0] for row in grid[:titles]]
    columns: Sequence[int] = range(width)
    if width > _WIDE:  # merged cells may pretend to have a thousand columns
        used = {column for row in grid[titles:] for column, text in row.items() if text}
        columns = sorted(used)
    shown = with_one_head(grid[titles:], heads - titles)
    return above + [" | ".join(row[column] for column in columns if column in row) for row in shown]


def filled(rows: Iterable[Sequence[Cell]]) -> list[GridRow]:
    """Return the texts of the cells by row and column. The text of a merged cell is in each of its rows, in its first
    column. Cells after the first `MAX_COLUMNS` columns are added to the last column.

    Formats mark a cell that reaches into further rows in one of two ways. In HTML, OpenDocument and PowerPoint, the
    first cell has the number of its rows, and the rows below do not have the cell: `covered` has such cells. In Word,
    each row below has a cell that continues the cell above: its `text` is None."""
    grid: list[GridRow] = []
    size = 0
    covered: dict[int, tuple[int, str]] = {}  # column -> number of further rows that a cell covers, and its text
    for cells in rows:
        row, column, overflow = GridRow(), 0, []
        covered_below = {at: (more - 1, text) for at, (more, text) in covered.items() if more > 1}
        for cell in cells:
            while column in covered:
                column += 1
            if column >= MAX_COLUMNS:
                overflow.append(cell.text or "")
                continue
            columns = max(1, min(cell.columns, MAX_COLUMNS - column)) if size <= _MAX_CELLS else 1
            text = cell.text if cell.text is not None else grid[-1].get(column, "") if grid else ""
            carried = text if len(text) <= MAX_CARRIED else ""
            row[column] = text if cell.text is not None else carried
            for at in range(column, column + columns):
                row.setdefault(at, "")
                if cell.rows > 1:
                    covered_below[at] = (cell.rows - 1, carried if at == column else "")
            if columns > 1:
                row.spans[column] = columns
            column += columns
        row.update((at, text) for at, (_, text) in covered.items() if at not in row)
        if overflow:
            row[MAX_COLUMNS - 1] = " ".join(filter(None, [row.get(MAX_COLUMNS - 1), *overflow]))
        size += len(row)
        covered = covered_below if size <= _MAX_CELLS else {}
        grid.append(GridRow(sorted(row.items()), row.spans))
    return grid


def with_one_head(rows: Sequence[GridRow], heads: int = 0) -> list[GridRow]:
    """Return the rows with one row of headers. The header of a column consists of the texts in all rows of headers
    above it. `heads` is the number of these rows, or 0 if it is not known: if a cell of the first row covers several
    columns and the cells below it are no amounts, there are two."""
    heads = min(heads, len(rows) - 1, _MAX_HEADS) if heads > 0 else _heads(rows)
    if heads < 2:
        return list(rows)
    columns = sorted({column for row in rows[:heads] for column in row})
    head = GridRow()
    for column in columns:
        texts: list[str] = []
        for row in rows[:heads]:
            start = next((first for first, count in row.spans.items() if first <= column < first + count), column)
            if (text := row.get(start, "")) and text not in texts:
                texts.append(text)
        head[column] = " ".join(texts)
    return [head, *rows[heads:]]


def _heads(rows: Sequence[GridRow]) -> int:
    spans, width = rows[0].spans if rows else {}, len({column for row in rows[:3] for column in row})
    if len(rows) < 3 or not spans or max(spans.values()) >= width or rows[1].spans:
        return 1
    columns = (column for first, count in spans.items() for column in range(first, first + count))
    below = [rows[1].get(column, "") for column in columns]
    return 2 if all(below) and not any(_AMOUNT.fullmatch(text) for text in below) else 1
