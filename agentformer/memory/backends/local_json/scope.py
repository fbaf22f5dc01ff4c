"""A `Scope` in plain Python: may a call see this entry?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from agentformer.records.salience import effective_salience
from agentformer.records.scopes import OWNERS
from agentformer.types import Decay, MemoryEntry, Scope

_EQUAL = ("session_id", "agent_id", "user_id", "project", "parent_id", "source_type", "source_id")


def filter_of(scope: Scope) -> Callable[[MemoryEntry], bool]:
    """A test of entries. One moment holds for all of them, so that none fades while others are looked at."""
    nobody = OWNERS if scope.or_nobody else ()
    equal = {
        name: (wanted, None) if name in nobody else (wanted,)
        for name in _EQUAL
        if (wanted := getattr(scope, name)) is not None
    }
    decay = Decay(scope.decay.rates, scope.decay.at or datetime.now(UTC))

    def admits(entry: MemoryEntry) -> bool:
        return (
            entry.namespace == scope.namespace
            and (scope.include_archived or (entry.archived_at is None and entry.superseded_by is None))
            and (not scope.tiers or entry.tier in scope.tiers)
            and (not scope.kinds or entry.kind in scope.kinds)
            and (not scope.categories or entry.category in scope.categories)
            and all(getattr(entry, name) in wanted for name, wanted in equal.items())
            and _in_document(scope, entry)
            and _in_time(scope, entry)
            and all(_has(entry, key, wanted) for key, wanted in scope.metadata.items())
            and (scope.min_salience <= 0 or effective_salience(entry, decay) >= scope.min_salience)
        )

    return admits


def _in_document(scope: Scope, entry: MemoryEntry) -> bool:
    return scope.document_id is None or (entry.source is not None and entry.source.document_id == scope.document_id)


def _in_time(scope: Scope, entry: MemoryEntry) -> bool:
    at = entry.occurred_at
    return (scope.occurred_from is None or (at is not None and at >= scope.occurred_from)) and (
        scope.occurred_to is None or (at is not None and at < scope.occurred_to)
    )


def _has(entry: MemoryEntry, key: str, wanted: Any) -> bool:
    return key in entry.metadata and _equal(entry.metadata[key], wanted)


def _equal(one: Any, other: Any) -> bool:
    """As JSON: numbers by value, but true is not 1; lists in order, objects in any."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
