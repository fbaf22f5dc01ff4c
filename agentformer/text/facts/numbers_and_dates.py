"""Facts in a text: numbers, times, dates and negation. A fact has the same value in every spelling. Facts show
differences that a similarity of words does not show: "Room 12 at 9:00" and "Room 14 at 9:00" have nearly all letters in
common. Units are not compared.

This module decides which numbers are equal: those with the same values, which are strings. `find_numbers` gives the
values of all readings of a number, and `values_of` those of the first reading.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agentformer.text.dates.notation import Day, Mention, find_dates, is_given
from agentformer.text.languages.detection import ANY_NEGATION, ANY_NUMBER_WORD, NEGATIONS, NUMBER_WORDS
from agentformer.text.normalize import normalized

MAX_NUMBER_LENGTH = 40  # code points; a longer run of digits is not read as a number
_NUMBER = re.compile(
    r"(?<!\d)(?:\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,:'’]\d+)*)(?P<half>\s?[ap]\.?\s?m\b\.?)?",
    re.I,
)
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
_SPACED = re.compile(r"(\d{1,3}(?:[ \u00a0\u202f]\d{3})+)([.,]\d+)?")
_GROUPED = re.compile(r"\d{1,3}(?:[.,'’]\d{3})+")
_YEARS = range(1900, 2100)
MASK = "\ufffc"  # replaces each character of a date or number that is already counted
_WORD = re.compile(rf"(?<={MASK})(?:st|nd|rd|th)\b|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)*)", re.IGNORECASE)
LABEL = re.compile(r"\W*[^\W\d_]+\s+(\d+)[\s:,]+[^\W\d_]")  # "Room 12 has", "Huone 12: vapaa"


@dataclass(frozen=True, slots=True)
class Number:
    """A number or a time of day at the positions `[start, end)` of a text. The number has several `readings` if it can
    mean several things: "9.30" can be a decimal or a time. Each reading is a set of values (strings)."""

    start: int
    end: int
    readings: tuple[frozenset[str], ...]

    def within(self, values: frozenset[str] | set[str]) -> bool:
        """Return whether `values` contains all values of at least one reading."""
        return any(reading <= values for reading in self.readings)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a text. `days` are calendar dates, and `weekdays` are names of weekdays. `negated` is True if the
    text contains a negation. `label` is the number that names a thing at the beginning of the text, such as "12" in
    "Room 12 is free". `rest` contains all words that are not numbers or negations. `label` and `rest` are ignored when
    two `Facts` are compared."""

    numbers: frozenset[str]
    days: frozenset[Day]
    weekdays: frozenset[Day]
    negated: bool
    label: str = field(compare=False)
    rest: str = field(compare=False)


def find_numbers(text: str) -> Iterator[Number]:
    """Yield the numbers in `text`, in order. The values in their readings are strings: "1234.5" for a decimal, or "at
    13:56" for a time."""
    plain = ascii_digits(text)
    for match in _NUMBER.finditer(plain):
        if match.end() - match.start() <= MAX_NUMBER_LENGTH:
            half = match["half"] or ""
            written = match[0][: len(match[0]) - len(half)]
            readings = dict.fromkeys(map(frozenset, _readings(written, half.strip().lower()[:1])))
            yield Number(match.start(), match.end(), tuple(readings))


def ascii_digits(text: str) -> str:
    """Return the text, at the same length, with the decimal digits of all scripts replaced by the digits 0 to 9."""
    return text if text.isascii() else _OTHER_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text)


def number_values(text: str) -> frozenset[str]:
    """Return the values of all numbers in the text, including the numbers in dates. Each value has one spelling:
    "1,234.50" and "1 234,5" give "1234.5", and "5 pm" gives "17"."""
    text = normalized("NFKC", text)
    return frozenset(value for number in find_numbers(text) for value in values_of(text, number))


def all_values(numbers: Iterable[Number]) -> set[str]:
    """Return the values of the numbers in all their readings."""
    return {value for number in numbers for reading in number.readings for value in reading}


