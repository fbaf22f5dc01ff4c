"""The change feed, and the neighbors of a message.

The change feed lists the latest change of every entry. An index reads the feed to find out which entries it must
update. Each change has a number `seq`, which is greater than the `seq` of all earlier changes.

The words of a message often do not name its subject: "Yes, last May" answers the previous message. For this reason, an
index also reads the neighbors of a message, and a change of a message also counts as a change of its neighbors.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from agentformer.records.codec import happened_at, to_micros
from agentformer.records.integrity.checksums import damage_error
from agentformer.types import MemoryEntry

REACH = 2  # number of neighbors before and after a message; chosen on development questions, see bench/log/search.md

# Only messages of the same user, agent and project are neighbors. IS is used because most of these columns are NULL.
_SAME_SESSION = (
    "kind = 'message' AND namespace = :namespace AND session_id = :session_id AND user_id IS :user_id "
    "AND agent_id IS :agent_id AND project IS :project AND superseded_by IS NULL"
)
_AT = "coalesce(occurred_at, created_at)"
# The comparison of the time is redundant, because the pair contains the time, but SQLite needs it to use the index.
_NEIGHBORS = (
    "SELECT {columns} FROM entries WHERE "
    + _SAME_SESSION
    + f" AND {_AT} {{side}}= :at AND ({_AT}, id) {{side}} (:at, :id) "
    f"ORDER BY {_AT} {{order}}, id {{order}} LIMIT :reach"
)
_ADJACENT = """
    SELECT a.num, b.num FROM json_each(?) AS pair
    JOIN entries AS a ON a.num = json_extract(pair.value, '$[0]')
    JOIN entries AS b ON b.num = json_extract(pair.value, '$[1]')
    WHERE NOT EXISTS (
        SELECT 1 FROM entries AS e WHERE e.namespace = a.namespace AND e.session_id = a.session_id
            AND coalesce(e.occurred_at, e.created_at)
                BETWEEN coalesce(a.occurred_at, a.created_at) AND coalesce(b.occurred_at, b.created_at)
            AND (coalesce(e.occurred_at, e.created_at), e.id) > (coalesce(a.occurred_at, a.created_at), a.id)
            AND (coalesce(e.occurred_at, e.created_at), e.id) < (coalesce(b.occurred_at, b.created_at), b.id)
            AND e.kind = 'message' AND e.superseded_by IS NULL
            AND e.user_id IS a.user_id AND e.agent_id IS a.agent_id AND e.project IS a.project
    )
"""
_SIDES = (("<", "DESC"), (">", "ASC"))


def append(connection: sqlite3.Connection, nums: Iterable[int]) -> None:
    """Add a change of each of these entries at the end of the feed, and remove the earlier changes of these entries.
    `nums` has the row numbers of the entries. The newest change gets a new random token. An index stores the token, to
    detect later that the database was replaced by another copy, such as a restored backup."""
    nums = list(nums)
    if not nums:
        return
    last = [*dict.fromkeys(reversed(nums))][::-1]
    connection.executemany("DELETE FROM changes WHERE entry = ?", ((num,) for num in nums))
    connection.executemany("INSERT INTO changes (entry) VALUES (?)", ((num,) for num in last))
    connection.execute("INSERT OR REPLACE INTO points SELECT max(seq), randomblob(8) FROM changes")


def last_seq(connection: sqlite3.Connection) -> int:
    """Return the number `seq` of the newest change, or 0 for an empty store. Raises `StoreDamaged` if the feed's tables
    `changes` and `points` end at different changes, because an index would wait forever for a missing change."""
    row = connection.execute("SELECT max(seq), (SELECT max(seq) FROM changes) FROM points").fetchone()
    if row[0] != row[1]:
        raise damage_error("the change feed", "its tables end at different changes")
    return int(row[0] or 0)


def token_at(connection: sqlite3.Connection, seq: int) -> str:
    """Return the random token of the change number `seq`, which `last_seq` has returned, or "" if the change has no
    token. An index with another token has read the feed of another copy of the database, such as the copy before a
    restore."""
    row = connection.execute("SELECT hex(token) FROM points WHERE seq = ?", [seq]).fetchone()
    return str(row[0]) if row else ""


def entries_since(connection: sqlite3.Connection, seq: int) -> list[int]:
    """Return the row numbers of the entries that changed or were removed after the change `seq`, in order of change."""
    return [row[0] for row in connection.execute("SELECT entry FROM changes WHERE seq > ? ORDER BY seq", [seq])]


def since(
    connection: sqlite3.Connection, seq: int, limit: int = -1, *, until: int | None = None
) -> list[tuple[int, int]]:
    """Return the changes after the change number `seq`, oldest first: at most `limit` changes (-1 means no limit), and
    only changes up to the number `until`. Each change is a pair of its `seq` and the row number of its entry."""
    last = 2**62 if until is None else until
    query = "SELECT seq, entry FROM changes WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
    return [(row[0], row[1]) for row in connection.execute(query, [seq, last, limit])]


def step(connection: sqlite3.Connection, seq: int, size: int) -> int:
    """Return the number of the last change that an index should read in one step, beginning after `seq`. An index reads
    many changes in steps, so that it needs little memory. A step contains only the changes of complete transactions,
    and at most `size` changes. If the first transaction alone has more changes, the step contains this transaction.
    Return `seq` if there are no later changes."""
    query = "SELECT max(seq) FROM points WHERE seq > ? AND seq <= ?"
    found = connection.execute(query, [seq, seq + size]).fetchone()[0]
    if found is None:
        found = connection.execute("SELECT min(seq) FROM points WHERE seq > ?", [seq]).fetchone()[0]
    return int(found or seq)


def neighbor_texts(connection: sqlite3.Connection, entry: MemoryEntry) -> list[str]:
    """Return the contents of the messages that come just before and just after a message of a session. Return an empty
    list for an entry of another kind, and for a superseded message. A superseded message is indexed without neighbors,
    because the feed does not report it as changed when the messages around it change."""
    if entry.superseded_by is not None:
        return []
    return [row[0] for row in _neighbors(connection, entry, "content")]


def neighbor_numbers(connection: sqlite3.Connection, entries: Iterable[MemoryEntry]) -> list[int]:
    """Return the row numbers of the messages that are neighbors of at least one of these entries, without
    repetition."""
    nums = (row[0] for entry in entries for row in _neighbors(connection, entry, "num"))
    return list(dict.fromkeys(nums))


def adjacent(connection: sqlite3.Connection, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Select from `pairs` the pairs of messages that directly follow each other, without another message of the session
    between them. A pair contains the row numbers of an earlier and a later message of one session."""
    return [(one, other) for one, other in connection.execute(_ADJACENT, [json.dumps(pairs)])]


def _neighbors(connection: sqlite3.Connection, entry: MemoryEntry, columns: str) -> list[sqlite3.Row]:
    if entry.kind != "message" or entry.session_id is None:
        return []
    values = {
        name: getattr(entry, name) for name in ("id", "namespace", "session_id", "user_id", "agent_id", "project")
    }
    values |= {"at": to_micros(happened_at(entry)), "reach": REACH}
    rows: list[sqlite3.Row] = []
    for side, order in _SIDES:
        rows += connection.execute(_NEIGHBORS.format(columns=columns, side=side, order=order), values)
    return rows
