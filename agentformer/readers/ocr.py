"""Text from images of pages, through tesseract (extra `ocr`)."""

from __future__ import annotations

import math
import shutil
from typing import Protocol

try:
    import pytesseract
except ImportError:  # the extra is not installed; `unavailable` says so
    pytesseract = None

from agentformer.readers.pdfium import PdfiumDocument

DPI = 300  # what tesseract's models were trained for
POINTS_PER_INCH = 72
MAX_PIXELS = 40_000_000  # an A3 page at 300 dpi has 17 million
MAX_IMAGE_PIXELS = 200_000_000  # an image inside the page, which rendering unpacks whole
PAGE_SECONDS = 60
LANGUAGES = ("eng", "fin", "swe", "nor", "dan", "deu", "fra", "spa", "est")

ADVICE = "install tesseract and agentformer[ocr] to read scanned pages"


class Recogniser(Protocol):
    def __call__(self, document: PdfiumDocument, number: int) -> str: ...


def unavailable() -> str:
    """Why pages cannot be recognised, as advice; empty if they can."""
    return "" if pytesseract is not None and shutil.which("tesseract") else ADVICE


def recognise(document: PdfiumDocument, number: int) -> str:
    """The text on the page's image; empty if the page is too large to draw or tesseract fails."""
    scale = scale_for(*document.size(number))
    if not scale or document.largest_image(number) > MAX_IMAGE_PIXELS:
        return ""
    try:
        return str(pytesseract.image_to_string(document.image(number, scale), lang=_languages(), timeout=PAGE_SECONDS))
    except (pytesseract.TesseractError, RuntimeError, OSError):
        return ""


def scale_for(width: float, height: float) -> float:
    """Pixels per point for a page of this size, at most 300 dpi and `MAX_PIXELS`; 0: do not draw it at all."""
    area = width * height
    if not 1 < area < math.inf:
        return 0.0
    scale = min(DPI / POINTS_PER_INCH, math.sqrt(MAX_PIXELS / area))
    return scale if scale >= 1.0 else 0.0  # below 72 dpi nothing can be recognised


def _languages() -> str:
    installed = set(pytesseract.get_languages())
    return "+".join(code for code in LANGUAGES if code in installed) or "eng"
