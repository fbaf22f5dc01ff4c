"""Functions that store, read, change and remove entries and their former versions. Each insertion, change and removal
is added to the change feed, except changes of use counts. The row number of an entry is its integer key in the
database. A former version is stored as JSON with a checksum.

All functions take an open connection. A function that writes needs a write transaction, and the caller commits this
transaction.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from agentformer.errors import InvalidInput, StoreDamaged
from agentformer.records import change_feed, events
from agentformer.records.codec import from_row, from_rows, from_state, to_micros, to_row
from agentformer.records.duplicates import KnownEntries, add_equal_texts, have_distinct_texts
from agentformer.records.entry_json import entry_to_json
from agentformer.records.integrity import checksums
from agentformer.records.scopes import is_selective
from agentformer.records.vectors import delete_windows
from agentformer.types import Connection, MemoryEntry, RecordStore, Scope, Statement, StoreSize, Use, common

Histories = Mapping[str, Sequence[MemoryEntry]]  # former versions by the id of their entry, oldest first

_PARTS = Statement(
    sqlite="""
    WITH RECURSIVE whole (num, id, namespace, user_id, project) AS (
        SELECT num, id, namespace, user_id, project FROM entries WHERE num IN (SELECT value FROM json_each(?))
        UNION
        SELECT e.num, e.id, e.namespace, e.user_id, e.project
        FROM entries AS e JOIN whole AS w ON e.parent_id = w.id
            AND +e.namespace = w.namespace AND +e.user_id IS w.user_id AND +e.project IS w.project
    ) SELECT num FROM whole
    """,
    postgres="""
    WITH RECURSIVE whole (num, id, namespace, user_id, project) AS (
        SELECT num, id, namespace, user_id, project FROM entries WHERE num = ANY(%s)
        UNION
        SELECT e.num, e.id, e.namespace, e.user_id, e.project
        FROM entries AS e JOIN whole AS w ON e.parent_id = w.id AND e.namespace = w.namespace
            AND e.user_id IS NOT DISTINCT FROM w.user_id AND e.project IS NOT DISTINCT FROM w.project
    ) SELECT num FROM whole
    """,
)
# The query looks up each next kind in the index, because GROUP BY would first sort all entries of a large store.
_COUNT_BY_KIND = common("""
    WITH RECURSIVE kinds(name) AS (
        SELECT min(kind) FROM entries WHERE namespace = ?
        UNION ALL
        SELECT (SELECT min(kind) FROM entries WHERE namespace = ? AND kind > name) FROM kinds WHERE name IS NOT NULL
    )
    SELECT name, (SELECT count(*) FROM entries WHERE namespace = ? AND kind = name) FROM kinds WHERE name IS NOT NULL
""")
# The query looks up each next namespace in the index, because DISTINCT would read the whole index.
_NAMESPACES = common("""
    WITH RECURSIVE found (name) AS (
        SELECT min(namespace) FROM entries
        UNION ALL
        SELECT (SELECT min(namespace) FROM entries WHERE namespace > found.name) FROM found WHERE found.name IS NOT NULL
    )
    SELECT name FROM found WHERE name IS NOT NULL
