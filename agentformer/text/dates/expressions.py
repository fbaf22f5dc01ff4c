"""Find the date ranges that a text names: "7 May 2023", "toukokuussa 2023", "two weeks ago", "先週". The word index
contains terms for these days. The terms do not depend on the notation or the language of the text.

Relative expressions such as "two weeks ago" are computed from a given day. A wrong date is worse than a missing date.
So ambiguous numbers, names that are also months, and words such as "soon" or "recently" give no range. A week begins on
Monday (ISO 8601).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

from agentformer.text.dates import relative as relative_dates
from agentformer.text.dates.notation import Day, Mention, find_dates, weekdays
from agentformer.text.dates.relative import ONE_DAY, SLOTS, DateRange, DaySpan, Phrase, Slots, Words
from agentformer.text.languages.detection import FUNCTION_WORDS

MAX_TEXT = 20_000  # code points of a text that are read
_ALIKE = frozenset({"da", "no", "sv"})  # easily confused in short texts
_YEARS = range(1000, 3000)  # plausible years of a date
_ABSOLUTE = frozenset({"in-year", "before", "after"})  # kinds of phrases that need no reference day
_TOKEN = re.compile(r"(?P<word>[^\W\d_]++|(?<![\w.,:/-])\d{1,4}+(?!\w|[.,:/-]\d))|\d++")
_LETTERS = re.compile(r"[^\W\d_]+")
_DIGIT = re.compile(r"\d")
_FOUR_DIGITS = re.compile(r"\d{4}")
_CJK = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_MOST_TERMS = 32  # at most this many terms of a text; a text with more days is a list of dates
_MOST_DAYS = 7  # a range of at most this many days has a term for each day
_MOST_MONTHS = 3  # a range of at most this many months has a term for each month
_MOST_BETWEEN = 3
_BETWEEN = frozenset(" \t\r\n\u00a0\u202f")
# Figures that are part of a longer token, such as "v1.2.2023" or "1.2.2023.4".
_LEADS = re.compile(r"(?:[A-Za-z\u00c0-\u024f]|\d[._/:-])$")
_GOES_ON = re.compile(r"\.?\d")


class Period(NamedTuple):
    """A period of whole days, from `start` up to `end` (exclusive). Both moments are in UTC and have a time zone."""

    start: datetime
    end: datetime


class _Token(NamedTuple):
    start: int
    end: int
    word: str


class _Line:
    """A text in which time phrases are searched. `plain` is the text without case and accents, and `words` are its
    words. `borders` are words such as "before", and `articles` words such as "the", in all possible `languages`."""

    def __init__(self, text: str, plain: str, words: set[str], languages: Sequence[Words]) -> None:
        self.text = text
        self.plain = plain
        self.words = words
        self.borders = frozenset[str]().union(*(words.borders for words in languages))
        self.articles = frozenset[str]().union(*(words.articles for words in languages))

    @cached_property
    def tokens(self) -> list[_Token]:
        return [_Token(match.start(), match.end(), match["word"] or "") for match in _TOKEN.finditer(self.plain)]

    @cached_property
    def fills(self) -> dict[str, bool]:
        """A dictionary: slot (a variable word of phrases) -> whether the text can fill it. The text fills "{weekday}"
        if it has a weekday, and "{n}" if it has a digit. Numbers that are written as words do not fill "{n}" here;
        `_fills` looks for them."""
        return {"{weekday}": any(map(weekdays, self.words)), "{n}": _DIGIT.search(self.plain) is not None}

    def counts_something(self, at: int, language: str) -> bool:
        """Return whether the number at token `at` is no year, but counts something: a noun follows ("2000 words")."""
        if at + 1 >= len(self.tokens) or not self.joined(at):
            return False
        start, _, word = self.tokens[at + 1]
        return bool(word) and not self.text[start].isupper() and word not in _function_words(language)

    def joined(self, n: int) -> bool:
        """Return whether token `n` and the next token can belong to one phrase: only a few spaces are between them."""
        between = self.plain[self.tokens[n].end : self.tokens[n + 1].start]
        return len(between) <= _MOST_BETWEEN and all(mark in _BETWEEN for mark in between)

    def behind_border(self, at: int) -> bool:
        """Return whether a border word such as "before" precedes token `at`. Articles may be between the two."""
        for n in range(at - 1, max(-1, at - 3), -1):
            if not self.joined(n):
                return False
            if self.tokens[n].word in self.borders:
                return True
            if self.tokens[n].word not in self.articles:
                return False
        return False


class _PhraseMatch(NamedTuple):
    """A time phrase that was found in a text. It begins at token `at`, and `behind` is the index of the first token
    after it. `slots` are the values of its variable words."""

    at: int
    phrase: Phrase
    slots: Slots
    behind: int


def periods(text: str, at: datetime, language: str = "") -> list[Period]:
    """Return the periods that `text` names, in order and without repetition. `language` is an ISO 639-1 code, or "".
    Relative expressions such as "yesterday" are computed from the moment `at`, in its time zone. A date without a year
    means the last such date that is not after `at`. A date after a word such as "before" gives no period."""
    return list(dict.fromkeys(period_of(days, at.tzinfo) for days in query_date_ranges(text, at.date(), language)))


def query_date_ranges(text: str, on: date, language: str = "") -> list[DateRange]:
    """Return the date ranges that a question names on the day `on`, without dates that are only the limit of a period,
    such as the date in "before 7 May"."""
    return [
        days
        for days in find_date_ranges(text, on, language, past=True)
        if not days.border and days.last < date.max - ONE_DAY and days.first > date.min + ONE_DAY
    ]


def period_of(days: DateRange, zone: tzinfo | None) -> Period:
    """Return the period of these days in the time zone `zone`, from midnight to midnight."""
    start, end = (datetime.combine(day, time(), zone).astimezone(UTC) for day in (days.first, days.last + ONE_DAY))
    return Period(start, end)


def find_date_ranges(
    text: str, on: date | None, language: str = "", *, past: bool = False, years: bool = True
) -> list[DateRange]:
    """Return the date ranges that `text` names, in order. Two ranges overlap only if they are meanings of the same date
    ("7/5/2023"). Relative expressions are computed from the day `on`, or skipped without it. A date without a year
    means the nearest such date to `on` or, with `past`, the last one that is not after it. If `years` is False, the
    search is faster but incomplete, which is enough for the word index. The result then may lack years without a month
    ("in 2019") and, if `on` is None, distances to a date ("two weeks before 7 May 2023"). Also, the field `border` of a
    date may be False although a word such as "before" precedes the date."""
    text = text[:MAX_TEXT]
    ranges = [*_mentioned(text, on, past)] if _DIGIT.search(text) else []
    if on is not None or years:
        ranges = _with_phrases(text, on, language, past, years, ranges)
        if _CJK.search(text):
            ranges += relative_dates.unspaced_ranges(text, on)
    return _without_overlap(ranges)


def _with_phrases(
    text: str, on: date | None, language: str, past: bool, years: bool, dates: list[DateRange]
) -> list[DateRange]:
    """Return `dates`, and also the ranges of the time expressions that consist of words, such as "last week". An
    expression can refer to one of the dates, as in "two weeks before 7 May". See `find_date_ranges`."""
    plain = relative_dates.fold(text)
    text_words = {*_LETTERS.findall(plain)}
    for names in _candidate_languages(language, text_words):
        candidates = [(name, _possible(name, text_words, plain, on, years)) for name in names]
        if not any(phrases for _, phrases in candidates) and not (dates and years):
            continue
        line = _Line(text, plain, text_words, [relative_dates.phrase_tables()[name] for name in names])
        ranges = [*dates]
        for name, phrases in candidates:
            matches = [*_matches(line, relative_dates.phrase_tables()[name], phrases)]
            ranges = _extended(line, matches, ranges)
            ranges += _resolved(line, matches, on, past)
        if ranges != dates:
            return ranges
    return dates


@cache
def time_languages() -> tuple[str, ...]:
    """Return the languages for which `find_date_ranges` has time expressions and which write spaces between words. For
    every other language, `find_date_ranges` returns the same result as for the language ""."""
    return tuple(name for name in relative_dates.phrase_tables() if name != relative_dates.UNSPACED)


def _without_overlap(ranges: Sequence[DateRange]) -> list[DateRange]:
    """Return the ranges in the order of the text. If the expressions from which they were read overlap in the text,
    keep only the ranges of the longest expression. Ranges of which only the dates overlap are kept."""
    result: list[DateRange] = []
    for days in sorted(dict.fromkeys(ranges), key=lambda days: (days.start, -days.end)):
        while result and days.start < result[-1].end and days.end - days.start > result[-1].end - result[-1].start:
            result.pop()
        if not result or days.start >= result[-1].end or (days.start, days.end) == (result[-1].start, result[-1].end):
            result.append(days)
    return result


def _candidate_languages(language: str, text_words: set[str]) -> Iterator[list[str]]:
    """Yield lists of languages in which time expressions are searched, the most probable list first. If the text has a
    function word of `language`, only this language and very similar languages are searched."""
    languages = [*time_languages()]
    own = [name for name in languages if name == language or (language in _ALIKE and name in _ALIKE)]
    if own:
        yield own
    if not own or all(_function_words(name).isdisjoint(text_words) for name in own):
        yield languages


@lru_cache(maxsize=64)
def _function_words(language: str) -> frozenset[str]:
    return frozenset(map(relative_dates.fold, FUNCTION_WORDS.get(language, ())))


def _mentioned(text: str, on: date | None, past: bool) -> Iterator[DateRange]:
    """Yield the ranges of dates in figures or with the name of a month. `on` and `past`: see `find_date_ranges`."""
    for mention in find_dates(text, days_of_week=False):
        written = text[mention.start : mention.end]
        before = text[max(0, mention.start - 2) : mention.start] if written[0].isdecimal() else ""
        # The last two: part of a code or of a longer number, such as "v1.2.2023" or "1.2.2023.4".
        if not mention.sure or _LEADS.search(before) or _GOES_ON.match(text, mention.end):
            continue
        has_one_order = "/" not in written or written[:4].isdigit()  # "7/5/2023" may be two days
        for reading in mention.readings[:1] if has_one_order else mention.readings:
            if days := _of_reading(reading, mention, text, on, past):
                yield DateRange(mention.start, mention.end, *days)


def _of_reading(reading: Day, mention: Mention, text: str, on: date | None, past: bool) -> DaySpan | None:
    if reading.year:
        return (
            relative_dates.calendar_days(reading.year, reading.month, reading.day) if reading.year in _YEARS else None
        )
    if not reading.day and not _CJK.search(text[mention.start : mention.end]):
        return None  # "August" may be a person
    return relative_dates.nearest_occurrence(reading.month, reading.day, on, past)


def _possible(language: str, text_words: set[str], plain: str, on: date | None, years: bool) -> dict[str, list[Phrase]]:
    """Select the phrases that can occur in a text: those whose fixed words are all in the text. Return a dictionary:
    first word -> phrases that begin with this word. It is empty for most texts."""
    by_literal, by_first_word = _phrases_by_literal(language), dict[str, list[Phrase]]()
    listed = [one for word in ("", *(by_literal.keys() & text_words)) for one in by_literal[word]]
    able = [phrase for _, phrase in sorted(listed) if phrase.literals <= text_words]
    if not able:
        return by_first_word
    words = relative_dates.phrase_tables()[language]
    slots = {
        "{unit}": not words.units.keys().isdisjoint(text_words),
        "{month}": not words.months.keys().isdisjoint(text_words),
        "{year}": years and _FOUR_DIGITS.search(plain) is not None,
    }
    for phrase in able:
        if all(slots.get(slot, True) for slot in phrase.slots) and (on is not None or phrase.kind in _ABSOLUTE):
            by_first_word.setdefault(phrase.words[0], []).append(phrase)
    return by_first_word


@cache
def _phrases_by_literal(language: str) -> Mapping[str, list[tuple[int, Phrase]]]:
    """Return the phrases of a language, with their places in its list, by the longest of the fixed words of each. The
    key "" has the phrases without fixed words."""
    by_literal: dict[str, list[tuple[int, Phrase]]] = {"": []}
    for place, phrase in enumerate(relative_dates.phrase_tables()[language].phrases):
        longest = max(sorted(phrase.literals), key=len, default="")
        by_literal.setdefault(longest, []).append((place, phrase))
    return by_literal


def _resolved(line: _Line, matches: Sequence[_PhraseMatch], on: date | None, past: bool) -> Iterator[DateRange]:
    """Yield the date ranges that the matched phrases mean on the day `on`."""
    for at, phrase, slots, behind in matches:
        if phrase.kind == "in-year" and phrase.number and line.counts_something(behind - 1, phrase.language):
            continue
        if days := relative_dates.resolve(phrase.kind, phrase.number, slots, on, past):
            start, end, relative = line.tokens[at].start, line.tokens[behind - 1].end, phrase.kind != "in-year"
            yield DateRange(start, end, *days, relative=relative, border=line.behind_border(at))


def _matches(line: _Line, words: Words, phrases: Mapping[str, list[Phrase]]) -> Iterator[_PhraseMatch]:
    """Yield for each token the longest phrase that begins at this token, if such a phrase exists."""
    phrases = {first: able for first, some in phrases.items() if (able := [p for p in some if _fills(line, words, p)])}
    slots = [(slot, _SLOT[slot]) for slot in SLOTS if slot in phrases]
    for at, token in enumerate(line.tokens if phrases else ()):
        starting = phrases.get(token.word, [])
        for slot, value in slots:
            if value(token.word, words):
                starting = [*starting, *phrases[slot]]
        for phrase in sorted(starting, key=lambda phrase: -len(phrase.words)) if len(starting) > 1 else starting:
            if filled := _filled(line, at, phrase, words):
                yield _PhraseMatch(at, phrase, filled, at + len(phrase.words))
                break


def _fills(line: _Line, words: Words, phrase: Phrase) -> bool:
    """Return False if the phrase has a slot that no word of the text can fill."""
    return all(
        line.fills.get(slot, True) or (slot == "{n}" and not words.numbers.keys().isdisjoint(line.words))
        for slot in phrase.slots
    )


def _filled(line: _Line, at: int, phrase: Phrase, words: Words) -> Slots | None:
    """Return the values of the slots (variable words) of a phrase at token `at`, or None if it is not there."""
    slots: dict[str, int] = {}
    if at + len(phrase.words) > len(line.tokens):
        return None
    for n, element in enumerate(phrase.words, at):
        word = line.tokens[n].word
        value = _SLOT[element](word, words) if element in SLOTS else word == element
        if not value or (n > at and not line.joined(n - 1)):
            return None
        if element in SLOTS:
            slots[element[1:-1]] = value
    return Slots(**slots)


_SLOT: Mapping[str, Callable[[str, Words], int]] = {
    "{n}": relative_dates.number_value,
    "{unit}": lambda word, words: words.units.get(word, 0),
    "{weekday}": lambda word, _: sum(weekdays(word)) if len(weekdays(word)) == 1 else 0,
    "{month}": lambda word, words: words.months.get(word, 0),
    "{year}": lambda word, _: relative_dates.year_value(word),
}


def _extended(line: _Line, matches: Sequence[_PhraseMatch], dates: Sequence[DateRange]) -> list[DateRange]:
    """Return the dates, and the ranges of phrases that refer to the date after the phrase, such as "two weeks before 7
    May 2023". A date that only limits a period, as in "since 2023", has `border=True`."""
    if not dates:
        return []
    before_date: dict[int, tuple[_PhraseMatch, int]] = {}
    for match in matches:
        behind = match.behind
        if match.phrase.kind in ("before", "after"):
            while behind < len(line.tokens) and line.tokens[behind].word in line.articles:
                behind += 1
            if behind < len(line.tokens):
                before_date.setdefault(line.tokens[behind].start, (match, line.tokens[match.at].start))
    starts = {token.start: n for n, token in enumerate(line.tokens)}
    result = []
    for days in dates:
        n = starts.get(days.start)
        border = n is not None and line.behind_border(n)
        if days.start in before_date:
            (_, phrase, slots, _), start = before_date[days.start]
            edge, sign = (days.first, -1) if phrase.kind == "before" else (days.last, 1)
            kind, number = ("weekday", 1) if slots.weekday else (relative_dates.UNITS[slots.unit - 1], slots.n or 1)
            if other := relative_dates.resolve(kind, sign * number, slots, edge, past=False):
                result.append(DateRange(start, days.start, *other))
            border = True
        result.append(replace(days, border=True) if border else days)
    return result


