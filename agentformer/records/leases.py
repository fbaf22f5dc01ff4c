"""Leases: who may do a thing now, among all processes that have the store open."""

from __future__ import annotations

import sqlite3

from agentformer.records.codec import now, to_micros


def take(connection: sqlite3.Connection, name: str, holder: str, seconds: float) -> bool:
    """Take or prolong a lease; False when another holder has it."""
    moment = to_micros(now()) or 0
    row = connection.execute("SELECT * FROM leases WHERE name = ?", [name]).fetchone()
    if row and row["holder"] != holder and _runs(row["ends_at"], row["micros"], moment):
        return False
    micros = int(seconds * 1_000_000)
    connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", [name, holder, moment + micros, micros])
    return True


def give_up(connection: sqlite3.Connection, name: str, holder: str) -> None:
    connection.execute("DELETE FROM leases WHERE name = ? AND holder = ?", [name, holder])


def _runs(ends_at: int, micros: int, moment: int) -> bool:
    """A lease with more time left than it was ever given is of a clock that has since been set back."""
    return 0 < ends_at - moment <= micros
