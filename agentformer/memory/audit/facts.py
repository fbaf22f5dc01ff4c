"""What a text states that likeness of words does not see: its numbers, its dates, and whether it denies.

"Room 12 at 9:00" and "Room 14 at 9:00" share nearly all letters and say different things.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from agentformer.memory.summaries.numbers import Number, find_numbers
from agentformer.text.dates.dates import Day, Mention, find_dates, is_given
from agentformer.text.negations import ANY_NEGATION, ANY_NUMBER_WORD, NEGATIONS, NUMBER_WORDS

_YEARS = range(1900, 2100)
_MASK = "\ufffc"  # stands for each character of a date or number that is told already
_WORD = re.compile(rf"(?<={_MASK})(?:st|nd|rd|th)\b|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)*)", re.IGNORECASE)
_LABEL = re.compile(r"\W*[^\W\d_]+\s+(\d+)[\s:,]+[^\W\d_]")  # "Room 12 has", "Huone 12: vapaa"


@dataclass(frozen=True, slots=True)
class Facts:
    """`label` is the number in a subject such as "Room 12 ..."; `rest` is the words that state none of the others."""

    numbers: frozenset[str]
    days: frozenset[Day]
    weekdays: frozenset[Day]
    denies: bool
    label: str
    rest: str


def figures(text: str) -> frozenset[str]:
    """The text's numbers, those of its dates too, each in one spelling: 1,234.50 and 1 234,5 are 1234.5, and 5 pm,
    17:00 and 17 are 17. No language is needed."""
    text = unicodedata.normalize("NFKC", text)
    return frozenset(value for number in find_numbers(text) for value in _values(text, number))


def facts(text: str, language: str) -> Facts:
    """What `text`, in `language` ("" when unknown), states in numbers, dates and denial."""
    text = unicodedata.normalize("NFKC", text)
    dates = find_dates(text)
    text = _masked(text, dates)
    label = _LABEL.match(text)
    found = list(find_numbers(text))
    numbers = {value for number in found for value in _values(text, number)}
    counts, denials = NUMBER_WORDS.get(language, ANY_NUMBER_WORD), NEGATIONS.get(language, ANY_NEGATION)
    denies, rest = False, []
    for word in (match["word"] for match in _WORD.finditer(_masked(text, found)) if match["word"]):
        folded = word.casefold().replace("’", "'")
        if folded in counts:
            numbers.add(counts[folded])
        elif folded in denials or folded.endswith("n't"):
            denies = True
        else:
            rest.append(word)
    days = frozenset(mention.readings[0] for mention in dates)
    weekdays = frozenset(day for day in days if day.weekday)
    return Facts(frozenset(numbers), days - weekdays, weekdays, denies, label[1] if label else "", " ".join(rest))


def same_facts(one: Facts, other: Facts) -> bool:
    """Do both state the same numbers, dates and denial?"""
    return (one.numbers, one.days, one.weekdays, one.denies) == (
        other.numbers,
        other.days,
        other.weekdays,
        other.denies,
    )


def clash(one: Facts, other: Facts) -> str:
    """How two sentences about the same thing exclude each other: "number", "date", "negation", or "" not at all.

    One that only says more than the other does not; nor do two with labels, days of the week or years of their
    own: these speak of different rooms, days or years.
    """
    if one.label != other.label:
        return ""
    numbers = bool(one.numbers - other.numbers and other.numbers - one.numbers)
    days = _other_day(one, other) and _other_day(other, one)
    weekdays = bool(one.weekdays - other.weekdays and other.weekdays - one.weekdays)
    if (numbers or days) and (weekdays or _other_year(one, other)):
        return ""
    if days or weekdays:
        return "date"
    if numbers:
        return "number"
    return "negation" if one.denies != other.denies else ""


def _other_day(one: Facts, other: Facts) -> bool:
    """Does `one` give a date that is none of the other's, nor a part of one?"""
    return any(not is_given(day, other.days, (day.year,)) for day in one.days)


def _other_year(one: Facts, other: Facts) -> bool:
    """Does each speak of a year of its own, and of something else that differs too?"""
    ours, theirs = one.numbers - other.numbers, other.numbers - one.numbers
    years = all(any(_is_year(number) for number in numbers) for numbers in (ours, theirs))
    return years and (len(ours) > 1 or len(theirs) > 1)


def _is_year(number: str) -> bool:
    return len(number) == 4 and number.isdecimal() and int(number) in _YEARS


def _values(text: str, number: Number) -> list[str]:
    """A number's values by its first reading, a full hour as the number it is, with a sign that stands before it."""
    before = text[max(0, number.start - 2) : number.start]
    sign = "-" if before and before[-1] in "-−" and not before[:-1].strip() else ""
    return [sign + value.removeprefix("at ").removesuffix(":00") for value in number.readings[0]]


def _masked(text: str, told: Sequence[Mention | Number]) -> str:
    letters = list(text)
    for each in told:
        letters[each.start : each.end] = _MASK * (each.end - each.start)
    return "".join(letters)
