"""Read Rich Text Format (`.rtf`) and its text boxes. Footnotes, comments, images and embedded objects are not read."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from striprtf.striprtf import rtf_to_text

from agentformer.errors import CorruptDocument
from agentformer.readers.formats import ReadOptions
from agentformer.readers.sections import document_of, page_of, parts_of
from agentformer.text.normalize import clean
from agentformer.text.table_rows import tables_of
from agentformer.types import DocumentText, Page

_CODE_PAGE = re.compile(rb"\\ansicpg(\d{3,5})")
_HEAD = 8_192  # bytes in which the code page is declared
_TITLE = re.compile(r"\{\\title ([^{}\\]{1,300})\}")
_PAGE_BREAK = re.compile(r"(?<!\\)\\page(?![a-z]) ?")
# Text boxes: striprtf leaves out the groups of shapes. Their results for old programs (`shprslt`) repeat the text.
_SHAPE = re.compile(r"(?<!\\)(?:\\\*)?\\(?:shpgrp|shpinst|shp|do)(?![a-z])")
_BOX = re.compile(r"(?<!\\)\\(?:shptxt|dptxbxtext)(?![a-z])")
_ESCAPED = re.compile(r"\\[\\{}]")
_CELLS = re.compile(r"^[^\n]*\|$", re.MULTILINE)
_DAMAGED = "the RTF file is damaged or cut off; open it in a word processor and save it again"


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. A page break begins a new page. Raises `CorruptDocument` if the file is cut off."""
    code_page = _CODE_PAGE.search(data[:_HEAD])
    encoding = _known(f"cp{code_page[1].decode()}" if code_page else "cp1252")
    source = data.decode(encoding, "replace")
    bare = _ESCAPED.sub("", source)
    if "\\bin" not in bare and bare.count("{") > bare.count("}"):  # binary data may contain brackets
        raise CorruptDocument(_DAMAGED)
    title = _TITLE.search(source[: 1 << 16])
    try:
        # A form feed survives the conversion, and page breaks do not.
        source = _BOX.sub(r"\\par", _SHAPE.sub("", _PAGE_BREAK.sub(r"\\'0c", source)))
        text = rtf_to_text(source, encoding, errors="replace")
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
        raise CorruptDocument(_DAMAGED) from error
    # Characters outside of the basic plane are two numbers in RTF.
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    name = " ".join(title[1].split()) if title else ""
    yield document_of(options.media_type, _pages(text), options.limits, name)


def _pages(text: str) -> Iterator[Page]:
    number = 0
    for sheet in text.split("\f"):
        rows = _CELLS.sub(lambda line: " | ".join(cell.strip() for cell in line[0][:-1].split("|")), sheet)
        for part in parts_of(clean(rows)):
            number += 1
            yield page_of(number, part, str(number), method="rtf", tables=tables_of(part))


def _known(encoding: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        return "cp1252"