def facts_of(text: str, language: str) -> Facts:
    """Return the facts of `text`. `language` is the code of its language, such as "en", or "" if it is unknown."""
    text = normalized("NFKC", text)
    dates = find_dates(text)
    text = masked(text, dates)
    label = LABEL.match(text)
    found = list(find_numbers(text))
    numbers = {value for number in found for value in values_of(text, number)}
    number_words, negations = NUMBER_WORDS.get(language, ANY_NUMBER_WORD), NEGATIONS.get(language, ANY_NEGATION)
    negated, rest = False, []
    for word in (match["word"] for match in _WORD.finditer(masked(text, found)) if match["word"]):
        folded = word.casefold().replace("’", "'")
        if folded in number_words:
            numbers.add(number_words[folded])
        elif folded in negations or folded.endswith("n't"):
            negated = True
        else:
            rest.append(word)
    days = frozenset(mention.readings[0] for mention in dates)
    weekdays = frozenset(day for day in days if day.weekday)
    return Facts(frozenset(numbers), days - weekdays, weekdays, negated, label[1] if label else "", " ".join(rest))


def conflict(one: Facts, other: Facts) -> str:
    """Return the kind of contradiction between the facts of two sentences about one subject: "number", "date" or
    "negation". Return "" if the sentences do not contradict each other. A sentence that only adds facts does not
    contradict the other sentence. Sentences about different things do not contradict each other. They are about
    different things in two cases: their labels differ (such as "12" in "Room 12 is free"), or they differ both in a
    number or a date and in a weekday or a year."""
    if one.label != other.label:
        return ""
    numbers = bool(one.numbers - other.numbers and other.numbers - one.numbers)
    days = _has_other_day(one, other) and _has_other_day(other, one)
    weekdays = bool(one.weekdays - other.weekdays and other.weekdays - one.weekdays)
    if (numbers or days) and (weekdays or _differ_in_year(one, other)):
        return ""
    if days or weekdays:
        return "date"
    if numbers:
        return "number"
    return "negation" if one.negated != other.negated else ""


def _readings(written: str, half: str) -> Iterator[set[str]]:
    """Yield each possible meaning of the number `written`, as a set of values. `half` is "a" if a.m. follows the
    number, "p" if p.m. follows the number, and "" otherwise."""
    parts = re.split(r"\D", written)
    marks = [mark for mark in written if not mark.isdigit()]
    yield from ({time} for time in _times(parts, marks, half))
    if not marks:
        yield {_decimal(written)}
        return
    if spaced := _SPACED.fullmatch(written):
        yield {_decimal(re.sub(r"\D", "", spaced[1]), (spaced[2] or ".")[1:])}
    elif _GROUPED.fullmatch(written) and len(set(marks)) == 1:
        yield {_decimal("".join(parts))}
    if len(marks) == 1 and marks[0] in ".,":
        yield {_decimal(*parts)}
        return
    if len(set(marks)) == 2 and marks.count(marks[-1]) == 1 and marks[-1] in ".,":
        yield {_decimal("".join(parts[:-1]), parts[-1])}
    if set(marks) == {"."}:
        yield {".".join(parts)}  # a version number
    yield {_decimal(part) for part in parts}


def _times(parts: list[str], marks: list[str], half: str) -> Iterator[str]:
    """Yield the times that a number can mean: "9:30" without `half` (see `_readings`) is "at 9:30" or "at 21:30"."""
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


def _decimal(whole: str, fraction: str = "") -> str:
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


def values_of(text: str, number: Number) -> list[str]:
    """Return the values of the first reading (possible meaning) of `number`. A minus sign before the number is
    included. A time at a full hour is returned as a plain number: "9:00" gives "9"."""
    before = text[max(0, number.start - 2) : number.start]
    sign = "-" if before and before[-1] in "-−" and not before[:-1].strip() else ""
    return [sign + value.removeprefix("at ").removesuffix(":00") for value in number.readings[0]]


def masked(text: str, found: Sequence[Mention | Number]) -> str:
    """Return the text with `MASK` in place of each character of the dates and numbers in `found`, so that a later
    search does not find them again."""
    characters = list(text)
    for item in found:
        characters[item.start : item.end] = MASK * (item.end - item.start)
    return "".join(characters)


def _has_other_day(one: Facts, other: Facts) -> bool:
    """Return whether `one` contains a date that differs from all dates in `other`. A part of a date does not differ
    from the date: "May 2024" does not differ from "3 May 2024"."""
    return any(not is_given(day, other.days, (day.year,)) for day in one.days)


def _differ_in_year(one: Facts, other: Facts) -> bool:
    only_one, only_other = one.numbers - other.numbers, other.numbers - one.numbers
    years = all(any(map(is_year, numbers)) for numbers in (only_one, only_other))
    return years and (len(only_one) > 1 or len(only_other) > 1)


def is_year(number: str) -> bool:
    """Return whether a number can be a year, from 1900 to 2099."""
    return len(number) == 4 and number.isdecimal() and int(number) in _YEARS
