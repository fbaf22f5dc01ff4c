"""All files of this folder that mean harm: (kind, name, what makes it), by a name that a test can show."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .hostile_docx import DOCXS
from .hostile_office import OFFICE
from .hostile_pdf import PDFS
from .hostile_text import HTMLS, MARKDOWNS, TEXTS, TWO_TYPES

Make = Callable[[str], bytes]


def _all() -> Iterator[tuple[str, tuple[str, Make]]]:
    for kind, files in (("pdf", PDFS), ("docx", DOCXS), ("html", HTMLS), ("txt", TEXTS), ("md", MARKDOWNS)):
        for name, make in files.items():
            yield f"{kind}-{name}", (f"{name}.{kind}", make)
    for name, named in TWO_TYPES.items():
        yield f"types-{name}", named


HOSTILE: dict[str, tuple[str, Make]] = {**dict(_all()), **OFFICE}
