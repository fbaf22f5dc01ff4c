"""Embedding spaces of a store: the active one, the one that is being built, and those kept from before.

Searches and writers know only the active space. A move fills another one beside it: `moving` lists the entries that
it still lacks, every writer adds what it changes, and the switch is one transaction once nothing is left there.
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
from agentformer.records.integrity import checksums as crc
from agentformer.types import UNSEARCHED_KINDS, EmbeddingSpace, SpaceState

_LAST_SPACE, _WANTED_EMBEDDER = "last_space", "wanted_embedder"  # keys of `meta`
_PRUNED = 2_000  # vectors deleted in one transaction, so that no other writer waits long


def active_space(connection: sqlite3.Connection) -> tuple[int, EmbeddingSpace] | None:
    """The space that the store's vectors are in, with its number; None before the first vector."""
    return _one(connection, "active = 1")


def building_space(connection: sqlite3.Connection) -> tuple[int, EmbeddingSpace] | None:
    """The space that a move is filling."""
    return _one(connection, "building = 1")


def space_of(connection: sqlite3.Connection, number: int) -> EmbeddingSpace | None:
    """The space of this number, as long as it was not pruned."""
    row = connection.execute("SELECT id, description, checksum FROM spaces WHERE id = ?", [number]).fetchone()
    return described(row) if row else None


def claim_space(connection: sqlite3.Connection, space: EmbeddingSpace) -> int:
    """The number of `space`, which becomes the store's if it has none. Raises `SpaceMismatch`."""
    known = active_space(connection)
    if known:
        check_same(known[1], space)
        return known[0]
    return _insert(connection, space, "active")


def check_same(stored: EmbeddingSpace, given: EmbeddingSpace) -> None:
    """Raises `SpaceMismatch` unless vectors of both may be compared."""
    if difference := stored.difference(given):
        raise SpaceMismatch(mismatch(stored, given, difference))


def mismatch(stored: EmbeddingSpace, given: EmbeddingSpace, difference: Literal["swapped", "other"]) -> str:
    """What is wrong, and the ways on."""
    if difference == "swapped" or (stored.spec == given.spec and stored.revision and given.revision):
        return (
            f"another model is now installed under the name of {_name(stored)}: its files, or what it makes of the "
            f"probe text, differ; put the former one back, or move the store: agentformer reembed --to {given.spec}"
        )
    if stored.spec == given.spec:
        return (
            f"{_name(stored)} is used in another way than for this store ({_changes(stored, given)}); "
            f"go back to that, or move the store: agentformer reembed --to {given.spec}"
        )
    return (
        f"this store's vectors are of {_name(stored)}, and the embedder is {_name(given)}; use the store's own "
        f"embedder (--embedder {stored.spec}), or move the store: agentformer reembed --to {given.spec}"
    )


def begin_move(connection: sqlite3.Connection, space: EmbeddingSpace) -> int:
    """The number of the building space, with every searched entry listed as lacking; where a move to `space` was begun
    before, it goes on. Raises `Conflict` while a move to another space is under way."""
    under_way = building_space(connection)
    if under_way:
        if not under_way[1].difference(space):
            return under_way[0]
        if under_way[1].spec == space.spec:
            raise Conflict(
                f"a move to another model of the name {_name(space)} was begun; give that up first: "
                "agentformer reembed --abandon"
            )
        raise Conflict(
            f"a move to {_name(under_way[1])} is under way; finish it (agentformer reembed --to "
            f"{under_way[1].spec}), or give it up (agentformer reembed --abandon)"
        )
    rows = connection.execute("SELECT * FROM spaces WHERE active = 0 ORDER BY id DESC").fetchall()
    kept = next((row["id"] for row in rows if not described(row).difference(space)), None)
    if kept is None:
        kept = _insert(connection, space, "building")
    else:
        connection.execute("UPDATE spaces SET building = 1 WHERE id = ?", [kept])
    connection.execute("DELETE FROM moving")
    marks = ", ".join("?" * len(UNSEARCHED_KINDS))
    connection.execute(
        f"INSERT INTO moving SELECT num, 0, '' FROM entries WHERE kind NOT IN ({marks})", sorted(UNSEARCHED_KINDS)
    )
    return int(kept)


