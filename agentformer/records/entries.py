"""Storing, reading, changing and removing entries. Every change is announced in the change feed.

All functions work on an open connection; those that write need a writing one, and the caller commits.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from agentformer.errors import Conflict, NotFound
from agentformer.records.codec import COLUMNS, from_json, from_row, to_json, to_micros, to_row
from agentformer.records.scopes import where
from agentformer.records.vectors import forget
from agentformer.types import MemoryEntry, Scope

_VARIABLES = 500  # ids per statement; well below every SQLite's limit of bound variables
_INSERT = f"INSERT INTO entries ({','.join(COLUMNS)}) VALUES ({','.join(':' + c for c in COLUMNS)})"
_PARTS = """
    WITH RECURSIVE doomed (num, id) AS (
        SELECT num, id FROM entries WHERE num IN (SELECT value FROM json_each(?))
        UNION
        SELECT e.num, e.id FROM entries AS e JOIN doomed AS d ON e.parent_id = d.id
    ) SELECT num FROM doomed
"""


def insert(connection: sqlite3.Connection, entries: Iterable[MemoryEntry]) -> list[int]:
    """Insert entries; returns their numbers. Raises `Conflict` for an id that exists."""
    nums = []
    for entry in entries:
        try:
            cursor = connection.execute(_INSERT, to_row(entry))
        except sqlite3.IntegrityError:
            raise Conflict(f"there is an entry {entry.id} already; update it or store under a new id") from None
        nums.append(int(cursor.lastrowid or 0))
    announce(connection, nums)
    return nums


def announce(connection: sqlite3.Connection, nums: Iterable[int]) -> None:
    """Move entries to the end of the change feed."""
    connection.executemany("INSERT OR REPLACE INTO changes (entry) VALUES (?)", ((num,) for num in nums))
    connection.execute(
        "INSERT OR REPLACE INTO points SELECT seq, randomblob(8) FROM sqlite_sequence WHERE name = 'changes'"
    )


def get(connection: sqlite3.Connection, ids: Sequence[str]) -> list[MemoryEntry]:
    """Entries in the order of `ids`, missing ones left out."""
    found = {row["id"]: from_row(row) for row in _rows_by(connection, "id", ids)}
    return [found[i] for i in ids if i in found]


def by_num(connection: sqlite3.Connection, nums: Sequence[int]) -> dict[int, MemoryEntry]:
    """Entries by number, missing ones left out."""
    return {row["num"]: from_row(row) for row in _rows_by(connection, "num", nums)}


def numbers(connection: sqlite3.Connection, what: Scope | Sequence[str]) -> list[int]:
    """The numbers of the entries of a scope, or of ids."""
    if isinstance(what, Scope):
        condition, values = where(what)
        return [row[0] for row in connection.execute(f"SELECT num FROM entries WHERE {condition}", values)]
    return [row["num"] for row in _rows_by(connection, "id", what)]


def with_parts(connection: sqlite3.Connection, nums: Sequence[int]) -> list[int]:
    """These entries and all below them by `parent_id`."""
    return [row[0] for row in connection.execute(_PARTS, [json.dumps(list(nums))])]


def remove(connection: sqlite3.Connection, nums: Sequence[int]) -> int:
    """Delete these entries with history, windows, and vectors that nothing else uses. Parts are not looked for."""
    forget(connection, nums)
    connection.executemany("DELETE FROM entries WHERE num = ?", ((num,) for num in nums))
    announce(connection, nums)
    return len(nums)


def replace(connection: sqlite3.Connection, changed: MemoryEntry, expected_version: int | None) -> int:
    """Put `changed` over the entry of its id and keep the former state; returns its number.

    Raises `NotFound`, or `Conflict` when `expected_version` is not the stored one.
    """
    row = connection.execute("SELECT * FROM entries WHERE id = ?", [changed.id]).fetchone()
    if row is None:
        raise NotFound(f"there is no entry {changed.id}")
    if expected_version is not None and row["version"] != expected_version:
        raise Conflict(f"entry {changed.id} is at version {row['version']}, not {expected_version}; read it again")
    former = json.dumps(to_json(from_row(row)), ensure_ascii=False)
    connection.execute("INSERT INTO history VALUES (?, ?, ?)", [row["num"], row["version"], former])
    assignments = ",".join(f"{column} = :{column}" for column in COLUMNS if column != "id")
    connection.execute(f"UPDATE entries SET {assignments} WHERE id = :id", to_row(changed))
    announce(connection, [row["num"]])
    return int(row["num"])


def archive(connection: sqlite3.Connection, ids: Sequence[str], at: datetime) -> None:
    """Archive live entries. Raises `Conflict` when one is missing, archived or superseded."""
    rows = _rows_by(connection, "id", ids)
    live = [row["num"] for row in rows if row["archived_at"] is None and row["superseded_by"] is None]
    if len(live) != len(set(ids)):
        raise Conflict("some of the entries to archive are gone, archived or superseded; select again")
    connection.executemany("UPDATE entries SET archived_at = ? WHERE num = ?", ((to_micros(at), n) for n in live))
    announce(connection, live)


def history(connection: sqlite3.Connection, entry_id: str) -> list[MemoryEntry]:
    """Former states, oldest first."""
    rows = connection.execute(
        "SELECT state FROM history JOIN entries ON entries.num = history.entry WHERE entries.id = ? "
        "ORDER BY history.version",
        [entry_id],
    )
    return [from_json(json.loads(row["state"])) for row in rows]


def page(connection: sqlite3.Connection, scope: Scope, after: str, limit: int) -> list[MemoryEntry]:
    """Entries of the scope with an id above `after`, in order of id."""
    condition, values = where(scope)
    rows = connection.execute(
        f"SELECT * FROM entries WHERE {condition} AND id > ? ORDER BY id LIMIT ?", [*values, after, limit]
    )
    return [from_row(row) for row in rows]


def count(connection: sqlite3.Connection, scope: Scope) -> int:
    condition, values = where(scope)
    return int(connection.execute(f"SELECT count(*) FROM entries WHERE {condition}", values).fetchone()[0])


def last_change(connection: sqlite3.Connection) -> int:
    """The newest `seq` of the change feed; 0 for an empty store."""
    return int(connection.execute("SELECT coalesce(max(seq), 0) FROM points").fetchone()[0])


def point(connection: sqlite3.Connection, seq: int) -> str:
    """The token of the history at `seq`, which must have been a `last_change`; "" where there is none."""
    row = connection.execute("SELECT hex(token) FROM points WHERE seq = ?", [seq]).fetchone()
    return str(row[0]) if row else ""


def changed_since(connection: sqlite3.Connection, seq: int) -> list[int]:
    """Numbers of entries changed after `seq`, in order of their last change; removed ones too."""
    return [row[0] for row in connection.execute("SELECT entry FROM changes WHERE seq > ? ORDER BY seq", [seq])]


def _rows_by(connection: sqlite3.Connection, column: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    rows: list[sqlite3.Row] = []
    for group in _groups(list(dict.fromkeys(values))):
        marks = ",".join("?" * len(group))
        rows += connection.execute(f"SELECT * FROM entries WHERE {column} IN ({marks})", group).fetchall()
    return rows


def _groups(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for i in range(0, len(values), _VARIABLES):
        yield values[i : i + _VARIABLES]
