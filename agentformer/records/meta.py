"""Key-value pairs that describe the store itself, each with a checksum."""

from __future__ import annotations

import sqlite3

from agentformer.records.integrity import checksums
from agentformer.types import new_id

_SECURE_DELETE = "erasure_due"


def get_value(connection: sqlite3.Connection, key: str) -> str:
    """Return the value of a key; "" if it is not set. Raises `StoreDamaged`."""
    row = connection.execute("SELECT * FROM meta WHERE key = ?", [key]).fetchone()
    return check_value(row) if row else ""


def set_value(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Store a value under a key."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", [key, value, checksums.of_text(value, key)])


def check_value(row: sqlite3.Row) -> str:
    """Return the value of a row. Raises `StoreDamaged` if its checksum differs."""
    key, value, checksum = row["key"], row["value"], row["checksum"]
    if checksum is not None and checksums.of_text(value, key) != checksum:
        raise checksums.damage_error("the store's metadata")
    return str(value)


def request_secure_delete(connection: sqlite3.Connection) -> None:
    """Record, in the transaction of a removal, that other files may still hold the removed text: a crash after the
    commit does not lose the request."""
    set_value(connection, _SECURE_DELETE, new_id())


def secure_delete_request(connection: sqlite3.Connection) -> str:
    """Return the token of the latest request; "" if none is open."""
    return get_value(connection, _SECURE_DELETE)


def finish_secure_delete(connection: sqlite3.Connection, token: str) -> None:
    """Close the request with this token. A later request stays open."""
    connection.execute("DELETE FROM meta WHERE key = ? AND value = ?", (_SECURE_DELETE, token))
