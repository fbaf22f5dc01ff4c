"""Entries as lines of text: in order of time, each sentence led by who said it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from agentformer.types import MemoryEntry

_LABEL = 80  # code points of a speaker's name
_NEVER = datetime.max.replace(tzinfo=UTC)


def moment_of(entry: MemoryEntry) -> datetime | None:
    """When it happened, or when it was stored where that is not known."""
    return entry.occurred_at or entry.created_at


def in_order(entries: Iterable[MemoryEntry]) -> list[MemoryEntry]:
    """By time, then by id; what has no time yet comes last."""
    return sorted(entries, key=lambda entry: (moment_of(entry) or _NEVER, entry.id))


def label(entry: MemoryEntry) -> str:
    """Who said it: the speaker, or the role of one without a name; "" where neither is known."""
    return flat(entry.speaker or entry.role)[:_LABEL].strip()


def line(entry: MemoryEntry, text: str) -> str:
    """`text` on one line, led by who said it: "Caroline: I went on 7 May."."""
    who = label(entry)
    return f"{who}: {flat(text)}" if who else flat(text)


def flat(text: str) -> str:
    """The text with every run of white space as one space."""
    return re.sub(r"\s+", " ", text).strip()
