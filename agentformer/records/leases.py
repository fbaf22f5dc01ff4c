"""Leases: exclusive rights with an end, among all processes that have the store open."""

from __future__ import annotations

import sqlite3

from agentformer.records.codec import now, to_micros


def take(connection: sqlite3.Connection, name: str, holder: str, seconds: float) -> bool:
    """Take or extend a lease; return False if another holder has it."""
    moment = to_micros(now()) or 0
    row = connection.execute("SELECT * FROM leases WHERE name = ?", [name]).fetchone()
    if row and row["holder"] != holder and _is_running(row["ends_at"], row["micros"], moment):
        return False
    micros = int(seconds * 1_000_000)
    connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", [name, holder, moment + micros, micros])
    return True


def release(connection: sqlite3.Connection, name: str, holder: str) -> None:
    """End a lease of this holder."""
    connection.execute("DELETE FROM leases WHERE name = ? AND holder = ?", [name, holder])


def _is_running(ends_at: int, micros: int, moment: int) -> bool:
    """Return False for a lease that has ended, and for one with more time left than it was given: its clock was set
    back."""
    return 0 < ends_at - moment <= micros
