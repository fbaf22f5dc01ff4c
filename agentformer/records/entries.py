"""Functions that store, read, change and remove entries and their former versions. Each insertion, change and removal
is added to the change feed, except changes of use counts. The row number of an entry is its integer key in the
database. A former version is stored as JSON with a checksum.

All functions take an open connection. A function that writes needs a write transaction, and the caller commits this
transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from agentformer.errors import Conflict, InvalidInput, StoreDamaged
from agentformer.records import change_feed
from agentformer.records.codec import COLUMNS, from_row, from_rows, from_state, to_micros, to_row
from agentformer.records.duplicates import KnownEntries, add_equal_texts, have_distinct_texts
from agentformer.records.entry_json import entry_to_json
from agentformer.records.integrity import checksums
from agentformer.records.scopes import in_groups, is_selective, is_sqlite, where
from agentformer.records.vectors import delete_windows
from agentformer.types import MemoryEntry, Scope, Use

Histories = Mapping[str, Sequence[MemoryEntry]]  # former versions by the id of their entry, oldest first

_INSERT = (
    f"INSERT INTO entries ({','.join(COLUMNS)}) VALUES ({','.join(':' + c for c in COLUMNS)}) "
    "ON CONFLICT (id) DO NOTHING"
)
_INSERT_ONE = f"{_INSERT} RETURNING num"
_EXISTS = "entry {} already exists; update it, or store the new entry with another id"
_INSERT_NUMBERED = f"INSERT INTO entries (num, {','.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)})"
_in_order: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*COLUMNS)
# From this number of entries on, a transaction changes more pages than the usual cache holds. SQLite would then write
# some of them to the log several times.
_LARGE = 500
_LARGE_CACHE_KB = 65_536
_OVERWRITE = f"UPDATE entries SET {','.join(f'{c} = :{c}' for c in COLUMNS if c != 'id')} WHERE id = :id"
_PARTS = """
    WITH RECURSIVE whole (num, id, namespace, user_id, project) AS (
        SELECT num, id, namespace, user_id, project FROM entries WHERE num IN (SELECT value FROM json_each(?))
        UNION
        SELECT e.num, e.id, e.namespace, e.user_id, e.project
        FROM entries AS e JOIN whole AS w ON e.parent_id = w.id
            AND +e.namespace = w.namespace AND +e.user_id IS w.user_id AND +e.project IS w.project
    ) SELECT num FROM whole
"""
# The query looks up each next kind in the index, because GROUP BY would first sort all entries of a large store.
_COUNT_BY_KIND = """
WITH RECURSIVE kinds(name) AS (
    SELECT min(kind) FROM entries WHERE namespace = :namespace
    UNION ALL
    SELECT (SELECT min(kind) FROM entries WHERE namespace = :namespace AND kind > name) FROM kinds
    WHERE name IS NOT NULL
) SELECT name, (SELECT count(*) FROM entries WHERE namespace = :namespace AND kind = name) FROM kinds
WHERE name IS NOT NULL
"""


def insert(connection: sqlite3.Connection, entries: Iterable[MemoryEntry]) -> list[int]:
    """Insert entries, and return their row numbers in the same order. Raises `Conflict` if an id already exists."""
    entries = list(entries)
    nums = _insert_all(connection, entries)
    change_feed.append(connection, [*nums, *_other_neighbors(connection, entries, nums)])
    return nums


def _insert_all(connection: sqlite3.Connection, entries: Sequence[MemoryEntry]) -> list[int]:
    """Insert entries with few SQL statements, because each statement may wait for a server. Return the row numbers of
    the entries in order."""
    if len(entries) == 1:
        row = connection.execute(_INSERT_ONE, to_row(entries[0])).fetchone()
        if row is None:
            raise Conflict(_EXISTS.format(entries[0].id))
        return [int(row[0])]
    if is_sqlite(connection):
        return _insert_numbered(connection, entries)
    rows = [to_row(entry) for entry in entries]
    ids = [entry.id for entry in entries]
    taken = {row["id"] for row in _select(connection, "id", "id", ids)}
    taken.update(name for name, times in Counter(ids).items() if times > 1)
    if taken:
        raise Conflict(_EXISTS.format(next(name for name in ids if name in taken)))
    connection.executemany(_INSERT, rows)
    nums = {row["id"]: int(row["num"]) for row in _select(connection, "id, num", "id", ids)}
    return [nums[name] for name in ids]


def _insert_numbered(connection: sqlite3.Connection, entries: Sequence[MemoryEntry]) -> list[int]:
    """Insert entries into an SQLite database with the next row numbers, and return these numbers. The caller holds the
    write lock, so no other process uses the same numbers."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
    first = int(row[0]) + 1 if row else 1
    nums = [*range(first, first + len(entries))]
    if len(entries) >= _LARGE:
        connection.execute(f"PRAGMA cache_size = {-_LARGE_CACHE_KB}")  # `Database.writing` lowers it again
    rows = ((num, *_in_order(to_row(entry))) for num, entry in zip(nums, entries, strict=True))
    try:
        connection.executemany(_INSERT_NUMBERED, rows)
    except sqlite3.IntegrityError:
        ids = [entry.id for entry in entries]
        stored = {row["id"]: row["num"] for row in _select(connection, "id, num", "id", ids)}
        known = (entry.id for num, entry in zip(nums, entries, strict=True) if stored.get(entry.id, num) != num)
        if (known_id := next(known, None)) is None:
            raise
        raise Conflict(_EXISTS.format(known_id)) from None
    return nums


