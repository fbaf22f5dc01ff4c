"""Repairs of the damage that the module `verify` finds. Each repair function takes the findings of the check with the
same name.

A row may have changed after the check. For this reason, a repair checks the row again while it holds the write lock,
and it releases the lock after each row. Rows that cannot be repaired are moved to the quarantine file, which users can
inspect.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentformer.errors import StoreDamaged, store_failure
from agentformer.records import change_feed, meta, supersession
from agentformer.records import entries as records
from agentformer.records.codec import CHECKED, from_state
from agentformer.records.integrity import checksums
from agentformer.records.integrity.files import sync_folder
from agentformer.records.integrity.findings import Findings
from agentformer.records.integrity.verify import REFERRING_TABLES, is_intact
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import Database
from agentformer.settings.access import opener, sync_file
from agentformer.types import RecordStore, common

_MAX_ROWS = 1_000  # deleted in one transaction
# SQLite cannot remove damaged metadata from these indexes.
_JSON_INDEXES = ("entries_by_sha256", "entries_by_name", "entries_by_origin")
DAMAGED = "its checksum differs, or it cannot be decoded"
_SUMMARY = "SELECT created_at FROM entries AS s WHERE s.id = entries.archived_by AND s.archived_at IS NULL"
_MEND_LINK = common(
    f"UPDATE entries SET archived_at = coalesce(archived_at, ({_SUMMARY})), "
    f"archived_by = CASE WHEN EXISTS ({_SUMMARY}) THEN archived_by END WHERE num = ?"
)
_MAKE_LIVE = common("UPDATE entries SET archived_at = NULL WHERE num = ? AND archived_by IS NULL")
_END_LEASE = common("DELETE FROM leases WHERE name = ?")
PARTS = ("chunk", "page")  # not lost, because a document that lacks parts is ingested again from its file


class Quarantine:
    """The file `damaged-DATE.jsonl`, which receives the rows that cannot be repaired. The file is created with the
    first row, and only its owner can read it. Each line has the table of a row, the reason, and all readable columns.
    Bytes that are not UTF-8 are written as {"hex": "..."}."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"damaged-{datetime.now(UTC):%Y-%m-%d}.jsonl"
        self.rows = 0

    def add(self, table: str, row: Mapping[str, Any], reason: str) -> None:
        """Append a row of the table `table` to the file, and sync the file. `reason` says why the row cannot be
        repaired. Raises `StoreFull` if the file cannot be written."""
        line = {"table": table, "why": reason, "row": {name: _readable(value) for name, value in row.items()}}
        new = not self.path.exists()
        try:
            with open(self.path, "ab", opener=opener) as file:
                file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
                file.flush()
                sync_file(file.fileno())
        except OSError as error:
            problem = f"{self.path} cannot be written, so the damaged rows were not removed"
            raise store_failure(problem, error, "free some disk space or check the permissions") from error
        if new:
            sync_folder(self.path.parent)
        self.rows += 1


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    return value


Repair = Callable[[Database, Findings, Quarantine], None]


def rebuild_sqlite_indexes(database: Database) -> bool:
    """Rebuild all SQLite indexes from the rows of their tables. Return False if the rows are damaged too."""
    try:
        with database.writing() as connection:
            connection.execute("REINDEX")
    except StoreDamaged:
        return False
    return True


def dangling_references(database: Database, findings: Findings) -> None:
    """Delete rows that refer to missing rows of other tables. These rows can be computed again."""
    for table in sorted(set(REFERRING_TABLES) & set(findings.keys)):
        column, other, key = ("space", "spaces", "id") if table == "vectors" else ("entry", "entries", "num")
        condition = f"{column} NOT IN (SELECT {key} FROM {other})"
        with database.writing() as connection:
            if table == "vectors":
                connection.execute(f"DELETE FROM windows WHERE vector IN (SELECT id FROM vectors WHERE {condition})")
            connection.execute(f"DELETE FROM {table} WHERE {condition}")
        findings.mark_repaired(findings.keys.count(table), "rows that referred to missing rows were deleted")


