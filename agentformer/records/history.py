"""Former versions of entries: check, store and read them. A former version is stored as JSON with a checksum."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence

from agentformer.errors import InvalidInput
from agentformer.records.codec import from_state, to_row
from agentformer.records.entry_json import entry_to_json
from agentformer.records.integrity import checksums
from agentformer.types import MemoryEntry

Histories = Mapping[str, Sequence[MemoryEntry]]  # former versions by the id of their entry, oldest first


def check_histories(entries: Sequence[MemoryEntry], histories: Histories | None, *, unique: bool) -> Histories:
    """Check the former versions that will be stored with `entries`, and return them without empty histories. Raises
    `InvalidInput` if the versions cannot belong to these entries, or if versions are given although `unique` is true,
    because a duplicate entry is not stored and has no history."""
    checked = {entry_id: versions for entry_id, versions in (histories or {}).items() if versions}
    if checked and unique:
        raise InvalidInput(
            "former", "cannot be given together with `unique`, because a duplicate is not stored and has no history"
        )
    current = {entry.id: entry.version for entry in entries}
    for entry_id, versions in checked.items():
        if entry_id not in current:
            problem = f"contains versions of the entry {entry_id[:200]}, but `entries` does not contain this entry"
            raise InvalidInput("former", problem)
        if problem := history_problem(entry_id, current[entry_id], versions):
            raise InvalidInput("former", problem)
        for version in versions:
            to_row(version)  # raises for metadata that is not JSON
    return checked


def history_problem(entry_id: str, current: int, versions: Sequence[MemoryEntry]) -> str:
    """Return the reason why these versions cannot be the former versions of the entry `entry_id`, or "" if they can.
    `current` is the version number of the entry."""
    previous = 0
    for version in versions:
        if version.id != entry_id:
            return f"a former version of {entry_id[:200]} has the id {version.id[:200]}"
        if not previous < version.version < current:
            return f"the version numbers in the history of {entry_id[:200]} must rise and be lower than {current}"
        previous = version.version
    return ""


def insert_histories(
    connection: sqlite3.Connection, nums: Sequence[int], entries: Sequence[MemoryEntry], histories: Histories
) -> None:
    """Store the former versions of entries that were just inserted with the row numbers `nums`."""
    for num, entry in zip(nums, entries, strict=True):
        for version in histories.get(entry.id, ()):
            insert_version(connection, num, version)


def insert_version(connection: sqlite3.Connection, num: int, version: MemoryEntry) -> None:
    """Store `version` as a former version of the entry with the row number `num`."""
    state = json.dumps(entry_to_json(version), ensure_ascii=False)
    checksum = checksums.of_text(state, num, version.version)
    connection.execute("INSERT INTO history VALUES (?, ?, ?, ?)", [num, version.version, state, checksum])


def versions_of(connection: sqlite3.Connection, entry_id: str) -> list[MemoryEntry]:
    """Return the former versions of an entry, oldest first. Raises `StoreDamaged` if one of them is damaged."""
    rows = connection.execute(
        "SELECT history.* FROM history JOIN entries ON entries.num = history.entry WHERE entries.id = ? "
        "ORDER BY history.version",
        [entry_id],
    )
    return [from_state(row, entry_id) for row in rows]
