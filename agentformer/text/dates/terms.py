"""Terms of the word index for days, weeks and months. The terms are in ISO 8601 and do not depend on the notation in
the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, timedelta

from agentformer.text.dates.expressions import find_date_ranges
from agentformer.text.dates.phrases import DateRange

_MOST = 32  # terms of one text; a text with more days is a list of dates
_DAYS = 7  # longest range with a term per day
_MONTHS = 3  # longest range with a term per month


def date_terms(text: str, on: date | None, language: str = "") -> tuple[str, ...]:
    """Return the terms of the days that `text` names, without repetition; see `find_date_ranges` for the arguments.

    A day gives the terms "2023-05-07" and "2023-05", a week gives "2023-W18", and a month gives "2023-05". A written
    year is already a term of the text. So only a relative year ("last year") gives the term "2022".
    """
    return range_terms(find_date_ranges(text, on, language, years=False))


def range_terms(named: Iterable[DateRange]) -> tuple[str, ...]:
    """Return the terms of date ranges, without repetition."""
    return tuple(dict.fromkeys(term for days in named for term in _terms(days)))[:_MOST]


def day_terms(day: date) -> tuple[str, ...]:
    """Return the terms of a day, its week and its month."""
    return (day.isoformat(), _week(day), _month(day))


def _terms(days: DateRange) -> Iterator[str]:
    first, last = days.first, days.last
    length = (last - first).days + 1
    if length == 7 and first.isoweekday() == 1:
        yield _week(first)
    elif length <= _DAYS:
        yield from ((first + timedelta(days=n)).isoformat() for n in range(length))
        if length == 1:
            yield _month(first)
    elif (touched := list(_touched(first, last))) and len(touched) <= _MONTHS:
        yield from (_month(day) for day in touched)
    elif days.relative and (first.month, first.day, last.month, last.day) == (1, 1, 12, 31):
        yield from (f"{year:04}" for year in range(first.year, last.year + 1)[:_MONTHS])


def _touched(first: date, last: date) -> Iterator[date]:
    """Yield the first day of each month that overlaps the range. Yield at most one month more than `_MONTHS`."""
    day = first.replace(day=1)
    for _ in range(_MONTHS + 1):
        if day > last:
            return
        yield day
        day = (day.replace(day=28) + timedelta(days=4)).replace(day=1)


def _week(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year:04}-W{week:02}"


def _month(day: date) -> str:
    return f"{day.year:04}-{day.month:02}"
