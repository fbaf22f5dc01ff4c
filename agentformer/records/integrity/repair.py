"""Mends what the checks of the records have found: each function takes what its check found, and puts right what still
is wrong when it has the write lock, which it keeps for one thing at a time."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from agentformer.errors import StoreDamaged
from agentformer.records import entries as records
from agentformer.records import secure_delete as erasure
from agentformer.records.codec import CHECKED, from_row, from_state, now
from agentformer.records.database import Database
from agentformer.records.integrity import checksums as crc
from agentformer.records.integrity.findings import Findings
from agentformer.records.integrity.quarantine import Aside
from agentformer.records.integrity.verify import REFERRING, lenient, whole
from agentformer.types import DOCUMENT_KINDS

Mend = Callable[[Database, Findings, Aside], None]
_ROWS = 1_000  # that one transaction deletes
_JSON_INDEXES = ("entries_by_sha256", "entries_by_name")  # which no row with broken metadata can leave


def reindexed(database: Database) -> str:
    """Make all indexes anew from their tables. Returns why that could not be done; "" where it was."""
    try:
        with database.writing() as connection:
            connection.execute("REINDEX")
    except StoreDamaged as error:
        return str(error)
    return ""


def referring(database: Database, found: Findings, aside: Aside) -> None:
    """Rows that refer to nothing go; former versions are set aside."""
    for table in sorted(set(REFERRING) & set(found.keys)):
        column, other = ("space", "spaces (id)") if table == "vectors" else ("entry", "entries (num)")
        name, _, key = other.partition(" ")
        strays = f"{column} NOT IN (SELECT {key.strip('()')} FROM {name})"
        with database.writing() as connection:
            if table == "history":
                with lenient(connection):
                    for row in connection.execute(f"SELECT * FROM history WHERE {strays}"):
                        aside.keep("history", dict(row), "its entry is not there")
            if table == "vectors":
                connection.execute(f"DELETE FROM windows WHERE vector IN (SELECT id FROM vectors WHERE {strays})")
            connection.execute(f"DELETE FROM {table} WHERE {strays}")
        found.mend(found.keys.count(table), "rows that refer to nothing are gone")


def facts(database: Database, found: Findings, aside: Aside) -> None:
    """A damaged value is set aside; so is the description of a space, whose vectors nobody can use without it. It may
    have been the note that something is to be erased, so that is noted anew."""
    for damaged in found.keys:
        with database.writing() as connection, lenient(connection):
            column, key = ("key", damaged.name) if damaged.table == "meta" else ("id", damaged.num)
            for row in connection.execute(f"SELECT * FROM {damaged.table} WHERE {column} = ?", [key]).fetchall():
                aside.keep(damaged.table, dict(row), damaged.why)
            if damaged.table == "spaces":
                connection.execute("DELETE FROM windows WHERE space = ?", [key])
                connection.execute("DELETE FROM vectors WHERE space = ?", [key])
            connection.execute(f"DELETE FROM {damaged.table} WHERE {column} = ?", [key])
            if damaged.table == "meta":
                erasure.note(connection)
        found.mend(1, f"set aside in {aside.path.name}; what was embedded in a space that is gone is embedded again")


def entries(database: Database, found: Findings, aside: Aside) -> None:
    """A chunk whose text stands in its page is as it was again; any other entry is set aside, with its past."""
    restored = 0
    for damaged in found.keys:
        if damaged.last == damaged.num:
            with database.writing() as connection:
                whole_again, kind = _mend_entry(connection, damaged.num, aside)
            restored += whole_again
            found.lost += not whole_again and kind not in DOCUMENT_KINDS  # those are read again from their originals
            done = f"{restored} restored from their pages, " if restored else ""
            found.mend(1, f"{done}{found.mended + 1 - restored} set aside in {aside.path.name}")


def _mend_entry(connection: sqlite3.Connection, num: int, aside: Aside) -> tuple[bool, str]:
    """Is it as it was again (else it is set aside), and of which kind is it?"""
    with lenient(connection):
        row = connection.execute("SELECT * FROM entries WHERE num = ?", [num]).fetchone()
        if row is None or whole(row):
            return True, ""
        content = _in_page(connection, row)
        if content is not None:
            connection.execute("UPDATE entries SET content = ? WHERE num = ?", [content, num])
            records.announce(connection, [num])
            return True, "chunk"
        aside.keep("entries", dict(row), "its checksum differs, or it cannot be decoded")
        for former in connection.execute("SELECT * FROM history WHERE entry = ?", [num]):
            aside.keep("history", dict(former), "its entry is damaged")
        _remove(connection, num)
    for other in connection.execute("SELECT num FROM entries WHERE superseded_by = ?", [row["id"]]).fetchall():
        _bring_back(connection, other["num"])
    return False, str(row["kind"])


def _in_page(connection: sqlite3.Connection, row: sqlite3.Row) -> str | None:
    """The text of a chunk as its page has it, where with it the row is what was written."""
    if row["kind"] != "chunk" or row["checksum"] is None:
        return None
    pages = connection.execute(
        "SELECT * FROM entries WHERE parent_id = ? AND kind = 'page' AND page = ?", [row["parent_id"], row["page"]]
    ).fetchall()
    start, end = row["span_start"], row["span_end"]
    if len(pages) != 1 or not whole(pages[0]) or not isinstance(start, int) or not isinstance(end, int):
        return None
    content = str(pages[0]["content"])[start:end]
    values: Mapping[str, Any] = {**dict(row), "content": content}
    return content if crc.of_values([values[name] for name in CHECKED]) == row["checksum"] else None


def _bring_back(connection: sqlite3.Connection, num: int) -> None:
    """An entry that a damaged one had replaced is live again."""
    with lenient(connection):
        row = connection.execute("SELECT * FROM entries WHERE num = ?", [num]).fetchone()
    if whole(row):
        entry = from_row(row)
        changed = dataclasses.replace(entry, superseded_by=None, version=entry.version + 1, updated_at=now())
        records.replace(connection, changed)


def _remove(connection: sqlite3.Connection, num: int) -> None:
    """Remove an entry; one with broken metadata without the indexes for which SQLite reads these."""
    made: list[sqlite3.Row] = []
    if not connection.execute("SELECT json_valid(metadata) FROM entries WHERE num = ?", [num]).fetchone()[0]:
        marks = ", ".join("?" * len(_JSON_INDEXES))
        query = f"SELECT name, sql FROM sqlite_master WHERE type = 'index' AND name IN ({marks})"
        made = connection.execute(query, _JSON_INDEXES).fetchall()
    for index in made:
        connection.execute(f"DROP INDEX {index['name']}")
    records.remove(connection, [num])
    for index in made:
        connection.execute(index["sql"])


def history(database: Database, found: Findings, aside: Aside) -> None:
    """Former versions that are damaged are set aside."""
    for damaged in found.keys:
        if damaged.last != damaged.num:
            continue
        with database.writing() as connection, lenient(connection):
            ids = connection.execute("SELECT id FROM entries WHERE num = ?", [damaged.num]).fetchone()
            for row in connection.execute("SELECT * FROM history WHERE entry = ?", [damaged.num]).fetchall():
                try:
                    from_state(row, ids["id"] if ids else "")
                except StoreDamaged:
                    aside.keep("history", dict(row), "its checksum differs, or it cannot be decoded")
                    key = [row["entry"], row["version"]]
                    connection.execute("DELETE FROM history WHERE entry = ? AND version = ?", key)
        found.mend(1, f"set aside in {aside.path.name}")


def links(database: Database, found: Findings, aside: Aside) -> None:
    """What no live summary stands for is live again; what one does is archived."""
    for num in found.keys:
        with database.writing() as connection:
            stands = "SELECT created_at FROM entries AS s WHERE s.id = entries.archived_by AND s.archived_at IS NULL"
            connection.execute(
                f"UPDATE entries SET archived_at = coalesce(archived_at, ({stands})), "
                f"archived_by = CASE WHEN EXISTS ({stands}) THEN archived_by END WHERE num = ?",
                [num],
            )
            connection.execute("UPDATE entries SET archived_at = NULL WHERE num = ? AND archived_by IS NULL", [num])
            records.announce(connection, [num])
    found.mend(len(found.keys), "entries without a live summary are live again, the others archived")


def feed(database: Database, found: Findings, aside: Aside) -> None:
    """Entries are announced, and the end gets a token that no index knows yet."""
    with database.writing() as connection:
        connection.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, (SELECT coalesce(max(seq), 0) FROM changes), "
            "(SELECT coalesce(max(seq), 0) FROM points)) WHERE name = 'changes'"
        )
        nums = [num for num in found.keys if num]
        last = connection.execute("SELECT entry FROM changes ORDER BY seq DESC LIMIT 1").fetchone()
        if not nums and last is None:
            connection.execute("DELETE FROM points")
        records.announce(connection, nums or ([last["entry"]] if last else []))
    found.mend(found.found, "announced again")


def leases(database: Database, found: Findings, aside: Aside) -> None:
    with database.writing() as connection:
        connection.executemany("DELETE FROM leases WHERE name = ?", ((name,) for name in found.keys))
    found.mend(found.found, "they are given up")


def deleted_unused(database: Database) -> int:
    """Delete vectors that belong to no entry. Returns how many went."""
    gone = 0
    while True:
        with database.writing() as connection:
            some = connection.execute(
                "DELETE FROM vectors WHERE id IN (SELECT id FROM vectors WHERE NOT EXISTS "
                "(SELECT 1 FROM windows WHERE vector = vectors.id) LIMIT ?)",
                [_ROWS],
            ).rowcount
        gone += some
        if some < _ROWS:
            return gone
