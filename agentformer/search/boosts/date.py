"""The time that a question speaks of, and which entries are of it.

Time only adds to what words and vectors say: days, weeks and months are terms of the word index (`text.date_terms`),
and the entries found that are of the time asked for are a ranked list of their own beside the two. Nothing is filtered
out: "last week" in a question may be wrong by a day, and an exact stretch is what a scope is for.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import NamedTuple

from agentformer.index.words.fields import day_of
from agentformer.records.codec import from_micros
from agentformer.text.analysis import MAX_QUERY
from agentformer.text.dates.expressions import Period, find_date_ranges, period_of, query_date_ranges
from agentformer.text.dates.phrases import DateRange
from agentformer.text.dates.terms import range_terms
from agentformer.text.languages import detect_language, language_of_query

WEIGHT = 0.3  # of the list beside words and vectors; chosen on development halves, see docs/BENCHMARKS.md
_LOOKED_AT = 50  # texts that are read for the days that they name; the best of those that are not inside already
_READ = 2_000  # code points of each


class Asked(NamedTuple):
    """The time that a question speaks of; falsy where it is none."""

    periods: tuple[Period, ...]
    terms: tuple[str, ...]  # as the word index has them
    days: tuple[DateRange, ...] = ()  # those of the periods, which a text names wherever it was written

    def __bool__(self) -> bool:
        return bool(self.periods or self.terms)


def asked_time(text: str, at: datetime | None = None) -> Asked:
    """What a question says of time; "yesterday" is reckoned from `at` (None: now, where this machine is)."""
    at = at or datetime.now().astimezone()
    days = _asked(text[:MAX_QUERY], at.date())
    return Asked(tuple(dict.fromkeys(period_of(each, at.tzinfo) for each in days)), range_terms(days), days)


@lru_cache(maxsize=512)
def _asked(text: str, on: date) -> tuple[DateRange, ...]:
    """The days alone: moments that are equal are of other days in other zones."""
    return tuple(query_date_ranges(text, on, language_of_query(text)))


def in_periods(connection: sqlite3.Connection, nums: Sequence[int], asked: Asked) -> list[int]:
    """Those of the entries `nums`, in their order, that happened in one of the periods asked for, or whose text names
    a day of one."""
    if not asked.periods or not nums:
        return []
    happened = _happened(connection, nums)
    inside = {
        num
        for num, moment in happened.items()
        if moment is not None and any(period.start <= moment < period.end for period in asked.periods)
    }
    others = [num for num in nums if num in happened and num not in inside][:_LOOKED_AT]
    for num, content in _contents(connection, others).items():
        named = find_date_ranges(content, day_of(happened[num]), detect_language(content))
        if any(_within(days, asked.days) for days in named):
            inside.add(num)
    return [num for num in nums if num in inside]


def _happened(connection: sqlite3.Connection, nums: Sequence[int]) -> dict[int, datetime | None]:
    query = "SELECT num, occurred_at FROM entries WHERE num IN (SELECT value FROM json_each(?))"
    return {num: from_micros(micros) for num, micros in connection.execute(query, [json.dumps([*nums])])}


def _contents(connection: sqlite3.Connection, nums: Sequence[int]) -> dict[int, str]:
    query = "SELECT num, substr(content, 1, ?) FROM entries WHERE num IN (SELECT value FROM json_each(?))"
    return dict(connection.execute(query, [_READ, json.dumps([*nums])]).fetchall())


def _within(days: DateRange, asked: Sequence[DateRange]) -> bool:
    """Do the days lie among those asked for? What names a whole year is of none of its days."""
    return any(each.first <= days.first and days.last <= each.last for each in asked)
