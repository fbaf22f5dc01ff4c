"""The stretches of time that a text speaks of: "7 May 2023", "toukokuussa 2023", "two weeks ago", "先週".

What is relative is reckoned from a given day. Precision comes first: a number that may be a date or not, a name that
is a month's too, and words such as "soon" or "recently" give nothing. Weeks begin on Monday, as in ISO 8601.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, tzinfo
from functools import lru_cache
from typing import NamedTuple

from agentformer.text.dates.calendar import weekdays
from agentformer.text.dates.dates import Day, Mention, find_dates
from agentformer.text.dates.resolve import ONE_DAY, DaySpan, Slots, calendar_days, nearest_occurrence, resolve
from agentformer.text.dates.words import SLOTS, UNITS, UNSPACED, Phrase, Words, fold, phrase_tables
from agentformer.text.languages import FUNCTION_WORDS

MAX_TEXT = 20_000  # code points that are read: what a text is about is said before
_ALIKE = frozenset({"da", "no", "sv"})  # a short text in one of them may be taken for another
_YEARS = range(1000, 3000)  # a date may be of any of these,
_PLAIN_YEARS = range(1900, 2100)  # a number behind "in" is a year if it is one of these
_ABSOLUTE = frozenset({"in-year", "before", "after"})  # kinds of phrases that need no day to be reckoned from
_MOST_UNITS = 1000  # "5000 days ago" is a figure of speech
_TOKEN = re.compile(r"(?P<word>[^\W\d_]++|(?<![\w.,:/-])\d{1,4}+(?!\w|[.,:/-]\d))|\d++")
_LETTERS = re.compile(r"[^\W\d_]+")
_DIGIT = re.compile(r"\d")
_FOUR_DIGITS = re.compile(r"\d{4}")
_CJK = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_MOST_BETWEEN = 3
_BETWEEN = frozenset(" \t\r\n\u00a0\u202f")
# What shows that figures are a part of something longer, such as "v1.2.2023" or "1.2.2023.4".
_LEADS = re.compile(r"(?:[A-Za-z\u00c0-\u024f]|\d[._/:-])$")
_GOES_ON = re.compile(r"\.?\d")
_EAST_WEEKDAYS = "月火水木金土日"
_EAST_SLOTS = {
    "{n}": r"(?<!\d)(?P<n{i}>\d{{1,3}}|[一二三四五六七八九十]{{1,2}})",
    "{unit}": "(?P<unit{i}>{units})",
    "{weekday}": f"(?P<weekday{{i}}>[{_EAST_WEEKDAYS}])曜日?",
    "{year}": r"(?<!\d)(?P<year{i}>\d{{4}})",
}


class Period(NamedTuple):
    """`[start, end)`, whole days; both moments aware, in UTC."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class DateRange:
    """The days `[first, last]` that a text names at `[start, end)` of its characters. `relative` ones were resolve
    from another day; behind a `border` such as "before" they are where something begins or ends."""

    start: int
    end: int
    first: date
    last: date
    relative: bool = False
    border: bool = False


class _Token(NamedTuple):
    start: int
    end: int
    word: str


class _Line:
    """A text, also fold, its tokens, and the words around dates in the languages that it may be in."""

    def __init__(self, text: str, plain: str, tokens: Sequence[_Token], read_as: Sequence[Words]) -> None:
        self.text = text
        self.plain = plain
        self.tokens = tokens
        self.borders = frozenset[str]().union(*(words.borders for words in read_as))
        self.articles = frozenset[str]().union(*(words.articles for words in read_as))

    def counts_something(self, at: int, language: str) -> bool:
        """Does a noun stand right behind the token, so that it is a number of these? "In 2000 words", "in 2000 we"."""
        if at + 1 >= len(self.tokens) or not self.joined(at):
            return False
        start, _, word = self.tokens[at + 1]
        return bool(word) and not self.text[start].isupper() and word not in _function_words(language)

    def joined(self, n: int) -> bool:
        """Is there nothing but a little space between the token number `n` and the next?"""
        between = self.plain[self.tokens[n].end : self.tokens[n + 1].start]
        return len(between) <= _MOST_BETWEEN and all(mark in _BETWEEN for mark in between)

    def behind_border(self, at: int) -> bool:
        """Does a word such as "before" stand in front of the token, with no more than an article between?"""
        for n in range(at - 1, max(-1, at - 3), -1):
            if not self.joined(n):
                return False
            if self.tokens[n].word in self.borders:
                return True
            if self.tokens[n].word not in self.articles:
                return False
        return False


