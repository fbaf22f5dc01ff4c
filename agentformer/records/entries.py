"""Storing, reading, changing and removing entries. Every change is announced in the change feed.

All functions work on an open connection; those that write need a writing one, and the caller commits.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentformer.errors import Conflict, StoreDamaged
from agentformer.records.codec import COLUMNS, from_row, from_state, state_checksum, to_micros, to_row
from agentformer.records.duplicates import KEPT_EACH_TIME, same
from agentformer.records.entry_json import entry_to_json
from agentformer.records.integrity import checksums as crc
from agentformer.records.neighbours import numbers_around
from agentformer.records.scopes import names_few, where
from agentformer.records.vectors import forget
from agentformer.types import MemoryEntry, Scope, Use

_VARIABLES = 500  # ids per statement; well below every SQLite's limit of bound variables
_INSERT = f"INSERT INTO entries ({','.join(COLUMNS)}) VALUES ({','.join(':' + c for c in COLUMNS)})"
# The kinds stand here as they stand in the index, and IS instead of `=` for the content, or SQLite would not use it.
_SAME_BEGINNING = (
    "SELECT * FROM entries WHERE namespace = ? AND substr(content, 1, 100) = substr(?, 1, 100) AND content IS ? "
    f"AND kind NOT IN ({', '.join(repr(kind) for kind in sorted(KEPT_EACH_TIME))}) "
    "AND archived_at IS NULL AND superseded_by IS NULL ORDER BY +id"
)
_PARTS = """
    WITH RECURSIVE doomed (num, id, namespace) AS (
        SELECT num, id, namespace FROM entries WHERE num IN (SELECT value FROM json_each(?))
        UNION
        SELECT e.num, e.id, e.namespace
        FROM entries AS e JOIN doomed AS d ON e.parent_id = d.id AND +e.namespace = d.namespace
    ) SELECT num FROM doomed
"""


def insert(connection: sqlite3.Connection, entries: Iterable[MemoryEntry]) -> list[int]:
    """Insert entries; returns their numbers. Raises `Conflict` for an id that exists."""
    entries = list(entries)
    nums = [_insert_one(connection, entry) for entry in entries]
    announce(connection, [*nums, *_neighbours(connection, entries, nums)])
    return nums


def _insert_one(connection: sqlite3.Connection, entry: MemoryEntry) -> int:
    try:
        cursor = connection.execute(_INSERT, to_row(entry))
    except sqlite3.IntegrityError:
        if not numbers(connection, [entry.id]):
            raise  # it is not that
        raise Conflict(f"there is an entry {entry.id} already; update it or store under a new id") from None
    return int(cursor.lastrowid or 0)


def announce(connection: sqlite3.Connection, nums: Iterable[int]) -> None:
    """Move entries to the end of the change feed. Without entries nothing changes, least of all the end's token."""
    nums = list(nums)
    if not nums:
        return
    connection.executemany("INSERT OR REPLACE INTO changes (entry) VALUES (?)", ((num,) for num in nums))
    connection.execute(
        "INSERT OR REPLACE INTO points SELECT seq, randomblob(8) FROM sqlite_sequence WHERE name = 'changes'"
    )


def insert_unique(
    connection: sqlite3.Connection, entries: Iterable[MemoryEntry], ignoring: Collection[int]
) -> tuple[list[int], list[MemoryEntry], list[MemoryEntry]]:
    """Insert those entries that say something new. Returns the new ones' numbers, the new ones, and for each of
    `entries` the one that now stands for it. Entries numbered in `ignoring` are as good as gone."""
    nums: list[int] = []
    fresh: list[MemoryEntry] = []
    standing = []
    for entry in entries:
        known = _known(connection, entry, ignoring)
        if known is None:
            nums.append(_insert_one(connection, entry))
            fresh.append(entry)
            standing.append(entry)
            continue
        connection.execute(
            "UPDATE entries SET repeat_count = repeat_count + 1, access_count = access_count + 1, "
            "last_accessed = max(coalesce(last_accessed, ?1), ?1) WHERE num = ?2",
            [to_micros(entry.created_at), known],
        )
        standing.append(by_num(connection, [known])[known])
    announce(connection, [*nums, *_neighbours(connection, fresh, nums)])
    return nums, fresh, standing


def _neighbours(connection: sqlite3.Connection, entries: Iterable[MemoryEntry], known: Collection[int]) -> list[int]:
    """The messages beside these entries, but for the `known` ones: what they are found by has changed, too."""
    around = numbers_around(connection, entries)
    apart = set(known) if around else ()
    return [num for num in around if num not in apart]


def _known(connection: sqlite3.Connection, entry: MemoryEntry, ignoring: Collection[int]) -> int | None:
    """The number of the oldest entry that says what `entry` says."""
    rows = connection.execute(_SAME_BEGINNING, [entry.namespace, entry.content, entry.content])
    candidates = ((row["num"], from_row(row)) for row in rows if row["num"] not in ignoring)
    return next((num for num, stored in candidates if same(entry, stored)), None)


