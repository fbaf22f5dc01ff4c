"""Summaries of entries. Either a language model writes a summary, which is checked against the entries, or the summary
consists of sentences of the entries. The functions of this module prepare entries for a summary."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, get_args

from agentformer.types import MemoryEntry

# The ways in which a summary is made. The metadata of a summary contain one of these values.
Outcome = Literal["model", "model_retried", "extractive", "extractive_unfaithful", "extractive_unavailable"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
SUMMARY_KIND, SUMMARY_CATEGORY = "summary", "summaries"
_MAX_LABEL = 80  # code points of a speaker's name
_NEVER = datetime.max.replace(tzinfo=UTC)


def time_of(entry: MemoryEntry) -> datetime | None:
    """Return the time of the event, or the time of storing if the event has no time. Return None if neither is
    known."""
    return entry.occurred_at or entry.created_at


def sort_by_time(entries: Iterable[MemoryEntry]) -> list[MemoryEntry]:
    """Return the entries sorted by time and then by id. Entries without a time come last."""
    return sorted(entries, key=lambda entry: (time_of(entry) or _NEVER, entry.id))


def speaker_of(entry: MemoryEntry) -> str:
    """Return the speaker of the entry, or the role if the entry has no speaker. Return "" if the entry has neither."""
    return flatten(entry.speaker or entry.role)[:_MAX_LABEL].strip()


def line_of(entry: MemoryEntry, text: str) -> str:
    """Return `text` as one line that begins with the speaker of the entry: "Caroline: I went on 7 May."."""
    speaker = speaker_of(entry)
    return f"{speaker}: {flatten(text)}" if speaker else flatten(text)


def flatten(text: str) -> str:
    """Return the text with each run of white space replaced by one space, and without white space at both ends."""
    return re.sub(r"\s+", " ", text).strip()
