"""Copies the rows of a damaged database file into a new database.

Rows are read from each page on their own (see `cells`), and an entry or a former version is copied only if its checksum
is right. The indexes of the damaged file list the ids of all entries. An entry that is listed and cannot be copied is
lost: it is named, and all that can be read of it is written to the quarantine file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

from agentformer.errors import StoreDamaged
from agentformer.records import change_feed, meta
from agentformer.records.codec import former_id, from_state
from agentformer.records.integrity import checksums
from agentformer.records.integrity.cells import Cell, Pages
from agentformer.records.integrity.repair import DAMAGED, PARTS, Quarantine, content_from_page
from agentformer.records.integrity.verify import is_intact
from agentformer.records.integrity.write_ahead_log import store_former_wal
from agentformer.records.spaces import decode_space
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.vectors import vector_damage, window_damage

_GROUP = 2_000  # rows written in one transaction
_SOUGHT = 500  # ids that are sought on each page at a time
_MAX_NUM = 2**62  # greater than every row number
_TABLES = ("meta", "spaces", "entries", "history", "vectors", "windows")
_FEWEST = {"meta": 3, "spaces": 3, "entries": 29, "history": 3, "vectors": 4, "windows": 6}  # columns in schema 1
# The columns of an index that tell it from others, and the positions of the id, the kind and the namespace. A row of an
# index ends with the number of the entry.
_INDEXES: dict[tuple[type, ...], tuple[int, int | None]] = {
    (str, str, str, str, int): (3, 1),  # entries_by_kind_and_tier
    (str, str, int, str, int): (3, None),  # entries_by_tier_and_time
    (str, int, str, int): (2, None),  # entries_by_time
}
# An id is lost if two indexes list it, or if no entry has its number: one damaged index can contain a wrong id.
_LOST = (
    "SELECT id, min(num) AS num, max(kind) AS kind, max(namespace) AS namespace FROM listed "
    "WHERE id NOT IN (SELECT id FROM entries) GROUP BY id "
    "HAVING count(*) > 1 OR min(num) NOT IN (SELECT num FROM entries) ORDER BY count(*), id"
)
_GAPS = (
    "SELECT num, id, kind, version - 1 - (SELECT count(*) FROM history WHERE entry = num) AS absent FROM entries "
    "WHERE version > 1 AND absent > 0 ORDER BY id"
)
_UNUSED = (
    "DELETE FROM vectors WHERE space NOT IN (SELECT id FROM spaces)",
    "DELETE FROM windows WHERE entry NOT IN (SELECT num FROM entries) OR space NOT IN (SELECT id FROM spaces) "
    "OR vector NOT IN (SELECT id FROM vectors)",
    # Which entries wait for the vectors of a space that is being built is not known. Embedded texts are not embedded
    # twice.
    "INSERT INTO moving SELECT num, 0, '' FROM entries WHERE EXISTS (SELECT 1 FROM spaces WHERE building)",
)


class Rescue:
    """Copies the readable rows of a damaged file into a new database."""

    def __init__(self, pages: Pages, target: SqliteConnection, quarantine: Quarantine) -> None:
        self._pages, self._target, self._quarantine = pages, target, quarantine
        self.entries = 0
        self._found = False  # whether a row of this package was read
        self.lost: list[str] = []  # names of the lost entries and former versions, without parts of documents
        self._damaged: dict[int, sqlite3.Row] = {}  # damaged entries, by number
        self._versions: dict[tuple[int, int], sqlite3.Row] = {}  # damaged former versions, by entry and version
        self._sequences: dict[str, int] = {}  # the highest row number that each table has ever used
        # Empty results: a `sqlite3.Row` takes the names of its columns from a cursor.
        self._cursors = {table: target.execute(f"SELECT * FROM {table} LIMIT 0") for table in _TABLES}
        self._defaults = {  # for columns that an older file lacks
            table: [{"''": "", "0": 0}.get(row["dflt_value"]) for row in target.execute(f"PRAGMA table_info({table})")]
            for table in _TABLES
        }
        # The ids that the indexes of the damaged file name; `place` is the index.
        target.execute(
            "CREATE TEMP TABLE listed (id TEXT, num INTEGER, kind TEXT, namespace TEXT, place INTEGER, "
            "PRIMARY KEY (id, num, place))"
        )

    def run(self, wal_header: str) -> None:
        """Copy all rows. `wal_header` is the header of the damaged file's log. Raises `StoreDamaged` if the file has no
        row of this package."""
        cells = self._pages.cells()
        while group := list(islice(cells, _GROUP)):
            self._target.execute("BEGIN IMMEDIATE")
            for cell in group:
                self._add(cell)
            self._target.execute("COMMIT")
        if not self._found:
            raise StoreDamaged("no page has a readable row")
        self._target.execute("BEGIN IMMEDIATE")
        self._seek([row["id"] for row in self._target.execute(_LOST)])
        self._attach_versions()
        self._seek([row["id"] for row in self._target.execute(_GAPS)])
        self._settle_entries()
        self._settle_versions()
        for statement in _UNUSED:
            self._target.execute(statement)
        self._renew_feed()
        meta.request_secure_delete(self._target)
        store_former_wal(self._target, wal_header)
        self._target.execute("COMMIT")

    def _renew_feed(self) -> None:
        """Give the feed new numbers and tokens, so that each index is rebuilt from the beginning."""
        for name in ("entries", "vectors", "windows", "changes"):
            row = self._target.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", [name]).fetchone()
            last = max(self._sequences.get(name, 0), row["seq"] if row else 0)
            self._target.execute("DELETE FROM sqlite_sequence WHERE name = ?", [name])
            self._target.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", [name, last])
        nums = [row["num"] for row in self._target.execute("SELECT num FROM entries ORDER BY num")]
        self.entries = len(nums)
        change_feed.append(self._target, nums)

    def _seek(self, ids: list[str]) -> None:
        """Seek the rows of these entries everywhere on the pages, also where no page lists a row any more."""
        for start in range(0, len(ids), _SOUGHT):
            for cell in self._pages.cells([each.encode() for each in ids[start : start + _SOUGHT]]):
                self._add(cell, listed=False)

    def _add(self, cell: Cell, *, listed: bool = True) -> None:
        """Store a row if its table can be recognized and its checksum is right. A damaged entry or former version is
        kept if a page lists it."""
        types = tuple(map(type, cell.values))
        if cell.num and types[:1] == (type(None),):
            for table in ("entries", "spaces", "vectors", "windows"):
                self._add_row(table, cell, listed)
        elif not cell.num and types[:2] == (str, str) and len(types) == 3:
            self._add_row("meta", cell, listed)
        elif not cell.num and types[:2] == (int, int) and str in types:
            self._add_row("history", cell, listed)
        elif not cell.num and listed and types in _INDEXES:
            place, kind = _INDEXES[types]
            values = [cell.values[place], cell.values[-1], cell.values[kind] if kind else None, cell.values[0], place]
            self._target.execute("INSERT OR IGNORE INTO listed VALUES (?, ?, ?, ?, ?)", values)
        elif cell.num and types == (str, int) and cell.values[1] < _MAX_NUM:
            self._sequences[cell.values[0]] = cell.values[1]

    def _add_row(self, table: str, cell: Cell, listed: bool) -> None:
        defaults = self._defaults[table]
        if not _FEWEST[table] <= len(cell.values) <= len(defaults):
            return
        values = [*cell.values, *defaults[len(cell.values) :]]
        if cell.num:
            values[0] = cell.num  # the page stores NULL in this column
        row = sqlite3.Row(self._cursors[table], tuple(values))
        if table == "entries" and isinstance(row["salience"], int):  # SQLite stores a whole number without a fraction
            values[row.keys().index("salience")] = float(row["salience"])
            row = sqlite3.Row(self._cursors[table], tuple(values))
        if _CHECKS[table](row):
            self._insert(table, row, listed)
        elif listed and table == "entries":
            self._damaged[cell.num] = row
        elif listed and table == "history" and isinstance(row["state"], (str, bytes)):
            self._versions[row["entry"], row["version"]] = row

    def _insert(self, table: str, row: sqlite3.Row, listed: bool = True) -> None:
        """Insert a row. If an entry with this id is already there, the newer version stays. An entry that no page lists
        may be older than a former version."""
        self._found = True
        verb = "INSERT OR REPLACE" if table == "meta" else "INSERT"  # a new database has an id already
        statement = f"{verb} INTO {table} VALUES ({', '.join('?' * len(row.keys()))})"
        try:
            if table == "entries":
                if not listed and self._has_version(row):
                    return
                self._target.execute("DELETE FROM entries WHERE id = ? AND version < ?", [row["id"], row["version"]])
            self._target.execute(statement, list(row))
        except (sqlite3.IntegrityError, OverflowError):
            if table == "entries":  # another entry has its number
                with suppress(sqlite3.IntegrityError):
                    self._target.execute(statement, [None, *list(row)[1:]])

    def _has_version(self, row: sqlite3.Row) -> bool:
        query = "SELECT max(version) FROM history WHERE entry = ?"
        return bool((self._target.execute(query, [row["num"]]).fetchone()[0] or 0) >= row["version"])

    def _attach_versions(self) -> None:
        """Give each former version the number of its entry, which a damaged row may have changed."""
        for row in self._target.execute(
            "SELECT history.*, id FROM history LEFT JOIN entries ON entries.num = history.entry"
        ).fetchall():
            with suppress(StoreDamaged):
                if row["id"] != (entry_id := former_id(row)):
                    found = self._target.execute("SELECT num FROM entries WHERE id = ?", [entry_id]).fetchone()
                    if found:
                        checksum = checksums.of_text(row["state"], found["num"], row["version"])
                        self._target.execute(
                            "UPDATE OR IGNORE history SET entry = ?, checksum = ? WHERE entry = ? AND version = ?",
                            [found["num"], checksum, row["entry"], row["version"]],
                        )

    def _settle_entries(self) -> None:
        """Write the entries that are lost to the quarantine file. The text of a damaged chunk is restored from its
        page."""
        lost = {row["num"]: row for row in self._target.execute(_LOST)}  # of two ids, the one in more indexes
        for num, row in self._damaged.items():
            known = "SELECT 1 FROM entries WHERE id = ? OR num = ?"
            if num not in lost and self._target.execute(known, [row["id"], num]).fetchone():
                continue  # another copy of the row is intact
            if (content := content_from_page(self._target, row)) is not None:
                values = {**dict(row), "content": content}
                self._insert("entries", sqlite3.Row(self._cursors["entries"], tuple(values.values())))
                lost.pop(num, None)
                continue
            name = lost.pop(num, None) or row
            self._lose("entries", dict(row), name["id"], name["kind"] or row["kind"], DAMAGED)
        for row in lost.values():
            values = {"num": row["num"], "id": row["id"], "kind": row["kind"], "namespace": row["namespace"]}
            self._lose("entries", values, row["id"], row["kind"], "its row cannot be read")

    def _settle_versions(self) -> None:
        """Write former versions that are damaged, or whose entry is lost, to the quarantine file."""
        self._attach_versions()
        for row in self._target.execute(
            "SELECT history.* FROM history LEFT JOIN entries ON entries.num = history.entry WHERE num IS NULL"
        ).fetchall():
            entry_id = ""
            with suppress(StoreDamaged):
                entry_id = former_id(row)
            self._lose("history", dict(row), entry_id, "version", "its entry is lost")
        self._target.execute("DELETE FROM history WHERE entry NOT IN (SELECT num FROM entries)")
        for gap in self._target.execute(_GAPS).fetchall():
            damaged = [row for (num, _), row in self._versions.items() if num == gap["num"]]
            for row in damaged:
                self._quarantine.add("history", {**dict(row), "id": gap["id"]}, "this former version is damaged")
            text = f"a former version of {checksums.entry_name(gap['id'])}"
            self.lost += [text] * gap["absent"]
            if not damaged:
                self._quarantine.add("history", {"entry": gap["num"], "id": gap["id"]}, f"{text} cannot be read")

    def _lose(self, table: str, row: dict[str, Any], entry_id: object, kind: object, why: str) -> None:
        self._quarantine.add(table, {**row, "id": entry_id}, why)
        if kind not in PARTS:
            version = "a former version of " if table == "history" else ""
            self.lost.append(f"{version}{checksums.entry_name(entry_id)}")


def _decodes(check: Callable[[sqlite3.Row], object]) -> Callable[[sqlite3.Row], bool]:
    def checked(row: sqlite3.Row) -> bool:
        try:
            check(row)
        except (StoreDamaged, TypeError, ValueError):
            return False
        return True

    return checked


_CHECKS: dict[str, Callable[[sqlite3.Row], bool]] = {
    "meta": lambda row: row["checksum"] is not None and _decodes(meta.check_value)(row),
    "spaces": _decodes(decode_space),
    "entries": is_intact,
    "history": _decodes(lambda row: from_state(row, former_id(row))),
    "vectors": lambda row: isinstance(row["hash"], bytes) and not vector_damage(row["data"], row["checksum"], None),
    "windows": lambda row: not window_damage(row),
}
