"""Recognise text in images with tesseract (OCR, extra `ocr`)."""

from __future__ import annotations

import shutil
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

MAX_PIXELS = 40_000_000  # an A3 page at 300 dpi has 17 million
OCR_SECONDS = 60  # time limit for one page
# Mean confidence per letter: clean scans reach 90 and more, poor ones 60 to 80, upside-down text 30 to 50.
SURE = 75.0  # with a lower confidence, the page may be rotated
LEAST = 55.0  # with a lower confidence, the text is not indexed
LANGUAGES = ("eng", "fin", "swe", "nor", "dan", "deu", "fra", "spa", "est")
OCR_ADVICE = "install tesseract and agentformer[ocr] to read scanned pages"


def ocr_unavailable() -> str:
    """Return advice on how to install OCR, or "" if OCR is installed."""
    return "" if shutil.which("tesseract") and find_spec("pytesseract") else OCR_ADVICE


def image_text(image: Any) -> str:
    """Return the text that OCR finds in a PIL image. Return "" if tesseract fails, or if it is too uncertain about the
    text. An image on its side or upside down is turned."""
    import pytesseract  # imports NumPy, which few files need

    try:
        text, confidence = _read(image)
        if confidence < SURE and (turn := _turn(image)):
            text, confidence = max((text, confidence), _read(image.rotate(-turn, expand=True)), key=lambda r: r[1])
        return text if confidence >= LEAST else ""
    except (pytesseract.TesseractError, RuntimeError, OSError):
        return ""


def _read(image: Any) -> tuple[str, float]:
    """Return two values: the text that OCR finds in an image, in lines and paragraphs, and the mean confidence of its
    letters (0..100)."""
    import pytesseract

    installed = set(pytesseract.get_languages())
    languages = "+".join(code for code in LANGUAGES if code in installed) or "eng"
    data = pytesseract.image_to_data(image, languages, timeout=OCR_SECONDS, output_type=pytesseract.Output.DICT)
    paragraphs: dict[tuple[int, int], dict[int, list[str]]] = {}
    letters = sure = 0.0
    columns = (data[name] for name in ("text", "conf", "block_num", "par_num", "line_num"))
    for word, confidence, block, paragraph, line in zip(*columns, strict=True):
        if word.strip():
            paragraphs.setdefault((block, paragraph), {}).setdefault(line, []).append(word)
            letters += len(word)
            sure += len(word) * max(0.0, float(confidence))
    text = "\n\n".join("\n".join(map(" ".join, lines.values())) for lines in paragraphs.values())
    return text, sure / letters if letters else 0.0


def _turn(image: Any) -> int:
    """Return the angle in degrees by which the image must be turned clockwise to be upright. Return 0 if tesseract
    cannot detect the angle."""
    import pytesseract

    with suppress(pytesseract.TesseractError, RuntimeError, OSError):  # too few letters, no `osd` data, or too slow
        orientation = pytesseract.image_to_osd(image, timeout=OCR_SECONDS, output_type=pytesseract.Output.DICT)
        return int(orientation["rotate"])
    return 0
