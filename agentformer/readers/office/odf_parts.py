"""The names of OpenDocument, and the text of its paragraphs and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import repeat

from lxml import etree

from agentformer.readers.grid import MAX_COLUMNS, Cell

_NAMESPACE = "{{urn:oasis:names:tc:opendocument:xmlns:{}:1.0}}"
OFFICE, TEXT, TABLE, DRAW, SHOW, STYLE = map(
    _NAMESPACE.format, ("office", "text", "table", "drawing", "presentation", "style")
)
SKIPPED = frozenset({f"{TEXT}tracked-changes", f"{OFFICE}annotation", f"{OFFICE}forms", f"{TEXT}note-citation"})
SKIPPED |= {f"{TEXT}page-number"}
MAX_DEPTH = 100  # nested elements; the paragraphs of deeper ones are read one after the other
_MAX_REPEATED = 1_000  # equal rows or cells in a row; more are the empty rest of a sheet
_DIGITS = re.compile(r"\d{1,7}")
_CELLS = frozenset({f"{TABLE}table-cell", f"{TABLE}covered-table-cell"})
_GROUPS = frozenset({f"{TABLE}{name}" for name in ("table-header-rows", "table-rows", "table-row-group")})


def rows_of(table: etree._Element) -> Iterator[etree._Element]:
    """Yield the rows of a table, without those of tables inside of it."""
    for child in table:
        if child.tag == f"{TABLE}table-row":
            yield child
        elif child.tag in _GROUPS:
            yield from rows_of(child)


def cells_of(rows: Iterable[etree._Element]) -> Iterator[list[Cell]]:
    """Yield the cells of each row, without those that a merged cell covers. Repeated blank rows are yielded as one row.
    A row or a cell that is repeated more than 1,000 times is the unused rest of a sheet, and is yielded once."""
    for row in rows:
        cells: list[Cell] = []
        for cell in row:
            if cell.tag in _CELLS:
                columns, lines = (number_of(cell, f"{TABLE}number-{name}-spanned", 1) for name in ("columns", "rows"))
                shown = Cell(paragraphs_of(cell), columns, lines)
                times = number_of(cell, f"{TABLE}number-columns-repeated", 1)
                covered = cell.tag == f"{TABLE}covered-table-cell"
                cells += (
                    repeat(shown, times if times <= _MAX_REPEATED and len(cells) < 4 * MAX_COLUMNS else 1)
                    if not covered
                    else ()
                )
        while cells and not cells[-1].text and cells[-1].rows < 2:
            cells.pop()
        times = number_of(row, f"{TABLE}number-rows-repeated", 1)
        yield from repeat(cells, times if cells and times <= _MAX_REPEATED else 1)


def paragraphs_of(parent: etree._Element) -> str:
    """Return the paragraphs inside of an element as lines, without those of tables inside of it."""
    lines = (text_of(each) for each in parent.iter(f"{TEXT}p", f"{TEXT}h") if not _is_skipped(each, parent))
    return "\n".join(line for line in lines if line.strip())


def _is_skipped(element: etree._Element, below: etree._Element) -> bool:
    """Return whether the paragraph `element` is left out of the text of its ancestor `below`. It is left out if it is
    inside a comment, a table, or another paragraph, because the text of that paragraph contains it already."""
    for above in element.iterancestors():
        if above is below:
            return False
        if above.tag in SKIPPED or above.tag in (f"{TEXT}p", f"{TEXT}h", f"{TABLE}table"):
            return True
    return False


def text_of(element: etree._Element) -> str:
    """Return the text of a paragraph. The text of a note is inserted in brackets where the note is."""
    pieces: list[str] = []
    _collect(element, pieces, 0)
    return "".join(pieces)


def _collect(element: etree._Element, pieces: list[str], depth: int) -> None:
    """Add the text of a paragraph to `pieces`. White space in the XML is one space; other spaces are elements."""
    if depth > MAX_DEPTH:
        pieces += (re.sub(r"\s+", " ", text) for text in element.itertext())
        return
    if element.text:
        pieces.append(re.sub(r"\s+", " ", element.text))
    for child in element:
        tag = child.tag
        if tag == f"{TEXT}s":
            pieces.append(" " * min(number_of(child, f"{TEXT}c", 1), 1_000))
        elif tag in (f"{TEXT}tab", f"{TEXT}line-break"):
            pieces.append("\t" if tag == f"{TEXT}tab" else "\n")
        elif tag == f"{TEXT}note":
            pieces.append(f" [{paragraphs_of(child)}]")
        elif tag in (f"{TEXT}p", f"{TEXT}h"):  # a text box in the paragraph
            pieces.append("\n")
            _collect(child, pieces, depth + 1)
        elif isinstance(tag, str) and tag not in SKIPPED:
            _collect(child, pieces, depth + 1)
        if child.tail:
            pieces.append(re.sub(r"\s+", " ", child.tail))


def number_of(element: etree._Element, name: str, default: int) -> int:
    """Return an attribute that is a number, or `default`."""
    value = element.get(name, "")
    return int(value) if _DIGITS.fullmatch(value) else default
