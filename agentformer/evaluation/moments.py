"""Parse moments as corpora write them: ISO 8601, "1:56 pm on 8 May, 2023", "8.5.2023 13.56", seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, time
from typing import Any

from agentformer.text.dates.dates import find_dates

MOMENT = ("date_time", "date", "occurred_at", "timestamp")  # keys of a passage's `meta`, the first that is there
_LONGEST = 100  # code points of a date and a time
_CLOCK = re.compile(
    r"(?<![\d.:])(?P<hour>\d{1,2})(?:[:.h](?P<minute>\d{2})(?::(?P<second>\d{2}))?)?[ \u00a0\u202f]{0,2}"
    r"(?P<half>[ap]\.?m\b\.?)?(?![\d.]*\d)",
    re.IGNORECASE,
)
_SECONDS = range(10**8, 10**11)  # since 1970: from 1973 to 5138
_MILLISECONDS = range(10**11, 10**14)


def date_value(meta: Mapping[str, Any]) -> Any:
    """Return the date in a passage's `meta`; None if there is none."""
    return next((meta[name] for name in MOMENT if meta.get(name) not in (None, "")), None)


def parse_moment(value: Any) -> datetime | None:
    """Return the moment in UTC, which is also assumed without a zone. Return None without a certain day: no year,
    "05/08/2023" (May or August?), or no date."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _since_1970(value)
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    text = value.strip()
    if text.isdecimal() and len(text) > len("20230508"):
        return _since_1970(int(text))
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return _written(text)


def _since_1970(value: float) -> datetime | None:
    with suppress(ValueError, OverflowError, OSError):
        if int(value) in _SECONDS:
            return datetime.fromtimestamp(value, UTC)
        if int(value) in _MILLISECONDS:
            return datetime.fromtimestamp(value / 1000, UTC)
    return None


def _written(text: str) -> datetime | None:
    dates = [
        (mention, day)
        for mention in find_dates(text)
        if len(set(mention.readings)) == 1 and (day := mention.readings[0]).year and day.month and day.day
    ]
    if len(dates) != 1:
        return None
    mention, day = dates[0]
    clock = _clock(text[: mention.start]) or _clock(text[mention.end :]) or time()
    with suppress(ValueError):
        return datetime.combine(datetime(day.year, day.month, day.day), clock, UTC)
    return None


def _clock(text: str) -> time | None:
    """Return the first time of day: "13:56", "13.56", "1:56 pm", "2 p.m."; a number alone is none."""
    for match in _CLOCK.finditer(text):
        if not (match["minute"] or match["half"]):
            continue
        hour = int(match["hour"])
        if match["half"]:
            if not 1 <= hour <= 12:
                continue
            hour = hour % 12 + (12 if match["half"][0] in "pP" else 0)
        with suppress(ValueError):
            return time(hour, int(match["minute"] or 0), int(match["second"] or 0))
    return None
