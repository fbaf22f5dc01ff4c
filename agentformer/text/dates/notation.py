"""Find the dates in a text, and write dates. The dates may be in many notations and languages. The files of
the languages have the names of months and weekdays."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import NamedTuple

from agentformer.text.language_files import items_of, lists, sections
from agentformer.text.languages.detection import FUNCTION_WORDS

_LONGEST_ENDING = 8  # letters

# Format of a day, and the names of the months in it.
_WRITTEN = {
    code: (kinds["date"], items_of(kinds.get("date_months", "")))
    for code, kinds in sections("calendar").items()
    if "date" in kinds
}


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
    for names in lists("calendar", kind).values():
        for number, forms in enumerate(names, 1):
            for form in strip_accents(forms.casefold()).split("/"):
                (beginnings if form.endswith("*") else whole).setdefault(form.rstrip("*"), set()).add(number)
    return whole, beginnings


_MONTH_TABLE = _table("months")
_WEEKDAY_TABLE = _table("weekdays")
_SHORTEST_BEGINNING = min(map(len, (*_MONTH_TABLE[1], *_WEEKDAY_TABLE[1])))  # letters


def _numbers(word: str, table: tuple[dict[str, set[int]], dict[str, set[int]]]) -> frozenset[int]:
    whole, beginnings = table
    fold = strip_accents(word.casefold())
    numbers = frozenset(whole.get(fold, ()))
    for size in range(max(_SHORTEST_BEGINNING, len(fold) - _LONGEST_ENDING), len(fold) + 1):
        if found := beginnings.get(fold[:size]):
            numbers |= found
    return numbers


@lru_cache(maxsize=65536)
def months(word: str) -> frozenset[int]:
    """Return the numbers (1 to 12) of the months that the word can mean in any of the languages."""
    return _numbers(word, _MONTH_TABLE)


@lru_cache(maxsize=65536)
def weekdays(word: str) -> frozenset[int]:
    """Return the numbers of the weekdays that the word can mean. Monday is 1 (ISO 8601)."""
    return _numbers(word, _WEEKDAY_TABLE)


def format_day(moment: datetime, language: str) -> str:
    """Return the date of `moment` as written in `language`, or as "2023-05-08" if its format is unknown."""
    form, names = _WRITTEN.get(language, ("{year:04}-{number:02}-{day:02}", []))
    month = names[moment.month - 1] if names else ""
    return str(form.format(day=moment.day, month=month, year=moment.year, number=moment.month))


def format_range(first: datetime, last: datetime, language: str) -> str:
    """Return a range of dates as written in `language`: "8 May 2023 – 9 May 2023", or one date for the same day."""
    return " – ".join(dict.fromkeys((format_day(first, language), format_day(last, language))))


class Day(NamedTuple):
    """A date, or a part of a date. A field is 0 if it is unknown. `weekday` is from 1 (Monday) to 7."""

    year: int = 0
    month: int = 0
    day: int = 0
    weekday: int = 0


@dataclass(frozen=True, slots=True)
class Mention:
    """A date at the characters `[start, end)` of a text. `readings` are the dates that it can mean. `sure` is False if
    the text may be a number and not a date, such as "8.5."."""

    start: int
    end: int
    readings: tuple[Day, ...]
    sure: bool = True


_YEAR_FIRST = re.compile(r"(?<!\d)(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?!\d)")
_YEAR_LAST = re.compile(r"(?<![\d.,])(\d{1,2})([./-])\s?(\d{1,2})\2\s?(\d{4}|\d{2})(?![\d])")
_NO_YEAR = re.compile(r"(?<![\d.,])(\d{1,2})\.\s?(\d{1,2})\.(?!\d)")
_SLASHED = re.compile(r"(?<![\d/.,])(\d{1,2})/(\d{1,2})(?![\d/])")
_EAST = re.compile(
    r"(?:(?:(?P<era>令和|平成|昭和|大正)\s*+)?(?<!\d)(?P<year>\d{1,4}|元)\s*+[年년]\s*+)?"
    r"(?<!\d)(?P<month>\d{1,2})\s*+[月월](?:\s*+(?<!\d)(?P<day>\d{1,2})\s*+[日일号號])?"
)
_ERAS = {"令和": 2018, "平成": 1988, "昭和": 1925, "大正": 1911}  # the year before the first year of each era
_MARKED = re.compile(r"\d[./-]\s?\d{1,2}[./-]")  # part of every numeric date
_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]++|[\u0900-\u0dff]++)*+")
# A day or a year around a month's name, with the words that languages put between them.
_LINK = r"(?:(?:of|the|de|del|d['’]|di|do|lui|päivän?ä?|paivan?a?)\s*+)*"
_DAY_BEFORE = re.compile(rf"(?<![\d.,:/])(\d{{1,2}})(?:st|nd|rd|th|er|re|º|ª|\.|-?(?:го|е))?\s*+{_LINK}$", re.I)
_RANGE_BEFORE = re.compile(
    r"(?<![\d.,:/])(\d{1,2})(?:st|nd|rd|th|\.)?\s*+(?:[-–—/&,]|and|to|och|ja|og|und|et|y|e)\s*+$", re.I
)
_YEAR_BEFORE = re.compile(r"(?<!\d)(\d{4})\.?\s*+(?:m\.|г\.)?\s*+$")
_DAY_AFTER = re.compile(
    r"\.?\s*+(?:the\s*+)?(\d{1,2})(?:st|nd|rd|th|\.)?(?![\d:]|[.,]\d)"
    r"(?:\s*+(?:[-–—/&]|and|to|och|ja|og|und)\s*+(\d{1,2})(?:st|nd|rd|th|\.)?(?![\d:]))?",
    re.I,
)
_YEAR_AFTER = re.compile(
    r"[.,]?\s*+(?:paiva[^\W\d_]*+\s*+)?,?\s*+(?:(?:of|de|del|vuonna)\s*+)?(\d{4})(?![\d]|[.,]\d)", re.I
)
_BEGINS = re.compile(r"(?:^|[.!?:;\n])[\s\"'“‘(]*+$")
_NOUN = re.compile(r"[ \t]{1,3}([^\W\d_]++)")
_REACH = 24  # code points before a month's name
# Names of months that are also common words. They count only next to a year, or if they are capitalised next to a day.
_DOUBTFUL = frozenset({"may", "march", "mar", "mars", "mart", "marta", "me", "mei", "des", "sep", "set", "dec"})
_SURE_ALONE = 6  # least number of letters of a month's name that is a date without a number


def find_dates(text: str, *, loose: bool = False, days_of_week: bool = True) -> list[Mention]:
    """Return the dates in `text` in order, without overlap. With `loose`, "8/5" counts as a date. With `days_of_week`,
    the name of a weekday counts as a date."""
    plain = strip_accents(text)
    words = {*_WORD.findall(plain)}
    weekly = _days_of_week(plain, words) if days_of_week else ()
    candidates = [*_numeric(plain, loose), *_named(text, plain, words), *weekly]
    mentions: list[Mention] = []
    for mention in sorted(candidates, key=lambda mention: (mention.start, -mention.end)):
        if not mentions or mention.start >= mentions[-1].end:
            mentions.append(mention)
    return mentions


def day_of_moment(moment: datetime) -> Day:
    """Return the day of a moment, in the time zone of this moment."""
    return Day(moment.year, moment.month, moment.day, moment.isoweekday())


def is_given(claim: Day, known: Collection[Day], years: Collection[int]) -> bool:
    """Return whether one of the `known` dates has all parts (year, month, day, weekday) that `claim` has. If a known
    date has no year, each year in `years` counts as its year."""
    return any(_covers(claim, day, years) for day in known)


def _covers(claim: Day, known: Day, years: Collection[int]) -> bool:
    if claim.weekday:
        return claim.weekday == (known.weekday or _weekday(known))
    if claim.day and claim.day != known.day:
        return False
    if claim.month and claim.month != known.month:
        return False
    return not claim.year or claim.year == known.year or (not known.year and claim.year in years)


def _weekday(day: Day) -> int:
    try:
        return date(*day[:3]).isoweekday()
    except ValueError:
        return 0


def _days(*readings: tuple[int, int, int]) -> tuple[Day, ...]:
    """Return those of the readings (year, month, day) that can be dates, without repetition."""
    return tuple(dict.fromkeys(Day(*ymd) for ymd in readings if (1 <= ymd[1] <= 12) and ymd[2] <= 31 and any(ymd[1:])))


def _numeric(text: str, loose: bool) -> Iterator[Mention]:
    """Yield the dates in digits. If the day and the month can be swapped, a date has both readings."""
    marked = _MARKED.search(text) is not None  # a quick test: most texts have no such date
    for match in _YEAR_FIRST.finditer(text) if marked else ():
        year, month, day = int(match[1]), int(match[3]), int(match[4])
        yield from _mention(match, _days((year, month, day), (year, day, month)), sure=match[2] != ".")
    for match in _YEAR_LAST.finditer(text) if marked else ():
        first, second, year = int(match[1]), int(match[3]), int(match[4])
        years = (year,) if len(match[4]) == 4 else (2000 + year, 1900 + year)
        swapped = [(year, first, second) for year in years if match[2] != "."]
        yield from _mention(match, _days(*((year, second, first) for year in years), *swapped), sure=len(match[4]) == 4)
    for match in _NO_YEAR.finditer(text) if marked else ():
        yield from _mention(match, _days((0, int(match[2]), int(match[1]))), sure=False)
    for match in _SLASHED.finditer(text) if loose else ():
        first, second = int(match[1]), int(match[2])
        yield from _mention(match, _days((0, second, first), (0, first, second)), sure=False)
    for match in _EAST.finditer(text) if "月" in text or "월" in text else ():
        eastern = _eastern_year(match["era"], match["year"])
        if eastern is not None:
            yield from _mention(match, _days((eastern, int(match["month"]), int(match["day"] or 0))), sure=True)


def _eastern_year(era: str | None, year: str | None) -> int | None:
    """Return the year of a Japanese, Chinese or Korean date. `era` is the Japanese era, and `year` is the year in this
    era or, without an era, in the Western calendar. Return 0 if `year` is None, and None if it is ambiguous."""
    if year is None:
        return 0
    number = 1 if year == "元" else int(year)
    return _ERAS[era] + number if era else number if len(year) == 4 else None


def _mention(match: re.Match[str], readings: tuple[Day, ...], *, sure: bool) -> Iterator[Mention]:
    if readings:
        yield Mention(match.start(), match.end(), readings, sure)


def _days_of_week(plain: str, words: Iterable[str]) -> Iterator[Mention]:
    if named := {word: numbers for word in words if (numbers := weekdays(word))}:  # mostly none
        for match in _WORD.finditer(plain):
            if match[0] in named:
                days = tuple(Day(weekday=number) for number in sorted(named[match[0]]))
                yield Mention(match.start(), match.end(), days)


def _named(text: str, plain: str, words: Iterable[str]) -> Iterator[Mention]:
    """Yield the dates with the name of a month. `plain` is `text` without accents, and `words` are its words."""
    if named := {word: numbers for word in words if (numbers := months(word))}:  # mostly none
        for match in _WORD.finditer(plain):
            if match[0] in named:
                yield from _around(text, plain, match, sorted(named[match[0]]))


def _asks(plain: str, match: re.Match[str], end: int) -> bool:
    """Return whether the matched word "may" is a verb at the start of a question and not a month, as in "May 20 people
    come?". `end` is the offset after the number."""
    if match[0].casefold() != "may" or not _BEGINS.search(plain[max(0, match.start() - _REACH) : match.start()]):
        return False
    following = _NOUN.match(plain, end)
    return following is not None and following[1] not in FUNCTION_WORDS["en"]


