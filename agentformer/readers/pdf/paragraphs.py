"""Paragraphs from where lines stand on a page: extractors give line ends only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

GAP = 1.35  # of the usual distance between lines; "double" spacing between paragraphs is 1.5 and more
_INDENT = (0.7, 5.0)  # of the letter height: less is noise, more is another column
_SENTENCE_ENDS = frozenset('.!?:;…"”’»)。！？')


class Line(NamedTuple):
    """A line of extracted text and where it stands; `y` grows upwards, as PDF has it. `height` 0: not known."""

    text: str
    x: float = 0.0
    y: float = 0.0
    height: float = 0.0
    right: float = 0.0  # where its last character ends
    last_y: float = 0.0  # of its last row, if a hyphen joined two rows


def with_paragraphs(text: str, lines: Sequence[Line] | None) -> str:
    """The text's lines with LF, a blank line where a paragraph begins, and rows that a raised or lowered
    character split made whole again. Only white space changes."""
    if lines is None or len(lines) < 2:
        return text.replace("\r\n", "\n")
    pitch = _pitch(lines)
    parts = [lines[0].text]
    for number in range(1, len(lines)):
        previous, line = lines[number - 1], lines[number]
        following = lines[number + 1] if number + 1 < len(lines) else None
        same_row = _space_in_row(previous, line)
        if same_row is not None:
            parts.append(same_row)
        else:
            parts.append("\n\n" if pitch and _begins(previous, line, following, pitch) else "\n")
        parts.append(line.text)
    return "".join(parts)


def _space_in_row(previous: Line, line: Line) -> str | None:
    """What belongs between two pieces of one row ("n" and its raised "2"); None if they are two rows."""
    height = max(previous.height, line.height)
    gap = line.x - previous.right
    if not (previous.height and line.height) or abs(previous.last_y - line.y) > 0.5 * height:
        return None
    if not -0.3 * height < gap < 1.0 * height:
        return None
    return "" if gap < 0.12 * height else " "


def _pitch(lines: Sequence[Line]) -> float:
    """The usual distance between two lines of running text, 0 if there is none."""
    steps = [
        a.last_y - b.y
        for a, b in pairwise(lines)
        if a.height and b.height and 0.6 * b.height < a.last_y - b.y < 3.0 * b.height
    ]
    return median(steps) if len(steps) >= 2 else 0.0


def _begins(previous: Line, line: Line, following: Line | None, pitch: float) -> bool:
    if not (previous.height and line.height and previous.text.strip() and line.text.strip()):
        return False
    ended = previous.text.rstrip()[-1] in _SENTENCE_ENDS
    starts_low = line.text.lstrip()[0].islower()
    step = previous.last_y - line.y
    if step < -pitch:  # the next column, in whose first line the sentence may go on
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
