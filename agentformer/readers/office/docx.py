"""Read Word documents (`.docx`): paragraphs with their numbers, headings, tables, text boxes, equations, footnotes and
endnotes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from lxml import etree

from agentformer.errors import CorruptDocument
from agentformer.readers.formats import ReadOptions
from agentformer.readers.grid import Cell, table_lines
from agentformer.readers.numerals import superscript
from agentformer.readers.office.docx_numbering import Numbering, numbering_of
from agentformer.readers.office.equations import M, equation_text
from agentformer.readers.sections import OutlineBuilder, document_of
from agentformer.readers.zip_parts import MAX_UNPACKED, DocumentKind, ZipParts
from agentformer.types import DocumentText

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_BODY = "word/document.xml"
_NOTES = ("footnote", "endnote")
_KIND = DocumentKind("Word document", "Word")
MAX_PART_BYTES = MAX_UNPACKED
_HEADING_NAME = re.compile(r"heading\s*(\d)|(title)$", re.IGNORECASE)
_MAX_DEPTH = 60  # nested elements; the paragraphs of deeper ones are read one after the other
_TABLE_DEPTH = 8  # tables in tables
# A fallback repeats a text box for old versions of Word; moved text is read where it is now; `rt` is a phonetic guide.
_SKIPPED = frozenset({_FALLBACK, *(f"{_W}{name}" for name in ("del", "moveFrom", "rt", "sectPr", "pPr", "rPr"))})


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. A Word document is a ZIP archive; only its files with text are unpacked. The document is
    refused if these files are larger than `MAX_PART_BYTES`."""
    parts = ZipParts(data, _KIND, MAX_PART_BYTES)
    main = parts.main_part(_BODY)
    if main not in parts:
        raise CorruptDocument("the text of the Word document is missing; open it in Word and save it again")
    body = parts.xml(main).find(f"{_W}body")
    if body is None:
        raise CorruptDocument("the Word document has no text; open it in Word and save it again")

    def part(kind: str) -> etree._Element | None:
        name = parts.related(main, kind) or f"word/{kind}.xml"
        return parts.xml(name) if name in parts else None

    styles = part("styles")
    reader = _Reader(OutlineBuilder(), _heading_levels(styles), numbering_of(part("numbering"), styles))
    reader.blocks(body, 0)
    for kind in _NOTES:
        if (notes := part(f"{kind}s")) is not None:
            reader.notes(notes, kind)
    pages = reader.out.pages("docx")
    yield document_of(options.media_type, pages, options.limits, parts.title(), parts.note)


def _heading_levels(styles: etree._Element | None) -> dict[str, int]:
    """Return a dictionary: id of a heading style -> level. Every version of Word names the styles in English."""
    levels: dict[str, int] = {}
    for style in styles.iter(f"{_W}style") if styles is not None else ():
        name = style.find(f"{_W}name")
        if name is not None and (match := _HEADING_NAME.match(name.get(f"{_W}val", ""))):
            levels[style.get(f"{_W}styleId", "")] = int(match[1] or 1)
    return levels


