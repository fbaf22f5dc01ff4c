"""The numbers and times of day that a text gives, each in one form however it is written.

Signs and units are left aside: "-5 °C" may well be told as "five degrees below zero".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST = 40  # code points; a longer run is data, which nobody reads as a number
_NUMBER = re.compile(
    r"(?<!\d)(?:\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,:'’]\d+)*)(?P<half>\s?[ap]\.?\s?m\b\.?)?",
    re.I,
)
_SPACED = re.compile(r"(\d{1,3}(?:[ \u00a0\u202f]\d{3})+)([.,]\d+)?")
_GROUPED = re.compile(r"\d{1,3}(?:[.,'’]\d{3})+")


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text at `[start, end)`. It is known when all values of one of its `readings` are."""

    start: int
    end: int
    readings: tuple[frozenset[str], ...]

    def within(self, known: frozenset[str] | set[str]) -> bool:
        return any(reading <= known for reading in self.readings)


def find_numbers(text: str) -> Iterator[Number]:
    """The numbers of `text` in order; values are plain decimals ("1234.5") and times ("at 13:56")."""
    plain = ascii_digits(text)
    for match in _NUMBER.finditer(plain):
        if match.end() - match.start() <= LONGEST:
            half = match["half"] or ""
            written = match[0][: len(match[0]) - len(half)]
            readings = dict.fromkeys(frozenset(each) for each in _readings(written, half.strip().lower()[:1]))
            yield Number(match.start(), match.end(), tuple(readings))


def ascii_digits(text: str) -> str:
    """The text with the digits of every script as 0 to 9, letter for letter."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(c)) if c > "\x7f" and c.isdecimal() else c for c in text)


def _readings(written: str, half: str) -> Iterator[set[str]]:
    """What `written` may mean; `half` is "a" or "p" where a.m. or p.m. follows."""
    parts = re.split(r"\D", written)
    marks = [mark for mark in written if not mark.isdigit()]
    yield from ({time} for time in _times(parts, marks, half))
    if not marks:
        yield {_whole(written)}
        return
    if spaced := _SPACED.fullmatch(written):
        yield {_decimal(re.sub(r"\D", "", spaced[1]), (spaced[2] or ".")[1:])}
    elif _GROUPED.fullmatch(written) and len(set(marks)) == 1:
        yield {_whole("".join(parts))}
    if len(marks) == 1 and marks[0] in ".,":
        yield {_decimal(*parts)}
        return
    if len(set(marks)) == 2 and marks.count(marks[-1]) == 1 and marks[-1] in ".,":
        yield {_decimal("".join(parts[:-1]), parts[-1])}
    if set(marks) == {"."}:
        yield {".".join(parts)}  # a version
    yield {_whole(part) for part in parts}


def _times(parts: list[str], marks: list[str], half: str) -> Iterator[str]:
    clock = len(parts) in (2, 3) and set(marks) <= {":", "."} and all(len(part) == 2 for part in parts[1:])
    if not (clock or (half and len(parts) == 1)):
        return
    hour, minute = int(parts[0]), int(parts[1]) if clock else 0
    if hour > 23 or minute > 59:
        return
    if half:
        yield f"at {hour % 12 + (12 if half == 'p' else 0)}:{minute:02}"
    else:
        yield f"at {hour}:{minute:02}"
        if 1 <= hour <= 12:
            yield f"at {(hour + 12) % 24}:{minute:02}"


def _whole(digits: str) -> str:
    return digits.lstrip("0") or "0"


def _decimal(whole: str, fraction: str) -> str:
    fraction = fraction.rstrip("0")
    return f"{_whole(whole)}.{fraction}" if fraction else _whole(whole)
