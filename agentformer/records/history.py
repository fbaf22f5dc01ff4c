"""What may be given as the former states of entries: each check raises `InvalidInput`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentformer.errors import InvalidInput
from agentformer.records.codec import to_row
from agentformer.types import MemoryEntry

Past = Mapping[str, Sequence[MemoryEntry]]  # former states by the id of their entry, oldest first


def checked_past(entries: Sequence[MemoryEntry], former: Past | None, *, unique: bool) -> Past:
    """The former states that are to be stored with `entries`; none is an empty mapping."""
    past = {entry_id: states for entry_id, states in (former or {}).items() if states}
    if past and unique:
        raise InvalidInput("former", "does not go with `unique`: an entry that is not stored has no past")
    versions = {entry.id: entry.version for entry in entries}
    for entry_id, states in past.items():
        if entry_id not in versions:
            raise InvalidInput("former", f"has states of {entry_id[:200]}, which is not stored by this call")
        if problem := wrong_past(entry_id, versions[entry_id], states):
            raise InvalidInput("former", problem)
        for state in states:
            to_row(state)  # raises for metadata that is no JSON
    return past


def wrong_past(entry_id: str, version: int, states: Sequence[MemoryEntry]) -> str:
    """Why these cannot be the former states of an entry at this version; "" where they can."""
    before = 0
    for state in states:
        if state.id != entry_id:
            return f"a former state of {entry_id[:200]} is of {state.id[:200]}"
        if not before < state.version < version:
            return f"the former versions of {entry_id[:200]} do not rise up to its own, which is {version}"
        before = state.version
    return ""
