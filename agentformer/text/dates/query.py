"""The dates that a query names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache

from agentformer.text.analysis import QueryTerms
from agentformer.text.dates.expressions import Period, period_of, query_date_ranges, range_terms
from agentformer.text.dates.relative import DateRange


@dataclass(frozen=True, slots=True)
class QueryDates:
    """The dates that a query names, such as "last week". `bool(dates)` is False if the query names no date."""

    periods: tuple[Period, ...] = ()
    terms: tuple[str, ...] = ()  # the same dates as terms of the word index
    days: tuple[DateRange, ...] = ()  # the days of the periods; time zones are ignored

    def __bool__(self) -> bool:
        return bool(self.periods or self.terms)


def query_dates(query: QueryTerms, at: datetime | None = None) -> QueryDates:
    """Return the dates that a query names. `at` is the moment to which "yesterday" refers. None means now, in local
    time."""
    at = at or datetime.now().astimezone()
    days = _days(query.text, at.date(), query.language)
    return QueryDates(tuple(dict.fromkeys(period_of(day, at.tzinfo) for day in days)), range_terms(days), days)


@lru_cache(maxsize=512)
def _days(text: str, on: date, language: str) -> tuple[DateRange, ...]:
    return tuple(query_date_ranges(text, on, language))
