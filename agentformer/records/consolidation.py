"""Summaries and their originals. The originals of a summary are the entries that the summary replaces.

These functions archive, restore and remove summaries together with their originals. The caller opens and commits the
write transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.records import change_feed, events, meta, supersession
from agentformer.records import entries as records
from agentformer.records.codec import to_micros
from agentformer.types import Connection, MemoryEntry, Statement, common

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
    If the summary superseded another entry, that other entry is current again. Return the originals in order of id.
    Raises `NotFound` if there is no entry `summary_id`, and the error of `_restore_error` if the entry has no archived
    originals."""
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
        supersession.release(connection, [summary_id])
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
    supersession.release(connection, ids)
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
