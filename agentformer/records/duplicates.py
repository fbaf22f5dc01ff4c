"""When two entries say the same: one rule for every backend."""

from __future__ import annotations

import json

from agentformer.types import MemoryEntry

# Said again, these are said again, as everything episodic happens again; documents and their parts are told apart
# by the bytes of their file.
KEPT_EACH_TIME = frozenset({"chunk", "document", "message", "page"})

# Metadata of what was remembered after reading; it tells how an entry came, and nothing of what it says.
AFTER_READING = "after_retrieved_text"

_PLACE = ("tier", "kind", "namespace", "session_id", "agent_id", "user_id", "project", "source_type", "source_id")
_DETAILS = ("title", "speaker", "category", "metadata", "occurred_at", "parent_id", "pair_id", "derived_from")


def same(new: MemoryEntry, stored: MemoryEntry) -> bool:
    """Does the live entry `stored` hold all that `new` would add: its content, in its place, with every detail?

    A detail that `new` does not give is no difference; one that it gives, and that `stored` has otherwise, is. The
    mark `AFTER_READING` is no detail: the entry that is there keeps its own.
    """
    if new.kind in KEPT_EACH_TIME or new.tier in ("episodic", "working"):
        return False
    if stored.archived_at is not None or stored.superseded_by is not None or new.content != stored.content:
        return False
    if any(getattr(new, name) != getattr(stored, name) for name in _PLACE):
        return False
    if new.salience not in (1.0, stored.salience):  # 1 is what nobody has chosen
        return False
    return all(_given(new, name) in (_given(stored, name), None) for name in _DETAILS)


def _given(entry: MemoryEntry, name: str) -> object:
    """The value such that equal means equal: in JSON true is not 1. None where it gives none."""
    value = getattr(entry, name)
    if name != "metadata":
        return value or None
    told = {key: each for key, each in value.items() if not (key == AFTER_READING and each is True)}
    return json.dumps(told, sort_keys=True) if told else None
