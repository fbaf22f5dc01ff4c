"""The change feed, and the neighbors of a message.

The change feed lists the latest change of every entry. An index reads the feed to find out which entries it must
update. Each change has a number `seq`, which is greater than the `seq` of all earlier changes.

The words of a message often do not name its subject: "Yes, last May" answers the previous message. For this reason, an
index also reads the neighbors of a message, and a change of a message also counts as a change of its neighbors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from agentformer.records import meta
from agentformer.records.codec import happened_at, to_micros
from agentformer.records.integrity.checksums import damage_error
from agentformer.types import Connection, MemoryEntry, RecordStore, Statement, common

REACH = 2  # number of neighbors before and after a message; chosen on development questions, see bench/log/search.md

_AT = "coalesce(occurred_at, created_at)"
_REMOVE = common("DELETE FROM changes WHERE entry = ?")
_APPEND = common("INSERT INTO changes (entry) VALUES (?)")
_ADD_TOKEN = Statement(
    sqlite="INSERT OR REPLACE INTO points SELECT max(seq), randomblob(8) FROM changes",
    postgres="INSERT INTO points SELECT max(seq), randomblob(8) FROM changes "
    "ON CONFLICT (seq) DO UPDATE SET token = excluded.token",
)
LAST_SEQ = common("SELECT max(seq), (SELECT max(seq) FROM changes) FROM points")
_TOKEN = common("SELECT hex(token) FROM points WHERE seq = ?")
_ENTRIES_SINCE = common("SELECT entry FROM changes WHERE seq > ? ORDER BY seq")
_SINCE = common("SELECT seq, entry FROM changes WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?")
_END_OF_STEP = common("SELECT max(seq) FROM points WHERE seq > ? AND seq <= ?")
_NEXT_TOKEN = common("SELECT min(seq) FROM points WHERE seq > ?")

KEPT = 1_000_000  # newest changes; an index that is further behind is rebuilt
_PIECE = 10_000  # changes that one transaction of `compact` looks at
_COMPACTED = "feed_compacted"  # the key of the number up to which the feed was compacted
_DROP_REMOVED = common(
    "DELETE FROM changes WHERE seq > ? AND seq <= ? AND NOT EXISTS (SELECT 1 FROM entries WHERE num = changes.entry)"
)
_DROP_POINTS = common(
    "DELETE FROM points WHERE seq > ? AND seq < (SELECT max(seq) FROM points WHERE seq <= ?) AND seq <= ?"
)
_RENEW_POINTS = common("UPDATE points SET token = randomblob(8) WHERE seq > ? AND seq <= ?")


def _neighbors_query(columns: str, side: str, order: str) -> Statement:
    """Return the query for the messages directly before (`side` is "<") or after (">") a message, nearest first."""

    def text(mark: str, equals: str) -> str:
        # Only messages of the same user, agent and project are neighbors; most of these columns are NULL. The first
        # comparison of the time is redundant, because the pair contains the time, but SQLite needs it for the index.
        return (
            f"SELECT {columns} FROM entries WHERE kind = 'message' AND namespace = {mark} AND session_id = {mark} "
            f"AND user_id {equals} {mark} AND agent_id {equals} {mark} AND project {equals} {mark} "
            f"AND superseded_by IS NULL AND {_AT} {side}= {mark} AND ({_AT}, id) {side} ({mark}, {mark}) "
            f"ORDER BY {_AT} {order}, id {order} LIMIT {REACH}"
        )

    return Statement(text("?", "IS"), text("%s", "IS NOT DISTINCT FROM"))


_NEIGHBOR_TEXTS = _neighbors_query("content", "<", "DESC"), _neighbors_query("content", ">", "ASC")
_NEIGHBOR_NUMBERS = _neighbors_query("num", "<", "DESC"), _neighbors_query("num", ">", "ASC")
# The messages of a session between the messages `a` and `b`; users, agents and projects are compared in `_ADJACENT`.
_BETWEEN = """
    SELECT 1 FROM entries AS e WHERE e.namespace = a.namespace AND e.session_id = a.session_id
        AND coalesce(e.occurred_at, e.created_at)
            BETWEEN coalesce(a.occurred_at, a.created_at) AND coalesce(b.occurred_at, b.created_at)
        AND (coalesce(e.occurred_at, e.created_at), e.id) > (coalesce(a.occurred_at, a.created_at), a.id)
        AND (coalesce(e.occurred_at, e.created_at), e.id) < (coalesce(b.occurred_at, b.created_at), b.id)
        AND e.kind = 'message' AND e.superseded_by IS NULL
