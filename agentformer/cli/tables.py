"""Tables in a terminal's cells: what a person sees takes the width that it has on the screen."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Sequence

_GAP = "  "
_READABLE = 24  # cells that the last column needs beside the others; with less, a longer one goes to a line of its own
_INDENT = "    "
_JOINER = "\u200d"
_AS_EMOJI = "\ufe0f"
_SKIN = range(0x1F3FB, 0x1F400)
_JOINED_JAMO = range(0x1160, 0x1200)  # vowels and ends of a Hangul syllable that stands in the cell before


def clusters(text: str) -> Iterator[tuple[str, int]]:
    """What is seen as one character, and its cells: accents, skin tones and joined emoji belong to what they follow."""
    seen, cells = "", 0
    for letter in text:
        joined = seen.endswith(_JOINER) and ord(letter) > 0x2000
        if seen and (joined or _belongs(letter, cells)):
            seen += letter
            cells = 2 if letter == _AS_EMOJI else cells
            continue
        if seen:
            yield seen, cells
        seen, cells = letter, _cells(letter)
    if seen:
        yield seen, cells


def width(text: str) -> int:
    """Cells of a terminal that a line takes."""
    return len(text) if text.isascii() else sum(cells for _, cells in clusters(text))


def clip(text: str, cells: int) -> str:
    """The text in at most `cells` cells, the last of which is an ellipsis where something is left out."""
    if width(text) <= cells:
        return text
    kept, used = "", 0
    for seen, size in clusters(text):
        if used + size > cells - 1:
            break
        kept, used = kept + seen, used + size
    return f"{kept.rstrip()}…" if cells > 0 else ""


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = (), cells: int | None = None
) -> Iterator[str]:
    """The lines of a table; columns in `right` are numbers. With `cells`, the width of a terminal, it has headings
    and its last column is cut to fit; without, it is for a program: rows alone, with nothing cut."""
    lines = [[_one_line(cell) for cell in row] for row in rows]
    shown = [list(headings), *lines] if cells and lines else lines
    sizes = [max(width(row[n]) for row in shown) for n in range(len(headings) - 1)] if shown else []
    taken = sum(sizes) + len(_GAP) * len(sizes)
    room = max((width(row[-1]) for row in shown), default=0) if cells is None else cells - taken
    below = room < _READABLE and any(width(row[-1]) > room for row in shown)
    for row in shown:
        *first, last = row
        padded = _GAP.join(
            _padded(cell, size, n in right) for n, (cell, size) in enumerate(zip(first, sizes, strict=True))
        )
        if below:
            yield padded.rstrip()
            if last:
                yield _INDENT + clip(last, (cells or 0) - len(_INDENT))
        else:
            yield f"{padded}{_GAP if first else ''}{clip(last, room)}".rstrip()


def _padded(text: str, size: int, right: bool) -> str:
    blank = " " * (size - width(text))
    return blank + text if right else text + blank


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _belongs(letter: str, before: int) -> bool:
    """Does the letter stand in the cells of the one before it, which has `before` of them?"""
    if ord(letter) in _SKIN:
        return before == 2
    return not letter.isascii() and _cells(letter) == 0


def _cells(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.category(letter) in ("Mn", "Me", "Cf") or ord(letter) in _JOINED_JAMO:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1