def date_terms(text: str, on: date | None, language: str = "") -> tuple[str, ...]:
    """Return the terms of the word index for the days that `text` names, without repetition; see `find_date_ranges`. A
    day gives "2023-05-07" and "2023-05", a week "2023-W18", and a month "2023-05". A written year is already a word of
    the text, so only a relative year, such as "last year", gives a term such as "2022"."""
    return range_terms(find_date_ranges(text, on, language, years=False))


def range_terms(named: Iterable[DateRange]) -> tuple[str, ...]:
    """Return the terms of the word index for these date ranges, without repetition."""
    return tuple(dict.fromkeys(term for days in named for term in _terms(days)))[:_MOST_TERMS]


def day_terms(day: date) -> tuple[str, ...]:
    """Return the terms of the word index for a day, for the week of this day, and for its month."""
    return (day.isoformat(), _week(day), day.isoformat()[:7])


def _terms(days: DateRange) -> Iterator[str]:
    """Yield the terms of a range: a week, a few days, a few months, or the years of a relative date; else none."""
    first, last = days.first, days.last
    length = (last - first).days + 1
    months = range(first.year * 12 + first.month - 1, last.year * 12 + last.month)
    if length == 7 and first.isoweekday() == 1:
        yield _week(first)
    elif length <= _MOST_DAYS:
        yield from ((first + timedelta(days=n)).isoformat() for n in range(length))
        if length == 1:
            yield first.isoformat()[:7]
    elif len(months) <= _MOST_MONTHS:
        yield from (f"{month // 12:04}-{month % 12 + 1:02}" for month in months)
    elif days.relative and (first.month, first.day, last.month, last.day) == (1, 1, 12, 31):
        yield from (f"{year:04}" for year in range(first.year, last.year + 1)[:_MOST_MONTHS])


def _week(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year:04}-W{week:02}"
