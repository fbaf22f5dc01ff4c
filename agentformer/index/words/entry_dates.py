"""The date terms of an entry: when it happened, and the days that its text names."""

from __future__ import annotations

from datetime import UTC, date, datetime

from agentformer.text.dates.terms import date_terms, terms_of_day
from agentformer.types import MemoryEntry


def entry_terms(entry: MemoryEntry, language: str) -> tuple[str, ...]:
    """The terms of the day of an entry, and of the days that its title and text name. "Yesterday" is the day before it
    happened; in a text of which it is not known when, only whole dates count."""
    on = day_of(entry.occurred_at)
    own = terms_of_day(on) if on else ()
    return tuple(dict.fromkeys((*own, *date_terms(f"{entry.title}\n{entry.content}", on, language))))


def day_of(moment: datetime | None) -> date | None:
    return moment.astimezone(UTC).date() if moment else None
