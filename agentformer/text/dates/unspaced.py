"""Find time expressions in text without spaces: Japanese."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from functools import lru_cache

from agentformer.text.dates.phrases import (
    SLOTS,
    UNSPACED,
    DateRange,
    Phrase,
    Slots,
    number_value,
    phrase_tables,
    resolve,
    year_value,
)

_WEEKDAYS = "月火水木金土日"
_SLOTS = {
    "{n}": r"(?<!\d)(?P<n{i}>\d{{1,3}}|[一二三四五六七八九十]{{1,2}})",
    "{unit}": "(?P<unit{i}>{units})",
    "{weekday}": f"(?P<weekday{{i}}>[{_WEEKDAYS}])曜日?",
    "{year}": r"(?<!\d)(?P<year{i}>\d{{4}})",
}


def unspaced_ranges(text: str, on: date | None) -> Iterator[DateRange]:
    """Yield the date ranges of time expressions in a script without spaces."""
    pattern, phrases = _pattern()
    words = phrase_tables()[UNSPACED]
    for match in pattern.finditer(text):
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


@lru_cache(maxsize=1)
def _pattern() -> tuple[re.Pattern[str], list[Phrase]]:
    """Return one pattern of all phrases, longest first, each in a group "p" plus its index, and the phrases."""
    words = phrase_tables()[UNSPACED]
    phrases = sorted(words.phrases, key=lambda phrase: -len("".join(phrase.words)))
    units = "|".join(sorted(words.units, key=len, reverse=True))
    first = {phrase.words[0][0] for phrase in phrases if phrase.words[0] not in SLOTS} | {
        "\\d",
        *"一二三四五六七八九十",
    }
    written = []
    for i, phrase in enumerate(phrases):
        elements = [_SLOTS.get(element, element).format(i=i, units=units) for element in phrase.words]
        start = "" if phrase.words[0] in SLOTS else "(?<![\u4e00-\u9fff])"
        end = "(?![度間代前後月半])" if phrase.kind == "in-year" else "(?![半度])"
        written.append(f"(?P<p{i}>{start}{''.join(elements)}{end})")
    return re.compile(f"(?=[{''.join(sorted(first))}])(?:{'|'.join(written)})"), phrases
