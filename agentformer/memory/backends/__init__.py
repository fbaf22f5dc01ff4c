"""The backends, each in a folder of its own, and functions that the backends share. Each backend implements the
`MemoryBackend` contract of `agentformer.types`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from agentformer.errors import Conflict
from agentformer.records.codec import happened_at, now
from agentformer.search.reading import all_entries as all_entries
from agentformer.types import MemoryEntry


def has_local_json(folder: Path) -> bool:
    """Return whether the folder holds a store of the backend `local_json`. The function does not import the backend, so
    it is fast."""
    return any(folder.glob("memory-*.json"))


def by_time(entry: MemoryEntry) -> tuple[datetime, str]:
    """Return a key that sorts entries by time and then by id. The time is the time of the event, or the time of storing
    if the event has no time."""
    return happened_at(entry), entry.id


def is_live(entry: MemoryEntry) -> bool:
    """Return whether the entry is neither archived nor superseded."""
    return entry.archived_at is None and entry.superseded_by is None


def is_expired(entry: MemoryEntry) -> bool:
    """Return whether the entry has expired, so that no search returns it."""
    return entry.expires_at is not None and entry.expires_at <= now()


def with_times(entry: MemoryEntry) -> MemoryEntry:
    """Return the entry, with `created_at` and `updated_at` set to the current time if they are missing."""
    if entry.created_at is not None and entry.updated_at is not None:
        return entry
    moment = now()
    return dataclasses.replace(entry, created_at=entry.created_at or moment, updated_at=entry.updated_at or moment)


def check_version(entry: MemoryEntry, expected: int | None) -> None:
    """Raise `Conflict` if `expected` is given and the entry has another version."""
    if expected is not None and entry.version != expected:
        raise Conflict(
            f"entry {entry.id} has version {entry.version}, not {expected} as expected; read the entry again"
        )


def with_changes(former: MemoryEntry, changes: Mapping[str, Any]) -> MemoryEntry:
    """Return the next version of the entry `former`. `changes` contains the new values of the changed fields."""
    return dataclasses.replace(former, **changes, version=former.version + 1, updated_at=now())
