"""From what an expression of time says to the days that it means. Weeks begin on Monday, as in ISO 8601."""

from __future__ import annotations

from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple

from agentformer.text.dates.words import UNITS

ONE_DAY = timedelta(days=1)

DaySpan = tuple[date, date]  # the first and the last day


class Slots(NamedTuple):
    """What stands in a phrase's slots; 0 where it has none."""

    n: int = 0
    unit: int = 0
    weekday: int = 0
    month: int = 0
    year: int = 0


def calendar_days(year: int, month: int, day: int) -> DaySpan | None:
    """The first and the last day of a date as far as it is is_given."""
    try:
        if day:
            return date(year, month, day), date(year, month, day)
        following = date(year + month // 12, month % 12 + 1, 1)
        return date(year, month, 1), following - ONE_DAY
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def nearest_occurrence(month: int, day: int, on: date | None, past: bool) -> DaySpan | None:
    if on is None:
        return None
    found = [days for year in range(on.year - 8, on.year + 9) if (days := calendar_days(year, month, day))]
    if past:
        found = [days for days in found if days[0] <= on][-1:]
    return min(found, key=lambda days: _distance(days, on), default=None)


def _distance(days: DaySpan, on: date) -> int:
    """Days between them, 0 for one inside; what lies behind wins by a little, since it is told of more often."""
    return max((days[0] - on).days * 2 + 1, (on - days[1]).days * 2, 0)


def resolve(kind: str, number: int, slots: Slots, on: date | None, past: bool) -> DaySpan | None:
    """The first and the last day that a phrase means on the day `on`; None where it says nothing for itself."""
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
        if kind == "named":
            return _named(slots.month, number, on, past)
        return _unit(kind, number, on) if kind in UNITS else None
    except (OverflowError, ValueError):
        return None


def _named(month: int, number: int, on: date, past: bool) -> DaySpan | None:
    if number < 0:  # not the month that we are in
        return nearest_occurrence(month, 0, on.replace(day=1) - ONE_DAY, past=True)
    return nearest_occurrence(month, 0, on, past)


def _unit(unit: str, number: int, on: date, until: date | None = None) -> DaySpan:
    """The unit that lies `number` from the one of `on`; with `until`, from as far back to that day."""
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
    """The last such day before `on`, or the next one after it."""
    ahead = (weekday - on.isoweekday()) % 7 or 7
    day = on + timedelta(days=ahead if number > 0 else ahead - 7 if ahead < 7 else -7)
    return day, day
