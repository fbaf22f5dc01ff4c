"""Entries that others replace: an entry by its successor, and the originals of a summary by the summary.

`superseded_by` of an entry is the id of its successor. Searches do not find a superseded entry. For this reason, each
chain of successors must end at an entry that is not superseded. If this last entry is archived, a summary must have
replaced it. An entry that is archived, but that no summary has replaced, is called "archived without a summary".

Functions with a connection use the database; the caller opens and commits the write transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from agentformer.errors import Conflict, InvalidInput, NotFound, StoreDamaged
from agentformer.records import change_feed, events, meta, scopes
from agentformer.records import entries as records
from agentformer.records.codec import now, to_micros
from agentformer.types import Connection, MemoryEntry, Statement, common

FindEntry = Callable[[str], MemoryEntry | None]
OWNER = ("namespace", "user_id")  # an entry and its successor have the same values in these fields
# This query uses the index of the entries with a successor, so it does not read all entries.
PREDECESSORS = Statement(
    sqlite="SELECT num FROM entries WHERE superseded_by IN (SELECT value FROM json_each(?)) ORDER BY num",
    postgres="SELECT num FROM entries WHERE superseded_by = ANY(%s) ORDER BY num",
)
_SUPERSEDED = common("SELECT num FROM entries WHERE superseded_by IS NOT NULL ORDER BY id DESC")
# The summaries that were made from given entries: current ones, and archived ones whose originals were restored.
_SUMMARIES = Statement(
    sqlite="""
    WITH original (num, id, archived_by) AS (
        SELECT num, id, archived_by FROM entries WHERE num IN (SELECT value FROM json_each(?))
    )
    SELECT s.num FROM entries AS s JOIN original AS o ON s.id = o.archived_by
    UNION
    SELECT s.num FROM entries AS s INDEXED BY entries_restored JOIN json_each(s.derived_from) AS link
    WHERE s.kind = 'summary' AND s.archived_at IS NOT NULL
        AND json_extract(link.value, '$[0]') IN (SELECT id FROM original)
    """,
    postgres="""
    WITH original (num, id, archived_by) AS (SELECT num, id, archived_by FROM entries WHERE num = ANY(%s))
    SELECT s.num FROM entries AS s JOIN original AS o ON s.id = o.archived_by
    UNION
    SELECT s.num FROM entries AS s CROSS JOIN LATERAL json_items(s.derived_from) AS link
    WHERE s.kind = 'summary' AND s.archived_at IS NOT NULL
        AND json_extract(link.value, '$[0]') IN (SELECT id FROM original)
    """,
)
_ORIGINALS = Statement(
    sqlite="SELECT num FROM entries WHERE archived_by IN (SELECT value FROM json_each(?)) ORDER BY num",
    postgres="SELECT num FROM entries WHERE archived_by = ANY(%s) ORDER BY num",
)
_ARCHIVE = common("UPDATE entries SET archived_at = ?, archived_by = ? WHERE num = ?")
_ARCHIVE_SUMMARY = common("UPDATE entries SET archived_at = ? WHERE num = ?")
_MAKE_LIVE = common("UPDATE entries SET archived_at = NULL, archived_by = NULL WHERE num = ?")


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


def archive(
    connection: Connection, summary: MemoryEntry, ids: Sequence[str], at: datetime, versions: Mapping[str, int]
) -> None:
    """Archive the entries `ids`, which the summary replaces. `at` is stored as the time of archiving. `versions` (id ->
    version) contains the expected versions of entries. Raises `Conflict` if one of the entries `ids` does not exist in
    the namespace of the summary, is archived, superseded or itself a summary, or does not have the expected version."""
    entries = records.by_num(connection, records.numbers(connection, list(ids))).items()
    current = [(num, entry) for num, entry in entries if versions.get(entry.id, entry.version) == entry.version]
    current = [(num, entry) for num, entry in current if entry.namespace == summary.namespace]
    live = [num for num, entry in current if entry.archived_at is None and entry.superseded_by is None]
    if _originals(connection, ids):
        raise Conflict(
            "one of the entries to archive is a summary, which cannot be summarized again; select only entries "
            "that are not summaries"
        )
    if len(live) != len(set(ids)):
        raise Conflict(
            "some of the entries to archive are missing, changed, archived or superseded; select the entries again"
        )
    connection.run_many(_ARCHIVE, ((to_micros(at), summary.id, num) for num in live))
    change_feed.append(connection, live)
    events.add_numbers(connection, live, "changed")


def restore(connection: Connection, summary_id: str, at: datetime) -> list[MemoryEntry]:
    """Make the archived originals of a summary live (not archived) again, and archive the summary with the time `at`.
    If the summary superseded another entry, that other entry is current again, unless the summary itself has a
    successor, which still replaces both (see `releases`). Return the originals in order of id. Raises `NotFound` if
    there is no entry `summary_id`, and the error of `_restore_error` if the entry has no archived originals."""
    summary = next(iter(records.get(connection, [summary_id])), None)
    if summary is None:
        raise NotFound(f"there is no entry {summary_id}")
    originals = _originals(connection, [summary_id])
    if not originals:
        raise _restore_error(summary)
    _make_live(connection, originals)
    (num,) = records.numbers(connection, [summary_id])
    connection.run(_ARCHIVE_SUMMARY, [to_micros(at), num])
    change_feed.append(connection, [num])
    events.add_numbers(connection, [num], "changed")
    if summary.superseded_by is None:
        release(connection, [summary_id])
    return sorted(records.by_num(connection, originals).values(), key=lambda entry: entry.id)


def _restore_error(entry: MemoryEntry) -> InvalidInput | Conflict:
    """Return the error of `restore` for an entry without archived originals: `Conflict` if the entry is a summary that
    was already restored, else `InvalidInput`."""
    if entry.kind != "summary":
        problem = f"entry {entry.id} is a {entry.kind} and not a summary, so it has no originals to restore"
        return InvalidInput("summary_id", problem)
    if entry.archived_at is not None:
        return Conflict(f"the originals of the summary {entry.id} were already restored")
    return InvalidInput("summary_id", f"the summary {entry.id} has no archived originals, so nothing can be restored")


def with_summaries(connection: Connection, nums: Sequence[int]) -> set[int]:
    """Return the row numbers of the entries `nums`, of the summaries that contain their content, and of the parts of
    these summaries. If all these entries are deleted, no summary contains the content of `nums`."""
    result = set(nums)
    while summaries := {row[0] for row in connection.run(_SUMMARIES, [sorted(result)])} - result:
        result.update(records.with_parts(connection, sorted(summaries)))
    return result


def remove(connection: Connection, nums: Sequence[int]) -> int:
    """Delete entries and the summaries that contain their content. If a deleted summary has other originals, these
    originals are no longer archived. If a deleted entry superseded another entry, that other entry is current again. A
    deleted document is recorded as absent, so that its original file is deleted later. Return the number of deleted
    entries."""
    to_delete = with_summaries(connection, nums)
    entries = records.by_num(connection, sorted(to_delete)).values()
    meta.add_absent(connection, entries)
    ids = [entry.id for entry in entries]
    _make_live(connection, [num for num in _originals(connection, ids) if num not in to_delete])
    deleted = records.remove(connection, sorted(to_delete))
    release(connection, ids)
    return deleted


def check_free(connection: Connection, entry: MemoryEntry, changes: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if `changes` would separate a summary from its originals. An original has the same namespace
    as its summary, and the original is archived while the summary is not. For this reason, an original, and a summary
    with archived originals, cannot be archived, restored or moved to another namespace."""
    moves = changes.get("namespace", entry.namespace) != entry.namespace
    field = "archived_at" if "archived_at" in changes else "namespace" if moves else None
    if field is None:
        return
    if entry.archived_by is not None:
        problem = f"entry {entry.id} was archived for a summary; restore the summary {entry.archived_by} first"
        raise InvalidInput(field, problem)
    if _originals(connection, [entry.id]):
        raise InvalidInput(field, f"entry {entry.id} is a summary; restore the summary to get back its originals")


def _originals(connection: Connection, summaries: Sequence[str]) -> list[int]:
    return [row[0] for row in connection.run(_ORIGINALS, [list(summaries)])]


def _make_live(connection: Connection, nums: Sequence[int]) -> None:
    connection.run_many(_MAKE_LIVE, ((num,) for num in nums))
    change_feed.append(connection, nums)
    events.add_numbers(connection, nums, "changed")
