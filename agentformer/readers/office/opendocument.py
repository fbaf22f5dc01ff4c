"""Read OpenDocument files: texts (`.odt`) with headings, lists, tables, equations and notes, sheets (`.ods`) row by
row, and presentations (`.odp`) slide by slide. Macros, comments, images and deleted text are not read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from lxml import etree

from agentformer.errors import CorruptDocument
from agentformer.readers.formats import ReadOptions
from agentformer.readers.grid import GridRow, filled, table_lines
from agentformer.readers.office.equations import annotation, equation_text
from agentformer.readers.office.odf_parts import DRAW, OFFICE, SHOW, SKIPPED, TABLE, cells_of, paragraphs_of, rows_of
from agentformer.readers.office.odf_text import TextReader, list_styles
from agentformer.readers.office.sheet_pages import GridPages, slide_page
from agentformer.readers.sections import OutlineBuilder, document_of
from agentformer.readers.zip_parts import DocumentKind, ZipParts
from agentformer.text.normalize import clean
from agentformer.types import DocumentText, Page

_KIND = DocumentKind("OpenDocument file", "LibreOffice")
_CONTENT, _META, _MANIFEST, _STYLES = "content.xml", "meta.xml", "META-INF/manifest.xml", "styles.xml"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_LINK = "{http://www.w3.org/1999/xlink}href"
_ENCRYPTION = b"encryption-data"


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. Raises `EncryptedDocument` if it has a password, and `CorruptDocument` if it has no
    content."""
    parts = ZipParts(data, _KIND)
    if _MANIFEST in parts and _ENCRYPTION in parts.read(_MANIFEST):  # not parsed: some manifests are not valid XML
        raise parts.encrypted()
    body = parts.xml(_CONTENT).find(f"{OFFICE}body")
    content = next((each for each in body if isinstance(each.tag, str)), None) if body is not None else None
    if content is None:
        raise parts.corrupt("has no text")
    unread = _write_formulas(parts, content)
    if content.tag == f"{OFFICE}spreadsheet":
        pages = GridPages("odf", options.limits)
        for sheet in content.iter(f"{TABLE}table"):
            pages.add(sheet.get(f"{TABLE}name", ""), chain(filled(cells_of(rows_of(sheet))), _text_boxes(sheet)))
        found: Iterator[Page] = iter(pages.pages)
    elif content.tag == f"{OFFICE}presentation":
        found = (_slide(number, each) for number, each in enumerate(content.findall(f"{DRAW}page"), 1))
    else:
        styles = [parts.xml(_STYLES)] if _STYLES in parts else []
        reader = TextReader(OutlineBuilder(), list_styles([*styles, content.getroottree().getroot()]))
        reader.blocks(content)
        found = reader.out.pages("odf")
    title = parts.xml(_META).findtext(f".//{_TITLE}") if _META in parts else ""
    reason = "; ".join(filter(None, (parts.note, unread)))
    yield document_of(options.media_type, found, options.limits, " ".join((title or "").split()), reason)


def _write_formulas(parts: ZipParts, content: etree._Element) -> str:
    """Write the text of each formula into its place. Return a text for users about formulas that cannot be read."""
    unread = 0
    names: set[str] = set()
    for place in content.iter(f"{DRAW}object"):
        name = f"{place.get(_LINK, '').removeprefix('./').rstrip('/')}/{_CONTENT}"
        if name not in parts or name in names:
            continue
        names.add(name)
        try:
            root = parts.xml(name, doctype=True)
        except CorruptDocument:
            unread += 1
            continue
        if etree.QName(root).localname == "math":
            place.text = annotation(root) or equation_text(root)
    return f"not read: {unread} damaged formulas" if unread else ""


def _text_boxes(sheet: etree._Element) -> Iterator[GridRow]:
    """Yield the paragraphs in the text boxes of a sheet as rows after a blank row."""
    for shapes in sheet.findall(f"{TABLE}shapes"):
        for shape in shapes:
            yield GridRow()
            yield from (GridRow([(0, line)]) for line in paragraphs_of(shape).split("\n") if line)


def _slide(number: int, slide: etree._Element) -> Page:
    title, lines, notes = "", [], ""
    for shape in slide:
        if shape.tag == f"{SHOW}notes":
            notes = paragraphs_of(shape)
        elif shape.get(f"{SHOW}class") == "title" and not title:
            title = " ".join(clean(paragraphs_of(shape)).split())
        elif isinstance(shape.tag, str) and shape.tag not in SKIPPED:
            tables = [line for table in shape.iter(f"{TABLE}table") for line in table_lines(cells_of(rows_of(table)))]
            lines.append("\n".join(" ".join(line.split("\n")) for line in tables) if tables else paragraphs_of(shape))
    if notes:
        lines.append(f"Notes: {notes}")
    return slide_page(number, title, lines, "odf")
