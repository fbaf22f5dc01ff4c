"""Read Excel workbooks (`.xlsx`, `.xlsm`): the stored values of all sheets, row by row. Formulas are not computed.

A sheet is one page, or several pages if it is long. The text of its text boxes follows its rows. Macros, comments,
charts and images are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import NamedTuple

from lxml import etree

from agentformer.readers.formats import ReadOptions
from agentformer.readers.grid import MAX_CARRIED, MAX_COLUMNS, GridRow
from agentformer.readers.office.sheet_pages import GridPages
from agentformer.readers.sections import document_of
from agentformer.readers.zip_parts import DocumentKind, ZipParts, unescaped
from agentformer.types import DocumentText

_S = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_ID = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_KIND = DocumentKind("Excel workbook", "Excel")
_BOOK, _STYLES = "xl/workbook.xml", "xl/styles.xml"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_D = "{http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_MERGE = re.compile(rb"mergeCell\s+ref=[\"']([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})[\"']")
_MOST = 1 << 30  # bytes of all parts: a million rows of numbers have about 300 MB of XML
# Parts of a number format that are no date or time.
_QUOTED = re.compile(r'"[^"]*"|\\.|\[(?!h+\]|m+\]|s+\])[^\]]*\]|[_*].')
_TIME = re.compile(r"[hs]|\[m+\]")
_DATE = re.compile(r"[yd]|mmm|^[^hs\[]*m[^hs\[]*$")
_BUILT_IN = {
    **dict.fromkeys((14, 15, 16, 17, *range(27, 32), 36, *range(50, 55), 57, 58), "d"),
    **dict.fromkeys((18, 19, 20, 21, 32, 33, 34, 35, 45, 46, 47, 55, 56), "h"),
    22: "d h",
    9: "0%",
    10: "0.00%",
}
_NO_VALUE = "formulas without a stored value: {}; open the file in a spreadsheet program and save it again"


class _Book(NamedTuple):
    """The shared parts of a workbook: texts, a number format ("d", "%", ...) for each style, and the day number 0."""

    texts: Sequence[str]
    formats: Sequence[str]
    epoch: datetime


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. Its sheets, including hidden sheets, are in the order of the workbook."""
    parts = ZipParts(data, _KIND, _MOST)
    main = parts.main_part(_BOOK)
    workbook, links = parts.xml(main), parts.relations(main)
    shared, styles = parts.related(main, "sharedStrings"), parts.related(main, "styles") or _STYLES
    properties = workbook.find(f"{_S}workbookPr")
    from_1904 = properties is not None and properties.get("date1904") in ("1", "true")
    book = _Book(
        [_text(each) for each in parts.elements(shared, f"{_S}si")] if shared in parts else [],
        _formats(parts.xml(styles)) if styles in parts else [],
        datetime(1904, 1, 1) if from_1904 else datetime(1899, 12, 30),
    )
    pages, unstored = GridPages("xlsx", options.limits), [0]
    for sheet in workbook.iter(f"{_S}sheet"):
        link = links.get(sheet.get(_ID, ""))
        if link and link.kind == "worksheet" and link.target in parts:
            rows = _merged(_rows(parts, link.target, book, unstored), _merges(parts, link.target))
            pages.add(sheet.get("name", ""), chain(rows, _text_boxes(parts, link.target)))
    notes = [parts.note, _NO_VALUE.format(unstored[0]) if unstored[0] else ""]
    reason = "; ".join(filter(None, notes))
    yield document_of(options.media_type, pages.pages, options.limits, parts.title(), reason)


def _formats(styles: etree._Element) -> list[str]:
    """Return the format of each cell style: "d" (date), "h" (time), "d h", "%" with a "0" for each decimal, or ""."""
    own = {each.get("numFmtId", ""): each.get("formatCode", "") for each in styles.iter(f"{_S}numFmt")}
    cells = styles.find(f"{_S}cellXfs")
    found = []
    for style in cells if cells is not None else ():
        number = style.get("numFmtId", "0")
        code = own.get(number) or _BUILT_IN.get(int(number) if number.isdecimal() else 0, "")
        found.append(_format(_QUOTED.sub("", code.partition(";")[0][:200])))
    return found


def _format(code: str) -> str:
    if "%" in code:
        decimals = code.partition(".")[2]
        return "%" + "0" * (len(decimals) - len(decimals.lstrip("0")))
    date, time = _DATE.search(code.lower()), _TIME.search(code.lower())
    return " ".join([*(["d"] if date else []), *(["h"] if time else [])])


class _Merge(NamedTuple):
    """A merged cell. Rows and columns are numbered from 0; `last_row` and `last` are its last row and column."""

    first: int
    last: int
    last_row: int


def _merges(parts: ZipParts, name: str) -> dict[int, list[_Merge]]:
    """Return the merged cells of a sheet by their first row."""
    merges: dict[int, list[_Merge]] = {}
    for found in parts.matches(name, _MERGE):
        first, row, last, last_row = found[1].decode(), int(found[2]) - 1, found[3].decode(), int(found[4]) - 1
        merge = _Merge(_column(first, 0), _column(last, 0), last_row)
        if merge.first < MAX_COLUMNS:
            merges.setdefault(row, []).append(merge)
    return merges