def metadata(database: Database, findings: Findings, quarantine: Quarantine) -> None:
    """Move damaged metadata values, and damaged descriptions of embedding spaces, to the quarantine file. If the
    description of a space is damaged, the vectors of this space are deleted. A damaged metadata value may have been a
    request to erase deleted text from the index files. To be safe, a new request is recorded."""
    for damaged in findings.keys:
        with database.writing() as connection, connection.lenient_text():
            column, key = ("key", damaged.key) if damaged.table == "meta" else ("id", damaged.num)
            for row in connection.execute(f"SELECT * FROM {damaged.table} WHERE {column} = ?", [key]).fetchall():
                quarantine.add(damaged.table, dict(row), damaged.why)
            if damaged.table == "spaces":
                connection.execute("DELETE FROM windows WHERE space = ?", [key])
                connection.execute("DELETE FROM vectors WHERE space = ?", [key])
            connection.execute(f"DELETE FROM {damaged.table} WHERE {column} = ?", [key])
            if damaged.table == "meta":
                meta.request_secure_delete(connection)
        findings.mark_repaired(
            1, f"moved to {quarantine.path.name}; the texts of a deleted embedding space are embedded again"
        )


def entries(database: Database, findings: Findings, quarantine: Quarantine) -> None:
    """Restore the text of a damaged chunk (a passage of a document) from its page. Move every other damaged entry,
    together with its history, to the quarantine file."""
    restored = 0
    for damaged in findings.keys:
        if damaged.is_range:
            continue
        with database.writing() as connection:
            is_restored, lost = _repair_entry(connection, damaged.num, quarantine)
        restored += is_restored
        findings.lost += lost
        from_pages = f"{restored} restored from their pages, " if restored else ""
        findings.mark_repaired(1, f"{from_pages}{findings.mended + 1 - restored} moved to {quarantine.path.name}")


def _repair_entry(connection: SqliteConnection, num: int, quarantine: Quarantine) -> tuple[bool, int]:
    """Restore an entry, or move it to the quarantine file. Return whether it was restored, and the number of lost
    rows."""
    with connection.lenient_text():
        row = connection.execute("SELECT * FROM entries WHERE num = ?", [num]).fetchone()
        if row is None or is_intact(row):
            return True, 0
        content = content_from_page(connection, row)
        if content is not None:
            connection.execute("UPDATE entries SET content = ? WHERE num = ?", [content, num])
            change_feed.append(connection, [num])
            return True, 0
        quarantine.add("entries", dict(row), DAMAGED)
        versions = connection.execute("SELECT * FROM history WHERE entry = ?", [num]).fetchall()
        for former in versions:
            quarantine.add("history", {**dict(former), "id": row["id"]}, "its entry is damaged")
        _remove(connection, num)
        if isinstance(row["id"], str):
            supersession.release(connection, [row["id"]])
    return False, len(versions) + (row["kind"] not in PARTS)


def content_from_page(connection: SqliteConnection, row: sqlite3.Row) -> str | None:
    """Return the text of a damaged chunk, read from the page to which the chunk belongs. Return None if the text on the
    page does not match the checksum of the chunk."""
    if row["kind"] != "chunk" or row["checksum"] is None:
        return None
    pages = connection.execute(
        "SELECT * FROM entries WHERE parent_id = ? AND kind = 'page' AND page = ?", [row["parent_id"], row["page"]]
    ).fetchall()
    start, end = row["span_start"], row["span_end"]
    if len(pages) != 1 or not is_intact(pages[0]) or not isinstance(start, int) or not isinstance(end, int):
        return None
    content = str(pages[0]["content"])[start:end]
    values: Mapping[str, Any] = {**dict(row), "content": content}
    return content if checksums.of_values([values[name] for name in CHECKED]) == row["checksum"] else None


def _remove(connection: SqliteConnection, num: int) -> None:
    """Delete a damaged entry. If its metadata are not valid JSON, SQLite cannot remove them from the metadata indexes,
    so these indexes are dropped and created again."""
    indexes: list[sqlite3.Row] = []
    if not connection.execute("SELECT json_valid(metadata) FROM entries WHERE num = ?", [num]).fetchone()[0]:
        marks = ", ".join("?" * len(_JSON_INDEXES))
        query = f"SELECT name, sql FROM sqlite_master WHERE type = 'index' AND name IN ({marks})"
        indexes = connection.execute(query, _JSON_INDEXES).fetchall()
    for index in indexes:
        connection.execute(f"DROP INDEX {index['name']}")
    records.remove(connection, [num])
    for index in indexes:
        connection.execute(index["sql"])


