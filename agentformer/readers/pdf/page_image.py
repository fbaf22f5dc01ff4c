"""Render a page of a PDF file as a PNG image, and find the boxes of a quotation on this page. Runs in the child
process.

The stored text of a page differs from the characters in the file: paragraphs are joined and hyphens are removed. So a
quotation is found by its letters and digits only.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pypdfium2 as pdfium
from pypdfium2 import raw

from agentformer.errors import CorruptDocument, DocumentTooLarge, EncryptedDocument
from agentformer.readers.adapters import ReadOptions
from agentformer.readers.pdf.extractors import PasswordNeeded, PdfiumDocument, Unreadable
from agentformer.readers.sandbox.protocol import Box, PageImage
from agentformer.text.normalize import letters_and_digits

SCALE = 2.0  # pixels per point: an A4 page has 1,190 x 1,684
LONGEST_SIDE = 2_200  # pixels
MAX_IMAGE_PIXELS = 120_000_000  # of one image on the page, which PDFium unpacks into memory
MAX_CHARACTERS = 60_000  # of a page whose characters are compared; ordinary pages have 3,000
SHORTEST_PART = 8  # letters of a part of a quotation that is looked for if the whole is not found
_NEAR = 3.0  # heights of a line: characters that are further apart are in different columns
_DAMAGED = "the page cannot be shown because the PDF is damaged; read the text of the page instead"


class _Character(NamedTuple):
    """A letter or a digit of the page, and the number of its character in PDFium."""

    letter: str
    number: int


def page_image(data: bytes, options: ReadOptions) -> PageImage:
    """Return the image of the page `options.page`, and the boxes of `options.quote` on the page.

    A box is (left, top, right, bottom) as shares (0..1) of the width and the height. A quotation that is not in the
    characters of the page, such as that of a scanned page, has no boxes. Raises `DocumentError`.
    """
    try:
        document = PdfiumDocument(data, options.password)
        number = options.page - 1
        if not 0 <= number < len(document):
            raise CorruptDocument(f"the PDF has no page {options.page}")
        if document.largest_image(number) > MAX_IMAGE_PIXELS:
            raise DocumentTooLarge("the page has an image that is too large to show; read the text of the page instead")
        scale = min(SCALE, LONGEST_SIDE / max(1.0, *document.size(number)))
        with document.page(number) as page:
            pixels = page.render(scale=scale, rev_byteorder=True).to_numpy()
            boxes = [*_boxes(page, options.quote, options.occurrence)] if options.quote else []
        height, width = pixels.shape[:2]
        return PageImage(width, height, tuple(boxes), png(pixels))
    except PasswordNeeded:
        raise EncryptedDocument("the PDF is encrypted, and its password is not stored; read the text instead") from None
    except (Unreadable, pdfium.PdfiumError, ValueError) as error:
        raise CorruptDocument(_DAMAGED) from error


def png(pixels: Any) -> bytes:
    """Return pixels (uint8[height, width, 1, 3 or 4]) as a PNG file. A fourth channel is left out. An image without
    colours is stored in gray."""
    pixels = pixels[:, :, :3]
    if pixels.shape[2] == 3 and (pixels[:, :, :1] == pixels).all():
        pixels = pixels[:, :, :1]
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # the first byte of a row is its filter: 0 for none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def find(text: str, quote: str, occurrence: int) -> list[tuple[int, int]]:
    """Return the ranges of a quotation in a text. `occurrence` is the number of equal quotations before it. If the
    whole quotation is not in the text, return the ranges of its longest parts."""
    starts = [*_occurrences(text, quote)] if quote else []
    if starts:
        start = starts[min(occurrence, len(starts) - 1)]
        return [(start, start + len(quote))]
    ranges: list[tuple[int, int]] = []
    at, near = 0, 0
    while at + SHORTEST_PART <= len(quote):
        start = text.find(quote[at : at + SHORTEST_PART], near)
        start = start if start >= 0 else text.find(quote[at : at + SHORTEST_PART])
        if start < 0:
            at += 1
            continue
        size = SHORTEST_PART
        while at + size < len(quote) and text[start + size : start + size + 1] == quote[at + size]:
            size += 1
        ranges.append((start, start + size))
        at, near = at + size, start + size
    return ranges


def _occurrences(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _boxes(page: Any, quote: str, occurrence: int) -> Iterator[Box]:
    turned = page.get_rotation() % 180 == 90  # lines of text run from top to bottom, or from bottom to top
    with closing(page.get_textpage()) as text_page:
        characters = [*_characters(text_page)]
        text = "".join(character.letter for character in characters)
        for start, end in find(text, letters_and_digits(quote), occurrence):
            numbers = sorted({character.number for character in characters[start:end]})
            boxes = [box for number in numbers if (box := _box(page, text_page, number))]
            yield from map(_transposed, _lines(map(_transposed, boxes))) if turned else _lines(boxes)


def _characters(text_page: Any) -> Iterator[_Character]:
    for number in range(min(text_page.count_chars(), MAX_CHARACTERS)):
        code = raw.FPDFText_GetUnicode(text_page, number)
        if code and not 0xD800 <= code < 0xE000:
            for letter in letters_and_digits(chr(code)):
                yield _Character(letter, number)


def _box(page: Any, text_page: Any, number: int) -> Box | None:
    """Return the box of a character as shares of the visible page, or None if the character has no box."""
    box = raw.FS_RECTF()
    if not raw.FPDFText_GetLooseCharBox(text_page, number, box):
        return None
    size = 10_000  # the page is converted to a square of this size, so that rotation and margins are included
    corners = []
    for x, y in ((box.left, box.top), (box.right, box.bottom)):
        left, top = ctypes.c_int(), ctypes.c_int()
        raw.FPDF_PageToDevice(page, 0, 0, size, size, 0, x, y, left, top)
        corners.append((min(1.0, max(0.0, left.value / size)), min(1.0, max(0.0, top.value / size))))
    (x0, y0), (x1, y1) = corners
    return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


def _lines(boxes: Iterable[Box]) -> Iterator[Box]:
    """Join the boxes of neighbouring characters on the same line, in any direction of writing."""
    line: Box | None = None
    for box in boxes:
        near = _NEAR * (box[3] - box[1])
        middle = (box[1] + box[3]) / 2
        if line and line[1] <= middle <= line[3] and box[0] <= line[2] + near and box[2] >= line[0] - near:
            line = min(line[0], box[0]), min(line[1], box[1]), max(line[2], box[2]), max(line[3], box[3])
            continue
        if line:
            yield line
        line = box
    if line:
        yield line


def _transposed(box: Box) -> Box:
    left, top, right, bottom = box
    return top, left, bottom, right
