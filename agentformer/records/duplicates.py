"""When two entries say the same: one rule for every backend."""

from __future__ import annotations

import json

from agentformer.types import MemoryEntry

# Said again, these are said again, as everything episodic happens again; documents and their parts are told apart
# by the bytes of their file.
KEPT_EACH_TIME = frozenset({"chunk", "document", "message", "page"})

_PLACE = ("tier", "kind", "namespace", "session_id", "agent_id", "user_id", "project", "source_type", "source_id")
_DETAILS = ("title", "speaker", "category", "metadata", "occurred_at", "parent_id", "pair_id", "derived_from")


def same(new: MemoryEntry, stored: MemoryEntry) -> bool:
    """Does the live entry `stored` hold all that `new` would add: its content, in its place, with every detail?

    A detail that `new` does not give is no difference; one that it gives, and that `stored` has otherwise, is.
    """
    if new.kind in KEPT_EACH_TIME or new.tier in ("episodic", "working"):
        return False
    if stored.archived_at is not None or stored.superseded_by is not None or new.content != stored.content:
        return False
    if any(getattr(new, name) != getattr(stored, name) for name in _PLACE):
        return False
    if new.salience not in (1.0, stored.salience):  # 1 is what nobody has chosen
        return False
    return all(not getattr(new, name) or _plain(new, name) == _plain(stored, name) for name in _DETAILS)


def _plain(entry: MemoryEntry, name: str) -> object:
    """The value such that equal means equal: in JSON true is not 1."""
    value = getattr(entry, name)
    return json.dumps(dict(value), sort_keys=True) if name == "metadata" else value