def insert_unique(
    connection: sqlite3.Connection, entries: Iterable[MemoryEntry], ignoring: Collection[int]
) -> tuple[list[int], list[MemoryEntry], list[MemoryEntry]]:
    """Insert each entry that is not a duplicate of a stored entry. For a duplicate, increase the `repeat_count` of the
    stored entry. Archived and superseded entries are not compared. Entries whose row numbers are in `ignoring` are not
    compared either, because the caller is going to remove them. Return the row numbers of the inserted entries, the
    inserted entries, and for each item of `entries` the entry that is stored for it."""
    nums: list[int] = []
    inserted: list[MemoryEntry] = []
    stored = []
    entries = list(entries)
    known = KnownEntries()
    if not add_equal_texts(connection, known, entries, ignoring) and have_distinct_texts(entries):
        return insert(connection, entries), entries, entries
    for entry in entries:
        duplicate = known.find(entry)
        if duplicate is None:
            inserted.append(entry)
            known.add(entry)
        else:
            nums += _insert_all(connection, inserted[len(nums) :])
            connection.execute(
                "UPDATE entries SET repeat_count = repeat_count + 1, access_count = access_count + 1, "
                "last_accessed = max(coalesce(last_accessed, ?1), ?1) WHERE id = ?2",
                [to_micros(entry.created_at), duplicate],
            )
            (entry,) = get(connection, [duplicate])
        stored.append(entry)
    nums += _insert_all(connection, inserted[len(nums) :])
    change_feed.append(connection, [*nums, *_other_neighbors(connection, inserted, nums)])
    return nums, inserted, stored


def _other_neighbors(
    connection: sqlite3.Connection, entries: Iterable[MemoryEntry], nums: Collection[int]
) -> list[int]:
    """Return the row numbers of the messages directly before and after these entries, which must be indexed again.
    `nums` are the row numbers of the entries themselves, which are not returned."""
    neighbors = change_feed.neighbor_numbers(connection, entries)
    own = set(nums) if neighbors else ()
    return [num for num in neighbors if num not in own]


def get(connection: sqlite3.Connection, ids: Sequence[str]) -> list[MemoryEntry]:
    """Return a list of the entries with these ids, in the order of `ids`. The list has no item for a missing entry."""
    entries = {entry.id: entry for entry in from_rows(_select(connection, "*", "id", ids))}
    return [entries[i] for i in ids if i in entries]


def by_num(connection: sqlite3.Connection, nums: Sequence[int]) -> dict[int, MemoryEntry]:
    """Return a dictionary: row number -> entry. It has no item for a missing entry."""
    rows = _select(connection, "*", "num", nums)
    return dict(zip([row["num"] for row in rows], from_rows(rows), strict=True))


class Sample(NamedTuple):
    """The kind of an entry, the number of code points of its content, and the beginning of the content. A search can
    read the samples of many hits faster than their whole contents."""

    kind: str
    length: int
    text: str


def samples(connection: sqlite3.Connection, nums: Sequence[int], *, length: int) -> dict[int, Sample]:
    """Return a dictionary: row number -> `Sample` with at most `length` code points. Missing entries are left out."""
    marks = ",".join("?" * len(nums))
    query = f"SELECT num, kind, length(content), substr(content, 1, ?) FROM entries WHERE num IN ({marks})"
    return {row[0]: Sample(row[1], row[2], row[3]) for row in connection.execute(query, [length, *nums])}


