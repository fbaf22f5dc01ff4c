"""Read PowerPoint presentations (`.pptx`, `.pptm`): each slide is a page, with its title as heading, its tables and the
notes of the speaker. Comments, charts, images and macros are not read."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from agentformer.readers.formats import ReadOptions
from agentformer.readers.grid import Cell, table_lines
from agentformer.readers.numerals import numeral
from agentformer.readers.office.equations import M, equation_text
from agentformer.readers.office.sheet_pages import slide_page
from agentformer.readers.sections import document_of
from agentformer.readers.zip_parts import DocumentKind, Relation, ZipParts, unescaped
from agentformer.text.normalize import clean
from agentformer.types import DocumentText, Page

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_ID = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_KIND = DocumentKind("PowerPoint presentation", "PowerPoint")
_PRESENTATION = "ppt/presentation.xml"
_TITLES = frozenset({"title", "ctrTitle"})
_REPEATED = frozenset({"dt", "ftr", "hdr", "sldNum", "sldImg"})  # placeholders of every slide
_UNTITLED = "PowerPoint Presentation"
_MAX_DEPTH = 60


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. Its slides, including hidden slides, are in the order of the presentation."""
    parts = ZipParts(data, _KIND)
    main = parts.main_part(_PRESENTATION)
    links = parts.relations(main)
    slides = (links.get(each.get(_ID, "")) for each in parts.xml(main).iter(f"{_P}sldId"))
    names = [link.target for link in slides if link and link.kind == "slide" and link.target in parts]
    pages = (_page(number, parts, name) for number, name in enumerate(names, 1))
    title = parts.title()
    title = "" if title == _UNTITLED else title
    yield document_of(options.media_type, pages, options.limits, title, parts.note)


def _page(number: int, parts: ZipParts, name: str) -> Page:
    root = parts.xml(name)
    title, lines = "", []
    for shape in _shapes(root, 0):
        kind = _placeholder(shape)
        text = _table(shape) or _paragraphs(shape)
        if kind in _TITLES and not title:
            title = " ".join(clean(text).split())
        elif text and kind not in _REPEATED:
            lines.append(text)
    links = parts.relations(name)
    lines += [text for link in links.values() if (text := _linked(parts, link))]
    return slide_page(number, title, lines, "pptx")


def _shapes(parent: etree._Element, depth: int) -> Iterator[etree._Element]:
    """Yield the shapes and the tables of a slide, including those in groups."""
    for child in parent if depth <= _MAX_DEPTH else ():
        if child.tag in (f"{_P}sp", f"{_P}graphicFrame"):
            yield child
        elif child.tag != _FALLBACK and isinstance(child.tag, str):
            yield from _shapes(child, depth + 1)


def _placeholder(shape: etree._Element) -> str:
    found = shape.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph")
    return "" if found is None else str(found.get("type", "body"))


def _paragraphs(parent: etree._Element) -> str:
    """Return the paragraphs of a shape as lines, with the numbers of automatic lists."""
    counts: dict[int, int] = {}  # level -> number of its last paragraph
    lines = []
    for paragraph in parent.iter(f"{_A}p"):
        text = _text(paragraph)
        properties = paragraph.find(f"{_A}pPr")
        level = properties.get("lvl", "0") if properties is not None else "0"
        at = int(level) if level.isdecimal() else 0
        rule = properties.find(f"{_A}buAutoNum") if properties is not None else None
        if text.strip():
            counts = {
                above: count for above, count in counts.items() if above < at or (above == at and rule is not None)
            }
            if rule is not None:
                start = rule.get("startAt", "1")
                counts[at] = counts[at] + 1 if at in counts else int(start) if start.isdecimal() else 1
                text = f"{_number(counts[at], rule.get('type', ''))} {text}"
            lines.append(text)
    return "\n".join(lines)


def _number(number: int, kind: str) -> str:
    """Return the number of a list. `kind` is such as "arabicPeriod" or "alphaLcParenBoth"."""
    letters = {"alphaLc": "a", "alphaUc": "A", "romanLc": "i", "romanUc": "I"}
    text = numeral(number, next((sign for name, sign in letters.items() if kind.startswith(name)), "1"))
    if kind.endswith("ParenBoth"):
        return f"({text})"
    return f"{text})" if kind.endswith("ParenR") else text if kind.endswith("Plain") else f"{text}."


def _text(paragraph: etree._Element) -> str:
    pieces = []
    for node in paragraph.iter(f"{_A}t", f"{_A}br", f"{M}oMath"):
        if node.tag == f"{M}oMath":
            pieces.append(equation_text(node))
        elif not any(True for _ in node.iterancestors(f"{M}oMath", _FALLBACK)):
            pieces.append("\n" if node.tag == f"{_A}br" else node.text or "")
    return unescaped("".join(pieces))


def _table(shape: etree._Element) -> str:
    """Return the rows of a table as lines, or "" for another shape."""
    rows = []
    for row in shape.iter(f"{_A}tr"):
        cells = (cell for cell in row.iter(f"{_A}tc") if not (cell.get("hMerge") or cell.get("vMerge")))
        rows.append(
            [
                Cell(" ".join(_paragraphs(cell).split()), _span(cell, "gridSpan"), _span(cell, "rowSpan"))
                for cell in cells
            ]
        )
    return "\n".join(table_lines(rows))


def _span(cell: etree._Element, name: str) -> int:
    value = cell.get(name, "1")
    return int(value) if value.isdecimal() else 1


def _linked(parts: ZipParts, link: Relation) -> str:
    """Return the text of a part that belongs to a slide: the notes of the speaker, or a diagram (SmartArt)."""
    if link.target not in parts:
        return ""
    if link.kind == "notesSlide":
        shapes = _shapes(parts.xml(link.target), 0)
        notes = "\n".join(_paragraphs(shape) for shape in shapes if _placeholder(shape) not in _REPEATED)
        return f"Notes: {notes.strip()}" if notes.strip() else ""
    return _paragraphs(parts.xml(link.target)) if link.kind == "diagramData" else ""