def history(database: Database, findings: Findings, quarantine: Quarantine) -> None:
    """Move damaged former versions of entries to the quarantine file."""
    for damaged in findings.keys:
        if damaged.is_range:
            continue
        with database.writing() as connection, connection.lenient_text():
            entry = connection.execute("SELECT id FROM entries WHERE num = ?", [damaged.num]).fetchone()
            for row in connection.execute("SELECT * FROM history WHERE entry = ?", [damaged.num]).fetchall():
                try:
                    from_state(row, entry["id"] if entry else "")
                except StoreDamaged:
                    quarantine.add("history", {**dict(row), "id": entry["id"] if entry else None}, DAMAGED)
                    key = [row["entry"], row["version"]]
                    connection.execute("DELETE FROM history WHERE entry = ? AND version = ?", key)
                    findings.lost += 1
        findings.mark_repaired(1, f"moved to {quarantine.path.name}")


def links(database: RecordStore, findings: Findings, quarantine: Quarantine | None) -> None:
    """Repair originals of summaries (the entries that a summary replaces). If the summary exists and is not archived,
    archive the original. If the summary is archived or missing, make the original live (not archived) again."""
    for num in findings.keys:
        with database.writing() as connection:
            connection.run(_MEND_LINK, [num])
            connection.run(_MAKE_LIVE, [num])
            change_feed.append(connection, [num])
    how = "entries whose summary is missing or archived were made live again, and the other entries were archived"
    findings.mark_repaired(len(findings.keys), how)


def superseded(database: RecordStore, findings: Findings, quarantine: Quarantine | None) -> None:
    """Make the lost entries current. A superseded entry is lost if none of its successors can be found in its place
    (see `supersession.is_lost`). In a cycle of entries that supersede each other, only the newest entry is made
    current, because the chains of the other entries then end at this entry."""
    for entry_id in findings.keys:
        with database.writing() as connection, connection.lenient_text():
            find = supersession.finder(connection)
            entry = find(entry_id)
            if entry is not None and supersession.is_lost(entry, find, set()):
                supersession.make_current(connection, entry)
    how = "these entries are current again; in a cycle of entries, only the newest entry was made current"
    findings.mark_repaired(len(findings.keys), how)


def changes(database: Database, findings: Findings, quarantine: Quarantine) -> None:
    """Add missing entries to the change feed. The newest change gets a new random token, so that every index detects
    that the feed was repaired."""
    with database.writing() as connection:
        connection.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, (SELECT coalesce(max(seq), 0) FROM changes), "
            "(SELECT coalesce(max(seq), 0) FROM points)) WHERE name = 'changes'"
        )
        nums = [num for num in findings.keys if num]
        last = connection.execute("SELECT entry FROM changes ORDER BY seq DESC LIMIT 1").fetchone()
        if not nums and last is None:
            connection.execute("DELETE FROM points")
        change_feed.append(connection, nums or ([last["entry"]] if last else []))
    findings.mark_repaired(findings.found, "the entries were appended to the change feed")


def leases(database: RecordStore, findings: Findings, quarantine: Quarantine | None) -> None:
    """End the leases that a process with a wrong clock took, because they would last too long."""
    with database.writing() as connection:
        connection.run_many(_END_LEASE, ((name,) for name in findings.keys))
    findings.mark_repaired(findings.found, "the lease was ended")


def delete_unused_vectors(database: Database) -> int:
    """Delete the vectors that no entry uses, in several transactions. Return the number of deleted vectors."""
    deleted = 0
    while True:
        with database.writing() as connection:
            count = connection.execute(
                "DELETE FROM vectors WHERE id IN (SELECT id FROM vectors WHERE NOT EXISTS "
                "(SELECT 1 FROM windows WHERE vector = vectors.id) LIMIT ?)",
                [_MAX_ROWS],
            ).rowcount
        deleted += count
        if count < _MAX_ROWS:
            return deleted
