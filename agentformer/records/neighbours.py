"""Messages and what was said right before and after them in their session.

A message is often too short to be found by its own words: "Yes, last May" answers a question that stands above it. Who
indexes one reads its neighbours with it; so a message that comes, goes or changes is announced with its neighbours.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from agentformer.records.codec import happened_at, to_micros
from agentformer.types import MemoryEntry

REACH = 2  # messages on each side; chosen on a development half, see docs/BENCHMARKS.md

# One place: what one user said must not help to find what another one said. IS, since most of these are NULL. What is
# superseded helps nobody.
_SAME_PLACE = (
    "kind = 'message' AND namespace = :namespace AND session_id = :session_id AND user_id IS :user_id "
    "AND agent_id IS :agent_id AND project IS :project AND superseded_by IS NULL"
)
_AT = "coalesce(occurred_at, created_at)"
# The comparison of the time alone follows from that of the pair, and is what SQLite finds its place in the index by.
_BESIDE = (
    "SELECT {columns} FROM entries WHERE "
    + _SAME_PLACE
    + f" AND {_AT} {{side}}= :at AND ({_AT}, id) {{side}} (:at, :id) "
    f"ORDER BY {_AT} {{order}}, id {{order}} LIMIT :reach"
)
_SIDES = (("<", "DESC"), (">", "ASC"))


def said_around(connection: sqlite3.Connection, entry: MemoryEntry) -> list[str]:
    """The contents of the messages before and after a message; none for another entry."""
    return [row[0] for row in _beside(connection, entry, "content")]


def numbers_around(connection: sqlite3.Connection, entries: Iterable[MemoryEntry]) -> list[int]:
    """The numbers of the messages whose neighbours these entries are, each once."""
    found = (row[0] for entry in entries for row in _beside(connection, entry, "num"))
    return list(dict.fromkeys(found))


def _beside(connection: sqlite3.Connection, entry: MemoryEntry, columns: str) -> list[sqlite3.Row]:
    if entry.kind != "message" or entry.session_id is None:
        return []
    values: Mapping[str, object] = {
        "namespace": entry.namespace,
        "session_id": entry.session_id,
        "user_id": entry.user_id,
        "agent_id": entry.agent_id,
        "project": entry.project,
        "at": to_micros(happened_at(entry)),
        "id": entry.id,
        "reach": REACH,
    }
    rows: list[sqlite3.Row] = []
    for side, order in _SIDES:
        rows += connection.execute(_BESIDE.format(columns=columns, side=side, order=order), values)
    return rows
