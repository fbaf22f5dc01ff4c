"""Render a page of a PDF file as a PNG image, and find the boxes of a quotation on this page. Runs in the child
process.

The stored text of a page differs from the characters in the file: paragraphs are joined and hyphens are removed. A
quotation is therefore found by its letters and digits only. Accents are ignored, because some files draw the dots of an
"ä" apart from its letter.
"""

from __future__ import annotations

import ctypes
import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
import pypdfium2 as pdfium
from pypdfium2 import raw

from agentformer.errors import CorruptDocument, DocumentTooLarge, EncryptedDocument
from agentformer.readers.formats import ReadOptions
from agentformer.readers.pdf.engines import PasswordNeeded, PdfiumDocument, Unreadable, upright_text
from agentformer.readers.sandbox.protocol import Box, PageImage
from agentformer.text.normalize import bare_letters

SCALE = 2.0  # pixels per point: an A4 page has 1,190 x 1,684
LONGEST_SIDE = 2_200  # pixels
MAX_IMAGE_PIXELS = 120_000_000  # pixels of one image on the page, which PDFium unpacks into memory
MAX_CHARACTERS = 60_000  # characters of a page that are compared with a quotation; ordinary pages have 3,000
MAX_ALIGNED = 4_000  # letters of a quotation that is compared letter by letter if the whole is not found
SHORTEST_PART = 8  # letters of the parts of a quotation that show where it may be
ENOUGH = 0.9  # share of the letters of a quotation that must be found
_SHORTEST_BLOCK = 3  # equal letters in a row that are marked
_NEAR = 3.0  # heights of a line: characters that are further apart are in different columns
_DAMAGED = "the page cannot be shown because the PDF is damaged; read the text of the page instead"


class _Character(NamedTuple):
    """A letter or a digit of the page. `number` is the number with which PDFium returns the box of this character."""

    letter: str
    number: int


def page_image(data: bytes, options: ReadOptions) -> PageImage:
    """Return the image of the page `options.page`, and the boxes of `options.quote` on the page.

    A box is (left, top, right, bottom) as shares (0..1) of the width and the height. There are no boxes if the
    characters of the page do not contain the quotation, for example on a scanned page. Raises `DocumentError` if the
    page cannot be shown.
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
            boxes = [*_boxes(page, options.quote, options.position)] if options.quote else []
        height, width = pixels.shape[:2]
        return PageImage(width, height, tuple(boxes), png(pixels))
    except PasswordNeeded:
        raise EncryptedDocument(
            "the PDF is encrypted, and its password is not stored, so its pages cannot be shown; read the stored text",
            "password_needed",
        ) from None
    except (Unreadable, pdfium.PdfiumError, ValueError) as error:
        raise CorruptDocument(_DAMAGED) from error


def png(pixels: Any) -> bytes:
    """Return pixels as a PNG file. `pixels` is a uint8 array of shape (height, width, channels) with 1, 3 or 4
    channels. A fourth channel is left out. An image without colours is stored in gray."""
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


def find(text: str, quote: str, position: int) -> list[tuple[int, int]]:
    """Return the ranges of a quotation in a text. If the quotation occurs several times, the range nearest to
    `position` is returned. If the whole quotation is not in the text, return the ranges in a part of the text that has
    nearly all letters of the quotation in the same order. If there is no such part, the result is empty, because single
    words would mark another sentence."""
    if not quote:
        return []
    if starts := [*_occurrences(text, quote)]:
        start = min(starts, key=lambda start: abs(start - position))
        return [(start, start + len(quote))]
    found = [ranges for start in _likely_starts(text, quote, position) if (ranges := _aligned(text, quote, start))]
    return min(found, key=lambda ranges: abs(ranges[0][0] - position), default=[])


def _likely_starts(text: str, quote: str, position: int) -> list[int]:
    """Return at most three positions at which the quotation probably begins, the most probable first. Each occurrence
    of a part of the quotation is a vote for a position."""
    if len(quote) > MAX_ALIGNED:
        return []
    votes: Counter[int] = Counter()
    width = max(1, len(quote) // 2)
    for at in range(0, len(quote) - SHORTEST_PART + 1, SHORTEST_PART // 2):
        votes.update({max(0, start - at) // width for start in _occurrences(text, quote[at : at + SHORTEST_PART])})
    bins = sorted(votes, key=lambda number: (-votes[number], abs(number * width - position)))
    return [number * width for number in bins[:3]]


def _aligned(text: str, quote: str, start: int) -> list[tuple[int, int]]:
    """Return the ranges that have nearly all letters of the quotation in the same order, in a region of the text near
    `start` that is not much longer than the quotation. The result is empty if too few letters agree."""
    first = max(0, start - len(quote) // 2)
    region = text[first : start + 2 * len(quote) + SHORTEST_PART]
    blocks = SequenceMatcher(None, quote, region, autojunk=False).get_matching_blocks()
    blocks = [block for block in blocks if block.size >= _SHORTEST_BLOCK]
    ends = [-SHORTEST_PART - 1, *(block.b + block.size for block in blocks)]
    starts = [*(block.b for block in blocks[1:]), len(region) + SHORTEST_PART + 1]
    blocks = [  # a short block far from the other blocks is part of another word
        block
        for block, before, after in zip(blocks, ends[:-1], starts, strict=True)
        if block.size >= SHORTEST_PART or min(block.b - before, after - block.b - block.size) <= SHORTEST_PART
    ]
    if sum(block.size for block in blocks) < ENOUGH * len(quote):
        return []
    return [(first + block.b, first + block.b + block.size) for block in blocks]


def _occurrences(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _boxes(page: Any, quote: str, position: int) -> Iterator[Box]:
    """Yield a box for each line of a quotation. `position` is the number of letters and digits before it."""
    with closing(upright_text(page)) as text_page:
        characters = [*_characters(text_page)]
        text = "".join(character.letter for character in characters)
        for start, end in find(text, bare_letters(quote), position):
            numbers = sorted({character.number for character in characters[start:end]})
            boxes = [box for number in numbers if (box := _box(page, text_page, number))]
            angle = math.degrees(raw.FPDFText_GetCharAngle(text_page, numbers[0])) + page.get_rotation()
            turned = round(angle / 90) % 2 == 1  # lines of text run from top to bottom, or from bottom to top
            yield from map(_transposed, _lines(map(_transposed, boxes))) if turned else _lines(boxes)


def _characters(text_page: Any) -> Iterator[_Character]:
    for number in range(min(text_page.count_chars(), MAX_CHARACTERS)):
        code = raw.FPDFText_GetUnicode(text_page, number)
        if code and not 0xD800 <= code < 0xE000:
            for letter in bare_letters(chr(code)):
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
    """Yield boxes for lines: the boxes of neighbours on one line are joined, whatever the direction of writing is."""
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
