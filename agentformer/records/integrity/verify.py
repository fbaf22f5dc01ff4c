"""Checks of the database of a store: SQLite's own check, the checksum of every row, and the consistency of the tables.

Each check reads in one transaction, so writes of other processes do not disturb the check. A check changes nothing.
Damage becomes a finding and not an exception. Rows that an older version of the software wrote have no checksum. For
these rows, the check only tests whether they can be decoded.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from agentformer.errors import StoreDamaged
from agentformer.records import supersession
from agentformer.records.codec import from_row, from_state
from agentformer.records.integrity.checksums import ADVICE, damage_error, entry_name
from agentformer.records.integrity.file_guard import is_damage
from agentformer.records.integrity.findings import Findings
from agentformer.records.meta import check_value
from agentformer.records.spaces import decode_space
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.types import Connection, Row, Statement, common

# SQLite's messages about a damaged index, which a repair rebuilds from the rows
_INDEX_WORDS = ("index", "non-unique entry")
_PAGE_ERROR, _DAMAGE_CODE = re.compile(r"error code=([0-9]+)"), 11
_BROKEN_JSON = "malformed JSON"
_MAX_PROBLEMS = 1_000  # messages of SQLite's own check
_CLOCK_TOLERANCE = 1_000_000  # microseconds between two readings of the clock
_PAGE = 500  # rows read at a time
_MAX_NUM = 2**62  # greater than every row number
# Tables that refer to rows of other tables. Windows are not here, because they have a separate check.
REFERRING_TABLES = ("derived", "history", "pending", "moving", "vectors")
# Entries that two indexes list and the table lacks. A new index would hide that their rows are lost.
_MISSING = (
    "SELECT id FROM entries INDEXED BY entries_by_id INTERSECT SELECT id FROM entries INDEXED BY entries_by_tier "
    "EXCEPT SELECT id FROM entries NOT INDEXED"
)
_BAD_LINKS = "e.archived_by IS NOT NULL AND (s.num IS NULL OR s.archived_at IS NOT NULL OR e.archived_at IS NULL)"
_LINKS = Statement(
    sqlite="SELECT e.num, e.id, e.archived_by, e.archived_at, s.num, s.archived_at FROM entries AS e "
    f"LEFT JOIN entries AS s ON s.id = e.archived_by AND +s.namespace = e.namespace WHERE {_BAD_LINKS}",
    postgres="SELECT e.num, e.id, e.archived_by, e.archived_at, s.num, s.archived_at FROM entries AS e "
    f"LEFT JOIN entries AS s ON s.id = e.archived_by AND s.namespace = e.namespace WHERE {_BAD_LINKS}",
)
_UNLISTED = common(
    "SELECT num, id FROM entries WHERE NOT EXISTS (SELECT 1 FROM changes WHERE changes.entry = entries.num)"
)
_ENDS = common("SELECT coalesce((SELECT max(seq) FROM changes), 0), coalesce((SELECT max(seq) FROM points), 0)")
_LONG_LEASES = common("SELECT name FROM leases WHERE ends_at - ? > micros + ?")
_ID = common("SELECT id FROM entries WHERE num = ?")
_META = common("SELECT * FROM meta")


class DamagedRow(NamedTuple):
    """A damaged row, or a range of row numbers with unreadable rows. It is used as the key of a finding."""

    table: str
    num: int  # number of the entry, vector or space; in `history` the number of the entry
    last: int  # the last number of a range; `num` for one row
    why: str  # a text for users
    key: str = ""  # key of a value in `meta`

    @property
    def is_range(self) -> bool:
        return self.last > self.num


def database(connection: SqliteConnection) -> Findings:
    """Run SQLite's own check of the database file, and check that rows do not refer to missing rows. The key of a
    finding is "index" for a damaged index, "pages" for other damage of the file, and "unread" if another error stopped
    the check. For a row that refers to a missing row, the key is the name of its table."""
    findings = Findings("database", "each page of the database file passes SQLite's integrity check")
    try:
        findings.looked_at = int(connection.execute("PRAGMA page_count").fetchone()[0])
        for problem in _sqlite_problems(connection, findings):
            findings.add(f"SQLite: {problem}", _key_of(problem))
        for table in REFERRING_TABLES:
            for row in connection.execute(f"PRAGMA foreign_key_check({table})"):
                key = "pages" if table == "history" else table  # a rescue finds the entry, or reports the loss
                findings.add(f"a row of {row[0]} refers to a missing row of {row[2]}", key)
        if "index" in findings.keys:
            findings.add_all((f"the row of entry {row[0]} is missing", "pages") for row in connection.execute(_MISSING))
    except sqlite3.DatabaseError as error:
        findings.incomplete = True
        findings.add(f"a part of the file cannot be read: {error}", "pages" if is_damage(error) else "unread")
    return findings


def _key_of(problem: str) -> str:
    """Return the key for a message of SQLite's own check. The message about a page contains the error that occurred
    when the page was read. Only the error 11 means damage."""
    code = _PAGE_ERROR.search(problem)
    if code and int(code[1]) & 0xFF != _DAMAGE_CODE:
        return "unread"
    return "index" if any(word in problem for word in _INDEX_WORDS) else "pages"


def _sqlite_problems(connection: SqliteConnection, findings: Findings) -> list[str]:
    """Return the messages of SQLite's own check. If the metadata of an entry are damaged, SQLite cannot check the table
    `entries`, so only the other tables are checked. A separate check reports the damaged metadata."""
    try:
        rows = connection.execute(f"PRAGMA integrity_check({_MAX_PROBLEMS})").fetchall()
    except sqlite3.OperationalError as error:
        if _BROKEN_JSON not in str(error):
            raise
        findings.incomplete = True
        findings.note("the indexes of the entries were not checked, because the metadata of an entry are damaged")
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'entries'")
        rows = [row for table in tables.fetchall() for row in connection.execute(f"PRAGMA integrity_check({table[0]})")]
    return [str(row[0]) for row in rows if row[0] != "ok"]


def entries(connection: Connection) -> Findings:
    """Check the checksums of all entries. The keys of the findings are `DamagedRow` objects."""
    findings = Findings("entries", "each entry has the correct checksum")
    return _check_rows(connection, findings, damaged_entries, "entries")


def history(connection: Connection) -> Findings:
    """Check the checksums of all former versions of entries. The keys of the findings are `DamagedRow` objects."""
    findings = Findings("history", "each former version of an entry has the correct checksum")
    return _check_rows(connection, findings, damaged_history, "history")


def metadata(connection: Connection) -> Findings:
    """Check the checksums of the store's metadata and of the descriptions of its embedding spaces. The keys of the
    findings are `DamagedRow` objects."""
    findings = Findings("facts", "each value that describes the memory itself has the correct checksum")
    return _check_rows(connection, findings, damaged_metadata, "spaces", "meta")


def _check_rows(
    connection: Connection,
    findings: Findings,
    damaged: Callable[[Connection], Iterator[DamagedRow]],
    *tables: str,
) -> Findings:
    with findings.reading(sqlite3.DatabaseError):
        findings.looked_at = sum(_count(connection, table) for table in tables)
        findings.add_all((_text(row), row) for row in damaged(connection))
    return findings


def links(connection: Connection) -> Findings:
    """Check the originals of summaries, which are the entries with a value in `archived_by`. The original must be
    archived, and the summary must exist in the same namespace and must not be archived. The keys of the findings are
    the row numbers of the originals that fail this check."""
    findings = Findings("links", "each entry that a summary replaces is archived")
    with connection.lenient_text(), findings.reading(sqlite3.DatabaseError):
        findings.looked_at = _count(connection, "entries WHERE archived_by IS NOT NULL")
        for num, entry, summary, archived, summary_num, _ in connection.run(_LINKS):
            problem = "the summary is archived" if archived else "the entry is not archived"
            if summary_num is None:
                problem = "the summary is missing"
            findings.add(f"entry {entry} was archived for the summary {summary}, but {problem}", num)
    return findings


def superseded(connection: Connection) -> Findings:
    """Check that no superseded entry is lost. An entry is lost if searches find none of its successors (see
    `supersession.is_lost`). The keys of the findings are the ids of the lost entries."""
    findings = Findings(
        "superseded", "each superseded entry leads to an entry that searches find, or that a summary replaces"
    )
    with connection.lenient_text(), findings.reading(sqlite3.DatabaseError):
        findings.looked_at = _count(connection, "entries WHERE superseded_by IS NOT NULL")
        for entry in supersession.lost_entries(connection):
            successor = f"{entry.superseded_by}, which is missing or archived, or leads back to it"
            findings.add(f"entry {entry.id} is superseded by {successor}", entry.id)
    return findings


def changes(connection: Connection) -> Findings:
    """Check that the change feed, which indexes read, lists every entry. The keys of the findings are the row numbers
    of the missing entries. The key 0 means that the newest change and the newest token do not belong together."""
    findings = Findings("changes", "each entry is in the list of changes, which the indexes follow")
    with connection.lenient_text(), findings.reading(sqlite3.DatabaseError):
        findings.looked_at = _count(connection, "changes")
        findings.add_all(
            (f"entry {row[1]} is not in the change feed, so searches may not find the entry", row[0])
            for row in connection.run(_UNLISTED)
        )
        last_change, last_token = connection.run(_ENDS).fetchone()
        if last_change != last_token:
            findings.add(f"the newest change is {last_change}, but the newest token belongs to change {last_token}", 0)
    return findings


def leases(connection: Connection) -> Findings:
    """Check that no lease has more time left than its full duration. Such a lease was taken by a process with a wrong
    clock. The keys of the findings are the names of leases."""
    findings = Findings("leases", "each lease (the lock of a running task) ends in time")
    with connection.lenient_text(), findings.reading(sqlite3.DatabaseError):
        findings.looked_at = _count(connection, "leases")
        moment = time.time_ns() // 1_000
        findings.add_all(
            (f"the lease {row[0]} was taken by a process with a clock that was ahead", row[0])
            for row in connection.run(_LONG_LEASES, [moment, _CLOCK_TOLERANCE])
        )
    return findings


def damaged_entries(connection: Connection) -> Iterator[DamagedRow]:
    """Yield the damaged entries in order of their row numbers."""
    return _damaged_rows(connection, _check_entry, "entries", "num")


def damaged_history(connection: Connection) -> Iterator[DamagedRow]:
    """Yield the damaged former versions of entries, in order of the row numbers of these entries."""

    def check(row: Row) -> None:
        with suppress(sqlite3.DatabaseError):  # `damaged_entries` reports an unreadable entry
            entry = connection.run(_ID, [row["entry"]]).fetchone()
            try:
                from_state(row, str(entry[0]) if entry else "")
            except StoreDamaged as error:
                raise StoreDamaged(f"version {row['version']}: {error}") from error

    return _damaged_rows(connection, check, "history", "entry", "version")


def damaged_metadata(connection: Connection) -> Iterator[DamagedRow]:
    """Yield the damaged descriptions of embedding spaces and the damaged values of the table `meta`."""
    yield from _damaged_rows(connection, decode_space, "spaces", "id")
    for row in read_page(connection, _META, [])[0]:
        try:
            check_value(row)
        except StoreDamaged as error:
            yield DamagedRow("meta", 0, 0, str(error), key=str(row["key"]))


def _damaged_rows(
    connection: Connection, check: Callable[[Row], object], table: str, *key: str
) -> Iterator[DamagedRow]:
    """Yield each row for which `check` raises `StoreDamaged`. Where rows cannot be read at all, yield the range of
    their row numbers."""
    for row in readable_rows(connection, table, *key):
        if isinstance(row, DamagedRow):
            yield row
            continue
        try:
            check(row)
        except StoreDamaged as error:
            yield DamagedRow(table, row[key[0]], row[key[0]], str(error))


def readable_rows(connection: Connection, table: str, *key: str) -> Iterator[Row | DamagedRow]:
    """Yield all readable rows in order of their key, and a `DamagedRow` for each range with unreadable rows."""
    order = ", ".join(key)
    marks = ", ".join("?" * len(key))
    from_start = common(f"FROM {table} WHERE ({order}) >= ({marks}) ORDER BY {order} LIMIT {_PAGE}")
    # in PostgreSQL, several namespaces may have a copy of a vector, all with the same id
    query = Statement(f"SELECT * {from_start.sqlite}", f"SELECT DISTINCT ON ({order}) * {from_start.postgres}")
    start: list[Any] = [-_MAX_NUM] * len(key)
    while True:
        rows, problem = read_page(connection, query, start)
        for row in rows:
            place = [row[name] for name in key]
            if not all(isinstance(part, int) for part in place) or place < start:
                problem = problem or "the rows are out of order"
                break
            start = [*place[:-1], place[-1] + 1]
            yield row
        if not problem:
            if len(rows) < _PAGE:
                return
            continue
        following = _readable_from(connection, table, key[0], start[0])
        yield DamagedRow(table, max(start[0], 1), following - 1, f"rows cannot be read: {problem}")
        if following >= _MAX_NUM:
            return
        start = [following, *[-_MAX_NUM] * (len(key) - 1)]


def _readable_from(connection: Connection, table: str, key: str, start: int) -> int:
    """Return a row number above `start` from which rows can be read again, or `_MAX_NUM` if there is no such number."""
    query = common(f"SELECT * FROM {table} WHERE {key} >= ? ORDER BY {key} LIMIT 1")

    def is_readable(num: int) -> bool:
        rows, problem = read_page(connection, query, [num])
        return not problem and all(isinstance(row[key], int) and row[key] >= num for row in rows)

    step = 1
    while not is_readable(start + step):
        step *= 2
        if start + step >= _MAX_NUM:
            return _MAX_NUM
    low, high = start + step // 2, start + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_readable(middle) else (middle, high)
    return high


def read_page(connection: Connection, query: Statement, values: list[Any]) -> tuple[list[Row], str]:
    """Return the rows of a query before the first damaged row, and the message of the error, or "". Raises
    `sqlite3.DatabaseError` for an error that is no damage, such as a read that failed."""
    rows: list[Row] = []
    with connection.lenient_text():
        try:
            cursor = connection.run(query, values)
            while (row := cursor.fetchone()) is not None:
                rows.append(row)
        except UnicodeDecodeError as error:  # of a damaged name in the schema
            return rows, str(error)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            return rows, str(error)
    return rows, ""


def is_intact(entry: Row) -> bool:
    """Return whether a row of `entries` is undamaged. The caller must have read the row inside the context
    `lenient_text`."""
    try:
        _check_entry(entry)
    except StoreDamaged:
        return False
    return True


def _check_entry(entry: Row) -> None:
    from_row(entry)
    if any(isinstance(value, bytes) for value in entry):  # `lenient_text` could not decode it
        raise damage_error(entry_name(entry["id"]), "one of its texts is not UTF-8")


def _text(row: DamagedRow) -> str:
    rows = "former versions" if row.table == "history" else row.table
    return f"{rows} from number {row.num} on: {row.why}" if row.is_range else row.why.partition(f"; {ADVICE}")[0]


def _count(connection: Connection, rows: str) -> int:
    return int(connection.run(common(f"SELECT count(*) FROM {rows}")).fetchone()[0])
