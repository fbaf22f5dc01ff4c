"""Embedding spaces of a store. A space is the set of vectors that one embedding model computes.

Searches and writers use only the active space. A move changes the store to another model: it first fills the building
space, which is the space of the new model. The table `moving` lists the entries that have no vectors in the building
space yet, and every writer adds the entries that it changes. When `moving` is empty, one transaction makes the building
space the active space. The former space is kept until it is pruned.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from agentformer.errors import Conflict, SpaceMismatch
from agentformer.records import meta
from agentformer.records.codec import undecodable
from agentformer.records.integrity import checksums
from agentformer.records.scopes import SEARCHED
from agentformer.types import Connection, EmbeddingSpace, Row, SpaceState, Statement, common

_LAST_SPACE, _WANTED_EMBEDDER = "last_space", "wanted_embedder"  # keys of `meta`
_PRUNE_BATCH = 2_000  # vectors deleted in one transaction, so that no other writer waits long
_INACTIVE = "SELECT id FROM spaces WHERE active = 0 AND building = 0"
ACTIVE_SPACE = common("SELECT id, description, checksum FROM spaces WHERE active = 1")
_BUILDING_SPACE = common("SELECT id, description, checksum FROM spaces WHERE building = 1")
_SPACE = common("SELECT id, description, checksum FROM spaces WHERE id = ?")
_ALL_SPACES = common("SELECT * FROM spaces ORDER BY id")
_OTHER_SPACES = common("SELECT * FROM spaces WHERE active = 0 ORDER BY id DESC")
_HIGHEST_SPACE = common("SELECT coalesce(max(id), 0) FROM spaces")
_ADD_SPACE = common("INSERT INTO spaces (id, description, active, building, checksum) VALUES (?, ?, ?, ?, ?)")
_BEGIN_BUILDING = common("UPDATE spaces SET building = 1 WHERE id = ?")
_END_BUILDING = common("UPDATE spaces SET building = 0 WHERE building = 1")
_DEACTIVATE = common("UPDATE spaces SET active = 0 WHERE active = 1")
_ACTIVATE = common("UPDATE spaces SET active = 1, building = 0 WHERE id = ?")
_END_MOVE = common("DELETE FROM moving")
_MOVE_ALL = Statement(
    sqlite=f"INSERT INTO moving SELECT num, 0, '' FROM entries WHERE {SEARCHED}",
    postgres="INSERT INTO moving (entry_namespace, entry, attempts, last_error) "
    f"SELECT namespace, num, 0, '' FROM entries WHERE {SEARCHED}",
)
_ADD_TO_MOVE = Statement(
    sqlite="INSERT OR REPLACE INTO moving VALUES (?, 0, '')",
    postgres="INSERT INTO moving (entry_namespace, entry, attempts, last_error) "
    "SELECT namespace, num, 0, '' FROM entry_places WHERE num = %s "
    "ON CONFLICT (entry_namespace, entry) DO UPDATE SET attempts = 0, last_error = ''",
)
_MISSING = common("SELECT entry FROM moving WHERE attempts = 0 ORDER BY entry LIMIT ?")
_MISSING_COUNT = common("SELECT count(*) FROM moving")
_MARK_MOVED = common("DELETE FROM moving WHERE entry = ?")
_MARK_REFUSED = common("UPDATE moving SET attempts = attempts + 1, last_error = ? WHERE entry = ?")
_RETRY_REFUSED = common("UPDATE moving SET attempts = 0")
_EMPTY_QUEUE = common("DELETE FROM pending")
_QUEUE_REFUSED = Statement(
    sqlite="INSERT INTO pending SELECT entry, attempts, last_error, 1 FROM moving",
    postgres="INSERT INTO pending (entry_namespace, entry, attempts, last_error, refused) "
    "SELECT entry_namespace, entry, attempts, last_error, 1 FROM moving",
)
_NO_VECTORS = "'the entry has no vectors of this embedder'"
_QUEUE_LACKING = Statement(
    sqlite=f"INSERT OR IGNORE INTO pending SELECT num, 0, {_NO_VECTORS}, 0 FROM entries WHERE {SEARCHED} "
    "AND trim(content) != '' "
    "AND NOT EXISTS (SELECT 1 FROM windows WHERE windows.entry = entries.num AND windows.space = ?)",
    postgres="INSERT INTO pending (entry_namespace, entry, attempts, last_error, refused) "
    f"SELECT namespace, num, 0, {_NO_VECTORS}, 0 FROM entries AS e WHERE {SEARCHED} AND trim(content) != '' "
    "AND NOT EXISTS (SELECT 1 FROM windows AS w WHERE w.entry_namespace = e.namespace AND w.entry = e.num "
    "AND w.space = %s) ON CONFLICT DO NOTHING",
)
_DROP_MOVING_WINDOWS = common("DELETE FROM windows WHERE space = ? AND entry IN (SELECT entry FROM moving)")
# In PostgreSQL, each namespace has its own copy of a vector, all with the same id.
_ALL_VECTORS = Statement(sqlite="SELECT count(*) FROM vectors", postgres="SELECT count(DISTINCT id) FROM vectors")
_VECTORS_OF_SPACE = Statement(
    sqlite="SELECT count(*) FROM vectors WHERE space = ?",
    postgres="SELECT count(DISTINCT id) FROM vectors WHERE space = %s",
)
_INACTIVE_VECTORS = common(f"SELECT id FROM vectors WHERE space IN ({_INACTIVE}) LIMIT ?")
_DROP_WINDOWS = common("DELETE FROM windows WHERE vector = ?")
_DROP_VECTOR = common("DELETE FROM vectors WHERE id = ?")
_DROP_INACTIVE = common(f"DELETE FROM spaces WHERE id IN ({_INACTIVE})")


def active_space(connection: Connection) -> tuple[int, EmbeddingSpace] | None:
    """Return the number and the embedding space that searches use, or None if the store has never had a vector."""
    return _one(connection, ACTIVE_SPACE)


def building_space(connection: Connection) -> tuple[int, EmbeddingSpace] | None:
    """Return the number and the space that a move is filling, or None if there is no move."""
    return _one(connection, _BUILDING_SPACE)


def space_of(connection: Connection, number: int) -> EmbeddingSpace | None:
    """Return the embedding space with this number, or None if this space was deleted."""
    row = connection.run(_SPACE, [number]).fetchone()
    return decode_space(row) if row else None


def claim_space(connection: Connection, space: EmbeddingSpace) -> int:
    """Return the number of the active embedding space of the store. If the store has no active space, `space` becomes
    the active space. Raises `SpaceMismatch` if vectors of the active space and of `space` cannot be compared."""
    active = active_space(connection)
    if active:
        check_same_space(active[1], space)
        return active[0]
    return _insert(connection, space, "active")


def check_same_space(stored: EmbeddingSpace, given: EmbeddingSpace) -> None:
    """Raise `SpaceMismatch` if vectors of the two embedding spaces cannot be compared."""
    if difference := stored.difference(given):
        raise SpaceMismatch(mismatch_message(stored, given, difference))


def mismatch_message(stored: EmbeddingSpace, given: EmbeddingSpace, difference: Literal["swapped", "other"]) -> str:
    """Return why the vectors of two embedding spaces cannot be compared, and what the user can do. `stored` is the
    space of the store, and `given` is the space of the embedder. `difference` is the result of
    `EmbeddingSpace.difference`: `swapped` if models of the same name compute different vectors, and `other` for any
    other difference."""
    if difference == "swapped" or (stored.spec == given.spec and stored.revision and given.revision):
        return (
            f"another model is now installed under the name of {_name(stored)}: its files, or its vector for a fixed "
            f"test text, differ from the former model; restore the former model, or move the store: "
            f"agentformer reembed --to {given.spec}"
        )
    if stored.spec == given.spec:
        return (
            f"the options of the embedder {_name(stored)} differ from the options with which the vectors of this store "
            f"were computed ({_changes(stored, given)}); restore these options, or move the store: "
            f"agentformer reembed --to {given.spec}"
        )
    return (
        f"the vectors of this store were computed with {_name(stored)}, but the embedder is {_name(given)}; use the "
        f"embedder of the store (--embedder {stored.spec}), or move the store: agentformer reembed --to {given.spec}"
    )


def begin_move(connection: Connection, space: EmbeddingSpace) -> int:
    """Start a move of the store to another embedding space, or continue an interrupted move to the same space. Return
    the number of the space. At the start of a new move, every searchable entry is listed as missing in the space.
    Raises `Conflict` if a move to a different space is in progress."""
    building = building_space(connection)
    if building:
        if not building[1].difference(space):
            return building[0]
        abandon, other = "agentformer reembed --abandon", building[1]
        if other.spec == space.spec:
            started = f"a move to a different model with the name {_name(space)} has started"
            raise Conflict(f"{started}; abandon that move first: {abandon}")
        finish = f"finish it (agentformer reembed --to {other.spec}), or abandon it ({abandon})"
        raise Conflict(f"a move to {_name(other)} is in progress; {finish}")
    rows = connection.run(_OTHER_SPACES).fetchall()
    number = next((row["id"] for row in rows if not decode_space(row).difference(space)), None)
    if number is None:
        number = _insert(connection, space, "building")
    else:
        connection.run(_BEGIN_BUILDING, [number])
    connection.run(_END_MOVE)
    connection.run(_MOVE_ALL)
    return int(number)


def add_to_move(connection: Connection, nums: Sequence[int]) -> None:
    """List new or changed entries in the table `moving`. Do nothing if there is no move."""
    if building_space(connection):
        connection.run_many(_ADD_TO_MOVE, ((num,) for num in nums))


def missing_entries(connection: Connection, limit: int) -> list[int]:
    """Return the row numbers, ascending, of at most `limit` entries without vectors in the building space (the space
    that a move fills). Entries that the embedding model refused are not included."""
    rows = connection.run(_MISSING, [limit])
    return [row[0] for row in rows]


def missing_count(connection: Connection) -> int:
    """Return how many entries have no vectors in the building space (the space that a move fills). Entries that the
    embedding model refused are included."""
    return int(connection.run(_MISSING_COUNT).fetchone()[0])


def mark_moved(connection: Connection, nums: Sequence[int]) -> None:
    """Remove entries from the table `moving`, because they now have vectors in the building space (the space that a
    move fills)."""
    connection.run_many(_MARK_MOVED, ((num,) for num in nums))


def mark_refused(connection: Connection, num: int, error: str) -> None:
    """Record the error with which the embedding model refused an entry during a move to another embedding space."""
    connection.run(_MARK_REFUSED, [error, num])


def retry_refused(connection: Connection) -> None:
    """Mark all refused entries of a move as missing again, so that the embedding model receives them once more."""
    connection.run(_RETRY_REFUSED)


def check_building(connection: Connection, number: int) -> None:
    """Raise `Conflict` if the move of the store to the embedding space with this number is no longer in progress."""
    building = building_space(connection)
    if building is None or building[0] != number:
        raise Conflict(
            "this move was abandoned, or another process has completed it; to move the store, start the move again"
        )


def switch(connection: Connection, number: int) -> bool:
    """Complete a move: make the embedding space `number` the active space, which searches use. Also replace the
    embedding queue. The new queue contains the entries that the new model refused and, as a safeguard, all other
    entries without vectors. Return False, and do nothing, if entries are still listed as missing in the space (see
    `missing_entries`). Raises `Conflict` if the move is no longer in progress."""
    check_building(connection, number)
    if missing_entries(connection, 1):
        return False
    connection.run(_DEACTIVATE)
    connection.run(_ACTIVATE, [number])
    connection.run(_EMPTY_QUEUE)
    connection.run(_QUEUE_REFUSED)
    # these windows belong to a former text: they are from an earlier move to this space
    connection.run(_DROP_MOVING_WINDOWS, [number])
    connection.run(_END_MOVE)
    # as a safeguard, queue each entry without vectors, because a vector search could never find it
    connection.run(_QUEUE_LACKING, [number])
    return True


def abandon_move(connection: Connection) -> bool:
    """Stop a move to another embedding space before the move is complete. The vectors that the move has stored are kept
    until they are pruned. Return False if there was no move."""
    connection.run(_END_MOVE)
    return connection.run(_END_BUILDING).rowcount > 0


def all_spaces(connection: Connection) -> list[SpaceState]:
    """Return the state of every embedding space of the store, in order of creation."""
    rows = connection.run(_ALL_SPACES).fetchall()
    states = []
    for row in rows:
        space = decode_space(row)
        state: Literal["active", "building", "kept"] = (
            "active" if row["active"] else "building" if row["building"] else "kept"
        )
        waiting = missing_count(connection) if state == "building" else 0
        # counting a whole table is several times faster
        query, values = (_ALL_VECTORS, []) if len(rows) == 1 else (_VECTORS_OF_SPACE, [row["id"]])
        vectors = int(connection.run(query, values).fetchone()[0])
        states.append(SpaceState(space, state, vectors, vectors * space.dimension * 4, waiting))
    return states


def prune_batch(connection: Connection) -> tuple[int, bool]:
    """Delete a batch of vectors of the embedding spaces that are neither active nor the target of a move. The last
    batch also deletes these spaces. Return how many vectors were deleted, and whether this was the last batch."""
    ids = [(row[0],) for row in connection.run(_INACTIVE_VECTORS, [_PRUNE_BATCH]).fetchall()]
    connection.run_many(_DROP_WINDOWS, ids)
    connection.run_many(_DROP_VECTOR, ids)
    done = len(ids) < _PRUNE_BATCH
    if done:
        connection.run(_DROP_INACTIVE)
    return len(ids), done


def decode_space(row: Row) -> EmbeddingSpace:
    """Return the embedding space that a row describes. The row must have the columns id, description and checksum.
    Raises `StoreDamaged` if the description is damaged."""
    return _decode_space(row["id"], row["description"], row["checksum"])


@lru_cache(maxsize=64)  # each search decodes the active space
def _decode_space(number: int, description: str, checksum: int | None) -> EmbeddingSpace:
    name = "the description of an embedding space"
    if checksum is not None and checksums.of_text(description, number) != checksum:
        raise checksums.damage_error(name)
    try:
        return EmbeddingSpace(**json.loads(description))
    except (TypeError, ValueError) as error:
        raise undecodable(name, error) from error


def wanted_embedder(connection: Connection) -> str:
    """Return the embedder that a user requested for a store without vectors, or "" if none was requested."""
    return meta.get_value(connection, _WANTED_EMBEDDER)


def set_wanted_embedder(connection: Connection, spec: str) -> None:
    """Record the embedder that a user requested, while this embedder is not available. The choice `auto` then does not
    select a different embedder for the store."""
    meta.set_value(connection, _WANTED_EMBEDDER, spec)


def _one(connection: Connection, query: Statement) -> tuple[int, EmbeddingSpace] | None:
    row = connection.run(query).fetchone()
    return (row["id"], decode_space(row)) if row else None


def _insert(connection: Connection, space: EmbeddingSpace, state: Literal["active", "building"]) -> int:
    description = json.dumps(dataclasses.asdict(space))
    # a new number that no space ever had, because an index snapshot may still contain the number of a pruned space
    highest = connection.run(_HIGHEST_SPACE).fetchone()[0]
    number = max(int(meta.get_value(connection, _LAST_SPACE) or 0), int(highest)) + 1
    meta.set_value(connection, _LAST_SPACE, str(number))
    states = int(state == "active"), int(state == "building")
    connection.run(_ADD_SPACE, [number, description, *states, checksums.of_text(description, number)])
    return number


def _name(space: EmbeddingSpace) -> str:
    return f"{space.spec} ({space.dimension} dimensions)"


def _changes(stored: EmbeddingSpace, given: EmbeddingSpace) -> str:
    names = ("dimension", "revision", "query_prefix", "document_prefix", "normalised")
    differing = (name for name in names if getattr(stored, name) != getattr(given, name))
    return ", ".join(f"{name} was {getattr(stored, name)!r}, is {getattr(given, name)!r}" for name in differing)
