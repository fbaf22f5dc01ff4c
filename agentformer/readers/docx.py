"""Read Word documents (`.docx`): paragraphs, headings, table rows, footnotes and endnotes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lxml import etree

from agentformer.errors import CorruptDocument
from agentformer.readers.formats import ReadOptions
from agentformer.readers.sections import OutlineBuilder, document_of
from agentformer.readers.zip_parts import MAX_UNPACKED, DocumentKind, ZipParts
from agentformer.types import DocumentText

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_BODY = "word/document.xml"
_NOTES = (("word/footnotes.xml", "footnote"), ("word/endnotes.xml", "endnote"))
_STYLES = "word/styles.xml"
_KIND = DocumentKind("Word document", "Word")
MAX_PART_BYTES = MAX_UNPACKED
_HEADING_NAME = re.compile(r"heading\s*(\d)|(title)$", re.IGNORECASE)
_MAX_DEPTH = 100


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. A Word document is a ZIP archive; only its files with text are unpacked. The document is
    refused if these files are larger than `MAX_PART_BYTES`."""
    parts = ZipParts(data, _KIND, MAX_PART_BYTES)
    if _BODY not in parts:
        raise CorruptDocument("the text of the Word document is missing; open it in Word and save it again")
    levels = _heading_levels(parts.xml(_STYLES) if _STYLES in parts else None)
    body = parts.xml(_BODY).find(f"{_W}body")
    if body is None:
        raise CorruptDocument("the Word document has no text; open it in Word and save it again")
    builder = OutlineBuilder()
    _blocks(body, builder, levels, 0)
    for name, kind in _NOTES:
        if name in parts:
            _notes(parts.xml(name), kind, builder)
    yield document_of(options.media_type, builder.pages("docx"), options.limits, parts.title(), parts.note)


def _heading_levels(styles: etree._Element | None) -> dict[str, int]:
    """Return a dictionary: id of a heading style -> level. Every version of Word names the styles in English."""
    levels: dict[str, int] = {}
    for style in styles.iter(f"{_W}style") if styles is not None else ():
        name = style.find(f"{_W}name")
        if name is not None and (match := _HEADING_NAME.match(name.get(f"{_W}val", ""))):
            levels[style.get(f"{_W}styleId", "")] = int(match[1] or 1)
    return levels


def _blocks(parent: etree._Element, out: OutlineBuilder, levels: dict[str, int], depth: int) -> None:
    for child in parent if depth <= _MAX_DEPTH else ():
        if child.tag == f"{_W}p":
            _paragraph(child, out, levels)
        elif child.tag == f"{_W}tbl":
            _table(child, out)
        elif child.tag in (f"{_W}sdt", f"{_W}sdtContent", f"{_W}customXml", f"{_W}ins"):
            _blocks(child, out, levels, depth + 1)


def _paragraph(paragraph: etree._Element, out: OutlineBuilder, levels: dict[str, int]) -> None:
    text = _text(paragraph)
    style = paragraph.find(f"{_W}pPr/{_W}pStyle")
    level = levels.get(style.get(f"{_W}val", ""), 0) if style is not None else 0
    if level and text.strip():
        out.heading(" ".join(text.split()), level)
    elif text.strip():
        if paragraph.find(f"{_W}pPr/{_W}numPr") is not None:
            text = f"- {text}"
        out.text(text, verbatim=True)
        out.line(paragraph=True)


def _table(table: etree._Element, out: OutlineBuilder) -> None:
    for row in table.iter(f"{_W}tr"):
        cells = [_line(cell) for cell in row.iter(f"{_W}tc")]
        if any(cells):
            out.text(" | ".join(cells))
            out.line()
    out.line(paragraph=True)


def _line(parent: etree._Element) -> str:
    """Return the text of all paragraphs inside an element as one line."""
    return " ".join(" ".join(_text(p) for p in parent.iter(f"{_W}p")).split())


def _text(paragraph: etree._Element) -> str:
    pieces: list[str] = []
    for node in paragraph.iter():
        if node.tag == f"{_W}t":
            # A fallback repeats the text of a text box for old versions of Word.
            pieces.append("" if any(True for _ in node.iterancestors(_FALLBACK)) else node.text or "")
        elif node.tag in (f"{_W}tab", f"{_W}br", f"{_W}cr") and node.getparent().tag == f"{_W}r":
            pieces.append("\t" if node.tag == f"{_W}tab" else "\n")
        elif node.tag == f"{_W}noBreakHyphen":
            pieces.append("-")
    return "".join(pieces)


def _notes(root: etree._Element, kind: str, out: OutlineBuilder) -> None:
    for note in root.iter(f"{_W}{kind}"):
        if text := _line(note):
            out.text(f"[{kind} {note.get(f'{_W}id', '')}] {text}")
            out.line(paragraph=True)