def _around(text: str, plain: str, match: re.Match[str], named: list[int]) -> Iterator[Mention]:
    """Yield the date around the matched name of a month, which can mean each of the months `named`. "5-7 May" gives two
    dates. A name that is short or also a common word (`_DOUBTFUL`) needs a day or a year beside it."""
    low = max(0, match.start() - _REACH)
    before = plain[low : match.start()]
    start, end, days, year = match.start(), match.end(), [0], 0
    if found := _DAY_BEFORE.search(before):
        start, days = low + found.start(1), [int(found[1])]
        if further := _RANGE_BEFORE.search(before[: found.start(1)]):
            start, days = low + further.start(1), [int(further[1]), *days]
    elif found := _DAY_AFTER.match(plain, end):
        end, days = found.end(), [int(number) for number in found.groups() if number]
    if found := _YEAR_AFTER.match(plain, end):
        end, year = found.end(), int(found[1])
    elif days != [0] and start == match.start() and (found := _YEAR_BEFORE.search(before)):
        start, year = low + found.start(1), int(found[1])
    doubtful = match[0].casefold() in _DOUBTFUL
    alone = not year and days == [0]
    if alone and (doubtful or len(match[0]) < _SURE_ALONE):
        return
    if not alone and not year and doubtful and (text[match.start()].islower() or _asks(plain, match, end)):
        return
    for day in days:
        if readings := _days(*((year, month, day) for month in named)):
            yield Mention(start, end, readings)
