"""A durable note that files beside the records may still hold what was removed from them."""

from __future__ import annotations

import sqlite3

from agentformer.records import meta
from agentformer.records.ids import new_id

_KEY = "erasure_due"


def note(connection: sqlite3.Connection) -> None:
    """Take the note in the transaction of the removal, so that a crash after it forgets nothing."""
    meta.tell(connection, _KEY, new_id())


def noted(connection: sqlite3.Connection) -> str:
    """The token of the latest note; "" where nothing is due."""
    return meta.told(connection, _KEY)


def done(connection: sqlite3.Connection, token: str) -> None:
    """What was due when `token` was read is done. A later note stays."""
    connection.execute("DELETE FROM meta WHERE key = ? AND value = ?", (_KEY, token))