class _Standing(NamedTuple):
    """A phrase at the token number `at`; `behind` is the number of the one behind it."""

    at: int
    phrase: Phrase
    slots: Slots
    behind: int


def periods(text: str, at: datetime, language: str = "") -> list[Period]:
    """The stretches of time that `text` names, in its order, each once; `language` is an ISO 639-1 code, or "".

    "Yesterday" is reckoned from `at`, which is aware and whose zone says when a day begins; a date without a year is
    the last one that has begun by then. A date behind "before", "since" and the like gives nothing.
    """
    return list(dict.fromkeys(period_of(days, at.tzinfo) for days in query_date_ranges(text, at.date(), language)))


def query_date_ranges(text: str, on: date, language: str = "") -> list[DateRange]:
    """The days that a question names, reckoned from `on`, without those that only say where a time begins or ends."""
    return [
        days
        for days in find_date_ranges(text, on, language, past=True)
        if not days.border and days.last < date.max - ONE_DAY and days.first > date.min + ONE_DAY
    ]


def period_of(days: DateRange, zone: tzinfo | None) -> Period:
    """From the midnight in `zone` at which the days begin to the one at which they end."""
    start, end = (datetime.combine(day, time(), zone).astimezone(UTC) for day in (days.first, days.last + ONE_DAY))
    return Period(start, end)


def find_date_ranges(
    text: str, on: date | None, language: str = "", *, past: bool = False, years: bool = True
) -> list[DateRange]:
    """The days that `text` names, in order and never overlapping, but for the readings of one date such as "7/5/2023".

    What is relative to a day is reckoned from `on`, and left out without one. A date without a year is the nearest to
    `on`, or with `past` the last one that has begun by then. Without `years`, those that are written are left out, and
    borders are not told: what is only to be found needs neither.
    """
    text = text[:MAX_TEXT]
    found = [*_mentioned(text, on, past)] if _DIGIT.search(text) else []
    if on is not None or years:
        found = _with_phrases(text, on, language, past, years, found)
        if _CJK.search(text):
            found += _unspaced(text, on)
    return _apart(found)


def _with_phrases(
    text: str, on: date | None, language: str, past: bool, years: bool, found: list[DateRange]
) -> list[DateRange]:
    """The dates with what stands before them, and what is said in words."""
    plain = fold(text)
    there = {*_LETTERS.findall(plain)}
    for names in _read_as(language, there):
        read = [(name, _possible(phrase_tables()[name], there, plain, on, years)) for name in names]
        if not any(phrases for _, phrases in read) and not (found and years):
            continue
        tokens = [_Token(match.start(), match.end(), match["word"] or "") for match in _TOKEN.finditer(plain)]
        line = _Line(text, plain, tokens, [phrase_tables()[name] for name in names])
        more = [*found]
        for name, phrases in read:
            standing = [*_standing(line, phrase_tables()[name], phrases)]
            more = _beside_dates(line, standing, more)
            more += _spoken(line, standing, on, past)
        if more != found:
            return more
    return found


def _apart(found: Sequence[DateRange]) -> list[DateRange]:
    """In order; of those that overlap the longest, and with it its other readings."""
    kept: list[DateRange] = []
    for each in sorted(dict.fromkeys(found), key=lambda each: (each.start, -each.end)):
        while kept and each.start < kept[-1].end and each.end - each.start > kept[-1].end - kept[-1].start:
            kept.pop()
        if not kept or each.start >= kept[-1].end or (each.start, each.end) == (kept[-1].start, kept[-1].end):
            kept.append(each)
    return kept


def _read_as(language: str, there: set[str]) -> Iterator[list[str]]:
    """The languages whose words are looked for, and where these say nothing the next ones: if no function word shows
    that the text, whose words are `there`, is in the language for which it is taken, it may be in any."""
    known = [name for name in phrase_tables() if name != UNSPACED]
    own = [name for name in known if name == language or (language in _ALIKE and name in _ALIKE)]
    if own:
        yield own
    if not own or all(_function_words(name).isdisjoint(there) for name in own):
        yield known