def get(connection: sqlite3.Connection, ids: Sequence[str]) -> list[MemoryEntry]:
    """Entries in the order of `ids`, missing ones left out."""
    found = {row["id"]: from_row(row) for row in _rows_by(connection, "id", ids)}
    return [found[i] for i in ids if i in found]


def by_num(connection: sqlite3.Connection, nums: Sequence[int]) -> dict[int, MemoryEntry]:
    """Entries by number, missing ones left out."""
    return {row["num"]: from_row(row) for row in _rows_by(connection, "num", nums)}


def beginnings(connection: sqlite3.Connection, nums: Sequence[int], length: int) -> list[str]:
    """The first `length` code points of these entries' contents, in order of number, missing ones left out."""
    marks = ",".join("?" * len(nums))
    query = f"SELECT substr(content, 1, ?) FROM entries WHERE num IN ({marks}) ORDER BY num"
    return [row[0] for row in connection.execute(query, [length, *nums])]


def numbers(connection: sqlite3.Connection, what: Scope | Sequence[str]) -> list[int]:
    """The numbers of the entries of a scope, or of ids."""
    if isinstance(what, Scope):
        condition, values = where(what)
        return [row[0] for row in connection.execute(f"SELECT num FROM entries WHERE {condition}", values)]
    return [row["num"] for row in _rows_by(connection, "id", what)]


def with_parts(connection: sqlite3.Connection, nums: Sequence[int]) -> list[int]:
    """These entries and all below them by `parent_id` in their own namespaces."""
    return [row[0] for row in connection.execute(_PARTS, [json.dumps(list(nums))])]


def remove(connection: sqlite3.Connection, nums: Sequence[int]) -> int:
    """Delete these entries with history, windows, and vectors that nothing else uses. Parts are not looked for."""
    beside = _neighbours(connection, _messages(connection, nums), nums)
    forget(connection, nums)
    connection.executemany("DELETE FROM entries WHERE num = ?", ((num,) for num in nums))
    announce(connection, [*nums, *beside])
    return len(nums)


def _messages(connection: sqlite3.Connection, nums: Sequence[int]) -> Iterator[MemoryEntry]:
    """Those of these entries that are messages of a session; a damaged one must not keep others from being removed."""
    for group in _groups(nums):
        marks = ",".join("?" * len(group))
        query = f"SELECT * FROM entries WHERE num IN ({marks}) AND kind = 'message' AND session_id IS NOT NULL"
        for row in connection.execute(query, group):
            with suppress(StoreDamaged):
                yield from_row(row)


def replace(connection: sqlite3.Connection, changed: MemoryEntry) -> int:
    """Put `changed` over the entry of its id, which is there, and keep the former state; returns its number."""
    row = connection.execute("SELECT * FROM entries WHERE id = ?", [changed.id]).fetchone()
    former = from_row(row)
    keep_state(connection, row["num"], former)
    assignments = ",".join(f"{column} = :{column}" for column in COLUMNS if column != "id")
    connection.execute(f"UPDATE entries SET {assignments} WHERE id = :id", to_row(changed))
    announce(connection, [row["num"], *_neighbours(connection, (former, changed), [row["num"]])])
    return int(row["num"])


def insert_past(
    connection: sqlite3.Connection,
    nums: Sequence[int],
    entries: Sequence[MemoryEntry],
    past: Mapping[str, Sequence[MemoryEntry]],
) -> None:
    """Give entries, just inserted under these numbers, their former states."""
    for num, entry in zip(nums, entries, strict=True):
        for state in past.get(entry.id, ()):
            keep_state(connection, num, state)


def keep_state(connection: sqlite3.Connection, num: int, state: MemoryEntry) -> None:
    """Put a former state into the history of the entry of this number."""
    former = json.dumps(entry_to_json(state), ensure_ascii=False)
    checksum = state_checksum(num, state.version, former)
    connection.execute("INSERT INTO history VALUES (?, ?, ?, ?)", [num, state.version, former, checksum])


def history(connection: sqlite3.Connection, entry_id: str) -> list[MemoryEntry]:
    """Former states, oldest first."""
    rows = connection.execute(
        "SELECT history.* FROM history JOIN entries ON entries.num = history.entry WHERE entries.id = ? "
        "ORDER BY history.version",
        [entry_id],
    )
    return [from_state(row, entry_id) for row in rows]


def page(connection: sqlite3.Connection, scope: Scope, after: str, limit: int) -> list[MemoryEntry]:
    """Entries of the scope with an id above `after`, in order of id."""
    condition, values = where(scope)
    by = "+id" if names_few(scope) else "id"  # few are better sorted than met on the way through all
    rows = connection.execute(
        f"SELECT * FROM entries WHERE {condition} AND {by} > ? ORDER BY {by} LIMIT ?", [*values, after, limit]
    )
    found = [from_row(row) for row in rows]
    if any(former >= entry.id for former, entry in zip((after, *(e.id for e in found)), found, strict=False)):
        raise crc.damaged("an index of the entries", "it is out of order")  # and who reads on might never end
    return found


