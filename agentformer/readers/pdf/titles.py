"""Find the titles of sections in the lines of a PDF page. A title is bold, larger than the text of the page, or in
capitals in the center of the page. It stands alone in its row, at the left margin or in the center."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from agentformer.readers.pdf.layout import MAX_LEVEL, Line, OutlineEntry

MAX_TITLES = 20  # titles of a page; a page with more is a list or a table in bold type
_MAX_TITLE = 150  # code points; a longer bold text is a sentence
_SAME = 0.05  # share of the height: the largest difference of two lines in one style
_LARGER = 1.15  # a line is larger if its height is so many times the usual height of the page
_MARGIN = 4.0  # times the height of the line: the largest distance of a title from the left margin
_CENTER = 0.02  # times the width of the page: the largest distance of a centered title from the center of the page
_MOSTLY = 0.5  # share of bold letters on a page, above which bold type is the usual type of the page
_FULL = 0.75  # share of the width of the text: a longer line may continue in the next line
_WRAP = 1.6  # times the height of the line: the largest distance of the next line of the same title
_SUM = re.compile(r"\d[.,]\d|[$€£¥%]|\d\)|\d\s+\d|\d{4}\D+\d{4}")  # or two years, the heads of columns
_DATE = re.compile(r"(?:\w+\.? )?\d{1,2}[,.]? (?:\w+ )?\d{4}\b|(?:\w+\.? )?\d{1,2},$")


class Title(NamedTuple):
    """A title on a page. The level is 0 for the first title of the page, and for titles whose style is not smaller than
    that of the first. It is 1 for the other titles."""

    text: str
    level: int


class _Style(NamedTuple):
    """The style of a title. Styles are compared by their fields in this order. The title with the greater style belongs
    to the outer section."""

    height: float  # in points
    centered: bool
    upright: bool


class _Page(NamedTuple):
    """The usual style of the letters on a page, and the borders of its text, with which each line is compared to find
    titles."""

    width: float  # width of the sheet, in points
    left: float  # border of the text
    right: float
    height: float  # height of most letters
    bold: bool  # most letters are bold
    rows: Counter[int]  # number of lines at each height above the bottom of the page, in points


def page_titles(lines: Sequence[Line], width: float) -> list[Title]:
    """Return the titles of a page in the order of the text. `width` is the width of the page, in points. If there are
    more than `MAX_TITLES`, only the titles of the outermost style are returned, or no titles if these are too many as
    well."""
    placed = [line for line in lines if line.height > 0 and line.text.strip()]
    if not placed:
        return []
    found = [(text, style) for text, style in _joined(placed, _page(placed, width)) if _is_title(text)]
    if len(found) > MAX_TITLES:
        greatest = max(style for _, style in found)
        found = [(text, style) for text, style in found if not _is_smaller(style, greatest)]
    if not found or len(found) > MAX_TITLES:
        return []
    return [Title(text, int(_is_smaller(style, found[0][1]))) for text, style in found]


def with_titles(outline: Sequence[OutlineEntry], titles: Sequence[Sequence[Title]]) -> list[OutlineEntry]:
    """Return the entries of the outline, followed by the titles of the pages as further entries with deeper levels.
    `titles` has a list of titles for each page. A title is left out if the outline has an entry with the same text on
    the same page."""
    named = {(entry.page, entry.title.casefold()) for entry in outline}
    above = (replace(entry, level=min(entry.level, MAX_LEVEL - 2)) for entry in outline)
    below = (
        OutlineEntry(page, MAX_LEVEL - 1 + title.level, title.text, found=True)
        for page, of_page in enumerate(titles)
        for title in of_page
        if (page, title.text.casefold()) not in named
    )
    return [*above, *below]


def _page(lines: Sequence[Line], width: float) -> _Page:
    heights: Counter[float] = Counter()
    bold = letters = 0
    for line in lines:
        size = len(line.text)
        heights[round(line.height, 1)] += size
        letters += size
        bold += size * line.bold
    left, right = min(line.x for line in lines), max(line.right for line in lines)
    rows = Counter(round(line.y) for line in lines)
    return _Page(width, left, right, heights.most_common(1)[0][0], bold > _MOSTLY * letters, rows)


def _joined(lines: Sequence[Line], page: _Page) -> Iterator[tuple[str, _Style]]:
    """Yield the text and the style of each title. The lines of a title with several lines are joined."""
    texts: list[str] = []
    style, last = None, lines[0]
    for line in chain(lines, [None]):
        own = _style(line, page) if line else None
        if line and own and texts and style and own[1:] == style[1:] and _continues(last, line, page):
            texts.append(line.text)
        else:
            if texts and style:
                yield " ".join(" ".join(texts).split()), style
            texts = [line.text] if line and own else []
        style, last = own, line or last


def _style(line: Line, page: _Page) -> _Style | None:
    """Return the style of the line if the line looks like a title, else None."""
    indent = line.x - page.left
    off_center = abs((line.x + line.right) / 2 - page.width / 2)
    centered = off_center <= _CENTER * page.width and indent > line.height
    marked = line.height >= _LARGER * page.height or (line.bold and not page.bold)
    if not marked and not (centered and line.text.isupper()):
        return None
    if (not centered and indent > _MARGIN * line.height) or page.rows[round(line.y)] > 1:
        return None
    return _Style(line.height, centered, not line.italic)


def _is_smaller(style: _Style, other: _Style) -> bool:
    if abs(style.height - other.height) > _SAME * other.height:
        return style.height < other.height
    return style[1:] < other[1:]


def _continues(previous: Line, line: Line, page: _Page) -> bool:
    full = previous.right - page.left > _FULL * (page.right - page.left)
    same = abs(previous.height - line.height) <= _SAME * line.height
    return full and same and 0 < previous.last_y - line.y < _WRAP * line.height


def _is_title(text: str) -> bool:
    if not 3 <= len(text) <= _MAX_TITLE or text[-1] in ".,;:" or not text[0].isalnum() or text[0].islower():
        return False
    letters = sum(map(str.isalpha, text))
    return letters >= max(3, len(text) // 2) and not _SUM.search(text) and not _DATE.match(text)
