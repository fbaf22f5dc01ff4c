"""Read the text of images by OCR with tesseract (extra `ocr`): PNG, JPEG, WebP, and TIFF with several pages. The PDF
reader uses the same functions for scanned pages."""

from __future__ import annotations

import io
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from agentformer.errors import CorruptDocument, DocumentTooLarge, install_command
from agentformer.readers.formats import ReadOptions
from agentformer.readers.sections import outcome_of
from agentformer.text.normalize import normalize_pages
from agentformer.text.quality import assess
from agentformer.types import DocumentText, Page

MAX_IMAGE_PIXELS = 120_000_000  # pixels of an image in the file; each takes up to 4 bytes of memory
DRAFT_SECONDS = 20.0  # seconds between two drafts of a document
MIN_LETTERS = 3  # a page with fewer letters has no usable text
_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP")
_LONGER = 3_500  # pixels of the longer side of A4 at 300 dpi; smaller images are enlarged
_LARGEST_FACTOR = 3  # maximum factor of the enlargement
_DAMAGED = "the image is damaged or cut off; save it again"
_TOO_LARGE = f"the image has more than {MAX_IMAGE_PIXELS:,} pixels; make it smaller"
MAX_PIXELS = 40_000_000  # an A3 page at 300 dpi has 17 million
OCR_SECONDS = 60  # time limit for one page
# Mean confidence per letter: clean scans reach 90 and more, poor ones 60 to 80, upside-down text 30 to 50.
SURE = 75.0  # with a lower confidence, the page may be rotated
LEAST = 55.0  # with a lower confidence, the text is not indexed
LANGUAGES = ("eng", "fin", "swe", "nor", "dan", "deu", "fra", "spa", "est")


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield drafts of the document: each page of the image with the text that was recognised so far. Without OCR, the
    document has a page without text, whose reason says what to install."""
    if not options.ocr or ocr_unavailable():
        yield _document(options, [_page(1, "", *without_text(options.ocr))])
        return
    pages: list[Page] = []
    drafted = time.monotonic()
    for number, image in enumerate(_images(data, options.limits.max_pages), 1):
        if time.monotonic() > options.deadline:
            pages.append(_page(number, "", *without_text(options.ocr)))
            continue
        pages.append(_page(number, image_text(_prepared(image)), *without_text(options.ocr, recognised=True)))
        if time.monotonic() - drafted > DRAFT_SECONDS:
            yield _document(options, pages)
            drafted = time.monotonic()
    yield _document(options, pages)


def _images(data: bytes, max_pages: int) -> Iterator[Any]:
    """Yield the pages of an image file. Of an animated image, only the first frame is yielded."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # the size is checked here, before the pixels are unpacked
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            count = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
            if count > max_pages:
                raise DocumentTooLarge(
                    f"the image has {count:,} pages; the limit is {max_pages:,} pages; split the file"
                )
            for number in range(count):
                image.seek(number)
                if math.prod(image.size) > MAX_IMAGE_PIXELS:
                    raise DocumentTooLarge(_TOO_LARGE)
                image.load()
                yield image
    except (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, LookupError, TypeError) as error:
        raise CorruptDocument(_DAMAGED) from error


def _prepared(image: Any) -> Any:
    """Return an image for tesseract: upright, gray, with a white background, and neither very small nor very large."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image)
    if image.mode.startswith("I"):  # 16 bits of gray
        image = image.point(lambda value: value / 256).convert("L")
    image = image.convert("L")
    pixels, longer = math.prod(image.size), max(image.size)
    factor = min(_LARGEST_FACTOR, max(1.0, _LONGER / longer), math.sqrt(MAX_PIXELS / pixels))
    if factor == 1:
        return image
    return image.resize(tuple(max(1, round(side * factor)) for side in image.size), Image.Resampling.LANCZOS)


def without_text(ocr: bool, *, recognised: bool = False) -> tuple[str, str]:
    """Return why a page that is an image has no text: a code (see `ReasonCode`), and what to do. `ocr` says whether OCR
    is allowed, and `recognised` whether the page was recognised."""
    if not ocr:
        return "ocr_missing", "text recognition (OCR) is switched off"
    if recognised:
        return "image", "text recognition (OCR) found no text"
    if advice := ocr_unavailable():
        return "ocr_missing", advice
    return "no_time", "there was no time for OCR; split the file or raise the setting read_seconds"


def _page(number: int, text: str, code: str, reason: str) -> Page:
    quality = assess(text)
    if quality.letters >= MIN_LETTERS and quality.is_usable:
        return Page(number, text, str(number), method="tesseract")
    return Page(number, "", str(number), status="no_text", reason=f"the page is an image; {reason}", reason_code=code)


def _document(options: ReadOptions, pages: list[Page]) -> DocumentText:
    texts = normalize_pages([page.text for page in pages])
    done = tuple(replace(page, text=text) for page, text in zip(pages, texts, strict=True))
    return DocumentText(options.media_type, done, "", *outcome_of(done))


def ocr_unavailable() -> str:
    """Return advice on how to install OCR, or "" if OCR is installed."""
    return "" if shutil.which("tesseract") and find_spec("pytesseract") else ocr_advice()


def ocr_advice() -> str:
    """Return advice on how to install OCR."""
    return f"to read scanned pages, install the program tesseract and the extra: {install_command('ocr')}"


def image_text(image: Any) -> str:
    """Return the text that OCR finds in a PIL image. Return "" if tesseract fails, or if its confidence in the text is
    too low. An image that lies on its side or is upside down is turned."""
    import pytesseract  # imports NumPy, which few files need

    try:
        text, confidence = _read(image)
        if confidence < SURE and (turn := _turn(image)):
            text, confidence = max((text, confidence), _read(image.rotate(-turn, expand=True)), key=lambda r: r[1])
        return text if confidence >= LEAST else ""
    except (pytesseract.TesseractError, RuntimeError, OSError):
        return ""


def _read(image: Any) -> tuple[str, float]:
    """Return the text that OCR finds, in lines and paragraphs, and the mean confidence of its letters (0..100)."""
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
    """Return the angle in degrees by which the image must be turned clockwise to be upright, or 0 if the angle is
    unknown."""
    import pytesseract

    with suppress(pytesseract.TesseractError, RuntimeError, OSError):  # too few letters, no `osd` data, or too slow
        orientation = pytesseract.image_to_osd(image, timeout=OCR_SECONDS, output_type=pytesseract.Output.DICT)
        return int(orientation["rotate"])
    return 0
