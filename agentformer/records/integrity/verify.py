"""Do the records agree with themselves? Each check reads on the connection it is given, which is in one transaction, so
that what others write meanwhile is of no concern; it changes nothing, and raises nothing for what is damaged."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentformer.errors import StoreDamaged
from agentformer.records.codec import from_row
from agentformer.records.integrity import checksums as crc
from agentformer.records.integrity import verify_checksums as checksums
from agentformer.records.integrity.findings import Findings
from agentformer.records.sqlite_file import is_damage

UNREADABLE = "a part of the file cannot be read"
_INDEX = ("index", "non-unique entry")  # what SQLite says where the fault is in an index, which the rows make anew
_BROKEN_JSON = "malformed JSON"
_PROBLEMS = 1_000  # of SQLite's own that are looked at
_CLOCK = 1_000_000  # microseconds that two readings of the clock may differ by
# Tables that refer to rows of others; windows have a check of their own.
REFERRING = ("history", "pending", "moving", "vectors")

Check = Callable[[sqlite3.Connection], Findings]


def database(connection: sqlite3.Connection) -> Findings:
    """SQLite's own check of its file. Its keys are "index" and "pages" for what is damaged, "unread" where it could not
    be read for another reason, and tables with the rows that refer to nothing."""
    found = Findings("database", "the database file is sound, by SQLite's own check")
    try:
        found.looked_at = int(connection.execute("PRAGMA page_count").fetchone()[0])
        for said in _unsound(connection, found):
            found.add(f"SQLite says: {said}", "index" if any(word in said for word in _INDEX) else "pages")
        for table in REFERRING:
            for row in connection.execute(f"PRAGMA foreign_key_check({table})"):
                found.add(f"a row of {row[0]} refers to a row of {row[2]} that is not there", table)
    except sqlite3.DatabaseError as error:
        found.unread = True
        found.add(f"{UNREADABLE}: {error}", "pages" if is_damage(error) else "unread")
    return found


def _unsound(connection: sqlite3.Connection, found: Findings) -> list[str]:
    """What SQLite finds. It does not get through the indexes of the entries while the metadata of one are broken, which
    the check of the entries tells."""
    try:
        rows = connection.execute(f"PRAGMA integrity_check({_PROBLEMS})").fetchall()
    except sqlite3.OperationalError as error:
        if _BROKEN_JSON not in str(error):
            raise
        found.unread = True
        found.note("the indexes of the entries were not looked at, since the metadata of an entry are broken")
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'entries'")
        rows = [row for table in tables.fetchall() for row in connection.execute(f"PRAGMA integrity_check({table[0]})")]
    return [str(row[0]) for row in rows if row[0] != "ok"]


def entries(connection: sqlite3.Connection) -> Findings:
    """Is each entry as it was written? Keys are `Damaged`."""
    found = Findings("entries", "each entry is as it was written, by its checksum")
    with found.reading(sqlite3.DatabaseError):
        found.looked_at = _count(connection, "entries")
        found.look((_told(each, "entries"), each) for each in checksums.damaged_entries(connection))
    return found


def history(connection: sqlite3.Connection) -> Findings:
    """Is each former version as it was written? Keys are `Damaged`."""
    found = Findings("history", "each former version of an entry is as it was written")
    with found.reading(sqlite3.DatabaseError):
        found.looked_at = _count(connection, "history")
        found.look((_told(each, "former versions"), each) for each in checksums.damaged_history(connection))
    return found


def facts(connection: sqlite3.Connection) -> Findings:
    """What the store knows of itself and of its embedding spaces. Keys are `Damaged`."""
    found = Findings("facts", "what the store knows of itself and of its embedding spaces is as it was written")
    with found.reading(sqlite3.DatabaseError):
        found.looked_at = _count(connection, "spaces") + _count(connection, "meta")
        found.look((_told(each, each.table), each) for each in checksums.damaged_facts(connection))
    return found


def links(connection: sqlite3.Connection) -> Findings:
    """Do archived entries and the summaries that stand for them agree? Keys are numbers of archived entries."""
    found = Findings("links", "whatever a summary stands for is archived, and the summary is live")
    with lenient(connection), found.reading(sqlite3.DatabaseError):
        found.looked_at = _count(connection, "entries WHERE archived_by IS NOT NULL")
        rows = connection.execute(
            "SELECT e.num, e.id, e.archived_by, e.archived_at, s.num, s.archived_at FROM entries AS e "
            "LEFT JOIN entries AS s ON s.id = e.archived_by AND +s.namespace = e.namespace "
            "WHERE e.archived_by IS NOT NULL AND (s.num IS NULL OR s.archived_at IS NOT NULL OR e.archived_at IS NULL)"
        )
        for num, entry, summary, archived, there, _ in rows:
            why = "is not there" if there is None else "is archived itself" if archived else "does not hide it"
            found.add(f"entry {entry} was archived for the summary {summary}, which {why}", num)
    return found


def feed(connection: sqlite3.Connection) -> Findings:
    """Can indexes follow? Each entry is announced, and the newest change has its token. Keys are numbers to announce,
    and 0 where the end alone is wrong."""
    found = Findings("changes", "each entry is in the change feed, whose end has its token")
    with lenient(connection), found.reading(sqlite3.DatabaseError):
        found.looked_at = _count(connection, "changes")
        rows = connection.execute(
            "SELECT num, id FROM entries WHERE NOT EXISTS (SELECT 1 FROM changes WHERE changes.entry = entries.num)"
        )
        found.look((f"entry {row[1]} is not in the change feed, so no index learns of it", row[0]) for row in rows)
        last = connection.execute(
            "SELECT coalesce((SELECT max(seq) FROM changes), 0), coalesce((SELECT max(seq) FROM points), 0)"
        ).fetchone()
        if last[0] != last[1]:
            found.add(f"the newest change is {last[0]}, and the newest token is of {last[1]}", 0)
    return found


def leases(connection: sqlite3.Connection) -> Findings:
    """Keys are names."""
    found = Findings("leases", "no lease ends later than its own length from now")
    with lenient(connection), found.reading(sqlite3.DatabaseError):
        found.looked_at = _count(connection, "leases")
        moment = time.time_ns() // 1_000
        rows = connection.execute("SELECT name FROM leases WHERE ends_at - ? > micros + ?", [moment, _CLOCK])
        found.look((f"the lease {row[0]} was taken by a clock that was ahead of this one", row[0]) for row in rows)
    return found


ALL: Sequence[Check] = (database, facts, entries, history, links, feed, leases)


@contextmanager
def lenient(connection: sqlite3.Connection) -> Iterator[None]:
    """Text that is no UTF-8 comes as bytes: the check of the entries tells about that."""
    former: Any = connection.text_factory
    connection.text_factory = _text
    try:
        yield
    finally:
        connection.text_factory = former


def whole(entry: sqlite3.Row) -> bool:
    """Is a row of `entries`, read with `lenient`, what was written?"""
    try:
        from_row(entry)
    except StoreDamaged:
        return False
    return not any(isinstance(value, bytes) for value in entry)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _told(damaged: checksums.Damaged, what: str) -> str:
    if damaged.last > damaged.num:
        return f"{what} from number {damaged.num} on: {damaged.why}"
    return damaged.why.partition(f"; {crc.WHAT_TO_DO}")[0]


def _count(connection: sqlite3.Connection, what: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0])
