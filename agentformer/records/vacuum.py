"""Give the space of deleted content back to the disk, and delete former versions of entries that are old."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from agentformer.records.codec import to_micros
from agentformer.types import RecordStore, Statement

# Versions that were replaced before a time. A version was replaced when the next one was written: the next row of the
# history, or else the entry.
_TRIM = Statement(
    sqlite="""
    DELETE FROM history WHERE (entry, version) IN (
        SELECT h.entry, h.version FROM history AS h JOIN entries AS e ON e.num = h.entry
        LEFT JOIN history AS n ON n.entry = h.entry AND n.version = h.version + 1
        WHERE CASE WHEN n.entry IS NOT NULL THEN json_extract(n.state, '$.updated_at') < ? ELSE e.updated_at < ? END
    )
    """,
    postgres="""
    DELETE FROM history AS h USING entries AS e
    WHERE e.namespace = h.entry_namespace AND e.num = h.entry AND coalesce(
        (SELECT json_extract(n.state, '$.updated_at') < %s FROM history AS n
            WHERE n.entry_namespace = h.entry_namespace AND n.entry = h.entry AND n.version = h.version + 1),
        e.updated_at < %s)
    """,
)


class Vacuumed(NamedTuple):
    """The size of a store in bytes before and after, the number of former versions that were deleted, and the bytes
    of the size that are a log, which is emptied when no reader needs it any more."""

    before: int
    after: int
    versions: int
    log: int = 0


def trim_history(database: RecordStore, before: datetime) -> int:
    """Delete the former versions of entries that were replaced before a time, and return their number. The entries
    themselves stay."""
    with database.writing() as connection:
        return connection.run(_TRIM, [before.astimezone(UTC).isoformat(), to_micros(before)]).rowcount
