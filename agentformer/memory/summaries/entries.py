"""Entries as input of a summary: sorted by time, and written as lines that name the speaker."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, get_args

from agentformer.types import MemoryEntry

# The ways in which a summary is made; its metadata hold one of them.
Outcome = Literal["model", "model_retried", "extractive", "extractive_unfaithful", "extractive_unavailable"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
SUMMARY_KIND, SUMMARY_CATEGORY = "summary", "summaries"
_MAX_LABEL = 80  # code points of a speaker's name
_NEVER = datetime.max.replace(tzinfo=UTC)


def time_of(entry: MemoryEntry) -> datetime | None:
    """Return the time of the event, or the time of storing if the time of the event is unknown."""
    return entry.occurred_at or entry.created_at


def sort_by_time(entries: Iterable[MemoryEntry]) -> list[MemoryEntry]:
    """Sort by time, then by id; entries without a time come last."""
    return sorted(entries, key=lambda entry: (time_of(entry) or _NEVER, entry.id))


def speaker_of(entry: MemoryEntry) -> str:
    """Return the speaker. If there is no speaker, return the role, or "" if there is no role."""
    return flatten(entry.speaker or entry.role)[:_MAX_LABEL].strip()


def line_of(entry: MemoryEntry, text: str) -> str:
    """Return `text` on one line after its speaker: "Caroline: I went on 7 May."."""
    speaker = speaker_of(entry)
    return f"{speaker}: {flatten(text)}" if speaker else flatten(text)


def flatten(text: str) -> str:
    """Replace every run of white space by one space."""
    return re.sub(r"\s+", " ", text).strip()