def changed_while_moving(connection: sqlite3.Connection, nums: Sequence[int]) -> None:
    """Entries of these numbers are new or have another text: a building space lacks them. Nothing without a move."""
    if building_space(connection):
        connection.executemany("INSERT OR REPLACE INTO moving VALUES (?, 0, '')", ((num,) for num in nums))


def lacking(connection: sqlite3.Connection, limit: int) -> list[int]:
    """Numbers of entries that the building space lacks and that were not refused, in order."""
    rows = connection.execute("SELECT entry FROM moving WHERE attempts = 0 ORDER BY entry LIMIT ?", [limit])
    return [row[0] for row in rows]


def lacking_count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM moving").fetchone()[0])


def moved(connection: sqlite3.Connection, nums: Sequence[int]) -> None:
    """The building space has these entries."""
    connection.executemany("DELETE FROM moving WHERE entry = ?", ((num,) for num in nums))


def refused(connection: sqlite3.Connection, num: int, error: str) -> None:
    """The model of the building space does not take this entry."""
    connection.execute("UPDATE moving SET attempts = attempts + 1, last_error = ? WHERE entry = ?", [error, num])


def try_again(connection: sqlite3.Connection) -> None:
    """What was refused in an earlier run is tried for once more."""
    connection.execute("UPDATE moving SET attempts = 0")


def check_building(connection: sqlite3.Connection, number: int) -> None:
    """Raises `Conflict` unless the space of this number is still being built."""
    under_way = building_space(connection)
    if under_way is None or under_way[0] != number:
        raise Conflict("this move was given up by another process meanwhile; begin it again if it is wanted")


def switch(connection: sqlite3.Connection, number: int) -> bool:
    """Make the building space the active one; False when it lacks entries that were not tried for. Those that its
    model refuses wait in the queue from then on, and those that waited for the former model do not. Raises `Conflict`
    when it is not being built any more."""
    check_building(connection, number)
    if lacking(connection, 1):
        return False
    connection.execute("UPDATE spaces SET active = 0 WHERE active = 1")
    connection.execute("UPDATE spaces SET active = 1, building = 0 WHERE id = ?", [number])
    connection.execute("DELETE FROM pending")
    connection.execute("INSERT INTO pending SELECT entry, attempts, last_error, 1 FROM moving")
    connection.execute(  # windows of a former text, of when the space was filled before
        "DELETE FROM windows WHERE space = ? AND entry IN (SELECT entry FROM moving)", [number]
    )
    connection.execute("DELETE FROM moving")
    marks = ", ".join("?" * len(UNSEARCHED_KINDS))
    connection.execute(  # none, unless something went wrong: then it is embedded again instead of not being found
        "INSERT OR IGNORE INTO pending SELECT num, 0, 'it has no vectors in this space', 0 FROM entries "
        f"WHERE kind NOT IN ({marks}) AND trim(content) != '' "
        "AND NOT EXISTS (SELECT 1 FROM windows WHERE windows.entry = entries.num AND windows.space = ?)",
        [*sorted(UNSEARCHED_KINDS), number],
    )
    return True


def abandon_move(connection: sqlite3.Connection) -> bool:
    """Give a move up; what it made is kept until it is pruned. False when none was under way."""
    connection.execute("DELETE FROM moving")
    return connection.execute("UPDATE spaces SET building = 0 WHERE building = 1").rowcount > 0


def all_spaces(connection: sqlite3.Connection) -> list[SpaceState]:
    """Every space that the store has vectors of, in order of their making."""
    rows = connection.execute("SELECT * FROM spaces ORDER BY id").fetchall()
    states = []
    for row in rows:
        space = described(row)
        state: Literal["active", "building", "kept"] = (
            "active" if row["active"] else "building" if row["building"] else "kept"
        )
        waiting = lacking_count(connection) if state == "building" else 0
        vectors = _vectors(connection, row["id"], alone=len(rows) == 1)
        states.append(SpaceState(space, state, vectors, vectors * space.dimension * 4, waiting))
    return states


