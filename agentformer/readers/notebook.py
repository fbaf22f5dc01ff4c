"""Read Jupyter notebooks. Each cell is a page with a label such as "cell 1". Outputs, which can be computed again, are
left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentformer.errors import CorruptDocument
from agentformer.readers.code.languages import GRAMMARS
from agentformer.readers.encodings import decode
from agentformer.readers.formats import ReadOptions
from agentformer.readers.sections import document_of, page_of, parts_of
from agentformer.text.normalize import clean_plain
from agentformer.text.table_rows import tables_of
from agentformer.types import DocumentText, Heading, Page

_DAMAGED = "the file is not a notebook of version 3 or later; open it in Jupyter and save it again"
_LANGUAGES = {"ipython": "python", "python3": "python", "c#": "c_sharp", "c++": "cpp", "": "python"}
_LONGEST = 40  # code points of the name of a language


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. The title is the first heading of the text cells."""
    try:
        notebook = json.loads(decode(data))
    except (ValueError, RecursionError):
        raise CorruptDocument(_DAMAGED) from None
    sheets = notebook.get("worksheets") if isinstance(notebook, dict) else None  # of version 3
    sheet = sheets[0] if isinstance(sheets, list) and sheets and isinstance(sheets[0], dict) else {}
    if not isinstance(notebook, dict) or not isinstance(cells := notebook.get("cells", sheet.get("cells")), list):
        raise CorruptDocument(_DAMAGED)
    pages = list(_pages(cells, _language(notebook)))
    title = next((page.headings[0].text for page in pages if page.headings), "")
    yield document_of(options.media_type, pages, options.limits, title)


def _language(notebook: Mapping[str, Any]) -> str:
    """Return the programming language of the code cells, such as "python". If there is no grammar for this language,
    return "other: " and its name, which also marks the cells as source code."""
    metadata = notebook.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    info = metadata.get("language_info") if isinstance(metadata, dict) else None
    named = [part.get(key) for part, key in ((kernel, "language"), (info, "name")) if isinstance(part, dict)]
    name = next((value.lower() for value in named if isinstance(value, str) and value), "")
    name = _LANGUAGES.get(name, name)
    return name if name in GRAMMARS else f"other: {name[:_LONGEST]}"


def _pages(cells: list[Any], language: str) -> Iterator[Page]:
    number = 0
    for place, cell in enumerate(cells, 1):
        if not isinstance(cell, dict):
            continue
        source = cell.get("source", cell.get("input", ""))
        lines = [line for line in source if isinstance(line, str)] if isinstance(source, list) else [source]
        text = clean_plain("".join(line for line in lines if isinstance(line, str)))
        if not text.strip():
            continue
        is_code, line = cell.get("cell_type") == "code", 1
        for part in parts_of(text):
            number += 1
            page = page_of(number, part, f"cell {place}", () if is_code else _headings(part), tables=tables_of(part))
            yield replace(page, line=line, code=language if is_code else "")
            line += part.count("\n")


def _headings(text: str) -> tuple[Heading, ...]:
    """Return the heading with which a cell begins."""
    first = text.lstrip().partition("\n")[0]
    level = len(first) - len(first.lstrip("#"))
    title = first.strip("# ")
    return (Heading(title, level, 0),) if 0 < level <= 6 and title else ()