def _merged(rows: Iterable[tuple[int, dict[int, str]]], merges: dict[int, list[_Merge]]) -> Iterator[GridRow]:
    """Yield the rows. The text of a merged cell is in each of its rows that have other cells with text."""
    covered: dict[int, tuple[int, str]] = {}  # column -> the last row of a merged cell, and its text
    for number, cells in rows:
        row = GridRow(cells.items())
        if cells:
            for column, (last_row, text) in [*covered.items()]:
                if number > last_row:
                    del covered[column]
                elif not row.get(column):
                    row[column] = text
        for merge in merges.get(number, ()):
            if merge.last > merge.first:
                row.spans[merge.first] = merge.last - merge.first + 1
            if merge.last_row > number and 0 < len(cells.get(merge.first, "")) <= MAX_CARRIED:
                covered[merge.first] = (merge.last_row, cells[merge.first])
        yield row


def _text_boxes(parts: ZipParts, name: str) -> Iterator[GridRow]:
    """Yield the paragraphs in the text boxes of a sheet as rows after a blank row."""
    drawing = parts.related(name, "drawing")
    for box in parts.xml(drawing).iter(f"{_D}txBody") if drawing else ():
        if not any(True for _ in box.iterancestors(_FALLBACK)):
            lines = ("".join(each.text or "" for each in line.iter(f"{_A}t")) for line in box.iter(f"{_A}p"))
            yield GridRow()
            yield from (GridRow([(0, line)]) for line in lines if line.strip())


def _rows(parts: ZipParts, name: str, book: _Book, unstored: list[int]) -> Iterator[tuple[int, dict[int, str]]]:
    """Yield the rows of a sheet with their numbers from 0, and one blank row in place of missing rows. `unstored`
    contains one number, to which this function adds the number of formulas without a stored value."""
    last = 0
    for row in parts.elements(name, f"{_S}row"):
        number = row.get("r", "")
        at = int(number) if number.isdecimal() and len(number) < 8 else last + 1
        if at > last + 1:
            yield at - 2, {}
        last = at
        cells: dict[int, str] = {}
        column = -1
        for cell in row.iter(f"{_S}c"):
            column = _column(cell.get("r", ""), column + 1)
            if value := _value(cell, book):
                cells[column] = value
            elif cell.get("t") != "str" and cell.find(f"{_S}f") is not None and not cell.findtext(f"{_S}v"):
                unstored[0] += 1
        yield at - 1, cells


def _column(reference: str, following: int) -> int:
    """Return the column (from 0) of a reference such as "AB12", or `following` for a cell without a reference."""
    number = 0
    for letter in reference[:3]:
        if not "A" <= letter <= "Z":
            break
        number = number * 26 + ord(letter) - 64
    return number - 1 if number else following


def _value(cell: etree._Element, book: _Book) -> str:
    kind, stored = cell.get("t", "n"), cell.findtext(f"{_S}v") or ""
    if kind == "inlineStr":
        inline = cell.find(f"{_S}is")
        return _text(inline) if inline is not None else ""
    if kind == "s":  # the number of a shared text
        return book.texts[int(stored)] if stored.isdecimal() and int(stored) < len(book.texts) else ""
    if kind == "b":
        return {"1": "TRUE", "0": "FALSE"}.get(stored, stored)
    if kind == "d":  # of workbooks in the form "Strict"
        return stored.removesuffix("T00:00:00").replace("T", " ")
    if kind in ("str", "e"):
        return unescaped(stored)
    style = cell.get("s", "")
    number_format = book.formats[int(style)] if style.isdecimal() and int(style) < len(book.formats) else ""
    return _number(stored, number_format, book.epoch)


def _number(stored: str, kind: str, epoch: datetime) -> str:
    """Return a stored number as a spreadsheet program shows it: as a date, a time, a percentage, or a number such as
    0.1 instead of 0.10000000000000001. `kind` is the number format (see `_formats`)."""
    try:
        value = float(stored)
        if kind.startswith("%"):
            rounded, exact = f"{value:.{len(kind) - 1}%}", f"{value * 100:.6g}%"
            # No digit of the stored value is lost.
            return rounded if float(rounded[:-1]) == float(exact[:-1]) else exact
        if "d" in kind:
            moment = epoch + timedelta(days=value)
            shown = moment + timedelta(milliseconds=500)
            if "h" in kind or moment.time().isoformat() > "00:00:01":
                return f"{shown:%Y-%m-%d %H:%M:%S}".removesuffix(":00")
            return f"{shown:%Y-%m-%d}"
        if kind == "h":
            minutes, seconds = divmod(round(value * 86_400), 60)
            return f"{minutes // 60:02}:{minutes % 60:02}" + (f":{seconds:02}" if seconds else "")
        return f"{value:.15g}" if abs(value) < 1e15 else stored
    except (ValueError, OverflowError):
        return stored


def _text(item: etree._Element) -> str:
    """Return the text of a cell, without the phonetic guides of Japanese text."""
    return unescaped("".join(each.text or "" for each in item.iter(f"{_S}t") if each.getparent().tag != f"{_S}rPh"))