def numbers(connection: sqlite3.Connection, selected: Scope | Sequence[str]) -> list[int]:
    """Return the row numbers of the entries that match a scope, or of the entries with these ids."""
    if isinstance(selected, Scope):
        condition, values = where(selected)
        return [row[0] for row in connection.execute(f"SELECT num FROM entries WHERE {condition}", values)]
    return [row["num"] for row in _select(connection, "num", "id", selected)]


def ids(connection: sqlite3.Connection, scope: Scope) -> list[str]:
    """Return the ids of the entries that match a scope."""
    condition, values = where(scope)
    return [row[0] for row in connection.execute(f"SELECT id FROM entries WHERE {condition}", values)]


def with_parts(connection: sqlite3.Connection, nums: Sequence[int]) -> list[int]:
    """Return the row numbers of these entries and of all their parts, such as the pages and chunks of a document. The
    field `parent_id` of a part has the id of the entry to which the part belongs, and the part has the same namespace,
    user and project. Parts of parts are included."""
    return [row[0] for row in connection.execute(_PARTS, [json.dumps(list(nums))])]


def remove(connection: sqlite3.Connection, nums: Sequence[int]) -> int:
    """Delete entries together with their history, their windows (the passages that are embedded), and the vectors that
    no other entry uses. The parts of these entries are not deleted. Return how many entries were deleted."""
    neighbors = _other_neighbors(connection, _messages(connection, nums), nums)  # read before the rows are deleted
    delete_windows(connection, nums)
    connection.executemany("DELETE FROM entries WHERE num = ?", ((num,) for num in nums))
    change_feed.append(connection, [*nums, *neighbors])
    return len(nums)


def _messages(connection: sqlite3.Connection, nums: Sequence[int]) -> Iterator[MemoryEntry]:
    """Yield those of these entries that are messages of a session, without damaged messages."""
    for marks, group in in_groups(nums):
        query = f"SELECT * FROM entries WHERE num IN ({marks}) AND kind = 'message' AND session_id IS NOT NULL"
        for row in connection.execute(query, group):
            with suppress(StoreDamaged):
                yield from_row(row)


def replace(connection: sqlite3.Connection, changed: MemoryEntry) -> int:
    """Overwrite the entry that has the id of `changed`, and add the former version of the entry to its history. Return
    the row number of the entry."""
    row = connection.execute("SELECT * FROM entries WHERE id = ?", [changed.id]).fetchone()
    former = from_row(row)
    insert_version(connection, row["num"], former)
    overwrite(connection, changed)
    neighbors = _other_neighbors(connection, (former, changed), [row["num"]])
    change_feed.append(connection, [row["num"], *neighbors])
    return int(row["num"])


def overwrite(connection: sqlite3.Connection, changed: MemoryEntry) -> None:
    """Overwrite the entry that has the id of `changed`. The former version is not added to the history, and the change
    is not added to the change feed; the caller must do this."""
    connection.execute(_OVERWRITE, to_row(changed))


def check_histories(entries: Sequence[MemoryEntry], histories: Histories | None, *, unique: bool) -> Histories:
    """Check the former versions that will be stored with `entries`, and return them without empty histories. Raises
    `InvalidInput` if the versions cannot belong to these entries, or if versions are given although `unique` is true,
    because a duplicate entry is not stored and has no history."""
    checked = {entry_id: versions for entry_id, versions in (histories or {}).items() if versions}
    if checked and unique:
        raise InvalidInput(
            "former", "cannot be given together with `unique`, because a duplicate is not stored and has no history"
        )
    current = {entry.id: entry.version for entry in entries}
    for entry_id, versions in checked.items():
        if entry_id not in current:
            problem = f"contains versions of the entry {entry_id[:200]}, but `entries` does not contain this entry"
            raise InvalidInput("former", problem)
        if problem := history_problem(entry_id, current[entry_id], versions):
            raise InvalidInput("former", problem)
        for version in versions:
            to_row(version)  # raises for metadata that is not JSON
    return checked


def history_problem(entry_id: str, current: int, versions: Sequence[MemoryEntry]) -> str:
    """Return the reason why these versions cannot be the former versions of the entry `entry_id`, or "" if they can.
    `current` is the version number of the entry."""
    previous = 0
    for version in versions:
        if version.id != entry_id:
            return f"a former version of {entry_id[:200]} has the id {version.id[:200]}"
        if not previous < version.version < current:
            return f"the version numbers in the history of {entry_id[:200]} must rise and be lower than {current}"
        previous = version.version
    return ""


