"""Supersession: `superseded_by` of an entry is the id of its successor, the entry that replaces it. Searches do not
find a superseded entry. For this reason, each chain of successors must end at an entry that is not superseded. If this
last entry is archived, a summary must have replaced it. An entry that is archived, but that no summary has replaced, is
called "archived without a summary".

Functions with a connection use the database; the caller opens and commits the write transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from agentformer.errors import Conflict, InvalidInput, NotFound, StoreDamaged
from agentformer.records import entries as records
from agentformer.records import scopes
from agentformer.records.codec import now
from agentformer.types import Connection, MemoryEntry, Statement, common

FindEntry = Callable[[str], MemoryEntry | None]
OWNER = ("namespace", "user_id")  # an entry and its successor have the same values in these fields
# This query uses the index of the entries with a successor, so it does not read all entries.
PREDECESSORS = Statement(
    sqlite="SELECT num FROM entries WHERE superseded_by IN (SELECT value FROM json_each(?)) ORDER BY num",
    postgres="SELECT num FROM entries WHERE superseded_by = ANY(%s) ORDER BY num",
)
_SUPERSEDED = common("SELECT num FROM entries WHERE superseded_by IS NOT NULL ORDER BY id DESC")


def checked(
    entry: MemoryEntry, changes: Mapping[str, Any], find: FindEntry, history: Callable[[], Sequence[MemoryEntry]]
) -> Mapping[str, Any]:
    """Check the successor in `changes`, and return the changes with the end of the validity of the entry: the time from
    which the successor holds. If the changes remove the successor, the entry gets its former end again. `find` returns
    the entry with an id, or None, and `history` returns the former versions of the entry.

    Raises `NotFound` if the successor does not exist, and `InvalidInput` if the successor is the entry itself or has
    another owner. Raises `Conflict` if the successor is archived, or if the entry or the successor is already
    superseded. No sequence of changes can make a cycle, because a superseded entry cannot become a successor."""
    if is_moved(entry, dataclasses.replace(entry, **changes)):
        changes = {"superseded_by": None, **changes}  # the successor stays with the former owner
    if (successor_id := changes.get("superseded_by")) is None:
        freed = "superseded_by" in changes and entry.superseded_by is not None and "valid_to" not in changes
        changed = dataclasses.replace(entry, **changes)
        return {**changes, "valid_to": _former_end(changed, history())} if freed else changes
    successor = find(successor_id)
    if successor is None:
        raise NotFound(f"there is no entry {successor_id}")
    changed = dataclasses.replace(entry, **changes)
    if successor.id == entry.id or not _same_owner(changed, successor):
        raise InvalidInput("superseded_by", "must be the id of another entry of the same namespace and the same user")
    for one in (entry, successor):
        if one.superseded_by is not None:
            raise Conflict(f"entry {one.id} is already superseded by {one.superseded_by}; restore entry {one.id} first")
    if successor.archived_at is not None:
        raise Conflict(
            f"entry {successor.id} is archived, so searches would find neither entry; "
            f"restore entry {successor.id} first"
        )
    ends = [time for time in (changed.valid_to, scopes.starts_at(successor)) if time]
    end = max(filter(None, (min(ends, default=None), changed.valid_from)), default=None)
    return {**changes, "valid_to": end}


def _former_end(entry: MemoryEntry, history: Sequence[MemoryEntry]) -> datetime | None:
    """Return the `valid_to` that an entry had before it was superseded, or None if this is unknown. `history` contains
    its former versions, oldest first. The result is not before the present `valid_from`."""
    former = [version for version in history if version.superseded_by is None]
    end = former[-1].valid_to if former else None
    return max(end, entry.valid_from) if end and entry.valid_from else end


def is_lost(entry: MemoryEntry, find: FindEntry, ending: set[str]) -> bool:
    """Return whether a superseded entry is lost. A search finds neither a lost entry nor a successor of it, so the
    entry must become current again. The successors of an entry form a chain. A successor that does not exist or has
    another owner is not in the chain, and neither are the successors after it. The entry is lost if the chain is empty,
    if the chain returns to the entry, or if all entries of the chain are archived without a summary.

    `ending` is a cache that a caller passes to the calls for many entries, so that a long chain is read only a few
    times: the ids of entries whose chains end at an entry that can be found. The function reads this set and adds ids
    to it."""
    if entry.superseded_by is None:
        return False
    visited: set[str] = set()
    found = False  # whether one of the successors is not archived without a summary
    last, successor = entry, find(entry.superseded_by)
    while successor is not None and _same_owner(last, successor):
        if successor.id in ending:
            ending |= visited
            return False
        if successor.id == entry.id:
            return True
        if successor.id in visited:
            return False  # other entries supersede each other in a cycle
        visited.add(successor.id)
        found = found or not _is_archived_alone(successor)
        last, successor_id = successor, successor.superseded_by
        successor = find(successor_id) if successor_id is not None else None
    if found and not _is_archived_alone(last):
        ending |= visited
    return not found


def is_moved(former: MemoryEntry, changed: MemoryEntry) -> bool:
    """Return whether `changed`, a new version of the entry `former`, has another owner. The entry then no longer
    supersedes entries of its former owner."""
    return not _same_owner(former, changed)


def releases(changed: MemoryEntry) -> bool:
    """Return whether the entries that `changed` supersedes must become current again. This is the case if `changed` has
    no successor and is archived without a summary, because searches would find neither `changed` nor these entries."""
    return changed.superseded_by is None and _is_archived_alone(changed)


def current(entry: MemoryEntry, history: Sequence[MemoryEntry]) -> MemoryEntry:
    """Return the next version of a superseded entry, which has no successor and its former `valid_to`, so that searches
    find the entry again. `history` contains the former versions, oldest first."""
    end = _former_end(entry, history)
    return dataclasses.replace(entry, superseded_by=None, valid_to=end, version=entry.version + 1, updated_at=now())


def finder(connection: Connection) -> FindEntry:
    """Return a function that reads an entry of the database by its id."""
    return lambda entry_id: next(iter(records.get(connection, [entry_id])), None)


def checked_changes(connection: Connection, entry: MemoryEntry, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check `changes` of an entry of the database; see `checked`."""
    return checked(entry, changes, finder(connection), lambda: _history(connection, entry))


