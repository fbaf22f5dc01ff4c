"""Key-value pairs that describe the store, and leases. Each pair has a checksum.

A lease is an exclusive right with an end time. It is valid among all processes that have the store open.
"""

from __future__ import annotations

import sqlite3

from agentformer.records.codec import now, to_micros
from agentformer.records.integrity import checksums
from agentformer.types import new_id

_SECURE_DELETE = "erasure_due"


def get_value(connection: sqlite3.Connection, key: str) -> str:
    """Return the value of a key, or "" if the key is not set. Raises `StoreDamaged`."""
    row = connection.execute("SELECT * FROM meta WHERE key = ?", [key]).fetchone()
    return check_value(row) if row else ""


def set_value(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", [key, value, checksums.of_text(value, key)])


def check_value(row: sqlite3.Row) -> str:
    """Return the value of a row. Raises `StoreDamaged` if its checksum differs."""
    key, value, checksum = row["key"], row["value"], row["checksum"]
    if checksum is not None and checksums.of_text(value, key) != checksum:
        raise checksums.damage_error("the store's metadata")
    return str(value)


def request_secure_delete(connection: sqlite3.Connection) -> None:
    """Record that index files may still contain the text that this transaction removes. A crash after the commit keeps
    the request."""
    set_value(connection, _SECURE_DELETE, new_id())


def secure_delete_request(connection: sqlite3.Connection) -> str:
    """Return the token of the latest request, or "" if no request is open."""
    return get_value(connection, _SECURE_DELETE)


def finish_secure_delete(connection: sqlite3.Connection, token: str) -> None:
    """Close the request that has this token. A later request stays open."""
    connection.execute("DELETE FROM meta WHERE key = ? AND value = ?", (_SECURE_DELETE, token))


def take_lease(connection: sqlite3.Connection, name: str, holder: str, seconds: float) -> bool:
    """Take or extend a lease. Return False if another holder has the lease."""
    moment = to_micros(now()) or 0
    row = connection.execute("SELECT * FROM leases WHERE name = ?", [name]).fetchone()
    # a lease that has more time left than it was given is not valid, because the clock was set back
    if row and row["holder"] != holder and 0 < row["ends_at"] - moment <= row["micros"]:
        return False
    micros = int(seconds * 1_000_000)
    connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", [name, holder, moment + micros, micros])
    return True


def release_lease(connection: sqlite3.Connection, name: str, holder: str) -> None:
    """End a lease that this holder has."""
    connection.execute("DELETE FROM leases WHERE name = ? AND holder = ?", [name, holder])