"""
_ADJACENT = Statement(
    sqlite=f"""
    SELECT a.num, b.num FROM json_each(?) AS pair
    JOIN entries AS a ON a.num = json_extract(pair.value, '$[0]')
    JOIN entries AS b ON b.num = json_extract(pair.value, '$[1]')
    WHERE NOT EXISTS ({_BETWEEN} AND e.user_id IS a.user_id AND e.agent_id IS a.agent_id AND e.project IS a.project)
    """,
    postgres=f"""
    SELECT a.num, b.num FROM jsonb_array_elements(%s::jsonb) AS pair (nums)
    JOIN entries AS a ON a.num = (pair.nums ->> 0)::bigint
    JOIN entries AS b ON b.num = (pair.nums ->> 1)::bigint
    WHERE NOT EXISTS ({_BETWEEN} AND e.user_id IS NOT DISTINCT FROM a.user_id
        AND e.agent_id IS NOT DISTINCT FROM a.agent_id AND e.project IS NOT DISTINCT FROM a.project)
    """,
)


def append(connection: Connection, nums: Iterable[int]) -> None:
    """Add a change of each of these entries at the end of the feed, and remove the earlier changes of these entries.
    `nums` has the row numbers of the entries. The newest change gets a new random token. An index stores the token, to
    detect later that the database was replaced by another copy, such as a restored backup."""
    nums = list(nums)
    if not nums:
        return
    last = [*dict.fromkeys(reversed(nums))][::-1]
    connection.run_many(_REMOVE, ((num,) for num in nums))
    connection.run_many(_APPEND, ((num,) for num in last))
    connection.run(_ADD_TOKEN)


def last_seq(connection: Connection) -> int:
    """Return the number `seq` of the newest change, or 0 for an empty store. Raises `StoreDamaged` if the feed's tables
    `changes` and `points` end at different changes, because an index would wait forever for a missing change."""
    row = connection.run(LAST_SEQ).fetchone()
    if row[0] != row[1]:
        raise damage_error("the change feed", "its tables end at different changes")
    return int(row[0] or 0)


def token_at(connection: Connection, seq: int) -> str:
    """Return the random token of the change number `seq`, which `last_seq` has returned, or "" if the change has no
    token. An index with another token has read the feed of another copy of the database, such as the copy before a
    restore."""
    row = connection.run(_TOKEN, [seq]).fetchone()
    return str(row[0]) if row else ""


def entries_since(connection: Connection, seq: int) -> list[int]:
    """Return the row numbers of the entries that changed or were removed after the change `seq`, in order of change."""
    return [row[0] for row in connection.run(_ENTRIES_SINCE, [seq])]


def since(connection: Connection, seq: int, limit: int = -1, *, until: int | None = None) -> list[tuple[int, int]]:
    """Return the changes after the change number `seq`, oldest first: at most `limit` changes (-1 means no limit), and
    only changes up to the number `until`. Each change is a pair of its `seq` and the row number of its entry."""
    last = 2**62 if until is None else until
    return [(row[0], row[1]) for row in connection.run(_SINCE, [seq, last, limit])]


def step(connection: Connection, seq: int, size: int) -> int:
    """Return the number of the last change that an index should read in one step, beginning after `seq`. An index reads
    many changes in steps, so that it needs little memory. A step contains only the changes of complete transactions,
    and at most `size` changes. If the first transaction alone has more changes, the step contains this transaction.
    Return `seq` if there are no later changes."""
    found = connection.run(_END_OF_STEP, [seq, seq + size]).fetchone()[0]
    if found is None:
        found = connection.run(_NEXT_TOKEN, [seq]).fetchone()[0]
    return int(found or seq)


def compact(database: RecordStore, pieces: int) -> None:
    """Delete from the feed, except for its newest `KEPT` changes, the changes of entries that were removed, and all
    tokens but one for each piece. Otherwise both would grow with each entry and each write for ever. At most `pieces`
    pieces of the feed are looked at; each is one transaction.

    An index that has not applied a deleted change would not notice it. So the tokens that remain are new ones, and such
    an index is rebuilt."""
    for _ in range(pieces):
        with database.reading() as connection:
            start, end = int(meta.get_value(connection, _COMPACTED) or 0), last_seq(connection) - KEPT
        if database.read_only or end - start < _PIECE:
            return
        with database.writing() as connection:
            place = start, start + _PIECE
            connection.run(_DROP_REMOVED, place)
            connection.run(_DROP_POINTS, [start, start + _PIECE, start + _PIECE])
            connection.run(_RENEW_POINTS, place)
            meta.set_value(connection, _COMPACTED, str(start + _PIECE))


def neighbor_texts(connection: Connection, entry: MemoryEntry) -> list[str]:
    """Return the contents of the messages that come just before and just after a message of a session. Return an empty
    list for an entry of another kind, and for a superseded message. A superseded message is indexed without neighbors,
    because the feed does not report it as changed when the messages around it change."""
    if entry.superseded_by is not None:
        return []
    return [row[0] for row in _neighbors(connection, entry, _NEIGHBOR_TEXTS)]


def neighbor_numbers(connection: Connection, entries: Iterable[MemoryEntry]) -> list[int]:
    """Return the row numbers of the messages that are neighbors of at least one of these entries, without
    repetition."""
    nums = (row[0] for entry in entries for row in _neighbors(connection, entry, _NEIGHBOR_NUMBERS))
    return list(dict.fromkeys(nums))


def adjacent(connection: Connection, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Select from `pairs` the pairs of messages that directly follow each other, without another message of the session
    between them. A pair contains the row numbers of an earlier and a later message of one session."""
    return [(one, other) for one, other in connection.run(_ADJACENT, [json.dumps(pairs)])]


def _neighbors(connection: Connection, entry: MemoryEntry, queries: Iterable[Statement]) -> list[Any]:
    if entry.kind != "message" or entry.session_id is None:
        return []
    at = to_micros(happened_at(entry))
    session = entry.namespace, entry.session_id, entry.user_id, entry.agent_id, entry.project
    return [row for query in queries for row in connection.run(query, [*session, at, at, entry.id])]
