"""Read OpenDocument files: texts (`.odt`) with headings, tables and notes, sheets (`.ods`) row by row, and
presentations (`.odp`) slide by slide. Macros, comments, images and deleted text are not read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, repeat

from lxml import etree

from agentformer.readers.formats import ReadOptions
from agentformer.readers.office import MAX_COLUMNS, GridPages, slide_page
from agentformer.readers.sections import OutlineBuilder, document_of
from agentformer.readers.zip_parts import DocumentKind, ZipParts
from agentformer.text.normalize import clean
from agentformer.types import DocumentText, Page

_NAMESPACE = "{{urn:oasis:names:tc:opendocument:xmlns:{}:1.0}}"
_OFFICE, _TEXT, _TABLE, _DRAW, _SHOW = map(_NAMESPACE.format, ("office", "text", "table", "drawing", "presentation"))
_KIND = DocumentKind("OpenDocument file", "LibreOffice")
_CONTENT, _META, _MANIFEST = "content.xml", "meta.xml", "META-INF/manifest.xml"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_ENCRYPTION = b"encryption-data"
_SKIPPED = frozenset({f"{_TEXT}tracked-changes", f"{_OFFICE}annotation", f"{_OFFICE}forms", f"{_TEXT}note-citation"})
_SKIPPED |= {f"{_TEXT}page-number"}
_MAX_DEPTH = 100
_MAX_REPEATED = 1_000  # equal rows or cells in a row; more are the empty rest of a sheet
_DIGITS = re.compile(r"\d{1,7}")


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. Raises `EncryptedDocument` if it has a password, and `CorruptDocument` if it has no
    content."""
    parts = ZipParts(data, _KIND)
    if _MANIFEST in parts and _ENCRYPTION in parts.read(_MANIFEST):  # not parsed: some manifests are not valid XML
        raise parts.encrypted()
    body = parts.xml(_CONTENT).find(f"{_OFFICE}body")
    content = next((each for each in body if isinstance(each.tag, str)), None) if body is not None else None
    if content is None:
        raise parts.corrupt("has no text")
    if content.tag == f"{_OFFICE}spreadsheet":
        pages = GridPages("odf", options.limits)
        for sheet in content.iter(f"{_TABLE}table"):
            pages.add(sheet.get(f"{_TABLE}name", ""), _rows(sheet))
        found: Iterator[Page] = iter(pages.pages)
    elif content.tag == f"{_OFFICE}presentation":
        found = (_slide(number, each) for number, each in enumerate(content.findall(f"{_DRAW}page"), 1))
    else:
        builder = OutlineBuilder()
        _blocks(content, builder, 0)
        found = builder.pages("odf")
    title = parts.xml(_META).findtext(f".//{_TITLE}") if _META in parts else ""
    yield document_of(options.media_type, found, options.limits, " ".join((title or "").split()), parts.note)


def _blocks(parent: etree._Element, out: OutlineBuilder, depth: int) -> None:
    for child in parent if depth <= _MAX_DEPTH else ():
        tag = child.tag
        if tag == f"{_TEXT}h":
            level = _number(child.get(f"{_TEXT}outline-level", ""), 1)
            out.heading(" ".join(_text(child).split()), min(level, 10))
        elif tag == f"{_TEXT}p":
            if text := _text(child).strip("\n"):
                out.text(text, verbatim=True)
                out.line(paragraph=True)
        elif tag == f"{_TEXT}list-item":
            out.text("- ")
            _blocks(child, out, depth + 1)
        elif tag == f"{_TABLE}table":
            for row in _rows(child):
                out.text(" | ".join(" ".join(cell.split()) for cell in row))
                out.line()
            out.line(paragraph=True)
        elif isinstance(tag, str) and tag not in _SKIPPED:
            _blocks(child, out, depth + 1)


def _rows(table: etree._Element) -> Iterator[list[str]]:
    """Yield the rows of a table. Cells that a merged cell covers are included. Repeated blank rows are yielded as one
    row. A row or a cell that is repeated more than 1,000 times is included once, because it is the unused rest of a
    sheet."""
    for row in table.iter(f"{_TABLE}table-row"):
        cells: list[str] = []
        for cell in row:
            if cell.tag in (f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
                text = _paragraphs(cell)
                times = _number(cell.get(f"{_TABLE}number-columns-repeated", ""), 1)
                cells += repeat(text, times if times <= _MAX_REPEATED and len(cells) < 4 * MAX_COLUMNS else 1)
        while cells and not cells[-1]:
            cells.pop()
        times = _number(row.get(f"{_TABLE}number-rows-repeated", ""), 1)
        yield from repeat(cells, times if cells and times <= _MAX_REPEATED else 1)


def _slide(number: int, slide: etree._Element) -> Page:
    title, lines, notes = "", [], ""
    for shape in slide:
        if shape.tag == f"{_SHOW}notes":
            notes = _paragraphs(shape)
        elif shape.get(f"{_SHOW}class") == "title" and not title:
            title = " ".join(clean(_paragraphs(shape)).split())
        elif isinstance(shape.tag, str) and shape.tag not in _SKIPPED:
            tables = [*shape.iter(f"{_TABLE}table")]
            rows = chain.from_iterable(map(_rows, tables))
            lines.append("\n".join(" | ".join(row) for row in rows) if tables else _paragraphs(shape))
    if notes:
        lines.append(f"Notes: {notes}")
    return slide_page(number, title, lines, "odf")


def _paragraphs(parent: etree._Element) -> str:
    lines = (_text(each) for each in parent.iter(f"{_TEXT}p", f"{_TEXT}h") if not _is_skipped(each, parent))
    return "\n".join(line for line in lines if line.strip())


def _is_skipped(element: etree._Element, below: etree._Element) -> bool:
    """Return whether the paragraph `element` is left out of the text of its ancestor `below`. It is left out if it is
    inside a comment, or inside another paragraph, because the text of that paragraph contains it already."""
    for above in element.iterancestors():
        if above is below:
            return False
        if above.tag in _SKIPPED or above.tag in (f"{_TEXT}p", f"{_TEXT}h"):
            return True
    return False


def _text(element: etree._Element) -> str:
    """Return the text of a paragraph. The text of a note is inserted in brackets where the note is."""
    pieces: list[str] = []
    _collect(element, pieces, 0)
    return "".join(pieces)


def _collect(element: etree._Element, pieces: list[str], depth: int) -> None:
    if depth > _MAX_DEPTH:
        return
    if element.text:
        pieces.append(re.sub(r"\s+", " ", element.text))
    for child in element:
        tag = child.tag
        if tag == f"{_TEXT}s":
            pieces.append(" " * min(_number(child.get(f"{_TEXT}c", ""), 1), 1_000))
        elif tag in (f"{_TEXT}tab", f"{_TEXT}line-break"):
            pieces.append("\t" if tag == f"{_TEXT}tab" else "\n")
        elif tag == f"{_TEXT}note":
            pieces.append(f" [{_paragraphs(child)}]")
        elif tag == f"{_TEXT}p":  # a text box in the paragraph
            pieces.append("\n")
            _collect(child, pieces, depth + 1)
        elif isinstance(tag, str) and tag not in _SKIPPED:
            _collect(child, pieces, depth + 1)
        if child.tail:
            pieces.append(re.sub(r"\s+", " ", child.tail))


def _number(text: str, default: int) -> int:
    return int(text) if _DIGITS.fullmatch(text) else default