def _vectors(connection: sqlite3.Connection, space: int, *, alone: bool) -> int:
    """How many vectors there are of a space. Of one that is alone all are, and a whole table is counted several times
    faster."""
    if alone:
        found = connection.execute("SELECT count(*) FROM vectors")
    else:
        found = connection.execute("SELECT count(*) FROM vectors WHERE space = ?", [space])
    return int(found.fetchone()[0])


def prune_some(connection: sqlite3.Connection) -> tuple[int, bool]:
    """Delete some vectors of kept spaces, and the spaces that hold none any more. Returns how many vectors went, and
    whether that was all."""
    kept = "SELECT id FROM spaces WHERE active = 0 AND building = 0"
    rows = connection.execute(f"SELECT id FROM vectors WHERE space IN ({kept}) LIMIT ?", [_PRUNED]).fetchall()
    doomed = [(row[0],) for row in rows]
    connection.executemany("DELETE FROM windows WHERE vector = ?", doomed)
    connection.executemany("DELETE FROM vectors WHERE id = ?", doomed)
    done = len(doomed) < _PRUNED
    if done:
        connection.execute(f"DELETE FROM spaces WHERE id IN ({kept})")
    return len(doomed), done


def _one(connection: sqlite3.Connection, condition: str) -> tuple[int, EmbeddingSpace] | None:
    row = connection.execute(f"SELECT id, description, checksum FROM spaces WHERE {condition}").fetchone()
    return (row["id"], described(row)) if row else None


def described(stored: sqlite3.Row) -> EmbeddingSpace:
    """The space of a row with id, description and checksum. Raises `StoreDamaged`."""
    return _space(stored["id"], stored["description"], stored["checksum"])


@lru_cache(maxsize=64)
def _space(number: int, description: str, checksum: int | None) -> EmbeddingSpace:
    """Each search asks for its store's space."""
    what = "the description of an embedding space"
    if checksum is not None and crc.of_text(description, number) != checksum:
        raise crc.damaged(what)
    try:
        return EmbeddingSpace(**json.loads(description))
    except (TypeError, ValueError) as error:
        raise undecodable(what, error) from error


def _insert(connection: sqlite3.Connection, space: EmbeddingSpace, state: Literal["active", "building"]) -> int:
    description = json.dumps(dataclasses.asdict(space))
    number = _fresh_number(connection)
    connection.execute(
        "INSERT INTO spaces (id, description, active, building, checksum) VALUES (?, ?, ?, ?, ?)",
        [number, description, state == "active", state == "building", crc.of_text(description, number)],
    )
    return number


def _fresh_number(connection: sqlite3.Connection) -> int:
    """A number that no space ever had: indexes and snapshots know a space by it, also after it was pruned."""
    highest = connection.execute("SELECT coalesce(max(id), 0) FROM spaces").fetchone()[0]
    number = max(int(meta.told(connection, _LAST_SPACE) or 0), int(highest)) + 1
    meta.tell(connection, _LAST_SPACE, str(number))
    return number


def _name(space: EmbeddingSpace) -> str:
    return f"{space.spec} ({space.dimension} dimensions)"


def wanted_embedder(connection: sqlite3.Connection) -> str:
    """The embedder that a store without vectors was to be embedded with; "" where nobody named one."""
    return meta.told(connection, _WANTED_EMBEDDER)


def want_embedder(connection: sqlite3.Connection, spec: str) -> None:
    """Remember which embedder was asked for while it could not be had, so that no other takes its place unasked."""
    meta.tell(connection, _WANTED_EMBEDDER, spec)


def _changes(stored: EmbeddingSpace, given: EmbeddingSpace) -> str:
    names = ("dimension", "revision", "query_prefix", "document_prefix", "normalised")
    differing = (name for name in names if getattr(stored, name) != getattr(given, name))
    return ", ".join(f"{name} {getattr(stored, name)!r} was, {getattr(given, name)!r} is" for name in differing)
