"""Embedding spaces of a store. A space is the set of vectors that one embedding model computes.

Searches and writers use only the active space. A move changes the store to another model: it first fills the building
space, which is the space of the new model. The table `moving` lists the entries that have no vectors in the building
space yet, and every writer adds the entries that it changes. When `moving` is empty, one transaction makes the building
space the active space. The former space is kept until it is pruned.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from agentformer.errors import Conflict, SpaceMismatch
from agentformer.records import meta
from agentformer.records.codec import undecodable
from agentformer.records.integrity import checksums
from agentformer.records.scopes import SEARCHED
from agentformer.types import EmbeddingSpace, SpaceState

_LAST_SPACE, _WANTED_EMBEDDER = "last_space", "wanted_embedder"  # keys of `meta`
_PRUNE_BATCH = 2_000  # vectors deleted in one transaction, so that no other writer waits long


def active_space(connection: sqlite3.Connection) -> tuple[int, EmbeddingSpace] | None:
    """Return the number and the embedding space that searches use, or None if the store has never had a vector."""
    return _select(connection, "active = 1")


def building_space(connection: sqlite3.Connection) -> tuple[int, EmbeddingSpace] | None:
    """Return the number and the space that a move is filling, or None if there is no move."""
    return _select(connection, "building = 1")


def space_of(connection: sqlite3.Connection, number: int) -> EmbeddingSpace | None:
    """Return the embedding space with this number, or None if this space was deleted."""
    row = connection.execute("SELECT id, description, checksum FROM spaces WHERE id = ?", [number]).fetchone()
    return decode_space(row) if row else None


def claim_space(connection: sqlite3.Connection, space: EmbeddingSpace) -> int:
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


def begin_move(connection: sqlite3.Connection, space: EmbeddingSpace) -> int:
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
    rows = connection.execute("SELECT * FROM spaces WHERE active = 0 ORDER BY id DESC").fetchall()
    number = next((row["id"] for row in rows if not decode_space(row).difference(space)), None)
    if number is None:
        number = _insert(connection, space, "building")
    else:
        connection.execute("UPDATE spaces SET building = 1 WHERE id = ?", [number])
    connection.execute("DELETE FROM moving")
    connection.execute(f"INSERT INTO moving SELECT num, 0, '' FROM entries WHERE {SEARCHED}")
    return int(number)


def add_to_move(connection: sqlite3.Connection, nums: Sequence[int]) -> None:
    """List new or changed entries in the table `moving`. Do nothing if there is no move."""
    if building_space(connection):
        connection.executemany("INSERT OR REPLACE INTO moving VALUES (?, 0, '')", ((num,) for num in nums))


def missing_entries(connection: sqlite3.Connection, limit: int) -> list[int]:
    """Return the row numbers, ascending, of at most `limit` entries without vectors in the building space (the space
    that a move fills). Entries that the embedding model refused are not included."""
    rows = connection.execute("SELECT entry FROM moving WHERE attempts = 0 ORDER BY entry LIMIT ?", [limit])
    return [row[0] for row in rows]


def missing_count(connection: sqlite3.Connection) -> int:
    """Return how many entries have no vectors in the building space (the space that a move fills). Entries that the
    embedding model refused are included."""
    return int(connection.execute("SELECT count(*) FROM moving").fetchone()[0])


def mark_moved(connection: sqlite3.Connection, nums: Sequence[int]) -> None:
    """Remove entries from the table `moving`, because they now have vectors in the building space (the space that a
    move fills)."""
    connection.executemany("DELETE FROM moving WHERE entry = ?", ((num,) for num in nums))


def mark_refused(connection: sqlite3.Connection, num: int, error: str) -> None:
    """Record the error with which the embedding model refused an entry during a move to another embedding space."""
    connection.execute("UPDATE moving SET attempts = attempts + 1, last_error = ? WHERE entry = ?", [error, num])


def retry_refused(connection: sqlite3.Connection) -> None:
    """Mark all refused entries of a move as missing again, so that the embedding model receives them once more."""
    connection.execute("UPDATE moving SET attempts = 0")


def check_building(connection: sqlite3.Connection, number: int) -> None:
    """Raise `Conflict` if the move of the store to the embedding space with this number is no longer in progress."""
    building = building_space(connection)
    if building is None or building[0] != number:
        raise Conflict(
            "this move was abandoned, or another process has completed it; to move the store, start the move again"
        )


def switch(connection: sqlite3.Connection, number: int) -> bool:
    """Complete a move: make the embedding space `number` the active space, which searches use. Also replace the
    embedding queue. The new queue contains the entries that the new model refused and, as a safeguard, all other
    entries without vectors. Return False, and do nothing, if entries are still listed as missing in the space (see
    `missing_entries`). Raises `Conflict` if the move is no longer in progress."""
    check_building(connection, number)
    if missing_entries(connection, 1):
        return False
    connection.execute("UPDATE spaces SET active = 0 WHERE active = 1")
    connection.execute("UPDATE spaces SET active = 1, building = 0 WHERE id = ?", [number])
    connection.execute("DELETE FROM pending")
    connection.execute("INSERT INTO pending SELECT entry, attempts, last_error, 1 FROM moving")
    # these windows belong to a former text: they are from an earlier move to this space
    connection.execute("DELETE FROM windows WHERE space = ? AND entry IN (SELECT entry FROM moving)", [number])
    connection.execute("DELETE FROM moving")
    # as a safeguard, queue each entry without vectors, because a vector search could never find it
    connection.execute(
        "INSERT OR IGNORE INTO pending SELECT num, 0, 'the entry has no vectors of this embedder', 0 FROM entries "
        f"WHERE {SEARCHED} AND trim(content) != '' "
        "AND NOT EXISTS (SELECT 1 FROM windows WHERE windows.entry = entries.num AND windows.space = ?)",
        [number],
    )
    return True


def abandon_move(connection: sqlite3.Connection) -> bool:
    """Stop a move to another embedding space before the move is complete. The vectors that the move has stored are kept
    until they are pruned. Return False if there was no move."""
    connection.execute("DELETE FROM moving")
    return connection.execute("UPDATE spaces SET building = 0 WHERE building = 1").rowcount > 0


def all_spaces(connection: sqlite3.Connection) -> list[SpaceState]:
    """Return the state of every embedding space of the store, in order of creation."""
    rows = connection.execute("SELECT * FROM spaces ORDER BY id").fetchall()
    states = []
    for row in rows:
        space = decode_space(row)
        state: Literal["active", "building", "kept"] = (
            "active" if row["active"] else "building" if row["building"] else "kept"
        )
        waiting = missing_count(connection) if state == "building" else 0
        if len(rows) == 1:  # counting a whole table is several times faster
            query, values = "SELECT count(*) FROM vectors", []
        else:
            query, values = "SELECT count(*) FROM vectors WHERE space = ?", [row["id"]]
        vectors = int(connection.execute(query, values).fetchone()[0])
        states.append(SpaceState(space, state, vectors, vectors * space.dimension * 4, waiting))
    return states


def prune_batch(connection: sqlite3.Connection) -> tuple[int, bool]:
    """Delete a batch of vectors of the embedding spaces that are neither active nor the target of a move. The last
    batch also deletes these spaces. Return how many vectors were deleted, and whether this was the last batch."""
    inactive = "SELECT id FROM spaces WHERE active = 0 AND building = 0"
    rows = connection.execute(f"SELECT id FROM vectors WHERE space IN ({inactive}) LIMIT ?", [_PRUNE_BATCH]).fetchall()
    ids = [(row[0],) for row in rows]
    connection.executemany("DELETE FROM windows WHERE vector = ?", ids)
    connection.executemany("DELETE FROM vectors WHERE id = ?", ids)
    done = len(ids) < _PRUNE_BATCH
    if done:
        connection.execute(f"DELETE FROM spaces WHERE id IN ({inactive})")
    return len(ids), done


def decode_space(row: sqlite3.Row) -> EmbeddingSpace:
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


def wanted_embedder(connection: sqlite3.Connection) -> str:
    """Return the embedder that a user requested for a store without vectors, or "" if none was requested."""
    return meta.get_value(connection, _WANTED_EMBEDDER)


def set_wanted_embedder(connection: sqlite3.Connection, spec: str) -> None:
    """Record the embedder that a user requested, while this embedder is not available. The choice `auto` then does not
    select a different embedder for the store."""
    meta.set_value(connection, _WANTED_EMBEDDER, spec)


def _select(connection: sqlite3.Connection, condition: str) -> tuple[int, EmbeddingSpace] | None:
    row = connection.execute(f"SELECT id, description, checksum FROM spaces WHERE {condition}").fetchone()
    return (row["id"], decode_space(row)) if row else None


def _insert(connection: sqlite3.Connection, space: EmbeddingSpace, state: Literal["active", "building"]) -> int:
    description = json.dumps(dataclasses.asdict(space))
    # a new number that no space ever had, because an index snapshot may still contain the number of a pruned space
    highest = connection.execute("SELECT coalesce(max(id), 0) FROM spaces").fetchone()[0]
    number = max(int(meta.get_value(connection, _LAST_SPACE) or 0), int(highest)) + 1
    meta.set_value(connection, _LAST_SPACE, str(number))
    connection.execute(
        "INSERT INTO spaces (id, description, active, building, checksum) VALUES (?, ?, ?, ?, ?)",
        [number, description, state == "active", state == "building", checksums.of_text(description, number)],
    )
    return number


def _name(space: EmbeddingSpace) -> str:
    return f"{space.spec} ({space.dimension} dimensions)"


def _changes(stored: EmbeddingSpace, given: EmbeddingSpace) -> str:
    names = ("dimension", "revision", "query_prefix", "document_prefix", "normalised")
    differing = (name for name in names if getattr(stored, name) != getattr(given, name))
    return ", ".join(f"{name} was {getattr(stored, name)!r}, is {getattr(given, name)!r}" for name in differing)
