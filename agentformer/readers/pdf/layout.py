"""Analyze the layout of PDF pages: paragraphs, running headers and footers, and the titles of sections.

The outline of the file names titles. Other titles are found by their style: a title is bold, larger than the text of
the page, or in capitals in the center of the page. It is alone in its row, at the left margin or in the center."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, takewhile
from statistics import median
from typing import NamedTuple

from agentformer.text.normalize import clean
from agentformer.types import Heading, Page, Span

GAP = 1.35  # usual line distances; lines further apart are in different paragraphs, whose distance is 1.5 or more
_INDENT = (0.7, 5.0)  # indent of a paragraph in letter heights: less is noise, more is another column
_SENTENCE_ENDS = frozenset('.!?:;…"”’»)。！？')


class Line(NamedTuple):
    """A line of extracted text with its position on the page, in points. `x` and `y` are the position of its first
    character; `y` grows upwards. If `height` is 0, the position is unknown."""

    text: str
    x: float = 0.0
    y: float = 0.0
    height: float = 0.0
    right: float = 0.0  # the x position at which its last character ends
    last_y: float = 0.0  # the y position of its last row, if a hyphen joined two rows
    bold: bool = False  # True if its first and its last letter are bold
    italic: bool = False  # True if its first letter is italic


def with_paragraphs(text: str, lines: Sequence[Line] | None) -> str:
    """Return the text of a page with LF line ends and with a blank line before each paragraph. If a raised or lowered
    character has split a row into several lines, these lines are joined. Only white space changes."""
    if lines is None or len(lines) < 2:
        return text.replace("\r\n", "\n")
    pitch = _pitch(lines)
    parts = [lines[0].text]
    for previous, line, following in zip(lines, lines[1:], [*lines[2:], None], strict=False):
        space = _space_in_row(previous, line)
        if space is None:
            space = "\n\n" if pitch and _begins(previous, line, following, pitch) else "\n"
        parts += (space, line.text)
    return "".join(parts)


def _space_in_row(previous: Line, line: Line) -> str | None:
    """Return the white space between two lines in one row, such as "n" and a raised "2", or None for different rows."""
    height = max(previous.height, line.height)
    gap = line.x - previous.right
    if not (previous.height and line.height) or abs(previous.last_y - line.y) > 0.5 * height:
        return None
    if not -0.3 * height < gap < 1.0 * height:
        return None
    return "" if gap < 0.12 * height else " "


def _pitch(lines: Sequence[Line]) -> float:
    """Return the usual distance between two lines of a paragraph, in points, or 0 if there are too few lines."""
    steps = ((a.last_y - b.y, b.height) for a, b in pairwise(lines) if a.height and b.height)
    usual = [step for step, height in steps if 0.6 * height < step < 3.0 * height]
    return median(usual) if len(usual) >= 2 else 0.0


def _begins(previous: Line, line: Line, following: Line | None, pitch: float) -> bool:
    """Return whether a line begins a paragraph: after a gap, in a new column, in another size, or with an indent. The
    line must not continue a sentence. `pitch` is the usual distance between two lines, in points."""
    if not (previous.height and line.height and previous.text.strip() and line.text.strip()):
        return False
    ended = previous.text.rstrip()[-1] in _SENTENCE_ENDS
    starts_low = line.text.lstrip()[0].islower()
    step = previous.last_y - line.y
    if step < -pitch:  # the next column, whose first line may continue the sentence
        return ended and not starts_low
    if step > 2.0 * pitch:
        return ended or not starts_low
    if step > GAP * pitch:
        return not starts_low
    resized = abs(line.height - previous.height) > 0.15 * previous.height
    if resized and step > 0.8 * pitch and not starts_low and not previous.text.rstrip().endswith(("-", ",", "\ufffe")):
        return True
    indent = line.x - previous.x
    low, high = _INDENT
    if not ended or starts_low or not low * line.height < indent < high * line.height:
        return False
    return following is None or not following.height or line.x - following.x > low * line.height


_EDGE_LINES = 5  # a letterhead or report header of four lines and a rule
_WINDOW = 6  # pages compared on each side; chapter headers change
_LEAST = 3  # pages with the same line that make it a running line
_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")
_LETTERS = 12  # a line with at least this many letters is compared without its numbers; "Step 3" may be a slide's title
_DATE = 6  # least length of a repeated line without letters, such as a date or a document number
_MAX_LINE = 200


def bodies(texts: Sequence[str]) -> list[Span | None]:
    """Return a span for each page: the text of the page without running headers and footers. The span is None if the
    page has no running header or footer, or if it has no other text."""
    lines = [[*re.finditer(r"\S[^\n]*", text)] for text in texts]
    tops = [[_line_keys(line[0], n) for line in page[:_EDGE_LINES]] for n, page in enumerate(lines)]
    ends = [[_line_keys(line[0], n) for line in page[::-1][:_EDGE_LINES]] for n, page in enumerate(lines)]
    result: list[Span | None] = []
    for n, page in enumerate(lines):
        above, below = _running(tops, n), _running(ends, n)
        body = page[above : len(page) - below] if above + below else []
        result.append(Span(body[0].start(), body[-1].end()) if body else None)
    return result


def _line_keys(text: str, page: int) -> frozenset[str]:
    """Return the keys of a line, which are used to find running headers and footers. Two lines on different pages are
    equal if they share a key. The keys are the text of the line, the text in which a number is replaced by its distance
    from the page number, and for a long line the text without its numbers."""
    line = " ".join(text[:_MAX_LINE].casefold().split())
    pattern = _NUMBER.sub("#", line)
    letters = sum(c.isalpha() for c in pattern)
    keys = {f"={line}"} if letters or len(line) >= _DATE else set()
    keys.update(f"{pattern}+{int(n) - page}" for n in _NUMBER.findall(line) if n.isdecimal() and len(n) < 7)
    if letters >= _LETTERS:
        keys.add(pattern)
    return frozenset(keys)


def _running(edges: Sequence[list[frozenset[str]]], page: int) -> int:
    """Return how many lines at the top of a page are running headers, or how many lines at the bottom are running
    footers. `edges[page]` contains the lines at this end of the page, each as the set of its keys (`_line_keys`)."""
    first, last = max(0, page - _WINDOW), min(len(edges), page + _WINDOW + 1)
    seen: Counter[str] = Counter()
    for other in edges[first:last]:
        seen.update({key for keys in other for key in keys})
    return sum(1 for _ in takewhile(lambda keys: any(seen[key] >= _LEAST for key in keys), edges[page]))


MAX_TITLE = 300
MAX_LEVEL = 9


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """An entry of the outline (the table of contents) of a PDF file."""

    page: int  # from 0
    level: int  # from 1
    title: str
    found: bool = False  # True if the title is from the text of the page, and not from the outline


def page_headings(pages: list[Page], outline: Iterable[OutlineEntry]) -> list[Page]:
    """Return the pages with the entries of the outline as their headings, in the order of the text. An entry with
    `found` is a title from the text of a page. It is left out if the body of the page does not contain it, because it
    is then a running header or footer."""
    by_page: dict[int, list[Heading]] = {}
    titled: set[int] = set()
    for entry in outline:
        if title := " ".join(clean(entry.title).split())[:MAX_TITLE]:
            headings = by_page.setdefault(entry.page, [])
            after = headings[-1].start + 1 if headings and headings[-1].start else 0
            locate = _locate_found if entry.found else _locate
            start = locate(title, pages[entry.page], after)
            if start is not None:
                level = MAX_LEVEL - 1 if entry.found and entry.page not in titled else min(entry.level, MAX_LEVEL)
                titled |= {entry.page} if entry.found else set()
                headings.append(Heading(title, level, start))
    result = list(pages)
    for number, headings in by_page.items():
        result[number] = replace(pages[number], headings=tuple(sorted(headings, key=lambda h: h.start)))
    return result


# A number before a title: "2", "2.1.", "A", "A.3" or "IV.". It is on the line of the title.
_TITLE_NUMBER = r"(?-i:(?:\d[\d.]*|[A-Z](?:\.\d+)*\.?|[IVXLC]+\.)[ \t]+)"


def _locate(title: str, page: Page, after: int) -> int:
    """Return the offset of a title in the text of a page. If the page does not contain the title, return the offset at
    which the body of the page starts. The text after the offset `after` is searched first. A number before the title,
    such as "2.1", may be missing on the page or in the outline."""
    words = line_pattern(title)
    bare = line_pattern(re.sub(r"^[\d.]+\s+", "", title))
    line = rf"(?m)^[ \t]*{_TITLE_NUMBER}?"
    for pattern in (f"{line}{words}", f"{line}{bare}", words):
        for start in (after, 0):
            if match := re.compile(pattern, re.IGNORECASE).search(page.text, start):
                return match.start() + len(match.group()) - len(match.group().lstrip())
    return page.body.start if page.body else 0


def _locate_found(title: str, page: Page, after: int) -> int | None:
    """Return the offset of the lines of the body that consist of the title, or None. The search begins at `after`."""
    body = page.body or Span(0, len(page.text))
    match = re.compile(rf"(?m)^[ \t]*({line_pattern(title)})[ \t]*$").search(
        page.text, max(after, body.start), body.end
    )
    return match.start(1) if match else None


def line_pattern(title: str) -> str:
    """Return a regular expression for this text with any white space between its words."""
    return r"\s+".join(re.escape(word) for word in title.split())


MAX_TITLES = 20  # titles of a page; a page with more is a list or a table in bold type
_LONGEST_TITLE = 150  # code points; a longer bold text is a sentence
_SAME = 0.05  # share of the height: the largest difference in height of two lines in one style
_LARGER = 1.15  # a line is larger if its height is at least this many times the usual height of the page
_MARGIN = 4.0  # times the height of the line: the largest distance of a title from the left margin
_CENTER = 0.02  # times the width of the page: the largest distance of a centered title from the center of the page
_MOSTLY = 0.5  # share of bold letters on a page, above which bold type is the usual type of the page
_FULL = 0.75  # share of the width of the text: a longer line may continue in the next line
_WRAP = 1.6  # times the height of the line: the largest distance of the next line of the same title
_SUM = re.compile(r"\d[.,]\d|[$€£¥%]|\d\)|\d\s+\d|\d{4}\D+\d{4}")  # an amount, or two years above columns
_DATE_LINE = re.compile(r"(?:\w+\.? )?\d{1,2}[,.]? (?:\w+ )?\d{4}\b|(?:\w+\.? )?\d{1,2},$")


class Title(NamedTuple):
    """A title on a page. The level is 0 for the first title of the page, and for titles whose style is not smaller than
    that of the first. It is 1 for the other titles."""

    text: str
    level: int


class _Style(NamedTuple):
    """The style of a title. Styles are compared field by field. The title with the greater style begins an outer
    section."""

    height: float  # in points
    centered: bool
    upright: bool


class _Page(NamedTuple):
    """The usual style and the borders of the text of a page, with which lines are compared to find titles."""

    width: float  # width of the sheet, in points
    left: float  # border of the text
    right: float
    height: float  # height of most letters
    bold: bool  # most letters are bold
    rows: Counter[int]  # number of lines at each height above the bottom of the page, in points


def page_titles(lines: Sequence[Line], width: float) -> list[Title]:
    """Return the titles of a page in the order of the text. `width` is the width of the page, in points. If there are
    more than `MAX_TITLES`, only the titles of the outermost style are returned, or none if these are too many."""
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
    """Return the style that most letters of a page have, and the borders of its text."""
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
    if not 3 <= len(text) <= _LONGEST_TITLE or text[-1] in ".,;:" or not text[0].isalnum() or text[0].islower():
        return False
    letters = sum(map(str.isalpha, text))
    return letters >= max(3, len(text) // 2) and not _SUM.search(text) and not _DATE_LINE.match(text)
