"""Summaries and their originals: a summary stands for originals that it has archived, or they are live without it.

All functions need a writing connection; the caller commits.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.records import entries as records
from agentformer.records.codec import to_micros
from agentformer.types import MemoryEntry

# Summaries that tell of doomed entries: those that stand for them, and restored ones that once did.
_TELLING = """
    WITH doomed (num, id, archived_by) AS (
        SELECT num, id, archived_by FROM entries WHERE num IN (SELECT value FROM json_each(?))
    )
    SELECT s.num FROM entries AS s JOIN doomed AS d ON s.id = d.archived_by
    UNION
    SELECT s.num FROM entries AS s INDEXED BY entries_restored JOIN json_each(s.derived_from) AS link
    WHERE s.kind = 'summary' AND s.archived_at IS NOT NULL
        AND json_extract(link.value, '$[0]') IN (SELECT id FROM doomed)
"""


def archive(
    connection: sqlite3.Connection, summary_id: str, ids: Sequence[str], at: datetime, versions: Mapping[str, int]
) -> None:
    """Archive live entries. Raises `Conflict` when one is missing, archived, superseded, or at another version."""
    nums = records.numbers(connection, list(ids))
    found = records.by_num(connection, nums)
    live = [
        num
        for num, entry in found.items()
        if entry.archived_at is None
        and entry.superseded_by is None
        and versions.get(entry.id, entry.version) == entry.version
    ]
    if _originals(connection, ids):
        raise Conflict("one of the entries to archive stands for others; there is no summary of a summary")
    if len(live) != len(set(ids)):
        raise Conflict("some of the entries to archive are gone, changed, archived or superseded; select again")
    connection.executemany(
        "UPDATE entries SET archived_at = ?, archived_by = ? WHERE num = ?",
        ((to_micros(at), summary_id, num) for num in live),
    )
    records.announce(connection, live)


def restore(connection: sqlite3.Connection, summary_id: str, at: datetime) -> list[MemoryEntry]:
    """Bring a summary's originals back and archive it; returns them in order of id."""
    summary = next(iter(records.get(connection, [summary_id])), None)
    if summary is None:
        raise NotFound(f"there is no entry {summary_id}")
    originals = _originals(connection, [summary_id])
    if not originals and summary.archived_at is None:
        raise InvalidInput("summary_id", f"{summary_id} is a {summary.kind} that stands for no other entries")
    if not originals:
        raise Conflict(f"{summary_id} was restored already; its originals are live")
    _revive(connection, originals)
    (num,) = records.numbers(connection, [summary_id])
    connection.execute("UPDATE entries SET archived_at = ? WHERE num = ?", [to_micros(at), num])
    records.announce(connection, [num])
    return sorted(records.by_num(connection, originals).values(), key=lambda entry: entry.id)


def with_telling(connection: sqlite3.Connection, nums: Sequence[int]) -> set[int]:
    """These entries and the summaries that tell of them, with their parts: all that must go where these go."""
    doomed = set(nums)
    while telling := {row[0] for row in connection.execute(_TELLING, [json.dumps(sorted(doomed))])} - doomed:
        doomed.update(records.with_parts(connection, sorted(telling)))
    return doomed


def remove(connection: sqlite3.Connection, nums: Sequence[int]) -> int:
    """Delete entries, and the summaries that tell of them; originals of a deleted summary that stay come back."""
    doomed = with_telling(connection, nums)
    ids = [entry.id for entry in records.by_num(connection, sorted(doomed)).values()]
    _revive(connection, [num for num in _originals(connection, ids) if num not in doomed])
    return records.remove(connection, sorted(doomed))


def check_free(connection: sqlite3.Connection, entry: MemoryEntry) -> None:
    """Raises `InvalidInput` when archiving or reviving this entry alone would part a summary and its originals."""
    if entry.archived_by is not None:
        raise InvalidInput("archived_at", f"a summary stands for {entry.id}; restore {entry.archived_by} instead")
    if _originals(connection, [entry.id]):
        raise InvalidInput("archived_at", f"{entry.id} stands for other entries; restore it instead")


def _originals(connection: sqlite3.Connection, summaries: Sequence[str]) -> list[int]:
    """The numbers of the entries that these summaries have archived."""
    query = "SELECT num FROM entries WHERE archived_by IN (SELECT value FROM json_each(?)) ORDER BY num"
    return [row[0] for row in connection.execute(query, [json.dumps(list(summaries))])]


def _revive(connection: sqlite3.Connection, nums: Sequence[int]) -> None:
    connection.executemany(
        "UPDATE entries SET archived_at = NULL, archived_by = NULL WHERE num = ?", ((num,) for num in nums)
    )
    records.announce(connection, nums)