@lru_cache(maxsize=64)
def _function_words(language: str) -> frozenset[str]:
    return frozenset(map(fold, FUNCTION_WORDS.get(language, ())))


def _mentioned(text: str, on: date | None, past: bool) -> Iterator[DateRange]:
    """Dates in figures and with the names of months."""
    for mention in find_dates(text, days_of_week=False):
        if not mention.sure or _part_of_more(text, mention):
            continue
        for reading in mention.readings[:1] if _one_order(text, mention) else mention.readings:
            if days := _of_reading(reading, mention, text, on, past):
                yield DateRange(mention.start, mention.end, *days)


def _part_of_more(text: str, mention: Mention) -> bool:
    before = text[max(0, mention.start - 2) : mention.start] if text[mention.start].isdecimal() else ""
    return bool(_LEADS.search(before) or _GOES_ON.match(text, mention.end))


def _one_order(text: str, mention: Mention) -> bool:
    """Is only one order of day and month in use for what is written so? "7/5/2023" is the exception."""
    return "/" not in text[mention.start : mention.end] or text[mention.start : mention.start + 4].isdigit()


def _of_reading(reading: Day, mention: Mention, text: str, on: date | None, past: bool) -> DaySpan | None:
    if reading.year:
        return calendar_days(reading.year, reading.month, reading.day) if reading.year in _YEARS else None
    if not reading.day and not _CJK.search(text[mention.start : mention.end]):
        return None  # "August" may be a person
    return nearest_occurrence(reading.month, reading.day, on, past)


def _possible(words: Words, there: set[str], plain: str, on: date | None, years: bool) -> dict[str, list[Phrase]]:
    """The phrases, by their first word, all of whose words are somewhere in the text: mostly none."""
    slots = {
        "{unit}": not words.units.keys().isdisjoint(there),
        "{month}": not words.months.keys().isdisjoint(there),
        "{year}": years and _FOUR_DIGITS.search(plain) is not None,
    }
    found: dict[str, list[Phrase]] = {}
    for phrase in words.phrases:
        if on is None and phrase.kind not in _ABSOLUTE:
            continue
        if phrase.literals <= there and all(slots.get(slot, True) for slot in phrase.slots):
            found.setdefault(phrase.words[0], []).append(phrase)
    return found


def _spoken(line: _Line, standing: Sequence[_Standing], on: date | None, past: bool) -> Iterator[DateRange]:
    """What the words of one language say."""
    for at, phrase, slots, behind in standing:
        if phrase.kind == "in-year" and phrase.number and line.counts_something(behind - 1, phrase.language):
            continue
        if days := resolve(phrase.kind, phrase.number, slots, on, past):
            start, end, relative = line.tokens[at].start, line.tokens[behind - 1].end, phrase.kind != "in-year"
            yield DateRange(start, end, *days, relative=relative, border=line.behind_border(at))


def _unspaced(text: str, on: date | None) -> Iterator[DateRange]:
    """What a text without spaces between its words says."""
    pattern, phrases = _unspaced_phrases()
    words = phrase_tables()[UNSPACED]
    for match in pattern.finditer(text):
        said = {name.rstrip("0123456789"): value for name, value in match.groupdict().items() if value}
        slots = Slots(
            n=_number(said.get("n", ""), words),
            unit=words.units.get(said.get("unit", ""), 0),
            weekday=_EAST_WEEKDAYS.find(said.get("weekday", " ")) + 1,
            year=_year(said.get("year", ""), words),
        )
        phrase = phrases[int((match.lastgroup or "")[1:])]
        complete = all(getattr(slots, element[1:-1]) for element in phrase.words if element in SLOTS)
        if complete and (days := resolve(phrase.kind, phrase.number, slots, on, past=True)):
            yield DateRange(match.start(), match.end(), *days, relative=phrase.kind != "in-year")


