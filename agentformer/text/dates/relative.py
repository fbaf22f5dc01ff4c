"""Read time phrases, such as "two weeks ago", and compute the days that a phrase means. The phrases of a language are
in the section `time` of its file, such as `text/languages/en.toml`. A week begins on Monday.

`unspaced_ranges` finds phrases in Japanese text, which has no spaces between words. The module `expressions` finds the
phrases of all other languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache, lru_cache
from typing import NamedTuple

from agentformer.text.dates.notation import strip_accents
from agentformer.text.language_files import items_of, sections

UNITS = ("day", "week", "weekend", "month", "year")  # the number of a unit is its position, from 1
SLOTS = ("{n}", "{unit}", "{weekday}", "{month}", "{year}")
UNSPACED = "ja"  # the language that is matched by characters
ONE_DAY = timedelta(days=1)

DaySpan = tuple[date, date]  # first and last day

_PLAIN_YEARS = range(1900, 2100)  # plausible years after "in"
_ELEMENT = re.compile(r"\{\w+\}|[^\s{}]+")


@dataclass(frozen=True, slots=True)
class DateRange:
    """The days from `first` to `last` (inclusive) that a text names. The characters `[start, end)` of the text name
    them.

    `relative` is True if the days were computed from another day, as for "yesterday". `border` is True if a word such
    as "before" precedes the date, so that the date only limits a period."""

    start: int
    end: int
    first: date
    last: date
    relative: bool = False
    border: bool = False


class Phrase(NamedTuple):
    """A time phrase, as a sequence of words. A slot such as "{unit}" is a variable word. `kind` and `number` say which
    days the phrase means: "week" and -1 for "last week". The section `time` of `en.toml` lists the kinds."""

    language: str
    kind: str
    number: int
    words: tuple[str, ...]
    literals: frozenset[str]  # the words that are not slots
    slots: frozenset[str]


@dataclass(frozen=True, slots=True)
class Words:
    """The words of time phrases in one language. The dictionaries map a word to a number: in `units`, 1 is a day and 5
    a year; in `numbers`, it is the value of the word; in `months`, 1 is January."""

    units: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    months: dict[str, int] = field(default_factory=dict)
    borders: set[str] = field(default_factory=set)
    articles: set[str] = field(default_factory=set)
    phrases: list[Phrase] = field(default_factory=list)


@cache
def phrase_tables() -> Mapping[str, Words]:
    """Return a mapping from the code of each language to its time words. All words are folded by `fold`."""
    by_language: dict[str, Words] = {}
    for language, kind, number, text in _written():
        items = [fold(item) for item in items_of(text)]
        words = by_language.setdefault(language, Words())
        if kind in ("unit", "number"):
            (words.units if kind == "unit" else words.numbers).update(dict.fromkeys(items, number))
        elif kind == "months":
            words.months.update((form, place) for place, item in enumerate(items, number) for form in item.split("/"))
        elif kind in ("border", "article"):
            (words.borders if kind == "border" else words.articles).update(items)
        else:
            for elements in map(tuple, map(_ELEMENT.findall, items)):
                slots = frozenset(elements) & frozenset(SLOTS)
                words.phrases.append(Phrase(language, kind, number, elements, frozenset(elements) - slots, slots))
    return by_language


def _written() -> Iterator[tuple[str, str, int, str]]:
    """Yield the language, the kind, the number and the items of each list of time words."""
    for language, kinds in sections("time").items():
        for kind, written in kinds.items():
            for number, text in ({"1": written} if isinstance(written, str) else written).items():
                yield language, kind, int(number), text


def fold(text: str) -> str:
    """Return the text in lower case and without accents. The number of characters stays the same, so that offsets stay
    valid. For this reason, "ß" does not become "ss"."""
    plain = strip_accents(text)
    whole = plain.casefold()
    if len(whole) == len(plain):
        return whole
    return "".join(short if len(short := letter.casefold()) == 1 else letter for letter in plain)


class Slots(NamedTuple):
    """The values of the slots (variable words) of a phrase. A value is 0 if the phrase does not have this slot."""

    n: int = 0
    unit: int = 0
    weekday: int = 0
    month: int = 0
    year: int = 0


def calendar_days(year: int, month: int, day: int) -> DaySpan | None:
    """Return the first and the last day of a date (a whole month if `day` is 0), or None if it does not exist."""
    try:
        first = date(year, month, day or 1)
        return first, first if day else _end_of_month(first)
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=1024)
def nearest_occurrence(month: int, day: int, on: date | None, past: bool) -> DaySpan | None:
    """Return the first and the last day of the occurrence of a date without a year that is nearest to the day `on`.
    With `past`, return the last occurrence that has begun on or before this day. If `day` is 0, the date is a whole
    month. Return None if `on` is None."""
    if on is None:
        return None
    spans = [days for year in range(on.year - 8, on.year + 9) if (days := calendar_days(year, month, day))]
    if past:
        spans = [days for days in spans if days[0] <= on][-1:]
    # Of past and future days that are equally near, the past ones, because texts mention the past more often.
    return min(spans, key=lambda days: max((days[0] - on).days * 2 + 1, (on - days[1]).days * 2, 0), default=None)


def resolve(kind: str, number: int, slots: Slots, on: date | None, past: bool) -> DaySpan | None:
    """Return the first and the last day that a phrase means on the day `on`, or None if the phrase means no days.
    `kind` and `number` are fields of `Phrase`, and `slots` are the values of its variable words. With `past`, a month
    without a year is never in the future."""
    if kind == "in-year":
        return date(slots.year, 1, 1), date(slots.year, 12, 31)
    if on is None:
        return None
    try:
        if kind in ("ago", "ahead"):
            count = slots.n or number
            return _unit(UNITS[slots.unit - 1], -count if kind == "ago" else count, on)
        if kind == "past":
            return _unit(UNITS[slots.unit - 1], -slots.n, on, until=on)
        if kind == "weekday":
            return _weekday(slots.weekday, number, on)
        if kind == "of":
            day = _monday(on) + timedelta(days=7 * number + slots.weekday - 1)
            return day, day
        if kind == "named" and number < 0:  # excludes the current month
            return nearest_occurrence(slots.month, 0, on.replace(day=1) - ONE_DAY, past=True)
        if kind == "named":
            return nearest_occurrence(slots.month, 0, on, past)
        return _unit(kind, number, on) if kind in UNITS else None
    except (OverflowError, ValueError):
        return None


def _unit(unit: str, number: int, on: date, until: date | None = None) -> DaySpan:
    """Return the first and the last day of the unit (such as "week") that is `number` units after the unit of the day
    `on`. A negative `number` means units before: last week is week -1. With `until`, return the days from `number`
    units after `on` to `until`."""
    if unit == "day":
        first = last = on + timedelta(days=number)
    elif unit == "week":
        first = on + timedelta(days=7 * number)
        first, last = (first, first) if until else (_monday(first), _monday(first) + timedelta(days=6))
    elif unit == "weekend":
        first = _monday(on) + timedelta(days=7 * number + 5)
        last = first + ONE_DAY
    else:
        year, month = divmod(on.year * 12 + on.month - 1 + number * (12 if unit == "year" else 1), 12)
        first = date(year, month + 1, 1)
        last = date(year + 1, 1, 1) - ONE_DAY if unit == "year" else _end_of_month(first)
        if unit == "year" and not until:
            first = first.replace(month=1)
        if until:
            first = first.replace(day=min(on.day, _end_of_month(first).day))
    return (first, until) if until else (first, last)


def _end_of_month(day: date) -> date:
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1) - ONE_DAY


def _monday(day: date) -> date:
    return day - timedelta(days=day.weekday())


def _weekday(weekday: int, number: int, on: date) -> DaySpan:
    """Return the next day after `on` that is this weekday, if `number` is positive. Otherwise return the last day
    before `on` that is this weekday. The result is the same day twice, as first and last day."""
    ahead = (weekday - on.isoweekday()) % 7 or 7
    day = on + timedelta(days=ahead if number > 0 else ahead - 7 if ahead < 7 else -7)
    return day, day


def number_value(word: str, words: Words) -> int:
    """Return the number that is written as a word or with up to three digits. Return 0 for any other text."""
    if word.isdecimal():
        return int(word) if len(word) <= 3 else 0  # "5000 days ago" is a figure of speech
    return words.numbers.get(word, 0)


def year_value(word: str) -> int:
    """Return a plausible year that is written with four digits. Return 0 for any other text."""
    return int(word) if len(word) == 4 and word.isdecimal() and int(word) in _PLAIN_YEARS else 0


_WEEKDAYS = "月火水木金土日"
_SLOTS = {
    "{n}": r"(?<!\d)(?P<n{i}>\d{{1,3}}|[一二三四五六七八九十]{{1,2}})",
    "{unit}": "(?P<unit{i}>{units})",
    "{weekday}": f"(?P<weekday{{i}}>[{_WEEKDAYS}])曜日?",
    "{year}": r"(?<!\d)(?P<year{i}>\d{{4}})",
}


def unspaced_ranges(text: str, on: date | None) -> Iterator[DateRange]:
    """Yield the date ranges of the time phrases in Japanese text. All phrases are relative to the day `on`, except
    years ("2023年", the kind "in-year"). No phrase has a slot for a month, so `past` of `resolve` does not matter."""
    pattern, phrases = _pattern()
    words = phrase_tables()[UNSPACED]
    for match in pattern.finditer(text):
        # Each phrase has its own groups, numbered as in "unit3". The group of the whole phrase ("p3") ends last.
        values = {name.rstrip("0123456789"): value for name, value in match.groupdict().items() if value}
        slots = Slots(
            n=number_value(values.get("n", ""), words),
            unit=words.units.get(values.get("unit", ""), 0),
            weekday=_WEEKDAYS.find(values.get("weekday", " ")) + 1,
            year=year_value(values.get("year", "")),
        )
        phrase = phrases[int((match.lastgroup or "")[1:])]
        complete = all(getattr(slots, element[1:-1]) for element in phrase.words if element in SLOTS)
        if complete and (days := resolve(phrase.kind, phrase.number, slots, on, past=True)):
            yield DateRange(match.start(), match.end(), *days, relative=phrase.kind != "in-year")


@cache
def _pattern() -> tuple[re.Pattern[str], list[Phrase]]:
    """Return one pattern that matches all Japanese phrases, and the phrases. The group "p3" of the pattern matches the
    fourth phrase. The longest phrase is first, so that it matches before shorter phrases."""
    words = phrase_tables()[UNSPACED]
    phrases = sorted(words.phrases, key=lambda phrase: -len("".join(phrase.words)))
    units = "|".join(sorted(words.units, key=len, reverse=True))
    first = {phrase.words[0][0] for phrase in phrases if phrase.words[0] not in SLOTS}
    first |= {"\\d", *"一二三四五六七八九十"}
    written = []
    for i, phrase in enumerate(phrases):
        elements = [_SLOTS.get(element, element).format(i=i, units=units) for element in phrase.words]
        start = "" if phrase.words[0] in SLOTS else "(?<![\u4e00-\u9fff])"
        end = "(?![度間代前後月半])" if phrase.kind == "in-year" else "(?![半度])"
        written.append(f"(?P<p{i}>{start}{''.join(elements)}{end})")
    return re.compile(f"(?=[{''.join(sorted(first))}])(?:{'|'.join(written)})"), phrases