""")
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


def _among(columns: str, column: str, condition: str = "") -> Statement:
    """Return a query for the entries with one of several values in a column; see `Connection.run_among`."""
    query = f"SELECT {columns} FROM entries WHERE {column}"
    return Statement(f"{query} IN ({{among}}) {condition}", f"{query} = ANY(%s) {condition}")


_BY_ID, _BY_NUM, _NUMBERS = _among("*", "id"), _among("*", "num"), _among("num", "id")
_MESSAGES = _among("*", "num", "AND kind = 'message' AND session_id IS NOT NULL")
_SAMPLES = Statement(
    sqlite="SELECT num, kind, length(content), substr(content, 1, ?) FROM entries WHERE num IN ({among})",
    postgres="SELECT num, kind, length(content), substr(content, 1, %s) FROM entries WHERE num = ANY(%s)",
)
_NUMBERS_IN_SCOPE = common("SELECT num FROM entries WHERE {scope}")
_IDS_IN_SCOPE = common("SELECT id FROM entries WHERE {scope}")
_COUNT = common("SELECT count(*) FROM entries WHERE {scope}")
_PAGE = common("SELECT * FROM entries WHERE {scope} AND id > ? ORDER BY id LIMIT ?")
_TIME = "coalesce(occurred_at, created_at)"
_LATEST = common(f"SELECT * FROM entries WHERE {{scope}} ORDER BY {_TIME} DESC, id DESC LIMIT ?")
# The same for a selective scope: SQLite sorts a few entries faster than it reads a whole index.
_PAGE_OF_FEW = Statement(
    sqlite="SELECT * FROM entries WHERE {scope} AND +id > ? ORDER BY +id LIMIT ?", postgres=_PAGE.postgres
)
_LATEST_OF_FEW = Statement(
    sqlite=f"SELECT * FROM entries WHERE {{scope}} ORDER BY +{_TIME} DESC, id DESC LIMIT ?", postgres=_LATEST.postgres
)
# The bytes of the texts, and of the uploaded file of each document.
_BYTES_SQLITE = """coalesce(sum(length(CAST(content AS BLOB)) + CASE WHEN kind = 'document'
    THEN max(0, CAST(coalesce(json_extract(metadata, '$.bytes'), 0) AS INTEGER)) ELSE 0 END), 0)"""
_BYTES_POSTGRES = """coalesce(sum(octet_length(content) + CASE WHEN kind = 'document' AND
    json_extract(metadata, '$.bytes') ~ '^[0-9]{1,15}$' THEN json_extract(metadata, '$.bytes')::bigint ELSE 0 END), 0)
    ::bigint"""
_SIZE = Statement(
    f"SELECT count(*), {_BYTES_SQLITE} FROM entries WHERE num > ?",
    f"SELECT count(*), {_BYTES_POSTGRES} FROM entries WHERE num > %s",
)
_SIZE_OF_NAMESPACE = Statement(f"{_SIZE.sqlite} AND namespace = ?", f"{_SIZE.postgres} AND namespace = %s")
_SIZE_SINCE = Statement(f"{_SIZE.sqlite} AND +namespace = ?", _SIZE_OF_NAMESPACE.postgres)  # few rows, by number
_NEWEST = common("SELECT coalesce(max(num), 0) FROM entries")
_REPEAT = Statement(
    sqlite="UPDATE entries SET repeat_count = repeat_count + 1, access_count = access_count + 1, "
    "last_accessed = max(coalesce(last_accessed, ?), ?) WHERE id = ?",
    postgres="UPDATE entries SET repeat_count = repeat_count + 1, access_count = access_count + 1, "
    "last_accessed = greatest(coalesce(last_accessed, %s), %s) WHERE id = %s",
)
_TOUCH = Statement(
    sqlite="UPDATE entries SET match_count = match_count + ?, read_count = read_count + ?, "
    "access_count = access_count + ?, last_accessed = max(coalesce(last_accessed, ?), ?) WHERE id = ?",
    postgres="UPDATE entries SET match_count = match_count + %s, read_count = read_count + %s, "
    "access_count = access_count + %s, last_accessed = greatest(coalesce(last_accessed, %s), %s) WHERE id = %s",
)
_DELETE = Statement(
    sqlite="DELETE FROM entries WHERE num = ?",
    postgres="DELETE FROM entry_places WHERE num = %s",  # with the row of `entries`
)
_ROW = common("SELECT * FROM entries WHERE id = ?")
_ADD_VERSION = Statement(
    sqlite="INSERT INTO history (entry, version, state, checksum) VALUES (?, ?, ?, ?)",
    postgres="""
    INSERT INTO history (entry_namespace, entry, version, state, checksum)
    SELECT namespace, num, v.version, v.state, v.checksum FROM entry_places
    JOIN (VALUES (%s::bigint, %s::bigint, %s::text, %s::bigint)) AS v (entry, version, state, checksum) ON num = v.entry
    """,
)
_VERSIONS = Statement(
    sqlite="SELECT history.* FROM history JOIN entries ON entries.num = history.entry WHERE entries.id = ? "
    "ORDER BY history.version",
    postgres="SELECT h.* FROM history AS h JOIN entries AS e ON h.entry_namespace = e.namespace AND h.entry = e.num "
    "WHERE e.id = %s ORDER BY h.version",
)


def insert(connection: Connection, entries: Iterable[MemoryEntry]) -> list[int]:
    """Insert entries, and return their row numbers in the same order. Raises `Conflict` if an id already exists."""
    entries = list(entries)
    nums = connection.insert_entries(entries)
    change_feed.append(connection, [*nums, *_other_neighbors(connection, entries, nums)])
    events.add(connection, entries)
    return nums


def insert_unique(
    connection: Connection, entries: Iterable[MemoryEntry], ignoring: Collection[int]
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
            nums += connection.insert_entries(inserted[len(nums) :])
            at = to_micros(entry.created_at)
            connection.run(_REPEAT, [at, at, duplicate])
            (entry,) = get(connection, [duplicate])
        stored.append(entry)
    nums += connection.insert_entries(inserted[len(nums) :])
    change_feed.append(connection, [*nums, *_other_neighbors(connection, inserted, nums)])
    events.add(connection, inserted)
    return nums, inserted, stored


def _other_neighbors(connection: Connection, entries: Iterable[MemoryEntry], nums: Collection[int]) -> list[int]:
    """Return the row numbers of the messages directly before and after these entries, which must be indexed again.
    `nums` are the row numbers of the entries themselves, which are not returned."""
    neighbors = change_feed.neighbor_numbers(connection, entries)
    own = set(nums) if neighbors else ()
    return [num for num in neighbors if num not in own]


def get(connection: Connection, ids: Sequence[str]) -> list[MemoryEntry]:
    """Return a list of the entries with these ids, in the order of `ids`. The list has no item for a missing entry."""
    entries = {entry.id: entry for entry in from_rows(connection.run_among(_BY_ID, _unique(ids)))}
    return [entries[i] for i in ids if i in entries]


def by_num(connection: Connection, nums: Sequence[int]) -> dict[int, MemoryEntry]:
    """Return a dictionary: row number -> entry. It has no item for a missing entry."""
    rows = connection.run_among(_BY_NUM, _unique(nums))
    return dict(zip([row["num"] for row in rows], from_rows(rows), strict=True))


class Sample(NamedTuple):
    """The kind of an entry, the number of code points of its content, and the beginning of the content. A search can
    read the samples of many hits faster than their whole contents."""

    kind: str
    length: int
    text: str


def samples(connection: Connection, nums: Sequence[int], *, length: int) -> dict[int, Sample]:
    """Return a dictionary: row number -> `Sample` with at most `length` code points. Missing entries are left out."""
    rows = connection.run_among(_SAMPLES, nums, [length], plain=True)
    return {num: Sample(*values) for num, *values in rows}


def numbers(connection: Connection, selected: Scope | Sequence[str]) -> list[int]:
    """Return the row numbers of the entries that match a scope, or of the entries with these ids."""
    if isinstance(selected, Scope):
        return [row[0] for row in connection.run(_NUMBERS_IN_SCOPE, scope=selected)]
    return [row[0] for row in connection.run_among(_NUMBERS, _unique(selected))]


def ids(connection: Connection, scope: Scope) -> list[str]:
    """Return the ids of the entries that match a scope."""
    return [row[0] for row in connection.run(_IDS_IN_SCOPE, scope=scope)]


def with_parts(connection: Connection, nums: Sequence[int]) -> list[int]:
    """Return the row numbers of these entries and of all their parts, such as the pages and chunks of a document. The
    field `parent_id` of a part has the id of the entry to which the part belongs, and the part has the same namespace,
    user and project. Parts of parts are included."""
    return [row[0] for row in connection.run(_PARTS, [list(nums)])]


def remove(connection: Connection, nums: Sequence[int]) -> int:
    """Delete entries together with their history, their windows (the passages that are embedded), and the vectors that
    no other entry uses. The parts of these entries are not deleted. Return how many entries were deleted."""
    neighbors = _other_neighbors(connection, _messages(connection, nums), nums)  # read before the rows are deleted
    delete_windows(connection, nums)
    events.add_numbers(connection, nums, "removed")
    connection.run_many(_DELETE, ((num,) for num in nums))
    change_feed.append(connection, [*nums, *neighbors])
    return len(nums)


def _messages(connection: Connection, nums: Sequence[int]) -> Iterator[MemoryEntry]:
    """Yield those of these entries that are messages of a session, without damaged messages."""
    for row in connection.run_among(_MESSAGES, nums):
        with suppress(StoreDamaged):
            yield from_row(row)


def replace(connection: Connection, changed: MemoryEntry) -> int:
    """Overwrite the entry that has the id of `changed`, and add the former version of the entry to its history. Return
    the row number of the entry."""
    row = connection.run(_ROW, [changed.id]).fetchone()
    former = from_row(row)
    insert_version(connection, row["num"], former)
    overwrite(connection, changed)
    neighbors = _other_neighbors(connection, (former, changed), [row["num"]])
    change_feed.append(connection, [row["num"], *neighbors])
    events.add_change(connection, former, changed)
    return int(row["num"])


def overwrite(connection: Connection, changed: MemoryEntry) -> None:
    """Overwrite the entry that has the id of `changed`. The former version is not added to the history, and the change
    is not added to the change feed; the caller must do this."""
    connection.overwrite_entry(changed)


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
    connection: Connection, nums: Sequence[int], entries: Sequence[MemoryEntry], histories: Histories
) -> None:
    """Store the former versions of entries that were just inserted with the row numbers `nums`."""
    for num, entry in zip(nums, entries, strict=True):
        for version in histories.get(entry.id, ()):
            insert_version(connection, num, version)


def insert_version(connection: Connection, num: int, version: MemoryEntry) -> None:
    """Store `version` as a former version of the entry with the row number `num`."""
    state = json.dumps(entry_to_json(version), ensure_ascii=False)
    checksum = checksums.of_text(state, num, version.version)
    connection.run(_ADD_VERSION, [num, version.version, state, checksum])


def versions_of(connection: Connection, entry_id: str) -> list[MemoryEntry]:
    """Return the former versions of an entry, oldest first. Raises `StoreDamaged` if one of them is damaged."""
    return [from_state(row, entry_id) for row in connection.run(_VERSIONS, [entry_id])]


def page(connection: Connection, scope: Scope, after: str, limit: int) -> list[MemoryEntry]:
    """Return at most `limit` entries of the scope with an id that is greater than `after`, in order of id. Raises
    `StoreDamaged` if a row or an index is damaged."""
    query = _PAGE_OF_FEW if is_selective(scope) else _PAGE
    entries = from_rows(connection.run(query, [after, limit], scope=scope).fetchall())
    ids = [after, *(entry.id for entry in entries)]
    if any(former >= following for former, following in pairwise(ids)):
        # otherwise a caller could read pages forever
        raise checksums.damage_error("an index of the entries", "it is out of order")
    return entries


def latest(connection: Connection, scope: Scope, limit: int) -> list[MemoryEntry]:
    """Return at most `limit` entries of the scope, newest first."""
    query = _LATEST_OF_FEW if is_selective(scope) else _LATEST
    return from_rows(connection.run(query, [limit], scope=scope).fetchall())


def touch(connection: Connection, uses: Iterable[Use]) -> None:
    """Increase the use counts of entries. The change feed does not change, because no index contains use counts."""
    counts = ((use, use.matches + use.reads + use.others, to_micros(use.at)) for use in uses)
    connection.run_many(_TOUCH, ((use.matches, use.reads, total, at, at, use.id) for use, total, at in counts))


def count(connection: Connection, scope: Scope) -> int:
    """Return how many entries match the scope."""
    return int(connection.run(_COUNT, scope=scope).fetchone()[0])


def namespaces(connection: Connection) -> list[str]:
    """Return all namespaces in alphabetical order."""
    return [row[0] for row in connection.run(_NAMESPACES)]


def size(connection: Connection, namespaces: Sequence[str], since: StoreSize | None = None) -> StoreSize:
    """Return the size of namespaces; see `SizedStore.size`."""
    first = since.states[0][0] if since is not None else 0
    query = _SIZE_OF_NAMESPACE if since is None else _SIZE_SINCE
    rows = [connection.run(query, [first, name]).fetchone() for name in namespaces]
    rows = rows if namespaces else [connection.run(_SIZE, [first]).fetchone()]
    state = int(connection.run(_NEWEST).fetchone()[0]), change_feed.last_seq(connection)
    before = since or StoreSize()
    entries, total = (sum(int(row[column]) for row in rows) for column in (0, 1))
    return StoreSize(before.entries + entries, before.bytes + total, (state,))


def count_by_kind(connection: Connection) -> dict[str, int]:
    """Return how many entries of each kind the store has. The kinds are in alphabetical order."""
    counts: Counter[str] = Counter()
    for namespace in namespaces(connection):
        counts.update(dict(connection.run(_COUNT_BY_KIND, [namespace] * 3).fetchall()))
    return dict(sorted(counts.items()))


def trim_history(database: RecordStore, before: datetime) -> int:
    """Delete the former versions of entries that were replaced before a time, and return their number. The entries
    themselves stay."""
    with database.writing() as connection:
        return connection.run(_TRIM, [before.astimezone(UTC).isoformat(), to_micros(before)]).rowcount


def _unique(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