@lru_cache(maxsize=1)
def _unspaced_phrases() -> tuple[re.Pattern[str], list[Phrase]]:
    """One pattern of all phrases, the longest first, each a group "p" with its number in the list."""
    words = phrase_tables()[UNSPACED]
    phrases = sorted(words.phrases, key=lambda phrase: -len("".join(phrase.words)))
    units = "|".join(sorted(words.units, key=len, reverse=True))
    first = {phrase.words[0][0] for phrase in phrases if phrase.words[0] not in SLOTS} | {
        "\\d",
        *"一二三四五六七八九十",
    }
    written = []
    for i, phrase in enumerate(phrases):
        elements = [_EAST_SLOTS.get(element, element).format(i=i, units=units) for element in phrase.words]
        start = "" if phrase.words[0] in SLOTS else "(?<![\u4e00-\u9fff])"
        end = "(?![度間代前後月半])" if phrase.kind == "in-year" else "(?![半度])"
        written.append(f"(?P<p{i}>{start}{''.join(elements)}{end})")
    return re.compile(f"(?=[{''.join(sorted(first))}])(?:{'|'.join(written)})"), phrases


def _standing(line: _Line, words: Words, phrases: Mapping[str, list[Phrase]]) -> Iterator[_Standing]:
    """Where phrases stand; at each place the longest one."""
    for at, token in enumerate(line.tokens if phrases else ()):
        starting = [*phrases.get(token.word, ())]
        for slot in SLOTS:
            if slot in phrases and _SLOT[slot](token.word, words):
                starting += phrases[slot]
        best: _Standing | None = None
        for phrase in starting:
            if (best is None or len(phrase.words) > len(best.phrase.words)) and (
                slots := _filled(line, at, phrase, words)
            ):
                best = _Standing(at, phrase, slots, at + len(phrase.words))
        if best:
            yield best


def _filled(line: _Line, at: int, phrase: Phrase, words: Words) -> Slots | None:
    """What stands in the phrase's slots, if it stands there."""
    slots: dict[str, int] = {}
    if at + len(phrase.words) > len(line.tokens):
        return None
    for n, element in enumerate(phrase.words, at):
        word = line.tokens[n].word
        if n > at and not line.joined(n - 1):
            return None
        if element not in SLOTS:
            if word != element:
                return None
        elif value := _SLOT[element](word, words):
            slots[element[1:-1]] = value
        else:
            return None
    return Slots(**slots)


def _number(word: str, words: Words) -> int:
    if word.isdecimal():
        return int(word) if len(word) <= 3 and int(word) <= _MOST_UNITS else 0
    return words.numbers.get(word, 0)


def _year(word: str, words: Words) -> int:
    return int(word) if len(word) == 4 and word.isdecimal() and int(word) in _PLAIN_YEARS else 0


def _only(found: frozenset[int]) -> int:
    return next(iter(found)) if len(found) == 1 else 0


_SLOT: Mapping[str, Callable[[str, Words], int]] = {
    "{n}": _number,
    "{unit}": lambda word, words: words.units.get(word, 0),
    "{weekday}": lambda word, _: _only(weekdays(word)),
    "{month}": lambda word, words: words.months.get(word, 0),
    "{year}": _year,
}


def _beside_dates(line: _Line, standing: Sequence[_Standing], found: Sequence[DateRange]) -> list[DateRange]:
    """The dates with what stands in front of them: "two weeks before 7 May 2023" is another time too, and "since 7 May
    2023" a border."""
    if not found:
        return []
    beside: dict[int, tuple[_Standing, int]] = {}
    for each in standing:
        behind = each.behind
        if each.phrase.kind in ("before", "after"):
            while behind < len(line.tokens) and line.tokens[behind].word in line.articles:
                behind += 1
            if behind < len(line.tokens):
                beside.setdefault(line.tokens[behind].start, (each, line.tokens[each.at].start))
    starts = {token.start: n for n, token in enumerate(line.tokens)}
    result = []
    for days in found:
        n = starts.get(days.start)
        border = n is not None and line.behind_border(n)
        if days.start in beside:
            (_, phrase, slots, _), start = beside[days.start]
            edge, sign = (days.first, -1) if phrase.kind == "before" else (days.last, 1)
            if other := _at_distance(sign, slots, edge):
                result.append(DateRange(start, days.start, *other))
            border = True
        result.append(replace(days, border=True) if border else days)
    return result


def _at_distance(sign: int, slots: Slots, at: date) -> DaySpan | None:
    if slots.weekday:
        return resolve("weekday", sign, slots, at, past=False)
    return resolve(UNITS[slots.unit - 1], sign * (slots.n or 1), slots, at, past=False)