def insert_histories(
    connection: sqlite3.Connection, nums: Sequence[int], entries: Sequence[MemoryEntry], histories: Histories
) -> None:
    """Store the former versions of entries that were just inserted with the row numbers `nums`."""
    for num, entry in zip(nums, entries, strict=True):
        for version in histories.get(entry.id, ()):
            insert_version(connection, num, version)


def insert_version(connection: sqlite3.Connection, num: int, version: MemoryEntry) -> None:
    """Store `version` as a former version of the entry with the row number `num`."""
    state = json.dumps(entry_to_json(version), ensure_ascii=False)
    checksum = checksums.of_text(state, num, version.version)
    connection.execute("INSERT INTO history VALUES (?, ?, ?, ?)", [num, version.version, state, checksum])


def versions_of(connection: sqlite3.Connection, entry_id: str) -> list[MemoryEntry]:
    """Return the former versions of an entry, oldest first. Raises `StoreDamaged` if one of them is damaged."""
    rows = connection.execute(
        "SELECT history.* FROM history JOIN entries ON entries.num = history.entry WHERE entries.id = ? "
        "ORDER BY history.version",
        [entry_id],
    )
    return [from_state(row, entry_id) for row in rows]


def page(connection: sqlite3.Connection, scope: Scope, after: str, limit: int) -> list[MemoryEntry]:
    """Return at most `limit` entries of the scope with an id that is greater than `after`, in order of id. Raises
    `StoreDamaged` if a row or an index is damaged."""
    condition, values = where(scope)
    by = "+id" if is_selective(scope) else "id"  # SQLite sorts a few entries faster than it reads the whole index
    query = f"SELECT * FROM entries WHERE {condition} AND {by} > ? ORDER BY {by} LIMIT ?"
    entries = from_rows(connection.execute(query, [*values, after, limit]).fetchall())
    ids = [after, *(entry.id for entry in entries)]
    if any(former >= following for former, following in pairwise(ids)):
        # otherwise a caller could read pages forever
        raise checksums.damage_error("an index of the entries", "it is out of order")
    return entries


def latest(connection: sqlite3.Connection, scope: Scope, limit: int) -> list[MemoryEntry]:
    """Return at most `limit` entries of the scope, newest first."""
    condition, values = where(scope)
    by = "+coalesce(occurred_at, created_at)" if is_selective(scope) else "coalesce(occurred_at, created_at)"
    query = f"SELECT * FROM entries WHERE {condition} ORDER BY {by} DESC, id DESC LIMIT ?"
    return from_rows(connection.execute(query, [*values, limit]).fetchall())


def touch(connection: sqlite3.Connection, uses: Iterable[Use]) -> None:
    """Increase the use counts of entries. The change feed does not change, because no index contains use counts."""
    connection.executemany(
        "UPDATE entries SET match_count = match_count + ?1, read_count = read_count + ?2, "
        "access_count = access_count + ?1 + ?2 + ?3, last_accessed = max(coalesce(last_accessed, ?4), ?4) "
        "WHERE id = ?5",
        ((use.matches, use.reads, use.others, to_micros(use.at), use.id) for use in uses),
    )


def count(connection: sqlite3.Connection, scope: Scope) -> int:
    """Return how many entries match the scope."""
    condition, values = where(scope)
    return int(connection.execute(f"SELECT count(*) FROM entries WHERE {condition}", values).fetchone()[0])


def namespaces(connection: sqlite3.Connection) -> list[str]:
    """Return all namespaces in alphabetical order. The query looks up each next namespace in the index, because
    DISTINCT would read the whole index."""
    rows = connection.execute(
        "WITH RECURSIVE found (name) AS (SELECT min(namespace) FROM entries UNION ALL SELECT "
        "(SELECT min(namespace) FROM entries WHERE namespace > found.name) FROM found WHERE found.name IS NOT NULL) "
        "SELECT name FROM found WHERE name IS NOT NULL"
    )
    return [row[0] for row in rows]


def count_by_kind(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many entries of each kind the store has. The kinds are in alphabetical order."""
    counts: Counter[str] = Counter()
    for namespace in namespaces(connection):
        counts.update(dict(connection.execute(_COUNT_BY_KIND, {"namespace": namespace}).fetchall()))
    return dict(sorted(counts.items()))


def _select(connection: sqlite3.Connection, columns: str, column: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    rows: list[sqlite3.Row] = []
    for marks, group in in_groups(list(dict.fromkeys(values))):
        rows += connection.execute(f"SELECT {columns} FROM entries WHERE {column} IN ({marks})", group).fetchall()
    return rows