def _history(connection: Connection, entry: MemoryEntry) -> Sequence[MemoryEntry]:
    with suppress(StoreDamaged):
        return records.versions_of(connection, entry.id)
    return ()


def release(connection: Connection, ids: Iterable[str]) -> None:
    """Make the entries current again that were superseded by one of the entries `ids`. Call this function when the
    entries `ids` were removed, moved or archived. Searches do not find an entry that is archived without a summary. If
    such an entry becomes current, the entries that it superseded therefore become current, too. The former version of
    each changed entry is added to its history. A damaged entry is skipped."""
    ids = list(ids)
    while ids:
        rows = connection.run(PREDECESSORS, [ids]).fetchall()
        ids = []
        for row in rows:
            with suppress(StoreDamaged):
                (entry,) = records.by_num(connection, [row[0]]).values()
                records.replace(connection, entry := current(entry, _history(connection, entry)))
                ids += [entry.id] if releases(entry) else []


def make_current(connection: Connection, entry: MemoryEntry) -> None:
    """Make a superseded entry current. If the entry is archived without a summary, the entries that it superseded
    become current, too, because searches do not find this entry."""
    records.replace(connection, entry := current(entry, _history(connection, entry)))
    if releases(entry):
        release(connection, [entry.id])


def keep_valid(connection: Connection, stored: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    """Make the lost entries (see `is_lost`) among the new entries `stored` current: set their `superseded_by` to None.
    Return all entries of `stored` in their final form. The version numbers stay the same, because the entries are
    new."""
    find, ending = finder(connection), set[str]()
    result, lost = list(stored), True
    while lost:  # repeated: an entry of a cycle may be archived without a summary; its predecessors are then lost again
        lost = False
        for number, entry in enumerate(result):
            if is_lost(entry, find, ending):
                lost, result[number] = True, dataclasses.replace(entry, superseded_by=None)
                records.overwrite(connection, result[number])
    return result


def lost_entries(connection: Connection) -> list[MemoryEntry]:
    """Return all entries that are lost, newest first. See `is_lost`. Damaged entries are left out."""
    found = []
    find, ending = finder(connection), set[str]()
    rows = connection.run(_SUPERSEDED).fetchall()
    for row in rows:
        with suppress(StoreDamaged):
            (entry,) = records.by_num(connection, [row[0]]).values()
            if is_lost(entry, find, ending):
                found.append(entry)
    return found


def _is_archived_alone(entry: MemoryEntry) -> bool:
    return entry.archived_at is not None and entry.archived_by is None


def _same_owner(one: MemoryEntry, other: MemoryEntry) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in OWNER)
