"""Mends what the checks of windows and vectors have found: what is wrong is deleted, and its entries wait for the
embedder again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence

from agentformer.records import change_feed
from agentformer.records.database import Database
from agentformer.records.integrity import Findings
from agentformer.records.spaces import add_to_move
from agentformer.records.vectors import put_pending
from agentformer.types import UNSEARCHED_KINDS

_GROUP = 256  # changed in one transaction, so that no other writer waits long
_WHY = "its vectors were damaged"
_QUEUED = "embedded again, or waiting for the embedder"


def vectors(database: Database, found: Findings) -> None:
    """Damaged vectors go, and the entries that had them wait for new ones."""
    numbers = [damaged.num for damaged in found.keys if damaged.last == damaged.num]
    for group in _groups(numbers):
        given = json.dumps(group)
        with database.writing() as connection:
            rows = connection.execute(
                "SELECT DISTINCT entry FROM windows WHERE vector IN (SELECT value FROM json_each(?))", [given]
            )
            _queue(connection, [row[0] for row in rows])
            connection.execute("DELETE FROM windows WHERE vector IN (SELECT value FROM json_each(?))", [given])
            connection.execute("DELETE FROM vectors WHERE id IN (SELECT value FROM json_each(?))", [given])
    found.mark_repaired(len(numbers), f"deleted; their texts are {_QUEUED}")


def windows(database: Database, found: Findings) -> None:
    """Entries with wrong windows wait for new ones; windows that belong nowhere go."""
    for group in _groups(found.keys):
        with database.writing() as connection:
            present = _queue(connection, group)
            gone = sorted(set(group) - set(present))
            connection.executemany("DELETE FROM windows WHERE entry = ?", ((num,) for num in gone))
            connection.execute("DELETE FROM windows WHERE space NOT IN (SELECT id FROM spaces)")
    found.mark_repaired(len(found.keys), f"they are {_QUEUED}")


def _queue(connection: sqlite3.Connection, nums: Sequence[int]) -> list[int]:
    """Have those of these entries embedded anew that are there and searched; returns those that are there."""
    rows = connection.execute(
        "SELECT num, kind FROM entries WHERE num IN (SELECT value FROM json_each(?))", [json.dumps(list(nums))]
    ).fetchall()
    searched = [row["num"] for row in rows if row["kind"] not in UNSEARCHED_KINDS]
    put_pending(connection, searched, _WHY)
    add_to_move(connection, searched)
    change_feed.append(connection, searched)
    return [row["num"] for row in rows]


def _groups(numbers: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(numbers), _GROUP):
        yield list(numbers[start : start + _GROUP])
