"""The names of months and weekdays in many languages, and functions that write dates in these languages."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from functools import lru_cache
from pathlib import Path

_FILE = Path(__file__).with_name("calendar_words.txt")
_LONGEST_ENDING = 8  # letters
_SHORTEST = 4  # letters before a "*"

# Kind and items of each line of the file.
_LINES = [line.partition(": ")[::2] for line in _FILE.read_text("utf-8").splitlines() if line and line[0] != "#"]
_WRITTEN = {kind.removeprefix("day "): items.split(":") for kind, items in _LINES if kind.startswith("day ")}


class _Bare(dict[int, str | int]):
    """A mapping from a code point to its letter without accents. A letter is computed when it is first requested."""

    def __missing__(self, point: int) -> str | int:
        # Hangul would be decomposed into sounds; Indic signs and "й" are letters of their own.
        if not (point < 0x900 or 0x1E00 <= point < 0x2000) or chr(point) in "йЙ":
            return point
        self[point] = letter = unicodedata.normalize("NFD", chr(point))[0]
        return letter


_BARE = _Bare()


def strip_accents(text: str) -> str:
    """Return the text without accents. The number of characters stays the same, so that offsets stay valid."""
    return text if text.isascii() else text.translate(_BARE)


def _table(kind: str) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """Return two mappings from the names of months or weekdays (`kind`) to their numbers; January and Monday are 1. The
    first mapping has whole words, and the second mapping has beginnings of words."""
    whole: dict[str, set[int]] = {}
    beginnings: dict[str, set[int]] = {}
    for row in (items for of_kind, items in _LINES if of_kind == kind):
        for number, forms in enumerate(row.split(), 1):
            for form in strip_accents(forms.casefold()).split("/"):
                (beginnings if form.endswith("*") else whole).setdefault(form.rstrip("*"), set()).add(number)
    return whole, beginnings


_MONTH_TABLE = _table("months")
_WEEKDAY_TABLE = _table("weekdays")


def _numbers(word: str, table: tuple[dict[str, set[int]], dict[str, set[int]]]) -> frozenset[int]:
    whole, beginnings = table
    fold = strip_accents(word.casefold())
    numbers = set(whole.get(fold, ()))
    for size in range(max(_SHORTEST, len(fold) - _LONGEST_ENDING), len(fold) + 1):
        numbers |= beginnings.get(fold[:size], set())
    return frozenset(numbers)


@lru_cache(maxsize=65536)
def months(word: str) -> frozenset[int]:
    """Return the numbers (1 to 12) of the months that the word can mean. In different languages, a word can mean
    different months."""
    return _numbers(word, _MONTH_TABLE)


@lru_cache(maxsize=65536)
def weekdays(word: str) -> frozenset[int]:
    """Return the numbers of the weekdays that the word can mean. Monday is 1 (ISO 8601)."""
    return _numbers(word, _WEEKDAY_TABLE)


def format_day(moment: datetime, language: str) -> str:
    """Return the date of `moment` as it is written in `language`. If the format of the language is unknown, return a
    date such as "2023-05-08"."""
    form, names = _WRITTEN.get(language, ("{year:04}-{number:02}-{day:02}", ""))
    month = names.split()[moment.month - 1] if names else ""
    return form.format(day=moment.day, month=month, year=moment.year, number=moment.month)


def format_range(first: datetime, last: datetime, language: str) -> str:
    """Return a range of dates as it is written in `language`, such as "8 May 2023 – 9 May 2023". If both dates are the
    same day, return one date."""
    return " – ".join(dict.fromkeys((format_day(first, language), format_day(last, language))))
