"""Recognise the text on images of pages with tesseract (extra `ocr`)."""

from __future__ import annotations

import math
import shutil
from importlib.util import find_spec
from typing import Any

from agentformer.readers.pdf.pdfium import PdfiumDocument

DPI = 300  # the resolution of tesseract's training data
POINTS_PER_INCH = 72
MAX_PIXELS = 40_000_000  # an A3 page at 300 dpi has 17 million
MAX_IMAGE_PIXELS = 200_000_000  # of an image inside the page, which rendering unpacks whole
PAGE_SECONDS = 60
# Mean confidence per letter: clean scans reach 90 and more, poor ones 60 to 80, upside-down text 30 to 50.
SURE = 75.0  # below it, the page may be rotated
LEAST = 55.0  # below it, the text is not indexed
LANGUAGES = ("eng", "fin", "swe", "nor", "dan", "deu", "fra", "spa", "est")

ADVICE = "install tesseract and agentformer[ocr] to read scanned pages"


def unavailable() -> str:
    """Return a hint how to install OCR, or "" if OCR is installed."""
    return "" if shutil.which("tesseract") and find_spec("pytesseract") else ADVICE


def recognise(document: PdfiumDocument, number: int) -> str:
    """Return the text on the image of a page. The image is rotated if necessary. Return "" if the page is too large to
    render, tesseract fails, or its confidence is too low."""
    import pytesseract  # imports NumPy, which few files need

    scale = scale_for(*document.size(number))
    if not scale or document.largest_image(number) > MAX_IMAGE_PIXELS:
        return ""
    try:
        image = document.image(number, scale)
        text, confidence = _read(image)
        if confidence < SURE and (turn := _turn(image)):
            text, confidence = max((text, confidence), _read(image.rotate(-turn, expand=True)), key=lambda r: r[1])
        return text if confidence >= LEAST else ""
    except (pytesseract.TesseractError, RuntimeError, OSError):
        return ""


def _read(image: Any) -> tuple[str, float]:
    """Return the text in lines and paragraphs, and the mean confidence of its letters (0..100)."""
    import pytesseract

    data = pytesseract.image_to_data(
        image, lang=_languages(), timeout=PAGE_SECONDS, output_type=pytesseract.Output.DICT
    )
    lines: dict[tuple[int, int, int], list[str]] = {}
    letters = sure = 0.0
    for i, word in enumerate(data["text"]):
        if word.strip():
            place = (data["block_num"][i], data["par_num"][i], data["line_num"][i])
            lines.setdefault(place, []).append(word)
            letters += len(word)
            sure += len(word) * max(0.0, float(data["conf"][i]))
    paragraphs: dict[tuple[int, int], list[str]] = {}
    for (block, paragraph, _), words in lines.items():
        paragraphs.setdefault((block, paragraph), []).append(" ".join(words))
    return "\n\n".join("\n".join(rows) for rows in paragraphs.values()), sure / letters if letters else 0.0


def _turn(image: Any) -> int:
    """Return the clockwise rotation in degrees that makes the page upright. Return 0 if tesseract cannot detect the
    rotation."""
    import pytesseract

    try:
        orientation = pytesseract.image_to_osd(image, timeout=PAGE_SECONDS, output_type=pytesseract.Output.DICT)
    except (pytesseract.TesseractError, RuntimeError, OSError):  # too few letters, no `osd` data, or too slow
        return 0
    return int(orientation["rotate"])


def scale_for(width: float, height: float) -> float:
    """Return the pixels per point for a page of this size, at most 300 dpi and `MAX_PIXELS`. Return 0 if the page must
    not be rendered."""
    area = width * height
    if not 1 < area < math.inf:
        return 0.0
    scale = min(DPI / POINTS_PER_INCH, math.sqrt(MAX_PIXELS / area))
    return scale if scale >= 1.0 else 0.0  # below 72 dpi nothing is recognised


def _languages() -> str:
    import pytesseract

    installed = set(pytesseract.get_languages())
    return "+".join(code for code in LANGUAGES if code in installed) or "eng"
