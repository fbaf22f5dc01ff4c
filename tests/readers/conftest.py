"""PDFs and Word files made by the tests themselves."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pypdf
import pytest
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen.canvas import Canvas

COLLECTION = Path(__file__).resolve().parents[3] / "shared" / "data" / "pdfs"
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def make_pdf(pages: Sequence[Sequence[str]], *, title: str = "", leading: float = 14) -> bytes:
    """One line of text after another; an empty line is a gap."""
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4, initialFontName="Helvetica", initialFontSize=10)
    if title:
        canvas.setTitle(title)
    for lines in pages:
        for number, line in enumerate(lines):
            canvas.drawString(60, 800 - leading * number, line)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def rewritten(data: bytes, change: Callable[[pypdf.PdfWriter], None]) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(data))
    change(writer)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def make_docx(body: str, *, extra: dict[str, str] | None = None, prolog: str = "") -> bytes:
    out = io.BytesIO()
    parts = {
        "[Content_Types].xml": "<Types/>",
        "word/document.xml": f'{prolog}<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>',
        **(extra or {}),
    }
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


@pytest.fixture(scope="session")
def collection() -> Path:
    if not (COLLECTION / "manifest.csv").is_file():
        pytest.skip("the collection of real PDFs (../shared/data/pdfs) is not here")
    return COLLECTION
