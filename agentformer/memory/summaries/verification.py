"""Does a summary say only what its originals say? Numbers, dates and names are held against them.

Everything else a model may put in its own words. Small number words ("five") are words here, and a name is what
has a capital, so scripts without capitals are checked for numbers and dates only.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentformer.memory.facts import ascii_digits, find_numbers
from agentformer.memory.summaries.entries import flatten, line_of
from agentformer.memory.summaries.names import Vocabulary, unknown_names
from agentformer.text.dates.calendar import months
from agentformer.text.dates.dates import Day, Mention, day_of_moment, find_dates, is_given
from agentformer.text.languages import detect_language
from agentformer.text.sentences import sentence_spans
from agentformer.types import MemoryEntry

_LIST_ITEM = re.compile(r"^[ \t]*(\d{1,2})[.)][ \t]+", re.MULTILINE)
_MOST = 20  # problems named; more would not help anybody


@dataclass(frozen=True, slots=True)
class _Known:
    """What the originals say."""

    numbers: frozenset[str]
    days: frozenset[Day]
    years: frozenset[int]
    words: Vocabulary


def unsupported_claims(summary: str, originals: Sequence[MemoryEntry]) -> list[str]:
    """What of the summary's numbers, dates and names is in no original's content, speaker or time, in order:
    "number 7", "date 8 June 2023", "name Robert". Empty for a faithful summary."""
    language = detect_language(summary, detect_language(" ".join(entry.content[:1000] for entry in originals)))
    text = _without_list_numbers("\n".join(map(flatten, summary.splitlines())))
    known = _known(originals, language)
    found = sorted([*_wrong_dates(text, known), *_wrong_names(text, known, language)])
    return list(dict.fromkeys(problem for _, problem in found))[:_MOST]


def _known(originals: Sequence[MemoryEntry], language: str) -> _Known:
    numbers: set[str] = set()
    days: set[Day] = set()
    texts = [text for entry in originals for text in _texts(entry)]
    for text in texts:
        numbers.update(value for number in find_numbers(text) for reading in number.readings for value in reading)
        days.update(reading for mention in find_dates(ascii_digits(text), loose=True) for reading in mention.readings)
    for entry in originals:
        if entry.occurred_at:
            days.add(day_of_moment(entry.occurred_at))
            numbers.add(f"at {entry.occurred_at.hour}:{entry.occurred_at.minute:02}")
    years = {day.year for day in days} | {int(number) for number in numbers if re.fullmatch(r"\d{4}", number)}
    numbers.update(str(day.year) for day in days if day.year)
    return _Known(frozenset(numbers), frozenset(days), frozenset(years), Vocabulary(texts, language))


def _texts(entry: MemoryEntry) -> Iterator[str]:
    """All that the entry says, as a whole and as the lines that a summary may take from it."""
    yield flatten(entry.content)
    yield flatten(entry.speaker)
    yield entry.role
    for span in sentence_spans(entry.content):
        yield line_of(entry, entry.content[span.start : span.end])


def _wrong_dates(text: str, known: _Known) -> Iterator[tuple[int, str]]:
    """Dates that nobody gave, and numbers outside dates, each with its place."""
    judged: dict[Day, bool] = {}
    at = 0
    for row in text.splitlines(keepends=True):
        plain = ascii_digits(row)
        dates = []
        for mention in find_dates(plain):
            for day in mention.readings:
                if day not in judged:
                    judged[day] = is_given(day, known.days, known.years)
            settled = any(judged[day] for day in mention.readings)
            if settled or mention.sure:  # what else may be a date is looked at as a number
                dates.append(mention)
            if mention.sure and not settled:
                yield at + mention.start, f"date {row[mention.start : mention.end].strip()}"
        for number in find_numbers(plain):
            if not _within(number.start, number.end, dates) and not number.within(known.numbers):
                yield at + number.start, f"number {row[number.start : number.end].strip()}"
        at += len(row)


def _within(start: int, end: int, mentions: Sequence[Mention]) -> bool:
    """Does one of the mentions, in order and apart, share a part of `[start, end)`?"""
    place = bisect_right(mentions, start, key=lambda mention: mention.end)
    return place < len(mentions) and mentions[place].start < end


def _wrong_names(text: str, known: _Known, language: str) -> Iterator[tuple[int, str]]:
    dates = find_dates(ascii_digits(text))
    given_months = {day.month for day in known.days}
    for name in unknown_names(text, known.words, language):
        month = months(name.text)  # alone: "in June"
        if not (month & given_months or _within(name.start, name.end, dates)):
            yield name.start, f"{'date' if month else 'name'} {name.text}"


def _without_list_numbers(summary: str) -> str:
    """The summary with the numbers of a list that counts from 1 as blanks: they claim nothing."""
    items = list(_LIST_ITEM.finditer(summary))
    if [int(item[1]) for item in items] != list(range(1, len(items) + 1)):
        return summary
    for item in items:
        summary = summary[: item.start(1)] + " " * (item.end() - item.start(1)) + summary[item.end() :]
    return summary
