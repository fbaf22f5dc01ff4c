"""What a store knows of itself, as texts under keys."""

from __future__ import annotations

import sqlite3

from agentformer.records.integrity import checksums as crc


def told(connection: sqlite3.Connection, key: str) -> str:
    """The value of a key; "" where there is none. Raises `StoreDamaged`."""
    row = connection.execute("SELECT * FROM meta WHERE key = ?", [key]).fetchone()
    return check_fact(row) if row else ""


def tell(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", [key, value, crc.of_text(value, key)])


def check_fact(stored: sqlite3.Row) -> str:
    """The value of a row. Raises `StoreDamaged` where it is not what was written."""
    key, value, checksum = stored["key"], stored["value"], stored["checksum"]
    if checksum is not None and crc.of_text(value, key) != checksum:
        raise crc.damaged("what the store knows of itself")
    return str(value)
