"""Embedding spaces of a store: the active space, the space that is being built, and former spaces.

Searches and writers use only the active space. A move fills another space. The table `moving` lists the entries that
the new space still lacks, and every writer adds the entries that it changes. When it is empty, one transaction switches
to the new space.
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
    """Return the active space of the store with its number. Return None before the first vector is stored."""
    return _select(connection, "active = 1")


def building_space(connection: sqlite3.Connection) -> tuple[int, EmbeddingSpace] | None:
    """Return the space that a move is filling, with its number. Return None without a move."""
    return _select(connection, "building = 1")


def space_of(connection: sqlite3.Connection, number: int) -> EmbeddingSpace | None:
    """Return the space with this number, or None if the space was pruned."""
    row = connection.execute("SELECT id, description, checksum FROM spaces WHERE id = ?", [number]).fetchone()
    return decode_space(row) if row else None


def claim_space(connection: sqlite3.Connection, space: EmbeddingSpace) -> int:
    """Return the number of `space`, which becomes active in a store without an active space. Raises `SpaceMismatch`."""
    active = active_space(connection)
    if active:
        check_same_space(active[1], space)
        return active[0]
    return _insert(connection, space, "active")


def check_same_space(stored: EmbeddingSpace, given: EmbeddingSpace) -> None:
    """Raise `SpaceMismatch` if vectors of the two spaces cannot be compared."""
    if difference := stored.difference(given):
        raise SpaceMismatch(mismatch_message(stored, given, difference))


def mismatch_message(stored: EmbeddingSpace, given: EmbeddingSpace, difference: Literal["swapped", "other"]) -> str:
    """Return a message with the difference of the two spaces and the possible remedies."""
    if difference == "swapped" or (stored.spec == given.spec and stored.revision and given.revision):
        return (
            f"another model is now installed under the name of {_name(stored)}: its files or its embedding of the "
            f"probe text differ; restore the former model, or move the store: agentformer reembed --to {given.spec}"
        )
    if stored.spec == given.spec:
        return (
            f"{_name(stored)} is used with other options than for this store ({_changes(stored, given)}); "
            f"restore those options, or move the store: agentformer reembed --to {given.spec}"
        )
    return (
        f"this store's vectors are of {_name(stored)}, and the embedder is {_name(given)}; use the store's own "
        f"embedder (--embedder {stored.spec}), or move the store: agentformer reembed --to {given.spec}"
    )


def begin_move(connection: sqlite3.Connection, space: EmbeddingSpace) -> int:
    """Start a move to `space`, or continue an interrupted move. Return the number of the building space. A new move
    lists every searchable entry as missing. Raises `Conflict` while a move to another space is under way."""
    building = building_space(connection)
    if building:
        if not building[1].difference(space):
            return building[0]
        abandon, other = "agentformer reembed --abandon", building[1]
        if other.spec == space.spec:
            started = f"a move to another model of the name {_name(space)} has started"
            raise Conflict(f"{started}; abandon that move first: {abandon}")
        finish = f"finish it (agentformer reembed --to {other.spec}), or abandon it ({abandon})"
        raise Conflict(f"a move to {_name(other)} is under way; {finish}")
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
    """List new or changed entries as missing in the building space. Without a move nothing happens."""
    if building_space(connection):
        connection.executemany("INSERT OR REPLACE INTO moving VALUES (?, 0, '')", ((num,) for num in nums))


def missing_entries(connection: sqlite3.Connection, limit: int) -> list[int]:
    """Return numbers of entries that the building space lacks, in order, without those that its model refused."""
    rows = connection.execute("SELECT entry FROM moving WHERE attempts = 0 ORDER BY entry LIMIT ?", [limit])
    return [row[0] for row in rows]


def missing_count(connection: sqlite3.Connection) -> int:
    """Return the number of entries that the building space lacks, with those that its model refused."""
    return int(connection.execute("SELECT count(*) FROM moving").fetchone()[0])


def mark_moved(connection: sqlite3.Connection, nums: Sequence[int]) -> None:
    """Remove entries from the list of missing entries."""
    connection.executemany("DELETE FROM moving WHERE entry = ?", ((num,) for num in nums))


def mark_refused(connection: sqlite3.Connection, num: int, error: str) -> None:
    """Record that the model of the building space refused an entry."""
    connection.execute("UPDATE moving SET attempts = attempts + 1, last_error = ? WHERE entry = ?", [error, num])


def retry_refused(connection: sqlite3.Connection) -> None:
    """List refused entries as missing again."""
    connection.execute("UPDATE moving SET attempts = 0")


def check_building(connection: sqlite3.Connection, number: int) -> None:
    """Raise `Conflict` if the space with this number is not being built any more."""
    building = building_space(connection)
    if building is None or building[0] != number:
        raise Conflict("another process has abandoned this move; start the move again if it is still wanted")


def switch(connection: sqlite3.Connection, number: int) -> bool:
    """Make the building space the active space. Return False if the space still lacks entries that its model has not
    refused. Raises `Conflict` if the space is not being built any more. The embedding queue then has exactly the
    refused entries, since former entries of the queue waited for the former model."""
    check_building(connection, number)
    if missing_entries(connection, 1):
        return False
    connection.execute("UPDATE spaces SET active = 0 WHERE active = 1")
    connection.execute("UPDATE spaces SET active = 1, building = 0 WHERE id = ?", [number])
    connection.execute("DELETE FROM pending")
    connection.execute("INSERT INTO pending SELECT entry, attempts, last_error, 1 FROM moving")
    # windows of a former text, from an earlier move to this space
    connection.execute("DELETE FROM windows WHERE space = ? AND entry IN (SELECT entry FROM moving)", [number])
    connection.execute("DELETE FROM moving")
    # a safeguard: an entry without vectors is queued, since a search by vectors could never find it
    connection.execute(
        "INSERT OR IGNORE INTO pending SELECT num, 0, 'it has no vectors in this space', 0 FROM entries "
        f"WHERE {SEARCHED} AND trim(content) != '' "
        "AND NOT EXISTS (SELECT 1 FROM windows WHERE windows.entry = entries.num AND windows.space = ?)",
        [number],
    )
    return True


def abandon_move(connection: sqlite3.Connection) -> bool:
    """Abandon a move. Its vectors are kept until they are pruned. Return False if no move was under way."""
    connection.execute("DELETE FROM moving")
    return connection.execute("UPDATE spaces SET building = 0 WHERE building = 1").rowcount > 0


def all_spaces(connection: sqlite3.Connection) -> list[SpaceState]:
    """Return the state of every space with vectors, in order of creation."""
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
    """Delete some vectors of kept spaces, and the kept spaces after their last vector. Return the number of deleted
    vectors, and whether all were deleted."""
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
    """Return the space of a row with id, description and checksum. Raises `StoreDamaged`."""
    return _decode_space(row["id"], row["description"], row["checksum"])


@lru_cache(maxsize=64)  # each search decodes the active space
def _decode_space(number: int, description: str, checksum: int | None) -> EmbeddingSpace:
    what = "the description of an embedding space"
    if checksum is not None and checksums.of_text(description, number) != checksum:
        raise checksums.damage_error(what)
    try:
        return EmbeddingSpace(**json.loads(description))
    except (TypeError, ValueError) as error:
        raise undecodable(what, error) from error


def wanted_embedder(connection: sqlite3.Connection) -> str:
    """Return the embedder that was requested for a store without vectors, or "" if none was requested."""
    return meta.get_value(connection, _WANTED_EMBEDDER)


def set_wanted_embedder(connection: sqlite3.Connection, spec: str) -> None:
    """Record the requested embedder while it is not available, so that `auto` does not choose another one."""
    meta.set_value(connection, _WANTED_EMBEDDER, spec)


def _select(connection: sqlite3.Connection, condition: str) -> tuple[int, EmbeddingSpace] | None:
    row = connection.execute(f"SELECT id, description, checksum FROM spaces WHERE {condition}").fetchone()
    return (row["id"], decode_space(row)) if row else None


def _insert(connection: sqlite3.Connection, space: EmbeddingSpace, state: Literal["active", "building"]) -> int:
    description = json.dumps(dataclasses.asdict(space))
    # a number that no space ever had: index snapshots refer to a space by its number, even after it was pruned
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