def latest(connection: sqlite3.Connection, scope: Scope, limit: int) -> list[MemoryEntry]:
    """The newest entries of the scope, newest first."""
    condition, values = where(scope)
    by = "+coalesce(occurred_at, created_at)" if names_few(scope) else "coalesce(occurred_at, created_at)"
    rows = connection.execute(
        f"SELECT * FROM entries WHERE {condition} ORDER BY {by} DESC, id DESC LIMIT ?", [*values, limit]
    )
    return [from_row(row) for row in rows]


def touch(connection: sqlite3.Connection, uses: Iterable[Use]) -> None:
    """Add to counts. No change in the sense of the feed: no index knows counts."""
    connection.executemany(
        "UPDATE entries SET match_count = match_count + ?1, read_count = read_count + ?2, "
        "access_count = access_count + ?1 + ?2 + ?3, last_accessed = max(coalesce(last_accessed, ?4), ?4) "
        "WHERE id = ?5",
        ((use.matches, use.reads, use.others, to_micros(use.at), use.id) for use in uses),
    )


def count(connection: sqlite3.Connection, scope: Scope) -> int:
    condition, values = where(scope)
    return int(connection.execute(f"SELECT count(*) FROM entries WHERE {condition}", values).fetchone()[0])


def namespaces(connection: sqlite3.Connection) -> list[str]:
    """All namespaces in order. Each is found from the one before, since DISTINCT would read a whole index."""
    rows = connection.execute(
        "WITH RECURSIVE found (name) AS (SELECT min(namespace) FROM entries UNION ALL SELECT "
        "(SELECT min(namespace) FROM entries WHERE namespace > found.name) FROM found WHERE found.name IS NOT NULL) "
        "SELECT name FROM found WHERE name IS NOT NULL"
    )
    return [row[0] for row in rows]


# From one kind to the next by the index, and each counted in it: a GROUP BY by kind sorts a large store first.
_KINDS = """
WITH RECURSIVE found(name) AS (
    SELECT min(kind) FROM entries WHERE namespace = :namespace
    UNION ALL
    SELECT (SELECT min(kind) FROM entries WHERE namespace = :namespace AND kind > name) FROM found
    WHERE name IS NOT NULL
) SELECT name, (SELECT count(*) FROM entries WHERE namespace = :namespace AND kind = name) FROM found
WHERE name IS NOT NULL
"""


def kinds(connection: sqlite3.Connection) -> dict[str, int]:
    """How many entries there are of each kind, over all namespaces, in order of name."""
    counts: Counter[str] = Counter()
    for namespace in namespaces(connection):
        counts.update(dict(connection.execute(_KINDS, {"namespace": namespace}).fetchall()))
    return dict(sorted(counts.items()))


def last_change(connection: sqlite3.Connection) -> int:
    """The newest `seq` of the change feed; 0 for an empty store. Raises `StoreDamaged` where its tables do not agree:
    followers would wait for a change that never comes."""
    row = connection.execute("SELECT max(seq), (SELECT max(seq) FROM changes) FROM points").fetchone()
    if row[0] != row[1]:
        raise crc.damaged("the change feed", "its tables end at different changes")
    return int(row[0] or 0)


def point(connection: sqlite3.Connection, seq: int) -> str:
    """The token of the history at `seq`, which must have been a `last_change`; "" where there is none."""
    row = connection.execute("SELECT hex(token) FROM points WHERE seq = ?", [seq]).fetchone()
    return str(row[0]) if row else ""


def changed_since(connection: sqlite3.Connection, seq: int) -> list[int]:
    """Numbers of entries changed after `seq`, in order of their last change; removed ones too."""
    return [row[0] for row in connection.execute("SELECT entry FROM changes WHERE seq > ? ORDER BY seq", [seq])]


def changes_since(connection: sqlite3.Connection, seq: int, limit: int = -1) -> list[tuple[int, int]]:
    """The changes after `seq`, oldest first, each with the number of its entry; at most `limit` of them."""
    query = "SELECT seq, entry FROM changes WHERE seq > ? ORDER BY seq LIMIT ?"
    return [(row[0], row[1]) for row in connection.execute(query, [seq, limit])]


def _rows_by(connection: sqlite3.Connection, column: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    rows: list[sqlite3.Row] = []
    for group in _groups(list(dict.fromkeys(values))):
        marks = ",".join("?" * len(group))
        rows += connection.execute(f"SELECT * FROM entries WHERE {column} IN ({marks})", group).fetchall()
    return rows


def _groups(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for i in range(0, len(values), _VARIABLES):
        yield values[i : i + _VARIABLES]
