"""Read the text of images by OCR: PNG, JPEG, WebP, and TIFF with several pages (extra `ocr`)."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator
from typing import Any

from agentformer.errors import CorruptDocument, DocumentTooLarge
from agentformer.readers.adapters import ReadOptions
from agentformer.readers.ocr import MAX_PIXELS, image_text, ocr_unavailable
from agentformer.text.normalize import normalize_pages
from agentformer.text.quality import assess
from agentformer.types import DocumentText, Page

MAX_IMAGE_PIXELS = 120_000_000  # pixels of an image in the file; each takes up to 4 bytes of memory
DRAFT_SECONDS = 20.0
MIN_LETTERS = 3
_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP")
_LONGER, _LARGEST_FACTOR = 3_500, 3  # pixels of the longer side of A4 at 300 dpi: smaller images are enlarged
_DAMAGED = "the image is damaged or cut off; save it again"
_TOO_LARGE = f"the image has more than {MAX_IMAGE_PIXELS:,} pixels; make it smaller"


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield drafts of the document: each page of the image with the text that was recognised so far. Without OCR, the
    document has a page without text, whose reason says what to install."""
    advice = ocr_unavailable() if options.ocr else "text recognition (OCR) is switched off"
    if advice:
        yield _document(options, [_page(1, "", advice)])
        return
    pages: list[Page] = []
    drafted = time.monotonic()
    for number, image in enumerate(_images(data, options.limits.max_pages), 1):
        if time.monotonic() > options.deadline:
            late = "there was no time for OCR; split the file or raise the setting read_seconds"
            pages.append(_page(number, "", late))
            continue
        pages.append(_page(number, image_text(_prepared(image)), "text recognition (OCR) found no text"))
        if time.monotonic() - drafted > DRAFT_SECONDS:
            yield _document(options, pages)
            drafted = time.monotonic()
    yield _document(options, pages)


def _images(data: bytes, most: int) -> Iterator[Any]:
    """Yield the pages of an image file. Of an animated image, only the first frame is yielded."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # the size is checked here, before the pixels are unpacked
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            count = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
            if count > most:
                raise DocumentTooLarge(f"the image has {count:,} pages; the limit is {most:,} pages; split the file")
            for number in range(count):
                image.seek(number)
                if math.prod(image.size) > MAX_IMAGE_PIXELS:
                    raise DocumentTooLarge(_TOO_LARGE)
                image.load()
                yield image
    except (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, LookupError, TypeError) as error:
        raise CorruptDocument(_DAMAGED) from error


def _prepared(image: Any) -> Any:
    """Return an image for tesseract: upright, gray, on a white ground, and neither very small nor very large."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image)
    if image.mode.startswith("I"):  # 16 bits of gray
        image = image.point(lambda value: value / 256).convert("L")
    image = image.convert("L")
    pixels, longer = math.prod(image.size), max(image.size)
    factor = min(_LARGEST_FACTOR, max(1.0, _LONGER / longer), math.sqrt(MAX_PIXELS / pixels))
    if factor == 1:
        return image
    return image.resize(tuple(max(1, round(side * factor)) for side in image.size), Image.Resampling.LANCZOS)


def _page(number: int, text: str, reason: str) -> Page:
    quality = assess(text)
    if quality.letters >= MIN_LETTERS and quality.is_usable:
        return Page(number, text, str(number), method="tesseract")
    return Page(number, "", str(number), status="no_text", reason=f"the page is an image; {reason}")


def _document(options: ReadOptions, pages: list[Page]) -> DocumentText:
    texts = normalize_pages([page.text for page in pages])
    done = tuple(
        Page(page.number, text, page.label, page.status, page.reason, page.method)
        for page, text in zip(pages, texts, strict=True)
    )
    without = [page for page in done if page.status != "text"]
    reason = f"{len(without)} of {len(done)} pages have no usable text: {without[0].reason}" if without else ""
    return DocumentText(
        options.media_type, done, status="no_text" if len(without) == len(done) else "ready", reason=reason
    )