@dataclass(slots=True)
class _Reader:
    out: OutlineBuilder
    levels: dict[str, int]
    numbering: Numbering
    tables: int = 0  # tables around the current place
    waiting: list[etree._Element] = field(default_factory=list)  # tables in cells that are read after their table

    def blocks(self, parent: etree._Element, depth: int) -> None:
        """Read the paragraphs and the tables inside of an element."""
        for child in parent:
            if child.tag == f"{_W}p":
                self._paragraph(child, depth)
            elif child.tag == f"{_W}tbl" and self.tables < _TABLE_DEPTH:
                self._table(child, depth)
            elif child.tag in _SKIPPED or not isinstance(child.tag, str):
                continue
            elif depth < _MAX_DEPTH:
                self.blocks(child, depth + 1)
            else:
                for paragraph in child.iter(f"{_W}p"):
                    self._paragraph(paragraph, depth)

    def _paragraph(self, paragraph: etree._Element, depth: int) -> None:
        boxes: list[etree._Element] = []
        text = _text(paragraph, boxes)
        label = self.numbering.label(paragraph)
        style = paragraph.find(f"{_W}pPr/{_W}pStyle")
        level = self.levels.get(style.get(f"{_W}val", ""), 0) if style is not None else 0
        if text.strip():
            if level:
                label = "" if label == "-" else label
                self.out.heading(f"{label} {' '.join(text.split())}".strip(), level)
            else:
                self.out.text(f"{label} {text}" if label else text, verbatim=True)
                self.out.line(paragraph=True)
        for box in boxes if depth < _MAX_DEPTH else ():
            self.blocks(box, depth + 1)

    def _table(self, table: etree._Element, depth: int) -> None:
        """Write a table as lines, and below it the tables inside its cells."""
        rows = [*_children(table, f"{_W}tr", _MAX_DEPTH - depth)]
        cells = [[*_children(row, f"{_W}tc", _MAX_DEPTH - depth)] for row in rows]
        self.tables += 1
        if all(len(row) < 2 for row in cells):  # a frame around text and other tables
            for (cell,) in filter(None, cells):
                self.blocks(cell, depth + 3)
        else:
            waiting, self.waiting = self.waiting, []
            heads = 0
            while heads < len(rows) and rows[heads].find(f"{_W}trPr/{_W}tblHeader") is not None:
                heads += 1
            for line in table_lines([[self._cell(cell, depth) for cell in row] for row in cells], heads):
                self.out.text(line)
                self.out.line()
            self.out.line(paragraph=True)
            inner, self.waiting = self.waiting, waiting
            for each in inner:
                self._table(each, depth + 3) if self.tables < _TABLE_DEPTH else self.blocks(each, _MAX_DEPTH)
        self.tables -= 1

    def _cell(self, cell: etree._Element, depth: int) -> Cell:
        properties = cell.find(f"{_W}tcPr")
        merged = properties.find(f"{_W}vMerge") if properties is not None else None
        span = properties.find(f"{_W}gridSpan") if properties is not None else None
        columns = span.get(f"{_W}val", "") if span is not None else ""
        text = self._line(cell)
        continues = merged is not None and merged.get(f"{_W}val", "continue") == "continue" and not text
        return Cell(None if continues else text, int(columns) if columns.isdecimal() else 1)

    def _line(self, parent: etree._Element) -> str:
        """Return the text of all paragraphs inside an element as one line. Tables are put into `waiting`."""
        pieces: list[str] = []
        todo = [*reversed(parent)]
        while todo:
            child = todo.pop()
            if child.tag == f"{_W}p":
                boxes: list[etree._Element] = []
                label = self.numbering.label(child)
                pieces += [label if label != "-" else "", _text(child, boxes)]
                todo += reversed(boxes)
            elif child.tag == f"{_W}tbl":
                self.waiting.append(child)
            elif child.tag not in _SKIPPED and isinstance(child.tag, str):
                todo += reversed(child)
        return " ".join(" ".join(pieces).split())

    def notes(self, root: etree._Element, kind: str) -> None:
        """Read the footnotes or the endnotes."""
        for note in root.iter(f"{_W}{kind}"):
            if text := self._line(note):
                self.out.text(f"[{kind} {note.get(f'{_W}id', '')}] {text}")
                self.out.line(paragraph=True)
        waiting, self.waiting = self.waiting, []
        for table in waiting:
            self._table(table, 0)


def _children(parent: etree._Element, tag: str, depth: int) -> Iterator[etree._Element]:
    """Yield the rows of a table, or the cells of a row, also those that are in other elements."""
    for child in parent:
        if child.tag == tag:
            yield child
        elif child.tag not in _SKIPPED and isinstance(child.tag, str) and depth > 0:
            yield from _children(child, tag, depth - 1)


def _text(paragraph: etree._Element, boxes: list[etree._Element]) -> str:
    """Return the text of a paragraph, and add its text boxes to `boxes`."""
    pieces: list[str] = []
    todo = [*reversed(paragraph)]
    while todo:
        node = todo.pop()
        tag = node.tag
        if tag == f"{_W}t":
            raised = node.getparent().find(f"{_W}rPr/{_W}vertAlign")
            is_raised = raised is not None and raised.get(f"{_W}val") == "superscript"
            pieces.append(superscript(node.text or "") if is_raised else node.text or "")
        elif tag == f"{_W}txbxContent":
            boxes.append(node)
        elif tag in (f"{M}oMath", f"{M}oMathPara"):
            pieces.append(equation_text(node))
        elif tag in (f"{_W}tab", f"{_W}br", f"{_W}cr"):
            pieces.append("\t" if tag == f"{_W}tab" else "\n")
        elif tag == f"{_W}noBreakHyphen":
            pieces.append("-")
        elif tag not in _SKIPPED and isinstance(tag, str):
            todo += reversed(node)
    return "".join(pieces)
